//! PEs of one host that share their bounce memory: no processor touches what goes between them,
//! whatever the fabric.

use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, JobReport, JobSettings, Layout, MemoryKind, Outcome, Pattern};
use serde_json::Value;

use super::device::{Needs, job, staged};
use crate::counters;
use crate::fabric::Fabric;

const SIZES: [u64; 4] = [300, 4096, 512 << 10, (5 << 20) + 777];
const LARGEST: u64 = 6 << 20;
const ROUNDS: u64 = 4;
const WARM: u64 = 8;

pub(crate) fn trials() -> Vec<Trial> {
    let new = |name: &str, fabric: Fabric, run: fn(Fabric) -> Result<(), Failed>| {
        let name = format!("same_host::{name}_{}", fabric.name());
        staged(name, fabric, Needs::StandIn, move || run(fabric))
    };
    vec![
        new("two_pes_copy_every_byte", Fabric::Shm, |fabric| no_processor(fabric, 2)),
        new("four_pes_copy_every_byte", Fabric::Tcp2, |fabric| no_processor(fabric, 4)),
        new("one_pe_does_not_share", Fabric::Rxm, one_without),
        new("memory_cannot_be_locked", Fabric::Shm, not_locked),
        new("a_pe_is_killed", Fabric::Shm, killed),
    ]
}

fn shared(fabric: Fabric, scenario: &str, n_pes: u32) -> JobSettings {
    let job = job(fabric, MemoryKind::DeviceVmm, scenario, n_pes, 2, Layout::V7);
    job.debug("share_bounce", 1)
}

/// Runs a job, and gives what each PE's proxy lane has counted of staged bytes.
fn counted(job: JobSettings) -> Result<(JobReport, Vec<Value>), Failed> {
    let (report, all) = counters::counted(job, |job| Ok(job.run()?.check()?))?;
    Ok((report, all.iter().map(|counters| counters["lanes"][0]["staged"].clone()).collect()))
}

fn sum(all: &[Value], name: &str) -> u64 {
    all.iter().filter_map(|staged| staged[name].as_u64()).sum()
}

fn moved(n_pes: u32) -> u64 {
    u64::from(n_pes) * ROUNDS * 2 * SIZES.iter().sum::<u64>()
}

/// No processor copies a byte: the driver does, out of memory that the PEs share.
fn no_processor(fabric: Fabric, n_pes: u32) -> Result<(), Failed> {
    let (report, all) = counted(shared(fabric, "same_host", n_pes))?;
    let moved = moved(n_pes);
    let messages = sum(&all, "in_messages") - u64::from(n_pes) * WARM;
    let touched = sum(&all, "by_fabric") + messages + sum(&all, "by_cpu");
    let share = touched as f64 / moved as f64;
    println!("MEASURE staged_cpu_bytes_per_byte_same_host_{} {share:.4} ratio", fabric.name());
    if touched != 0 || sum(&all, "shared") != moved {
        return Err(format!("of {moved} bytes: {all:?}\n{report}").into());
    }
    Ok(())
}

/// PE 1 shares nothing, and the others say so, once.
fn one_without(fabric: Fabric) -> Result<(), Failed> {
    let job = shared(fabric, "same_host", 3);
    let without = "NVSHMEM_LIBFABRIC_DEBUG";
    let (report, all) = counted(job.env_of_pe(1, without, "share_bounce=0"))?;
    for pe in [0, 2] {
        let text = report.pes[pe].text();
        let said = "bounce memory of PE 1 is not shared with this PE";
        let times = text.lines().filter(|line| line.contains(said)).count();
        let others = ["bounce memory is shared with PE", "this process uses CUDA"];
        if times != 1 || !others.iter().all(|said| text.contains(said)) {
            return Err(format!("PE {pe} has said {times} times {said:?}:\n{report}").into());
        }
    }
    // Each PE's next one: two pairs of three have PE 1.
    let (by_fabric, shared) =
        (sum(&all, "by_fabric") + sum(&all, "in_messages"), sum(&all, "shared"));
    if shared != moved(1) || by_fabric != moved(2) + 3 * WARM {
        return Err(format!("{shared} bytes shared, {by_fabric} not: {all:?}\n{report}").into());
    }
    Ok(())
}

/// Where the driver locks no memory that is shared, it locks its own, and all is as between hosts.
fn not_locked(fabric: Fabric) -> Result<(), Failed> {
    let job = shared(fabric, "same_host", 2).env_of_pe(1, "FAKE_CUDA_REGISTERS", 0);
    let (report, all) = counted(job)?;
    if sum(&all, "shared") != 0 {
        return Err(format!("{all:?}\n{report}").into());
    }
    let text = report.pes[1].text();
    if !text.contains("bounce memory is not shared with other PEs of this host: cuMemHostRegister")
    {
        return Err(format!("PE 1 does not say so:\n{report}").into());
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
    let left = || -> Result<usize, Failed> {
        let names = std::fs::read_dir("/dev/shm")?.filter_map(Result::ok);
        let ours = names.filter(|entry| entry.file_name().to_string_lossy().contains("bounce"));
        Ok(ours.count())
    };
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
    if left()? != 0 {
        return Err("something is left in /dev/shm".into());
    }
    Ok(())
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
            let next = (me + 1) % n;
            host.proxy().put(next, target, source, LARGEST)?;
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
