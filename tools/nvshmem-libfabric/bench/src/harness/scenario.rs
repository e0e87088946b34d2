//! The scenario of a suite: one PE of a job that measures.

use std::time::Duration;

use nvshmem_sim::{BoxError, Job};

use super::suite::Suite;
use crate::pe::part;
use crate::times::case::Shape;
use crate::times::rounds::Schedule;

/// One PE. The job's parameters are those of [`super::launch`], [`super::fabric`] and the suite.
pub(crate) fn scenario<S: Suite>(job: &mut Job) -> Result<(), BoxError> {
    let suite = S::of_job(job)?;
    let least = Duration::from_millis(job.param("round_ms")?);
    let schedule = Schedule { rounds: job.param("rounds")?, least };
    let cases = suite.cases(Shape { peers: job.n_pes() - 1, rails: job.param("rails")? });
    let measured = part(
        job,
        |host| suite.open(job, host),
        move |source| {
            let measured = cases.into_iter().map(|case| {
                S::measure(source, case, schedule)
                    .map(|rounds| (case.to_string(), rounds))
                    .map_err(|e| format!("{case}: {e}"))
            });
            measured.collect::<Result<Vec<_>, String>>()
        },
    )?;
    for (case, rounds) in measured.into_iter().flatten() {
        job.report(&case, rounds.encode()?)?;
    }
    Ok(())
}
