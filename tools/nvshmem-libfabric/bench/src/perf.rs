//! Puts and gets of every size through the plugin alone, on any provider: what `perf` shows.

use std::path::Path;
use std::time::Duration;

use nvshmem_sim::{BoxError, JobReport, JobSettings, Layout};
use serde::{Deserialize, Serialize};

use crate::plan::{ALLOWANCE, Case, Op, Plan, Side, run};
use crate::rounds::{Schedule, Spread};

/// Most operations under way in the tests of bandwidth and rate; fewer for large ones, so that no
/// more than this many bytes are.
const WINDOW: u64 = 64;
const WINDOW_BYTES: u64 = 16 << 20;

/// Time of a round, about. Each row has at least so many of them, however little time it has.
const ROUND: Duration = Duration::from_millis(12);
const LEAST_ROUNDS: u32 = 4;

#[derive(Clone, Copy, Debug)]
enum Metric {
    Bandwidth,
    /// Until delivery.
    Latency,
    Rate,
}

/// All tests, in the style of NVSHMEM's perftests and in the order in which they are shown.
const TESTS: [(&str, Metric, Op); 7] = [
    ("put_bw", Metric::Bandwidth, Op::Put),
    ("get_bw", Metric::Bandwidth, Op::Get),
    ("put_latency", Metric::Latency, Op::Put),
    ("get_latency", Metric::Latency, Op::Get),
    ("put_signal_latency", Metric::Latency, Op::PutSignal),
    ("put_message_rate", Metric::Rate, Op::Put),
    ("put_signal_message_rate", Metric::Rate, Op::PutSignal),
];

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Figure {
    pub test: String,
    pub bytes: u64,
    /// The median of all rounds, in the test's unit.
    pub value: f64,
    pub p10: f64,
    pub p90: f64,
    pub unit: String,
    pub more_is_better: bool,
}

impl Metric {
    fn unit(self) -> &'static str {
        match self {
            Self::Bandwidth => "GB/sec",
            Self::Latency => "us",
            Self::Rate => "Mops/sec",
        }
    }

    fn sizes(self, most: u64) -> Vec<u64> {
        let (most, factor) = match self {
            Self::Bandwidth => (most, 2),
            Self::Latency => (most.min(64 << 10), 4),
            Self::Rate => (most.min(64), 8),
        };
        let sizes = std::iter::successors(Some(8), |size| Some(size * factor));
        sizes.take_while(|size| *size <= most).collect()
    }

    fn value(self, bytes: u64, seconds: f64) -> f64 {
        match self {
            Self::Bandwidth => bytes as f64 / seconds / 1e9,
            Self::Latency => seconds * 1e6,
            Self::Rate => 1e-6 / seconds,
        }
    }

    fn figure(self, test: &str, bytes: u64, seconds: &[f64]) -> Result<Figure, BoxError> {
        let Spread { median, p10, p90 } = Spread::of(seconds).ok_or("a case has no rounds")?;
        let [value, one, other] = [median, p10, p90].map(|seconds| self.value(bytes, seconds));
        let (test, unit) = (test.to_owned(), self.unit().to_owned());
        let more_is_better = !matches!(self, Self::Latency);
        Ok(Figure {
            test,
            bytes,
            value,
            p10: one.min(other),
            p90: one.max(other),
            unit,
            more_is_better,
        })
    }
}

/// Measures all tests up to `most` bytes between two PEs, for about `time` each row, in a job as
/// `made` makes it: where the PEs are, on what memory, with which settings besides what the
/// environment has.
pub fn measure_by_size(
    most: u64,
    layout: Layout,
    plugin_dir: &Path,
    time: Duration,
    made: &dyn Fn(JobSettings) -> JobSettings,
) -> Result<(JobReport, Vec<Figure>), BoxError> {
    let rounds = (time.as_millis() / ROUND.as_millis()).try_into().unwrap_or(u32::MAX);
    let rounds = LEAST_ROUNDS.max(rounds);
    let rows = rows(most);
    let cases: Vec<Case> = rows.iter().map(|(.., case)| case.clone()).collect();
    // Each case begins with rounds that find out how long one is.
    let allowed = ALLOWANCE + 10 * time * cases.len() as u32;
    let schedule = Some(Schedule { rounds, least: time / rounds });
    let plan = Plan { cases, schedule, raw: None, chunks: 1, is_controlled: false };
    let (report, measured) = run(made(plan.job(layout, plugin_dir)?), allowed)?;
    let rows = rows.iter().zip(measured);
    let figures =
        rows.map(|((test, metric, case), rounds)| metric.figure(test, case.bytes, &rounds[0]));
    Ok((report, figures.collect::<Result<_, _>>()?))
}

fn rows(most: u64) -> Vec<(&'static str, Metric, Case)> {
    let rows = TESTS.iter().flat_map(|&(test, metric, op)| {
        metric.sizes(most).into_iter().map(move |bytes| {
            let most = (WINDOW_BYTES / bytes).clamp(1, WINDOW);
            let window = if matches!(metric, Metric::Latency) { 1 } else { most };
            (test, metric, Case { op, bytes, window, sides: vec![Side::Plugin] })
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_end_at_the_largest() {
        // 20 sizes of bandwidth for puts and gets, 7 of latency and two of rate.
        assert_eq!([rows(4 << 20).len(), rows(8).len()], [2 * 20 + 3 * 7 + 2 * 2, 7]);
    }
}
