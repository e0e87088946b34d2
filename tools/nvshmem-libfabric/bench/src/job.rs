//! The launcher's side: starts a job for a list of cases and reads what its PEs have measured.

use std::path::Path;
use std::time::Duration;

use nvshmem_sim::{BoxError, JobReport, JobSettings, Layout};
use serde::{Deserialize, Serialize};

use crate::case::{Case, Op};
use crate::pe::SCENARIO;
use crate::raw::RawOptions;
use crate::rounds::{Rounds, Schedule};

/// What a job may take beyond its rounds.
pub const ALLOWANCE: Duration = Duration::from_secs(180);

/// The parameter with the plan, and the name of PE 0's value with the rounds of all cases.
pub(crate) const PLAN: &str = "plan";
pub(crate) const MEASURED: &str = "measured";

/// Bytes that the raw side receives into.
pub(crate) const MAIL: u64 = 64 << 10;

/// Bytes of a word: no two share what a processor fetches at once.
pub(crate) const WORD: u64 = 128;

/// What the two PEs of a job do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured, in order.
    pub cases: Vec<Case>,
    /// The rounds. None: two sections of the plugin, of [`SECTIONS`](crate::SECTIONS) operations
    /// each, are marked for callgrind in their place.
    pub schedule: Option<Schedule>,
    /// What the raw side opens.
    pub raw: Option<RawOptions>,
    /// Chunks of the heap: two where the first is on a device and the last is not.
    pub chunks: u64,
    /// Whether PE 0 tells PE 1 what to do, which is on the same host, and each proxy thread has a
    /// core. Else PE 1 only progresses the plugin, and only windows of the plugin are measured.
    pub is_controlled: bool,
}

impl Plan {
    /// Returns a job for it.
    ///
    /// # Errors
    /// The plan cannot be written as text.
    pub fn job(&self, layout: Layout, plugin_dir: &Path) -> Result<JobSettings, BoxError> {
        let (chunk, job) = (self.chunk(), JobSettings::new(SCENARIO.0, 2, layout, plugin_dir));
        Ok(job.heap(self.chunks * chunk, chunk).param(PLAN, serde_json::to_string(self)?))
    }

    /// Returns the bytes of each of the two areas that operations read and write.
    pub(crate) fn area(&self) -> u64 {
        let areas = self.cases.iter().map(|case| case.bytes * case.window);
        areas.max().unwrap_or(0).next_multiple_of(4096)
    }

    pub(crate) fn mail(&self) -> u64 {
        if self.raw.as_ref().is_some_and(|raw| !raw.delivered) { MAIL } else { 0 }
    }

    /// Returns the bytes of a chunk. No operation crosses its end.
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
///
/// # Errors
/// The job has failed, or takes longer than allowed.
pub fn run(job: JobSettings, allowed: Duration) -> Result<(JobReport, Vec<Rounds>), BoxError> {
    let job = job.deadline(allowed).step_deadline(allowed).inherits_settings();
    let report = job.run()?.check()?;
    let rounds = report.pes[0].value(MEASURED).map(serde_json::from_str).transpose()?;
    Ok((report, rounds.unwrap_or_default()))
}
