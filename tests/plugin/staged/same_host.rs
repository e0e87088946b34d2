//! PEs of one host that share their bounce memory: no processor touches what goes between them,
//! whatever the fabric.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobSettings, Layout, MemoryKind, Outcome, Pattern};

use super::device::{Needs, job, staged};
use crate::counters;
use crate::fabric::Fabric;

const SIZES: [u64; 4] = [300, 4096, 512 << 10, (5 << 20) + 777];
const LARGEST: u64 = 6 << 20;
const ROUNDS: u64 = 4;
const WARM: u64 = 8;

pub(crate) fn trials() -> Vec<Trial> {
    let shm = Fabric::Shm;
    let new = |name: &str, fabric: Fabric, run: fn(Fabric) -> Result<(), Failed>| {
        let name = format!("same_host::{name}_{}", fabric.name());
        staged(name, fabric, Needs::StandIn, move || run(fabric))
    };
    vec![
        new("two_pes_copy_every_byte", shm, |fabric| no_processor(fabric, 2)),
        new("four_pes_copy_every_byte", Fabric::Tcp2, |fabric| no_processor(fabric, 4)),
        new("a_pe_is_killed", shm, killed),
    ]
}

fn shared(fabric: Fabric, scenario: &str, n_pes: u32) -> JobSettings {
    let job = job(fabric, MemoryKind::DeviceVmm, scenario, n_pes, 2, Layout::V7);
    job.debug("share_bounce", 1)
}

/// No processor copies a byte: the driver does, out of memory that the PEs share.
fn no_processor(fabric: Fabric, n_pes: u32) -> Result<(), Failed> {
    let job = shared(fabric, "same_host", n_pes);
    let (report, all) = counters::counted(job, |job| Ok(job.run()?.check()?))?;
    let sum = |name: &str| -> u64 {
        all.iter().filter_map(|of| of["lanes"][0]["staged"][name].as_u64()).sum()
    };
    let moved = u64::from(n_pes) * ROUNDS * 2 * SIZES.iter().sum::<u64>();
    let messages = sum("in_messages") - u64::from(n_pes) * WARM;
    let touched = sum("by_fabric") + messages + sum("by_cpu");
    if touched != 0 || sum("shared") != moved {
        return Err(format!("{touched} of {moved} bytes were touched: {all:?}\n{report}").into());
    }
    Ok(())
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let next = (me + 1) % n;
    let host = job.init()?;
    let (source, target) = (host.alloc(LARGEST, 4096)?, host.alloc(LARGEST, 4096)?);
    let back = host.alloc(LARGEST, 4096)?;
    // Whose lane has had a message copies from others' memory, and has told them.
    host.local(source, WARM)?.set(0)?;
    host.proxy().put(next, target, source, WARM)?;
    host.proxy().quiet()?;
    host.barrier()?;
    for round in 0..ROUNDS {
        for len in SIZES {
            let pattern = |pe: u32| Pattern::of(&[pe.into(), round, len]);
            host.local(source, len)?.fill(pattern(me), 0)?;
            host.local(target, len)?.set(0)?;
            host.barrier()?;
            host.proxy().put(next, target, source, len)?;
            host.proxy().quiet()?;
            host.barrier()?;
            host.local(target, len)?.verify(pattern((me + n - 1) % n), 0)?;
            host.local(back, len)?.set(0)?;
            host.proxy().get(next, target, back, len)?;
            host.proxy().quiet()?;
            host.local(back, len)?.verify(pattern(me), 0)?;
            host.barrier()?;
        }
    }
    host.finalize()?;
    Ok(())
}

fn killed(fabric: Fabric) -> Result<(), Failed> {
    let report = shared(fabric, "same_host_death", 3)
        .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 1)
        .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 3)
        .grace(Duration::from_secs(120))
        .run()?;
    for pe in [0, 2] {
        match report.outcome(pe) {
            Outcome::Finished | Outcome::Failed(_) => {}
            other => return Err(format!("PE {pe} {other}:\n{report}").into()),
        }
    }
    let mut files = std::fs::read_dir("/dev/shm")?.flatten();
    match files.find(|file| file.file_name().to_string_lossy().contains("bounce")) {
        Some(file) => Err(format!("{file:?} is left in /dev/shm").into()),
        None => Ok(()),
    }
}

/// PE 1 ends in the middle of its traffic, as by SIGKILL.
pub(crate) fn death(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let (source, target) = (host.alloc(LARGEST, 4096)?, host.alloc(LARGEST, 4096)?);
    host.local(source, LARGEST)?.fill(Pattern::new(me.into()), 0)?;
    host.barrier()?;
    for round in 0..200 {
        if me == 1 && round == 5 {
            host.proxy().put((me + 1) % n, target, source, LARGEST)?;
            // SAFETY: this process alone.
            let _ = unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        host.proxy().put((me + 1) % n, target, source, LARGEST)?;
        host.proxy().get((me + 2) % n, target, source, 1000)?;
        host.proxy().quiet()?;
    }
    host.finalize()?;
    Ok(())
}
