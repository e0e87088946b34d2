//! The verdict on a row: whether it is right, and if it is, whether it is as fast as it could be.

use std::collections::BTreeSet;

use nvshmem_bench::{Row as Figure, Test};
use nvshmem_sim::JobReport;
use serde::Serialize;

use super::rows::{On, Rails};
use crate::probe::{Choice, Rail};

/// How a row has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub(super) enum Verdict {
    /// Right, and nothing is known that would make it faster. What is worth knowing, if anything.
    Ok { note: String },
    /// Right, and slower than it could be.
    Slow { why: String },
    /// Wrong, or it did not end.
    Failed { why: String, remedy: String },
    /// Not tried, or not in the way that the row is about.
    Skipped { why: String },
}

impl Verdict {
    pub(super) fn ok(note: impl Into<String>) -> Self {
        Self::Ok { note: note.into() }
    }

    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped { why: why.into() }
    }

    /// One word.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Ok { .. } => "ok",
            Self::Slow { .. } => "slow",
            Self::Failed { .. } => "FAILED",
            Self::Skipped { .. } => "skipped",
        }
    }

    /// What is to be said beside it; empty where nothing is.
    pub(super) fn reason(&self) -> &str {
        match self {
            Self::Ok { note } => note,
            Self::Slow { why } | Self::Failed { why, .. } | Self::Skipped { why } => why,
        }
    }
}

/// What is known of hosts and provider before any row.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) provider: String,
    /// The rails that a job would have on this host.
    pub(super) rails: Vec<Rail>,
    /// Whether the provider reaches GPU memory by itself on every host.
    pub(super) reaches_gpus: bool,
    /// Why no rows are on GPU memory.
    pub(super) no_gpus: Option<String>,
    /// How many hosts; one is this host alone.
    pub(super) hosts: usize,
}

/// Of the rate of the links, and of that of one rail times the rails, what must be reached.
const ENOUGH: f64 = 0.7;

/// What rows have shown that later ones are judged by.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Warnings that have been told.
    warnings: BTreeSet<String>,
    /// GB/s of long puts: on one rail, on all that rows were measured on last, and staged.
    one_rail: Option<f64>,
    rails: Option<f64>,
    staged: Option<f64>,
}

/// Seconds of a row that keeps rails busy, about, and its rounds at least.
const BUSY: f64 = 5.0;
const LEAST_ROUNDS: u64 = 10;

impl Seen {
    /// How many rounds of so many bytes keep the rails busy for some seconds.
    pub(super) fn rounds(&self, bytes: u64, most: u64) -> u64 {
        let rounds = self.rails.map_or(0.0, |rate| BUSY * rate * 1e9 / bytes as f64);
        (rounds as u64).clamp(LEAST_ROUNDS, most)
    }
}

impl Facts {
    pub(super) fn new(
        provider: &str,
        choices: &[&Choice],
        no_gpus: Option<String>,
        hosts: usize,
    ) -> Self {
        let rails = choices.first().map(|choice| choice.rails.clone()).unwrap_or_default();
        let reaches_gpus = !choices.is_empty() && choices.iter().all(|choice| choice.reaches_gpus);
        Self { provider: provider.to_owned(), rails, reaches_gpus, no_gpus, hosts }
    }

    /// Why a row is not tried.
    pub(super) fn refuses(&self, on: On, rails: Option<Rails>) -> Option<String> {
        match (on, &self.no_gpus) {
            (On::Gpu | On::Staged | On::Direct, Some(why)) => return Some(why.clone()),
            (On::Direct, None) if !self.reaches_gpus => {
                return Some(format!("{} does not reach GPU memory by itself here", self.provider));
            }
            _ => {}
        }
        (on == On::Host && rails == Some(Rails::All) && self.rails.len() < 2)
            .then(|| String::from("there is one rail: see one-rail"))
    }

    /// Judges traffic that was right, by what its PEs have logged.
    pub(super) fn of_traffic(
        &self,
        on: On,
        signals: Option<&str>,
        report: &JobReport,
        seen: &mut Seen,
    ) -> Verdict {
        let lines = || report.pes.iter().flat_map(|pe| &pe.output).map(|(_, line)| line.as_str());
        const STAGED: &str = "memory of devices is staged: ";
        const COUNTED: &str = "nothing is counted: ";
        let agreed = lines().find_map(|line| line.split_once("signal engine ")?.1.split_once("; "));
        if let (Some("counted"), Some((_, agreed))) = (signals, agreed) {
            if agreed.contains(COUNTED) {
                return Verdict::skipped(agreed);
            }
        }
        let staged = lines().find_map(|line| Some(line.split_once(STAGED)?.1));
        match (on, staged) {
            (On::Gpu, Some(why)) if self.reaches_gpus => {
                return Verdict::Slow { why: format!("staged: {why}") };
            }
            (On::Direct, Some(why)) => return Verdict::skipped(format!("staged: {why}")),
            _ => {}
        }
        let warnings = lines().filter_map(|line| Some(line.split_once(" NVSHMEM WARN ")?.1));
        let fresh = warnings.filter(|warning| seen.warnings.insert((*warning).to_owned()));
        // All are taken note of; one stands for them here.
        match fresh.collect::<Vec<_>>().first() {
            Some(warning) => Verdict::Slow { why: format!("warned: {warning}") },
            None => Verdict::ok(match (on, staged) {
                (On::Gpu, Some(why)) => format!("staged: {why}"),
                (On::Gpu, None) => String::from("by NICs themselves"),
                _ => String::new(),
            }),
        }
    }

    /// Judges figures.
    pub(super) fn of_figures(
        &self,
        on: On,
        rails: Rails,
        figures: &[Figure],
        seen: &mut Seen,
    ) -> Verdict {
        let of = |test| figures.iter().filter(move |row| row.test == test);
        let most = |test| of(test).map(|row| row.value).fold(0.0, f64::max);
        let smallest = |test| of(test).min_by_key(|row| row.size).map_or(0.0, |row| row.value);
        let put = most(Test::PutBandwidth);
        let said = format!(
            "put {put:.2} GB/s, get {:.2} GB/s; 8 bytes: put {:.1} us, get {:.1} us, {:.2} million puts/s",
            most(Test::GetBandwidth),
            smallest(Test::PutLatency),
            smallest(Test::GetLatency),
            smallest(Test::PutRate),
        );
        let used =
            if rails == Rails::One { &self.rails[..self.rails.len().min(1)] } else { &self.rails };
        let links: Option<u32> = used.iter().map(|rail| rail.link_speed).sum();
        let links = links.filter(|speed| *speed > 0).map(|mbit| f64::from(mbit) / 8e3);
        let slow = match (on, rails) {
            (On::Host, Rails::All) => seen.one_rail.and_then(|one| {
                let count = self.rails.len();
                (put < ENOUGH * one * count as f64).then(|| {
                    format!(
                        "{count} rails carry {:.1} times what one does{}",
                        put / one,
                        self.between()
                    )
                })
            }),
            (On::Direct, _) => seen.staged.filter(|staged| *staged > put).map(|staged| {
                format!(
                    "staged is faster, at {staged:.2} GB/s (NVSHMEM_LIBFABRIC_GPU_DIRECT=never)"
                )
            }),
            _ => None,
        };
        let slow = slow.or_else(|| {
            let links = links.filter(|links| on != On::Staged && put < ENOUGH * links)?;
            Some(format!("the link(s) have {links:.2} GB/s{}", self.between()))
        });
        if on == On::Host {
            seen.rails = Some(put);
        }
        match (on, rails) {
            (On::Host, Rails::One) => seen.one_rail = Some(put),
            (On::Staged, _) => seen.staged = Some(put),
            _ => {}
        }
        match slow {
            Some(why) => Verdict::Slow { why: format!("{said}; {why}") },
            None => Verdict::ok(said),
        }
    }

    /// What two PEs of one host say little of.
    fn between(&self) -> &'static str {
        match self.hosts {
            0 | 1 => ", between PEs of this host; --hosts says more",
            _ => "; docs/tuning.md says where to look",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nvshmem_sim::{Outcome, PeReport, Stream};

    use super::*;

    fn facts(rails: usize, link_speed: Option<u32>, reaches_gpus: bool) -> Facts {
        let rail = Rail {
            name: String::from("a"),
            fabric: String::new(),
            pci: None,
            link_speed,
            threads: 0,
        };
        let choice = Choice { rails: vec![rail; rails], reaches_gpus, ..Choice::default() };
        Facts::new("efa", &[&choice], None, 2)
    }

    fn report(lines: &[&str]) -> JobReport {
        let output = lines.iter().map(|line| (Stream::Err, String::from(*line))).collect();
        let pe = PeReport { pe: 0, outcome: Outcome::Finished, output, values: Vec::new() };
        JobReport {
            pes: vec![pe],
            first_failure: None,
            cause: None,
            leftovers: Vec::new(),
            elapsed: Duration::ZERO,
        }
    }

    fn put(value: f64) -> Vec<Figure> {
        vec![Figure { test: Test::PutBandwidth, size: 1 << 20, value, spread: (value, value) }]
    }

    #[test]
    fn what_was_not_done_in_the_way_of_the_row_is_skipped() {
        let facts = facts(2, None, true);
        let mut seen = Seen::default();
        let log = report(&[
            "x NVSHMEM INFO signal engine Counted; some PE's rails carry no immediate data, so nothing is counted: chained in its place",
        ]);
        let verdict = facts.of_traffic(On::Host, Some("counted"), &log, &mut seen);
        assert!(
            verdict.name() == "skipped" && verdict.reason().starts_with("some PE's"),
            "{verdict:?}"
        );
        assert_eq!(facts.of_traffic(On::Host, Some("eager"), &log, &mut seen), Verdict::ok(""));
        let staged = report(&["x NVSHMEM INFO memory of devices is staged: too far"]);
        assert_eq!(facts.of_traffic(On::Direct, None, &staged, &mut seen).name(), "skipped");
        assert_eq!(facts.of_traffic(On::Gpu, None, &staged, &mut seen).name(), "slow");
        assert_eq!(facts.of_traffic(On::Staged, None, &staged, &mut seen), Verdict::ok(""));
    }

    #[test]
    fn a_warning_is_told_once() {
        let facts = facts(1, None, false);
        let mut seen = Seen::default();
        let warns = report(&["h:1:2 NVSHMEM WARN this machine has NICs of efa"]);
        let verdict = facts.of_traffic(On::Host, None, &warns, &mut seen);
        assert_eq!(
            verdict,
            Verdict::Slow { why: String::from("warned: this machine has NICs of efa") }
        );
        assert_eq!(facts.of_traffic(On::Host, None, &warns, &mut seen), Verdict::ok(""));
    }

    #[test]
    fn figures_are_held_against_links_against_one_rail_and_against_staging() {
        let facts = facts(4, Some(100_000), true);
        let mut seen = Seen::default();
        let of = |on, rails, value, seen: &mut Seen| facts.of_figures(on, rails, &put(value), seen);
        let verdict = of(On::Host, Rails::One, 5.0, &mut seen);
        assert!(verdict.name() == "slow" && verdict.reason().contains("12.50 GB/s"), "{verdict:?}");
        assert_eq!(of(On::Host, Rails::One, 12.0, &mut seen).name(), "ok");
        let verdict = of(On::Host, Rails::All, 13.0, &mut seen);
        assert!(verdict.reason().contains("4 rails carry 1.1 times"), "{verdict:?}");
        assert_eq!(of(On::Host, Rails::All, 46.0, &mut seen).name(), "ok");
        assert_eq!(
            [1 << 20, 1 << 50].map(|bytes| seen.rounds(bytes, 1_000)),
            [1_000, LEAST_ROUNDS]
        );
        assert_eq!(seen.rounds(460_000_000, 1_000), 500);
        assert_eq!(of(On::Staged, Rails::All, 47.0, &mut seen).name(), "ok");
        assert!(of(On::Direct, Rails::All, 46.0, &mut seen).reason().contains("staged is faster"));
        assert_eq!(of(On::Direct, Rails::All, 48.0, &mut seen).name(), "ok");
    }

    #[test]
    fn rows_that_have_nothing_to_try_say_why() {
        let one = facts(1, None, false);
        assert!(
            one.refuses(On::Host, Some(Rails::All)).is_some_and(|why| why.contains("one rail"))
        );
        assert_eq!(one.refuses(On::Host, Some(Rails::One)), None);
        assert_eq!(one.refuses(On::Staged, Some(Rails::All)), None);
        assert!(
            one.refuses(On::Direct, None).is_some_and(|why| why.contains("efa does not reach"))
        );
        let without = Facts { no_gpus: Some(String::from("no GPU")), ..facts(2, None, true) };
        assert_eq!(without.refuses(On::Gpu, None).as_deref(), Some("no GPU"));
        assert_eq!(without.refuses(On::Host, Some(Rails::All)), None);
    }
}
