//! Workloads: what a PE of the lab does in a run.

mod many_to_one;
mod plan;
pub(super) mod storm;
mod stream;
pub(super) mod tally;

use nvshmem_sim::{BoxError, Job};

use crate::experiment::{Experiment, Workload};

/// Parameters of the job.
pub(crate) const TEXT: &str = "experiment";
pub(crate) const RUN: &str = "run";

/// The scenario of the lab's PEs, under the name [`crate::SCENARIO`], for
/// [`nvshmem_sim::pe_entry`].
///
/// # Errors
/// What failed, on this PE or on another.
pub fn pe(job: &mut Job) -> Result<(), BoxError> {
    let experiment = Experiment::parse(&job.param::<String>(TEXT)?)?;
    let run = experiment.runs.get(job.param::<usize>(RUN)?).ok_or("there is no such run")?;
    match run.workload.unwrap_or(experiment.workload) {
        Workload::Stream { op, bytes, window, windows } => {
            stream::run(job, stream::Stream { op, bytes, window, windows })
        }
        Workload::Storm { rounds } => storm::run(job, rounds),
        Workload::ManyToOne { bytes, second, window, windows } => {
            many_to_one::run(job, many_to_one::Puts { bytes, second, window, windows })
        }
    }
}
