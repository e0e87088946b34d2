//! A short run of every layout, as `make quick` has it.

use libtest_mimic::Trial;
use nvshmem_sim::{BoxError, Job, Layout, traffic};

use crate::fabric::{Fabric, job_on, trial};
use crate::matrix::run;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (at, layout) in Layout::ALL.into_iter().enumerate() {
        for fabric in [[Fabric::Tcp2, Fabric::Rxm][at % 2], Fabric::Shm] {
            let name = format!("smoke::layout_{layout}_{}", fabric.name());
            trials.push(trial(name, Some(fabric), move || {
                let job = job_on(fabric, "smoke", 2, 2, layout).heap(32 << 20, 1 << 20);
                let job = job.param("rounds", 40).param("most", 300_000);
                run(job.param("operations", 2000)).map(drop)
            }));
        }
    }
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
