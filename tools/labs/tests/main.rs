//! The plugin on fabrics that this machine lacks, driven by the simulator as NVSHMEM drives it:
//! libfabric's efa provider on emulated NICs, a strict mock of cxi, and verbs on soft RoCE.
//!
//! One case in four of each covering array runs, or all with `NVSHMEM_TEST_FULL`. Cases of a
//! libfabric 2.x need `NVSHMEM_TEST_LIBFABRIC2`.

mod cxi;
mod efa;
mod job;
mod pairwise;
mod rdma;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use nvshmem_sim::{Scenario, pe_entry, traffic};

fn main() -> ExitCode {
    let mut scenarios: Vec<(&str, Scenario)> = vec![
        ("connect", job::connect),
        ("turned_away", efa::signals::turned_away),
        ("deaf", efa::signals::deaf),
        ("spread", efa::hosts::spread),
        ("looks", efa::device::looks),
    ];
    scenarios.extend(traffic::SCENARIOS);
    // A process that the launcher started as a PE ends in here.
    pe_entry(&scenarios);
    let mut arguments = Arguments::from_args();
    // A job is several processes, which mostly wait for each other: two jobs keep two cores busy.
    arguments.test_threads.get_or_insert(2);
    let trials: Vec<Trial> =
        [efa::trials(), cxi::trials(), rdma::trials()].into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
