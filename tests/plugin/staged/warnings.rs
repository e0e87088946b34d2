//! What staging warns of: settings of CUDA, and memory, with which copies may wait for kernels.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{Layout, MemoryKind};

use super::device::{Needs, job, staged};
use crate::fabric::Fabric;
use crate::matrix::HELD_UP;

pub(crate) fn trials() -> Vec<Trial> {
    vec![staged(String::from("hazards_are_warned_of"), Fabric::Shm, Needs::Any, hazards)]
}

fn hazards() -> Result<(), Failed> {
    const LOADING: &str = "CUDA_MODULE_LOADING";
    const QUEUES: &str = "CUDA_DEVICE_MAX_CONNECTIONS";
    const CONTEXT: &str = "NVSHMEM_LIBFABRIC_STAGING_CONTEXT";
    let vmm = MemoryKind::DeviceVmm;
    // CUDA's defaults, and what else a user may have set; which warnings there are, by a part of
    // each.
    type Set = &'static [(&'static str, &'static str)];
    let cases: [(MemoryKind, Set, Option<&str>); 3] = [
        (vmm, &[(LOADING, "LAZY"), (QUEUES, "1")], None),
        (vmm, &[(CONTEXT, "program"), (LOADING, "EAGER"), (QUEUES, "2")], Some(QUEUES)),
        (MemoryKind::Device, &[], Some(HELD_UP)),
    ];
    for (kind, variables, of) in cases {
        let job = job(Fabric::Shm, kind, "connect", 2, 1, Layout::V7);
        let job = variables.iter().fold(job, |job, (name, value)| job.env(*name, value));
        let report = job.run()?.check()?;
        for pe in &report.pes {
            let text = pe.text();
            let warned: Vec<_> = text.lines().filter(|line| line.contains("WARN")).collect();
            let right = of.is_none_or(|of| warned.iter().all(|line| line.contains(of)));
            if warned.is_empty() != of.is_none() || !right {
                return Err(format!("PE {} with {kind}, {variables:?}: {warned:?}", pe.pe).into());
            }
            let own = "is staged in a context of the transport's own";
            let program = variables.iter().any(|(name, _)| *name == CONTEXT);
            if text.contains(own) == program {
                return Err(format!("PE {} with {variables:?}:\n{text}", pe.pe).into());
            }
        }
    }
    Ok(())
}
