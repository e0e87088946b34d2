//! Cases whose commands run jobs, or look at jobs that run.

mod hosts;
mod perf;
mod qualify;
mod selftest;
pub(crate) mod top;
mod trace;

use libtest_mimic::Trial;
use nvshmem_sim::Scenario;

/// The programs of the jobs, by their names.
pub(crate) const PROGRAMS: [(&str, Scenario); 3] =
    [("hold", top::hold), ("trace", trace::program), ("careless", trace::careless)];

pub(crate) fn trials() -> Vec<Trial> {
    let trials = [
        selftest::trials(),
        hosts::trials(),
        qualify::trials(),
        perf::trials(),
        top::trials(),
        trace::trials(),
    ];
    trials.into_iter().flatten().collect()
}
