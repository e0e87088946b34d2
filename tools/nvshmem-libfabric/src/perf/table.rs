//! Figures in the layout of NVSHMEM's perftests: columns for people, and lines for programs.

use std::fmt;
use std::str::FromStr;

use nvshmem_sim::BoxError;
use serde::Serialize;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Test {
    PutBandwidth,
    GetBandwidth,
    PutLatency,
    GetLatency,
    PutRate,
}

impl Test {
    pub(super) const ALL: [Test; 5] =
        [Test::PutBandwidth, Test::GetBandwidth, Test::PutLatency, Test::GetLatency, Test::PutRate];

    pub(super) fn name(self) -> &'static str {
        match self {
            Test::PutBandwidth => "put_bw",
            Test::GetBandwidth => "get_bw",
            Test::PutLatency => "put_latency",
            Test::GetLatency => "get_latency",
            Test::PutRate => "put_message_rate",
        }
    }

    /// Head of the column, name of the metric, its unit, and whether more is better.
    fn column(self) -> (&'static str, &'static str, &'static str, char) {
        match self {
            Test::PutBandwidth | Test::GetBandwidth => ("BW (GB/sec)", "BW", "GB/sec", '+'),
            Test::PutLatency | Test::GetLatency => ("latency (us)", "latency", "us", '-'),
            Test::PutRate => ("rate (Mops/sec)", "rate", "Mops/sec", '+'),
        }
    }
}

/// One row: a test at one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Row {
    pub(super) test: Test,
    /// Bytes of each operation.
    pub(super) size: u64,
    /// In the test's unit.
    pub(super) value: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.test.name(), self.size, self.value)
    }
}

impl FromStr for Row {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self, BoxError> {
        let mut words = text.split(' ');
        let mut next = || words.next().ok_or_else(|| format!("a row is missing a word: {text:?}"));
        let name = next()?;
        let test = Test::ALL.into_iter().find(|test| test.name() == name);
        Ok(Row {
            test: test.ok_or_else(|| format!("no test is named {name:?}"))?,
            size: next()?.parse()?,
            value: next()?.parse()?,
        })
    }
}

pub(super) fn print_tables(rows: &[Row]) {
    for test in Test::ALL {
        println!("\n#{}", test.name());
        println!("{:<16}{:<10}{}", "size(B)", "scope", test.column().0);
        for row in rows.iter().filter(|row| row.test == test) {
            println!("{:<16}{:<10}{:.6}", row.size, "host", row.value);
        }
    }
}

pub(super) fn print_machine_readable(rows: &[Row]) {
    println!();
    for Row { test, size, value } in rows {
        let (_, metric, unit, better) = test.column();
        let name = test.name();
        println!("&&&& PERF {name}___host___size__{size}___{metric} {value:.6} {better}{unit}");
    }
}

/// A row for programs.
#[derive(Debug, Serialize)]
pub(super) struct Figure {
    test: &'static str,
    bytes: u64,
    value: f64,
    unit: &'static str,
    more_is_better: bool,
}

impl From<&Row> for Figure {
    fn from(Row { test, size, value }: &Row) -> Self {
        let (_, _, unit, better) = test.column();
        let (test, bytes, value) = (test.name(), *size, *value);
        Self { test, bytes, value, unit, more_is_better: better == '+' }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive_the_trip_from_pe_to_launcher() -> Result<(), BoxError> {
        for test in Test::ALL {
            let row = Row { test, size: 4096, value: 1.25 };
            assert_eq!(row.to_string().parse::<Row>()?, row);
        }
        assert!("put_bw 8".parse::<Row>().is_err());
        assert!("tub_pw 8 1".parse::<Row>().is_err());
        Ok(())
    }
}
