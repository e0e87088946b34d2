//! A short run of every layout, as `make quick` and the shipped plugin have it; and what a job says
//! as it begins.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::Layout;

use crate::fabric::{Fabric, says, trial};
use crate::matrix::{done, run};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, layout) in Layout::ALL.into_iter().enumerate() {
        for fabric in [[Fabric::Tcp2, Fabric::Rxm][at % 2], Fabric::Shm] {
            let name = format!("smoke::layout_{layout}_{}", fabric.name());
            trials.push(trial(name, Some(fabric), move || {
                let signals = fabric.job("signals", 2, 2, layout).heap(32 << 20, 1 << 20);
                done(signals.param("rounds", 60).param("most", 300_000))?;
                done(fabric.job("atomics", 2, 1, layout))?;
                done(fabric.job("storm", 2, 2, layout).param("operations", 4_000))
            }));
        }
    }
    trials.push(trial(String::from("smoke::the_log_says_what_is_used"), Some(Fabric::Rxm), said));
    trials
}

/// What was found, what a PE takes of it, and what it was asked for.
fn said() -> Result<(), Failed> {
    let job = Fabric::Rxm.job("atomics", 2, 2, Layout::V7);
    let report = run(job.env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", 1))?;
    for pe in &report.pes {
        let text = pe.text();
        for part in [
            "provider tcp;ofi_rxm with 2 device(s): 127.0.0.1, 127.0.0.2",
            "; got progress ",
            "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE=1: not used: 127.0.0.2",
            "with a host lane and 1 proxy rail(s)",
        ] {
            says(&text, part)?;
        }
    }
    Ok(())
}
