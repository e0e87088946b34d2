//! A short run of every layout, as `make quick` has it; and what a job says as it begins.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, Layout, traffic};

use crate::fabric::{Fabric, says, trial};
use crate::matrix::{done, run};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, layout) in Layout::ALL.into_iter().enumerate() {
        for fabric in [[Fabric::Tcp2, Fabric::Rxm][at % 2], Fabric::Shm] {
            let name = format!("smoke::layout_{layout}_{}", fabric.name());
            trials.push(trial(name, Some(fabric), move || {
                let job = fabric.job("smoke", 2, 2, layout).heap(32 << 20, 1 << 20);
                let job = job.param("rounds", 40).param("most", 300_000);
                done(job.param("operations", 2000))
            }));
        }
    }
    trials.push(trial(String::from("smoke::log_names_provider_and_rails"), Some(Fabric::Rxm), log));
    trials
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    for wanted in ["signals", "atomics", "storm"] {
        let known = traffic::SCENARIOS.iter().find(|(name, _)| *name == wanted);
        let (_, scenario) = known.ok_or("the simulator has the scenario")?;
        scenario(job)?;
    }
    Ok(())
}

/// The log has what was found, what a PE takes of it, and the setting that says so.
fn log() -> Result<(), Failed> {
    let job = Fabric::Rxm.job("atomics", 2, 2, Layout::V7);
    let report = run(job.env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", 1))?;
    for pe in &report.pes {
        let text = pe.text();
        for part in [
            "provider tcp;ofi_rxm with 2 device(s): 127.0.0.1, 127.0.0.2",
            "; asked for progress MANUAL, threading ",
            "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE=1: not used: 127.0.0.2",
            "with a host lane and 1 proxy rail(s)",
        ] {
            says(&text, part)?;
        }
    }
    Ok(())
}
