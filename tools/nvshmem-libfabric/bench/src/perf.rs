//! Puts and gets of every size through the plugin alone, on any provider: what `perf` shows.

use std::path::Path;
use std::time::Duration;

use nvshmem_sim::{BoxError, JobReport, JobSettings, Layout};

use crate::plan::{ALLOWANCE, Case, Op, Plan, Side, run};
use crate::rounds::{Rounds, Schedule, Spread};

/// Most operations under way in the tests of bandwidth and rate; fewer for large ones, so that no
/// more than this many bytes are.
const WINDOW: u64 = 64;
const WINDOW_BYTES: u64 = 16 << 20;

const RATE_SIZES: [u64; 2] = [8, 64];

const MAX_LATENCY: u64 = 64 << 10;

/// About what a round takes. Each row has at least so many of them, however little time it has.
const ROUND: Duration = Duration::from_millis(12);
const LEAST_ROUNDS: u32 = 4;

/// A test in the style of NVSHMEM's perftests.
#[derive(PartialEq, Eq, Debug)]
pub struct Test {
    pub name: &'static str,
    pub metric: &'static str,
    pub unit: &'static str,
    op: Op,
}

const fn bandwidth(name: &'static str, op: Op) -> Test {
    Test { name, metric: "BW", unit: "GB/sec", op }
}

const fn latency(name: &'static str, op: Op) -> Test {
    Test { name, metric: "latency", unit: "us", op }
}

const fn rate(name: &'static str, op: Op) -> Test {
    Test { name, metric: "rate", unit: "Mops/sec", op }
}

/// All tests, in the order in which they are shown. Latencies are until delivery.
pub static TESTS: [Test; 7] = [
    bandwidth("put_bw", Op::Put),
    bandwidth("get_bw", Op::Get),
    latency("put_latency", Op::Put),
    latency("get_latency", Op::Get),
    latency("put_signal_latency", Op::PutSignal),
    rate("put_message_rate", Op::Put),
    rate("put_signal_message_rate", Op::PutSignal),
];

impl Test {
    fn case(&self, bytes: u64) -> Case {
        let most = (WINDOW_BYTES / bytes).clamp(1, WINDOW);
        let window = if self.metric == "latency" { 1 } else { most };
        Case { op: self.op, bytes, window, sides: vec![Side::Plugin] }
    }

    /// Turns the seconds of an operation into the test's unit.
    fn value(&self, bytes: u64, seconds: f64) -> f64 {
        match self.metric {
            "BW" => bytes as f64 / seconds / 1e9,
            "latency" => seconds * 1e6,
            _ => 1e-6 / seconds,
        }
    }

    fn sizes(&self, most: u64) -> Vec<u64> {
        let up_to = |most: u64, factor: u64| {
            let sizes = std::iter::successors(Some(8), move |size| Some(size * factor));
            sizes.take_while(move |size| *size <= most)
        };
        match self.metric {
            "BW" => up_to(most, 2).collect(),
            "latency" => up_to(most.min(MAX_LATENCY), 4).collect(),
            _ => RATE_SIZES.into_iter().filter(|size| *size <= most).collect(),
        }
    }
}

/// One row: a test at one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    pub test: &'static Test,
    /// Bytes of each operation.
    pub size: u64,
    /// The median of all rounds, in the test's unit.
    pub value: f64,
    /// What a tenth of the rounds is below, and a tenth above.
    pub spread: (f64, f64),
}

/// Measures all tests up to `most` bytes between two PEs, for about `time` each row, in a job as
/// `made` makes it: where the PEs are, on what memory, with which settings besides what the
/// environment has. The job takes no longer than `allowed`, if that is given.
///
/// # Errors
/// Wrong bytes, or a job that failed.
pub fn measure_by_size(
    most: u64,
    layout: Layout,
    plugin_dir: &Path,
    time: Duration,
    allowed: Option<Duration>,
    made: &dyn Fn(JobSettings) -> JobSettings,
) -> Result<(JobReport, Vec<Row>), BoxError> {
    let rounds = (time.as_millis() / ROUND.as_millis()).try_into().unwrap_or(u32::MAX);
    let rounds = LEAST_ROUNDS.max(rounds);
    let tests = rows(most);
    let cases: Vec<Case> = tests.iter().map(|(test, size)| test.case(*size)).collect();
    // Each case begins with rounds that find out how long one is.
    let allowed = allowed.unwrap_or(ALLOWANCE + 10 * time * cases.len() as u32);
    let schedule = Some(Schedule { rounds, least: time / rounds });
    let plan = Plan { cases, schedule, raw: None, chunks: 1, is_controlled: false };
    let (report, measured) = run(made(plan.job(layout, plugin_dir)?), allowed)?;
    let row = |((test, size), rounds): ((&'static Test, u64), Rounds)| {
        let spread = Spread::of(&rounds[0]).ok_or("a case has no rounds")?;
        let [value, one, other] =
            [spread.median, spread.p10, spread.p90].map(|seconds| test.value(size, seconds));
        Ok(Row { test, size, value, spread: (one.min(other), one.max(other)) })
    };
    let rows = tests.into_iter().zip(measured).map(row).collect::<Result<_, BoxError>>()?;
    Ok((report, rows))
}

fn rows(most: u64) -> Vec<(&'static Test, u64)> {
    let of = |test: &'static Test| test.sizes(most).into_iter().map(move |size| (test, size));
    TESTS.iter().flat_map(of).collect()
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
