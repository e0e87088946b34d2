//! Figures in the layout of NVSHMEM's perftests: columns for people, and lines for programs.

use nvshmem_bench::{Row, Test, unfit};
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

/// What most people look for: the most bandwidth, the least latency, the most messages.
pub(super) fn headline(rows: &[Row]) -> String {
    let best = |tests: [Test; 2]| {
        let of = tests.into_iter().filter_map(|test| {
            let of = || rows.iter().filter(move |row| row.test == test);
            let value = |row: &&Row| row.value;
            let by = |a: &&Row, b: &&Row| value(a).total_cmp(&value(b));
            let row = if column(test).3 == '+' { of().max_by(by) } else { of().min_by(by) };
            row.map(|Row { test, size, value, .. }| {
                let (_, _, unit, _) = column(*test);
                let name = test.name().split('_').next().unwrap_or_default();
                format!("{name} {} {unit} ({})", number(*value), bytes(*size))
            })
        });
        of.collect::<Vec<_>>()
    };
    let rates = rows.iter().filter(|row| row.test == Test::PutRate);
    let rate = rates.map(|row| row.value).max_by(f64::total_cmp);
    let rate = rate.map(|rate| format!("{} million puts a second", number(rate)));
    let bandwidth = best([Test::PutBandwidth, Test::GetBandwidth]);
    let latency = best([Test::PutLatency, Test::GetLatency]);
    bandwidth.into_iter().chain(latency).chain(rate).collect::<Vec<_>>().join(", ")
}

/// Bytes in the largest unit that they are a multiple of.
fn bytes(bytes: u64) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// A number with few digits.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size if size >= 0.01 => 3,
        _ => 6,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// What is to be said of figures that are as much other programs': of what took the processors, and
/// of rows whose rounds differ.
pub(super) fn warnings(rows: &[Row], busy: Option<&str>) -> Vec<String> {
    let mut warnings: Vec<String> = busy.map(unfit).into_iter().collect();
    let uneven = rows.iter().filter(|row| row.spread.1 > UNEVEN * row.spread.0).count();
    if uneven > 0 {
        warnings.push(format!(
            "{uneven} of {} rows differ by more than a factor of two from round to round",
            rows.len()
        ));
    }
    warnings
}

pub(super) fn print_tables(rows: &[Row]) {
    for test in Test::ALL {
        println!("\n#{}", test.name());
        println!(
            "{:<12}{:<8}{:<18}{}",
            "size(B)",
            "scope",
            column(test).0,
            "p10..p90 of the rounds"
        );
        for Row { size, value, spread: (p10, p90), .. } in
            rows.iter().filter(|row| row.test == test)
        {
            println!("{size:<12}{:<8}{value:<18.6}{p10:.6}..{p90:.6}", "host");
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
    fn uneven_rows_and_a_busy_machine_are_told() {
        let row = |spread| Row { test: Test::PutRate, size: 8, value: 1.0, spread };
        let even = row((0.9, 1.1));
        assert!(warnings(&[even], None).is_empty());
        let said = warnings(&[even, row((0.9, 1.9)), row((0.5, 1.0))], Some("others"));
        assert!(said.len() == 2 && said[0].starts_with("others "), "{said:?}");
        assert!(said[1].starts_with("1 of 3 rows"), "{said:?}");
    }

    #[test]
    fn the_headline_has_the_best_of_each_kind() {
        let row = |test, size, value| Row { test, size, value, spread: (value, value) };
        let rows = [
            row(Test::PutBandwidth, 8, 0.5),
            row(Test::PutBandwidth, 4 << 20, 12.0),
            row(Test::PutLatency, 8, 2.5),
            row(Test::PutLatency, 64, 3.5),
            row(Test::PutRate, 8, 1.25),
        ];
        let expected = "put 12 GB/sec (4 MiB), put 2.5 us (8 B), 1.25 million puts a second";
        assert_eq!(headline(&rows), expected);
    }
}
