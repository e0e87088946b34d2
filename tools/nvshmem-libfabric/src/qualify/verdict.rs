//! The verdict on a row: whether it is right, and if it is, whether it is as fast as it could be.

use std::collections::BTreeSet;

use nvshmem_bench::{Row as Figure, Test};
use nvshmem_sim::JobReport;
use serde::Serialize;

use self::Verdict::{Ok, Skipped, Slow};
use super::rows::{On, Rails};
use crate::probe::Rail;

/// How a row has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Verdict {
    /// Right, and nothing is known that would make it faster.
    Ok,
    /// Right, and slower than it could be.
    Slow,
    /// Wrong, or it did not end.
    Failed,
    /// Not tried, or not in the way that the row is about.
    Skipped,
}

impl Verdict {
    /// One word.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Slow => "slow",
            Self::Failed => "FAILED",
            Self::Skipped => "skipped",
        }
    }
}

/// A verdict, and what is to be said beside it; empty where nothing is.
pub(super) type Judged = (Verdict, String);

/// What is known of hosts and provider before any row.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) provider: String,
    /// The rails that a job would have on this host.
    pub(super) rails: Vec<Rail>,
    /// Whether the provider reaches GPU memory by itself on every host.
    pub(super) reaches_gpus: bool,
    /// How many GPUs each host has at least.
    pub(super) gpus: usize,
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
    /// Why a row is not tried.
    pub(super) fn refuses(&self, on: On, rails: Option<Rails>) -> Option<String> {
        match on {
            On::Host if rails == Some(Rails::All) && self.rails.len() < 2 => {
                Some(String::from("there is one rail: see one-rail"))
            }
            On::Gpu | On::Staged | On::Direct if self.gpus == 0 => {
                Some(String::from("CUDA's driver shows no GPU here, or not on each host"))
            }
            On::Direct if !self.reaches_gpus => {
                Some(format!("{} does not reach GPU memory by itself here", self.provider))
            }
            _ => None,
        }
    }

    /// Judges traffic that was right, by what its PEs have logged.
    pub(super) fn of_traffic(
        &self,
        on: On,
        signals: Option<&str>,
        report: &JobReport,
        seen: &mut Seen,
    ) -> Judged {
        let lines = || report.pes.iter().flat_map(|pe| &pe.output).map(|(_, line)| line.as_str());
        let behind = |text| lines().find_map(|line| Some(line.split_once(text)?.1));
        let agreed = behind("signal engine ").and_then(|agreed| Some(agreed.split_once("; ")?.1));
        let uncounted = agreed.filter(|agreed| agreed.contains("nothing is counted: "));
        if let (Some("counted"), Some(why)) = (signals, uncounted) {
            return (Skipped, why.to_owned());
        }
        let staged = behind("memory of devices is staged: ").map(|why| format!("staged: {why}"));
        match (on, &staged) {
            (On::Gpu, Some(why)) if self.reaches_gpus => return (Slow, why.clone()),
            (On::Direct, Some(why)) => return (Skipped, why.clone()),
            _ => {}
        }
        let warnings = lines().filter_map(|line| Some(line.split_once(" NVSHMEM WARN ")?.1));
        let fresh = warnings.filter(|warning| seen.warnings.insert((*warning).to_owned()));
        // All are taken note of; one stands for them here.
        if let Some(warning) = fresh.collect::<Vec<_>>().first() {
            return (Slow, format!("warned: {warning}"));
        }
        let by_nics = || String::from("by NICs themselves");
        (Ok, if on == On::Gpu { staged.unwrap_or_else(by_nics) } else { String::new() })
    }

    /// Judges figures.
    pub(super) fn of_figures(
        &self,
        on: On,
        rails: Rails,
        figures: &[Figure],
        seen: &mut Seen,
    ) -> Judged {
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
        let all = self.rails.len();
        let used = if rails == Rails::One { all.min(1) } else { all };
        let links: Option<u32> = self.rails[..used].iter().map(|rail| rail.link_speed).sum();
        let links = links.map(|mbit| f64::from(mbit) / 8e3);
        let slow = match (on, rails, seen.one_rail, seen.staged, links) {
            (On::Host, Rails::All, Some(one), ..) if put < ENOUGH * one * all as f64 => {
                Some(format!("{all} rails carry {:.1} times what one does", put / one))
            }
            (On::Direct, _, _, Some(staged), _) if staged > put => Some(format!(
                "staged is faster, at {staged:.2} GB/s (NVSHMEM_LIBFABRIC_GPU_DIRECT=never)"
            )),
            (On::Host | On::Gpu | On::Direct, .., Some(links)) if put < ENOUGH * links => {
                Some(format!("the link(s) have {links:.2} GB/s"))
            }
            _ => None,
        };
        match (on, rails) {
            (On::Host, Rails::One) => (seen.one_rail, seen.rails) = (Some(put), Some(put)),
            (On::Host, Rails::All) => seen.rails = Some(put),
            (On::Staged, _) => seen.staged = Some(put),
            _ => {}
        }
        let between = match self.hosts {
            1 => ", between PEs of this host; --hosts says more",
            _ => "; docs/tuning.md says where to look",
        };
        match slow {
            Some(why) => (Slow, format!("{said}; {why}{between}")),
            None => (Ok, said),
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
        let provider = String::from("efa");
        Facts { provider, rails: vec![rail; rails], reaches_gpus, gpus: 1, hosts: 2 }
    }

    fn report(line: &str) -> JobReport {
        let output = vec![(Stream::Err, format!("h:1:2 NVSHMEM {line}"))];
        let pe = PeReport { pe: 0, outcome: Outcome::Finished, output, values: Vec::new() };
        JobReport {
            pes: vec![pe],
            first_failure: None,
            cause: None,
            leftovers: Vec::new(),
            elapsed: Duration::ZERO,
        }
    }

    #[test]
    fn traffic_is_judged_by_what_its_pes_have_logged() {
        let (facts, mut seen) = (facts(2, None, true), Seen::default());
        let mut is = |on, signals, line, verdict, reason: &str| {
            let judged = facts.of_traffic(on, signals, &report(line), &mut seen);
            assert!(judged.0 == verdict && judged.1.starts_with(reason), "{judged:?}");
        };
        let uncounted = "INFO signal engine Counted; some PE's rails carry no immediate data, so nothing is counted: chained in its place";
        is(On::Host, Some("counted"), uncounted, Skipped, "some PE's rails");
        is(On::Host, Some("eager"), uncounted, Ok, "");
        let staged = "INFO memory of devices is staged: too far";
        is(On::Direct, None, staged, Skipped, "staged: too far");
        is(On::Gpu, None, staged, Slow, "staged: too far");
        is(On::Staged, None, staged, Ok, "");
        // A warning is told once.
        is(On::Host, None, "WARN odd", Slow, "warned: odd");
        is(On::Host, None, "WARN odd", Ok, "");
    }

    #[test]
    fn figures_are_held_against_links_against_one_rail_and_against_staging() {
        let (facts, mut seen) = (facts(4, Some(100_000), true), Seen::default());
        let is = |on, rails, value, slow: &str, seen: &mut Seen| {
            let put = Figure { test: Test::PutBandwidth, size: 1, value, spread: (value, value) };
            let judged = facts.of_figures(on, rails, &[put], seen);
            let verdict = if slow.is_empty() { Ok } else { Slow };
            assert!(judged.0 == verdict && judged.1.contains(slow), "{judged:?}");
        };
        is(On::Host, Rails::One, 5.0, "12.50 GB/s", &mut seen);
        is(On::Host, Rails::One, 12.0, "", &mut seen);
        is(On::Host, Rails::All, 13.0, "4 rails carry 1.1 times", &mut seen);
        is(On::Host, Rails::All, 46.0, "", &mut seen);
        let rounds = [1 << 20, 460_000_000, 1 << 50].map(|bytes| seen.rounds(bytes, 1_000));
        assert_eq!(rounds, [1_000, 500, LEAST_ROUNDS]);
        is(On::Staged, Rails::All, 47.0, "", &mut seen);
        is(On::Direct, Rails::All, 46.0, "staged is faster", &mut seen);
        is(On::Direct, Rails::All, 48.0, "", &mut seen);
    }

    #[test]
    fn rows_that_have_nothing_to_try_say_why() {
        let one = facts(1, None, false);
        let refuses =
            |on, rails, why: &str| one.refuses(on, rails).is_some_and(|w| w.contains(why));
        assert!(refuses(On::Host, Some(Rails::All), "one rail"));
        assert!(refuses(On::Direct, None, "efa does not reach"));
        assert_eq!(one.refuses(On::Host, Some(Rails::One)), None);
        assert_eq!(one.refuses(On::Staged, Some(Rails::All)), None);
        let without = Facts { gpus: 0, ..facts(2, None, true) };
        assert!(without.refuses(On::Gpu, None).is_some_and(|why| why.contains("no GPU")));
        assert_eq!(without.refuses(On::Host, Some(Rails::All)), None);
    }
}
