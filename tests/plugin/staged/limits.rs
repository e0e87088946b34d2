//! What staging takes: page-locked memory within its settings, and one copy on each side.

use libtest_mimic::Trial;
use nvshmem_sim::{BoxError, Job, Layout, MemoryKind, Pattern};

use super::device::{Needs, job, staged};
use super::matrix::done;
use crate::fabric::Fabric;

const CHUNK: u64 = 256 << 10;
const DEPTH: u64 = 4;

/// Page-locked memory that the simulator has itself, and what words may take.
const OWN_PINNED: u64 = 2 << 20;
const WORDS: u64 = 64 << 10;

pub(crate) fn trials() -> Vec<Trial> {
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
