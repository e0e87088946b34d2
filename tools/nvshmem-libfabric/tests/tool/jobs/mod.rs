//! Cases whose commands run jobs, or look at jobs that run.

mod hosts;
mod perf;
mod qualify;
mod selftest;

use libtest_mimic::Trial;

pub(crate) fn trials() -> Vec<Trial> {
    let trials = [selftest::trials(), hosts::trials(), qualify::trials(), perf::trials()];
    trials.into_iter().flatten().collect()
}
