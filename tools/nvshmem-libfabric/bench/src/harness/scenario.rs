//! The scenario of a suite: one PE of a job that measures.

use std::time::Duration;

use nvshmem_sim::{BoxError, Job};

use super::suite::Suite;
use crate::pe::part;
use crate::times::case::Shape;
use crate::times::rounds::Schedule;

/// The parameter with the least time of a round, in microseconds.
pub(crate) const ROUND_US: &str = "round_us";

/// One PE. The job's parameters are those of [`super::launch`], [`super::fabric`] and the suite.
pub(crate) fn scenario<S: Suite>(job: &mut Job) -> Result<(), BoxError> {
    let suite = S::of_job(job)?;
    let least = Duration::from_micros(job.param(ROUND_US)?);
    let schedule = Schedule { rounds: job.param("rounds")?, least };
    let cases = suite.cases(Shape { peers: job.n_pes() - 1, rails: job.param("rails")? });
    part(
        job,
        |host| suite.open(job, host),
        move |source| {
            cases.into_iter().try_for_each(|case| {
                let rounds = S::measure(source, case, schedule);
                let rounds = rounds.map_err(|e| format!("{case}: {e}"))?;
                source.tell(case.to_string(), rounds.encode().map_err(|e| e.to_string())?);
                Ok(())
            })
        },
    )
}
