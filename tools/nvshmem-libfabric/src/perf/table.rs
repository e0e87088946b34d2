//! Figures in the layout of NVSHMEM's perftests: columns for people, and lines for programs.

use nvshmem_bench::{Row, Test};
use serde::Serialize;

/// Rounds of which the fast ones are more than this much faster than the slow ones have been
/// disturbed.
const UNEVEN: f64 = 2.0;

/// Head of the column, name of the metric, its unit, and whether more is better.
fn column(test: Test) -> (&'static str, &'static str, &'static str, char) {
    match test {
        Test::PutBandwidth | Test::GetBandwidth => ("BW (GB/sec)", "BW", "GB/sec", '+'),
        Test::PutLatency | Test::GetLatency => ("latency (us)", "latency", "us", '-'),
        Test::PutRate => ("rate (Mops/sec)", "rate", "Mops/sec", '+'),
    }
}

/// What is to be said of rows whose rounds differ so much that something else ran beside them.
pub(super) fn uneven(rows: &[Row]) -> Option<String> {
    let uneven = rows.iter().filter(|row| row.spread.1 > UNEVEN * row.spread.0).count();
    (uneven > 0).then(|| {
        format!(
            "{uneven} of {} rows differ by more than a factor of two from round to round: other programs are busy here, \
             and these figures are as much theirs",
            rows.len()
        )
    })
}

pub(super) fn print_tables(rows: &[Row]) {
    for test in Test::ALL {
        println!("\n#{}", test.name());
        println!("{:<16}{:<10}{}", "size(B)", "scope", column(test).0);
        for row in rows.iter().filter(|row| row.test == test) {
            println!("{:<16}{:<10}{:.6}", row.size, "host", row.value);
        }
    }
}

pub(super) fn print_machine_readable(rows: &[Row]) {
    println!();
    for Row { test, size, value, .. } in rows {
        let (_, metric, unit, better) = column(*test);
        let name = test.name();
        println!("&&&& PERF {name}___host___size__{size}___{metric} {value:.6} {better}{unit}");
    }
}

/// A row for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    test: &'static str,
    bytes: u64,
    value: f64,
    /// What a tenth of the rounds is below, and a tenth above.
    p10: f64,
    p90: f64,
    unit: &'static str,
    more_is_better: bool,
}

impl From<&Row> for Figure {
    fn from(&Row { test, size: bytes, value, spread: (p10, p90) }: &Row) -> Self {
        let (_, _, unit, better) = column(test);
        Self { test: test.name(), bytes, value, p10, p90, unit, more_is_better: better == '+' }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_rows_are_counted() {
        let row = |spread| Row { test: Test::PutRate, size: 8, value: 1.0, spread };
        let even = row((0.9, 1.1));
        assert_eq!(uneven(&[even]), None);
        let said = uneven(&[even, row((0.9, 1.9)), row((0.5, 1.0))]).unwrap();
        assert!(said.starts_with("1 of 3 rows"), "{said}");
    }
}
