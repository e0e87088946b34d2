//! What is measured: cases, each an operation at one size and the sides that are timed in turn; and
//! the job that measures a list of them.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use nvshmem_sim::{BoxError, JobReport, JobSettings, Layout};
use serde::{Deserialize, Serialize};

use crate::pe::SCENARIO;
use crate::raw::RawOptions;
use crate::rounds::{Rounds, Schedule};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    Put,
    Get,
    PutSignal,
    /// A put with signal and its answer; of the raw side a message. An operation is one of the two
    /// ways.
    PingPong,
    /// A fetching atomic that is waited for; of the raw side a message of 8 bytes and its answer.
    FetchAdd,
    /// A fence and a signal behind puts. Only the calls of fence and signal count.
    Fence,
    /// `quiet` with nothing outstanding. Only counted.
    Quiet,
    /// `progress` with nothing outstanding. Only counted.
    Progress,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Side {
    Plugin,
    Raw,
    /// The plugin, with a quiet for every PE in place of what orders a signal or a fence.
    Reference,
    /// The plugin, in the heap's last chunk, which is host memory where the first is a device's.
    Host,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Case {
    pub op: Op,
    /// Bytes of one operation: a multiple of 8.
    pub bytes: u64,
    pub window: u64,
    pub sides: Vec<Side>,
}

impl Case {
    pub(crate) fn ops(&self) -> u64 {
        match self.op {
            Op::Put | Op::Get | Op::PutSignal => self.window,
            Op::PingPong => 2,
            Op::FetchAdd | Op::Fence | Op::Quiet | Op::Progress => 1,
        }
    }

    pub fn is_latency(&self) -> bool {
        self.window == 1 || self.op == Op::Fence
    }

    pub fn show(&self, seconds: f64) -> String {
        match self.unit() {
            "_latency" => format!("{:.2} us", seconds * 1e6),
            "_rate" => format!("{:.1} kop/s", 1e-3 / seconds),
            _ => format!("{:.1} MB/s", self.bytes as f64 / seconds / 1e6),
        }
    }

    fn unit(&self) -> &'static str {
        let counts = self.bytes <= 64 || self.op == Op::PutSignal;
        match (self.is_latency(), counts) {
            (true, _) => "_latency",
            (false, true) => "_rate",
            (false, false) => "",
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Put => "put",
            Op::Get => "get",
            Op::PutSignal | Op::PingPong => "put_signal",
            Op::FetchAdd => return f.write_str("fetch_add"),
            Op::Fence => return f.write_str("fence_signal_cost"),
            Op::Quiet => return f.write_str("quiet_empty"),
            Op::Progress => return f.write_str("progress_idle"),
        };
        let size = match self.bytes {
            bytes if bytes >= 1 << 20 => format!("{}MiB", bytes >> 20),
            bytes if bytes >= 1 << 10 => format!("{}KiB", bytes >> 10),
            bytes => format!("{bytes}B"),
        };
        write!(f, "{op}_{size}{}", self.unit())
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// Time that a job may take beyond its rounds.
pub const ALLOWANCE: Duration = Duration::from_secs(180);

/// The parameter with the plan, and the name of PE 0's value with the rounds of all cases.
pub(crate) const PLAN: &str = "plan";
pub(crate) const MEASURED: &str = "measured";

/// Bytes that the raw side receives into.
pub(crate) const MAIL: u64 = 64 << 10;

/// Bytes of a word: no two share what a processor fetches at once.
pub(crate) const WORD: u64 = 128;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    pub cases: Vec<Case>,
    /// The rounds. None: two sections of the plugin, of [`SECTIONS`](crate::SECTIONS) operations
    /// each, are marked for callgrind in their place.
    pub schedule: Option<Schedule>,
    pub raw: Option<RawOptions>,
    /// Chunks of the heap: two where the first is on a device and the last is not.
    pub chunks: u64,
    /// Whether PE 0 tells PE 1 what to do, which is on the same host, and each proxy thread has a
    /// core. Else PE 1 only progresses the plugin, and only windows of the plugin are measured.
    pub is_controlled: bool,
}

impl Plan {
    pub fn job(&self, layout: Layout, plugin_dir: &Path) -> Result<JobSettings, BoxError> {
        let (chunk, job) = (self.chunk(), JobSettings::new(SCENARIO.0, 2, layout, plugin_dir));
        Ok(job.heap(self.chunks * chunk, chunk).param(PLAN, serde_json::to_string(self)?))
    }

    pub(crate) fn area(&self) -> u64 {
        let areas = self.cases.iter().map(|case| case.bytes * case.window);
        areas.max().unwrap_or(0).next_multiple_of(4096)
    }

    pub(crate) fn mail(&self) -> u64 {
        if self.raw.as_ref().is_some_and(|raw| !raw.delivered) { MAIL } else { 0 }
    }

    pub(crate) fn chunk(&self) -> u64 {
        let has_words = self.cases.iter().any(|case| !matches!(case.op, Op::Put | Op::Get));
        let words = if has_words { 4 * WORD } else { 0 };
        // A driver's allocations are multiples of 2 MiB.
        let least = if self.chunks > 1 { 2 << 20 } else { 4096 };
        (2 * self.area() + self.mail() + words).next_power_of_two().max(least)
    }
}

/// Runs a job to its end, which must be a good one, and returns what it has measured: the rounds of
/// each case of its plan, if it has one.
pub fn run(job: JobSettings, allowed: Duration) -> Result<(JobReport, Vec<Rounds>), BoxError> {
    let job = job.deadline(allowed).step_deadline(allowed).inherits_settings();
    let report = job.run()?.check()?;
    let rounds = report.pes[0].value(MEASURED).map(serde_json::from_str).transpose()?;
    Ok((report, rounds.unwrap_or_default()))
}
