//! A suite, as the harness sees it.

use nvshmem_sim::{BoxError, Host, Job, JobSettings};

use super::pace::Effort;
use crate::pe::Opened;
use crate::pe::source::Source;
use crate::times::case::{Case, Shape};
use crate::times::rounds::{Rounds, Schedule};

/// A group of cases that jobs of the same kinds measure.
pub(crate) trait Suite: Sized {
    /// Name of the jobs' scenario.
    const NAME: &'static str;
    /// The jobs and rounds of each job, unless the command line says otherwise.
    const EFFORT: Effort = Effort { jobs: 3, rounds: 12 };
    /// The kinds of jobs that are run on each provider.
    const SHAPES: &'static [Shape] = &[Shape { peers: 1, rails: 1 }];

    type Case: Case;
    /// What a PE keeps from one case to the next, beside what every [`Source`] has.
    type State: Send + 'static;

    /// Tells a job's PEs what [`Self::of_job`] reads, and gives them memory.
    fn job(&self, job: JobSettings) -> JobSettings;

    /// The suite as a PE of the job knows it.
    fn of_job(job: &Job) -> Result<Self, BoxError>;

    /// What is measured in a job of that kind.
    fn cases(&self, shape: Shape) -> Vec<Self::Case>;

    /// Allocates a PE's memory and opens what it measures beside the plugin. Collective.
    fn open(&self, job: &Job, host: &Host<'_>) -> Result<Opened<Self::State>, BoxError>;

    /// PE 0: takes all rounds of a case.
    fn measure(
        source: &mut Source<'_, Self::State>,
        case: Self::Case,
        schedule: Schedule,
    ) -> Result<Rounds, String>;

    /// After the first job has failed: whether to begin again, with less.
    fn retreat(&mut self, _error: &BoxError) -> bool {
        false
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::times::case::{Figure, Value};

    /// Figures have names of their own, and compare sides that are measured. Returns the names.
    pub(crate) fn names_of<S: Suite>(suite: &S) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for case in S::SHAPES.iter().flat_map(|shape| suite.cases(*shape)) {
            let sides = case.sides();
            for Figure { name, value } in case.figures("tcp") {
                let compared = match value {
                    Value::Ratio { of, over } => [of, vec![over]].concat(),
                    Value::WholeRatio { of, over } => vec![of, over],
                    Value::Micros(side) => vec![side],
                };
                assert!(compared.iter().all(|side| sides.contains(side)), "{name}: {compared:?}");
                assert!(names.insert(name.clone()), "{name} is the name of two figures");
            }
        }
        names
    }
}
