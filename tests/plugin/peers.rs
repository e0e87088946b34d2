//! PEs whose peers fail: an error with the reason, never a hang.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobSettings, Layout, MemoryKind, Outcome, PrivateDir};
use test_support::needs::{self, Need};

use crate::fabric::{DEVICES, Fabric, PROVIDER, job_on, says, trial};
use crate::staged::device::{Needs, job as staged_job, staged};

const GRACE: Duration = Duration::from_secs(120);

pub(crate) fn trials() -> Vec<Trial> {
    let (rxm, shm) = (Fabric::Rxm, Fabric::Shm);
    let nothing = || Ok(());
    vec![
        refused("different_providers", rxm, 3, nothing(), |job, ()| {
            let job = job.env_of_pe(2, PROVIDER, "shm").env_of_pe(2, DEVICES, "shm");
            (job, &["PE 2 uses libfabric provider \"shm, ", "tcp;ofi_rxm"])
        }),
        refused("shm_across_hosts", shm, 2, nothing(), |job, ()| {
            (job.pes_per_node(1), &["only 1 of this job's 2 PEs are on this host"])
        }),
        refused("shm_of_other_host_ids", shm, 2, nothing(), |job, ()| {
            let job = job.env_of_pe(1, "NVSHMEM_LIBFABRIC_HOST_ID", "another");
            (job, &["only 1 of this job's 2 PEs are on this host"])
        }),
        refused("different_libfabrics", shm, 2, needs::libfabric2(), |job, library| {
            let job = job.env_of_pe(1, "NVSHMEM_LIBFABRIC_LIBRARY", library.to_string_lossy());
            (job, &["PE 1 uses libfabric provider \"shm, libfabric 2.", "\"shm, libfabric 1."])
        }),
        dead_peer(Fabric::Rxm),
        dead_peer(Fabric::Tcp2),
        dead_peer(Fabric::Shm),
        // Whose bounce memory PE 0 reads and whose copies it waits for.
        staged(String::from("a_dead_peer_is_named"), shm, Needs::StandIn, || {
            let vmm = MemoryKind::DeviceVmm;
            let job = staged_job(Fabric::Shm, vmm, "wait_for_ever", 2, 2, Layout::V7);
            is_named(job.debug("share_bounce", 1))
        }),
    ]
}

fn refused<T: Send + 'static>(
    name: &str,
    fabric: Fabric,
    n_pes: u32,
    need: Need<T>,
    edit: fn(JobSettings, T) -> (JobSettings, &'static [&'static str]),
) -> Trial {
    needs::trial(format!("connect_with_{name}"), need, move |needed| {
        let (job, parts) =
            edit(job_on(fabric, "connect", n_pes, 1, Layout::V7).grace(GRACE), needed);
        connects_nobody(job, parts)
    })
}

pub(crate) fn connects_nobody(job: JobSettings, parts: &[&str]) -> Result<(), Failed> {
    let report = job.run()?;
    for pe in &report.pes {
        if pe.outcome == Outcome::Finished {
            return Err(format!("PE {} connected all the same:\n{report}", pe.pe).into());
        }
        parts.iter().try_for_each(|part| says(&pe.text(), part))?;
    }
    Ok(())
}

fn dead_peer(fabric: Fabric) -> Trial {
    trial(format!("a_dead_peer_is_named_{}", fabric.name()), Some(fabric), move || {
        is_named(job_on(fabric, "wait_for_ever", 2, 2, Layout::V7))
    })
}

/// A peer that dies in the middle is named, within the deadline that was set. Counters are written
/// when that ends the proxy thread, without a finalize.
fn is_named(job: JobSettings) -> Result<(), Failed> {
    let counters = PrivateDir::new("nvshmem-counters")?;
    let report = job
        .env("NVSHMEM_LIBFABRIC_COUNTERS", counters.path().join("%p").display())
        .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 1)
        .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 4)
        .grace(GRACE)
        .run()?;
    let text = report.pes[0].text();
    let named = text.lines().any(|line| line.contains("ERROR") && line.contains("PE 1"));
    match &report.pes[0].outcome {
        Outcome::Failed(_) if named => Ok(std::fs::read(counters.path().join("0")).map(drop)?),
        other => Err(Failed::from(format!("PE 0 {other}, PE 1 named: {named}:\n{report}"))),
    }
}

pub(crate) fn connect(job: &mut Job) -> Result<(), BoxError> {
    job.init()?.finalize()?;
    Ok(())
}

/// PE 1 dies after connecting; PE 0 goes on sending to it until it is told.
pub(crate) fn wait_for_the_dead(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let target = host.alloc(1 << 20, 4096)?;
    let source = host.alloc(1 << 20, 4096)?;
    let on_shm = std::env::var(PROVIDER)? == "shm";
    host.proxy.put(1 - job.pe, target, source, 1 << 20)?;
    host.barrier()?;
    if job.pe == 1 {
        // By `_exit`, since libraries may hang in their handlers of SIGABRT. The proxy thread runs
        // it between two calls of libfabric, which over shm holds locks that peers wait for.
        // SAFETY: ends the process.
        host.proxy.run(|_| unsafe { libc::_exit(1) })?;
    }
    loop {
        host.proxy.put(1, target, source, 1 << 20)?;
        host.proxy.get(1, source, target, 1000)?;
        // Where the proxy thread is told: in a quiet, or in a call of progress.
        if on_shm { host.proxy.quiet()? } else { while host.proxy.run(|_| ()).is_ok() {} }
    }
}
