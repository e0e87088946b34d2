//! A job with NCCL's plugin, and what a PE of it says when it finds something wrong.

use test_jobs::{FAILED, Fabric, Job, is_pe, seed_that_runs};
use test_support::built::nccl_plugin;

use crate::mock::library::{LIBRARY, SYMBOL, Version};
use crate::mock::log;

pub(crate) fn job(scenario: &'static str, fabric: Fabric, n_pes: u32) -> Job {
    let job = Job::new(scenario, fabric, n_pes).env(LIBRARY, nccl_plugin().display());
    match fabric {
        // Both are of the loopback interface.
        Fabric::Tcp2 => job.env("NVSHMEM_LIBFABRIC_DEVICES", "127.0.0.1,127.0.0.2"),
        _ => job,
    }
}

pub(crate) fn by(version: Version, job: Job) -> Job {
    job.with(&format!("{version:?}"), &[(SYMBOL, version.symbol())])
}

/// In a process of a job: a panic says which seed brings it back, with the end of the plugin's log,
/// and ends the process: a thread that is gone would be waited for.
pub(crate) fn tell_of_panics() {
    if !is_pe() {
        return;
    }
    std::panic::set_hook(Box::new(move |panic| {
        let lines = log::lines();
        let last = lines.iter().rev().take(20).rev();
        let last: String =
            last.map(|line| format!("\n  level {}: {}", line.level, line.text)).collect();
        let seed = seed_that_runs();
        eprintln!("{panic}\n  NVSHMEM_TEST_SEED={seed} brings it back; the plugin's log:{last}");
        std::process::exit(FAILED);
    }));
}
