//! What staging takes: page-locked memory within its settings, and one copy on each side. And what it
//! warns of.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, Layout, MemoryKind, Pattern};

use super::device::{Needs, job, staged};
use super::matrix::done;
use crate::fabric::Fabric;
use crate::matrix::warns;

const CHUNK: u64 = 256 << 10;
const DEPTH: u64 = 4;

/// Page-locked memory that the simulator has itself, and what words may take.
const OWN_PINNED: u64 = 2 << 20;
const WORDS: u64 = 64 << 10;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = pinned_memory();
    trials.push(staged(
        "limits::hazards_are_warned_of".to_owned(),
        Fabric::Shm,
        Needs::Any,
        hazards,
    ));
    trials
}

/// With which settings copies may stand still beside kernels that wait for them: those and no others.
fn hazards() -> Result<(), Failed> {
    const SETTINGS: [&str; 2] = ["CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS"];
    for (loading, queues, of) in
        [("EAGER", "8", None), ("LAZY", "8", Some(SETTINGS[0])), ("EAGER", "2", Some(SETTINGS[1]))]
    {
        let job = job(Fabric::Shm, MemoryKind::Device, "cycles", 2, 1, Layout::V7);
        let job = job.env(SETTINGS[0], loading).env(SETTINGS[1], queues);
        let report = job.run()?.check()?;
        for pe in &report.pes {
            let text = pe.text();
            let warned: Vec<_> = text.lines().filter(|line| warns(line)).collect();
            let right = match of {
                Some(setting) => warned.iter().all(|line| line.contains(setting)),
                None => true,
            };
            if warned.is_empty() != of.is_none() || !right {
                return Err(format!("PE {} with {loading}, {queues}: {warned:?}", pe.pe).into());
            }
        }
    }
    Ok(())
}

fn pinned_memory() -> Vec<Trial> {
    [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm]
        .into_iter()
        .map(|fabric| {
            let name = format!("limits::pinned_memory_and_copies_{}", fabric.name());
            staged(name, fabric, Needs::StandIn, move || {
                let job = job(fabric, MemoryKind::Device, "limits", 2, 2, Layout::V7);
                let job = job.env("NVSHMEM_LIBFABRIC_STAGING_CHUNK", CHUNK);
                done(job.env("NVSHMEM_LIBFABRIC_STAGING_DEPTH", DEPTH))
            })
        })
        .collect()
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    const LEN: u64 = 8 * CHUNK;
    const TIMES: u64 = 8;
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let faults = host.faults().ok_or("no device")?;
    let (source, target) = (host.alloc(LEN, 4096)?, host.alloc(LEN, 4096)?);
    host.local(source, LEN)?.fill(Pattern::new(me.into()), 0)?;
    host.barrier()?;
    let before = faults.copies()?;
    for _ in 0..TIMES {
        host.proxy().put((me + 1) % n, target, source, LEN)?;
        host.user().put_nbi((me + 1) % n, target, source, LEN)?;
    }
    host.barrier()?;
    let copies = faults.copies()? - before;
    // Out of the source, and into the target: a chunk at a time, and some for what is not data.
    let chunks = 2 * (2 * TIMES) * LEN / CHUNK;
    if copies > chunks + chunks / 4 {
        return Err(format!("{copies} copies of {chunks} chunks that left or came").into());
    }
    host.local(target, LEN)?.verify(Pattern::new(((me + n - 1) % n).into()), 0)?;
    let pinned = faults.pinned_in_use()? - OWN_PINNED;
    let most = 2 * CHUNK * DEPTH + WORDS;
    if pinned < CHUNK || pinned > most {
        return Err(format!("{pinned} bytes of page-locked memory; the settings say {most}").into());
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}
