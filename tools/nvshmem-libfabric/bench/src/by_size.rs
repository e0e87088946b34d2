//! Puts and gets of every size through the plugin alone, on any provider: what `perf` shows.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, PrivateDir, Told};

use crate::harness::launch::{ALLOWANCE, decoded, run};
use crate::harness::scenario::ROUND_US;
use crate::harness::suite::Suite;
use crate::pe::window::Direction;
use crate::suites::puts::{Puts, Transfers};
use crate::times::case::Side;
use crate::times::load::remarks;
use crate::times::stats::Spread;

/// Most operations under way in the tests of bandwidth and rate; fewer for large ones, so that no
/// more than this many bytes are.
const WINDOW: u64 = 64;
const WINDOW_BYTES: u64 = 16 << 20;

/// Bytes of the operations whose rate is counted.
const RATE_SIZES: [u64; 2] = [8, 64];

/// Largest operation that is waited for by itself.
const MOST_LATENCY: u64 = 64 << 10;

/// About what a round takes. Each row has at least so many of them, however little time it has.
const ROUND: Duration = Duration::from_millis(12);
const LEAST_ROUNDS: u32 = 4;

/// The job's parameters.
const MOST: &str = "most";
const OF_RAILS: &str = "of_rails";

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Test {
    /// Bytes a second of puts.
    PutBandwidth,
    /// Bytes a second of gets.
    GetBandwidth,
    /// Time of a put until it is delivered.
    PutLatency,
    /// Time of a get.
    GetLatency,
    /// Puts a second.
    PutRate,
}

impl Test {
    /// All, in the order in which they are shown.
    pub const ALL: [Test; 5] =
        [Test::PutBandwidth, Test::GetBandwidth, Test::PutLatency, Test::GetLatency, Test::PutRate];

    /// The name, as NVSHMEM's perftests have it.
    pub fn name(self) -> &'static str {
        match self {
            Test::PutBandwidth => "put_bw",
            Test::GetBandwidth => "get_bw",
            Test::PutLatency => "put_latency",
            Test::GetLatency => "get_latency",
            Test::PutRate => "put_message_rate",
        }
    }

    fn case(self, bytes: u64) -> Transfers {
        let (direction, waits) = match self {
            Test::PutBandwidth | Test::PutRate => (Direction::Put, false),
            Test::GetBandwidth => (Direction::Get, false),
            Test::PutLatency => (Direction::Put, true),
            Test::GetLatency => (Direction::Get, true),
        };
        let window = if waits { 1 } else { (WINDOW_BYTES / bytes).clamp(1, WINDOW) };
        Transfers { direction, bytes, window, sides: &[Side::Plugin] }
    }

    /// What is made of the seconds of an operation: GB/s, microseconds, or million operations a
    /// second.
    fn value(self, bytes: u64, seconds: f64) -> f64 {
        match self {
            Test::PutBandwidth | Test::GetBandwidth => bytes as f64 / seconds / 1e9,
            Test::PutLatency | Test::GetLatency => seconds * 1e6,
            Test::PutRate => 1e-6 / seconds,
        }
    }
}

/// One row: a test at one size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Row {
    /// What was measured.
    pub test: Test,
    /// Bytes of each operation.
    pub size: u64,
    /// The median of all rounds, in the test's unit.
    pub value: f64,
    /// What a tenth of the rounds is below, and a tenth above.
    pub spread: (f64, f64),
}

/// Which rows are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BySize {
    /// Most bytes of an operation, at least 8.
    pub most: u64,
    /// Those alone that the number of rails matters for.
    pub of_rails: bool,
}

/// What was measured.
#[derive(Debug)]
pub struct MeasuredBySize {
    /// How the job went.
    pub report: JobReport,
    /// Test by test.
    pub rows: Vec<Row>,
    /// How many bytes were compared with what they are to be, all of them right.
    pub compared: u64,
    /// What took the processors of the PEs meanwhile, if something did.
    pub busy: Option<String>,
}

impl BySize {
    /// How many cases there are to measure.
    pub fn len(self) -> usize {
        self.cases().len()
    }

    /// Whether there is none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Measures between two PEs for about so long each row, in a job as `made` makes it: where the
    /// PEs are, on what memory, with which settings besides what the environment has. The job takes
    /// no longer than `allowed`, if that is given. Calls `step` after each case.
    ///
    /// # Errors
    /// Wrong bytes, or a job that failed.
    pub fn run(
        self,
        layout: Layout,
        plugin_dir: &Path,
        time: Duration,
        allowed: Option<Duration>,
        made: &dyn Fn(JobSettings) -> JobSettings,
        step: &mut dyn FnMut(),
    ) -> Result<MeasuredBySize, BoxError> {
        let rounds = (time.as_millis() / ROUND.as_millis()).try_into().unwrap_or(u32::MAX);
        let rounds = LEAST_ROUNDS.max(rounds);
        let suite = Puts::Alone(self);
        let job = JobSettings::new(Puts::NAME, 2, layout, plugin_dir)
            .param("rounds", rounds)
            .param(ROUND_US, (time / rounds).as_micros())
            .param("rails", 1)
            .param("pause_ms", 0)
            // Where the PEs are best is not known here, and a user's job is not bound either.
            .param("binds", false);
        let cases = self.cases();
        // Each is begun with rounds that find out how long one is.
        let allowed = allowed.unwrap_or(ALLOWANCE + 10 * time * cases.len() as u32);
        let dir = PrivateDir::new("nvshmem-bench")?;
        let job = made(suite.job(job));
        let host = |pe| job.remote_of_pe.get(&pe).map(|remote| remote.host.clone());
        let hosts: Vec<_> = (0..job.n_pes).map(host).collect();
        let report = run(job, &dir, allowed, &mut |told| {
            if let Told::Value(name, _) = told {
                if cases.iter().any(|case| case.to_string() == name) {
                    step();
                }
            }
        })?;
        let row = |(test, size): (Test, u64)| {
            let case = test.case(size);
            let seconds = decoded(&report, &case)?.seconds(Side::Plugin);
            let spread = Spread::of(&seconds).ok_or_else(|| format!("{case}: no rounds"))?;
            let value = |seconds| test.value(size, seconds);
            let (one, other) = (value(spread.p10), value(spread.p90));
            let (median, spread) = (value(spread.median), (one.min(other), one.max(other)));
            Ok(Row { test, size, value: median, spread })
        };
        let rows = self.rows().map(row).collect::<Result<_, BoxError>>()?;
        let compared = cases.iter().map(|case| case.bytes * case.window).sum();
        let busy = remarks(&report, &hosts)?;
        Ok(MeasuredBySize { report, rows, compared, busy })
    }

    /// The rows, test by test.
    fn rows(self) -> impl Iterator<Item = (Test, u64)> {
        Test::ALL
            .into_iter()
            .flat_map(move |test| self.sizes(test).into_iter().map(move |size| (test, size)))
    }

    fn sizes(self, test: Test) -> Vec<u64> {
        let most = self.most;
        let up_to = |most: u64, factor: u64| {
            std::iter::successors(Some(8), move |size| Some(size * factor))
                .take_while(move |size| *size <= most)
        };
        match test {
            Test::PutBandwidth | Test::GetBandwidth if self.of_rails => {
                up_to(most, 2).last().into_iter().collect()
            }
            Test::PutRate if self.of_rails => vec![RATE_SIZES[0]],
            _ if self.of_rails => Vec::new(),
            Test::PutBandwidth | Test::GetBandwidth => up_to(most, 2).collect(),
            Test::PutLatency | Test::GetLatency => up_to(most.min(MOST_LATENCY), 4).collect(),
            Test::PutRate => RATE_SIZES.into_iter().filter(|size| *size <= most).collect(),
        }
    }

    /// What is measured for the rows. Some have the same.
    pub(crate) fn cases(self) -> Vec<Transfers> {
        let mut cases: Vec<Transfers> = Vec::new();
        for (test, size) in self.rows() {
            let case = test.case(size);
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    /// Tells a job's PEs.
    pub(crate) fn tell(self, job: JobSettings) -> JobSettings {
        job.param(MOST, self.most).param(OF_RAILS, self.of_rails)
    }

    /// What a job's PEs were told, if it is theirs.
    pub(crate) fn told(job: &Job) -> Result<Option<Self>, BoxError> {
        if !job.params().contains_key(MOST) {
            return Ok(None);
        }
        Ok(Some(Self { most: job.param(MOST)?, of_rails: job.param(OF_RAILS)? }))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_row_has_one_case_and_each_case_a_name_of_its_own() {
        let all = BySize { most: 4 << 20, of_rails: false };
        let names: BTreeSet<String> = all.cases().iter().map(Transfers::to_string).collect();
        assert_eq!(names.len(), all.len());
        // 20 sizes of bandwidth for puts and gets, 7 of latency for each; rates are of the same
        // puts.
        assert_eq!((all.len(), all.rows().count()), (2 * 20 + 2 * 7, 2 * 20 + 2 * 7 + 2));
        assert!(names.contains("put_8B_by_64") && names.contains("get_4MiB_by_4"), "{names:?}");
        let of_rails = BySize { most: 100, of_rails: true };
        let rows: Vec<_> = of_rails.rows().collect();
        let expected = [(Test::PutBandwidth, 64), (Test::GetBandwidth, 64), (Test::PutRate, 8)];
        assert_eq!(rows, expected);
        assert_eq!(BySize { most: 8, of_rails: false }.rows().count(), 5);
    }

    #[test]
    fn seconds_become_what_the_test_is_about() {
        assert_eq!(Test::GetBandwidth.value(1 << 20, 1e-3), 1.048_576);
        assert_eq!(Test::PutLatency.value(8, 2e-6), 2.0);
        assert_eq!(Test::PutRate.value(8, 0.5e-6), 2.0);
    }
}
