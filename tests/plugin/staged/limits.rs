//! What staging takes: page-locked memory within its settings, and one copy on each side. And what
//! it warns of.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, COPIES, Job, Layout, MemoryKind, PINNED, Pattern};

use super::device::{Needs, job, staged};
use crate::fabric::Fabric;
use crate::matrix::{HELD_UP, run};

const CHUNK: u64 = 256 << 10;
const DEPTH: u64 = 4;

/// Page-locked memory of the simulator's own.
pub(crate) const OWN_PINNED: u64 = 2 << 20;
const WORDS: u64 = 64 << 10;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        staged(String::from("limits::pinned_memory_rxm"), Fabric::Rxm, Needs::StandIn, pinned),
        staged(String::from("limits::hazards_are_warned_of"), Fabric::Shm, Needs::Any, hazards),
    ]
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

fn pinned() -> Result<(), Failed> {
    [(0, 1), (1, 2)].into_iter().try_for_each(|(shares, pieces)| {
        let job = job(Fabric::Rxm, MemoryKind::Device, "limits", 2, 2, Layout::V7);
        let job = job.env("NVSHMEM_LIBFABRIC_STAGING_CHUNK", CHUNK);
        let job = job.env("NVSHMEM_LIBFABRIC_STAGING_DEPTH", DEPTH);
        run(job.debug("share_bounce", shares).param("pieces", pieces)).map(drop)
    })
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
    let before = faults.count(COPIES)?;
    for _ in 0..TIMES {
        host.proxy().put((me + 1) % n, target, source, LEN)?;
        host.user().put_nbi((me + 1) % n, target, source, LEN)?;
    }
    host.barrier()?;
    let copies = faults.count(COPIES)? - before;
    // Out of the source, and into the target: a chunk at a time, and some for what is not data.
    let chunks = 2 * (2 * TIMES) * LEN / CHUNK;
    if copies > chunks + chunks / 4 {
        return Err(format!("{copies} copies of {chunks} chunks that left or came").into());
    }
    host.local(target, LEN)?.verify(Pattern::new(((me + n - 1) % n).into()), 0)?;
    let pinned = faults.count(PINNED)? - OWN_PINNED;
    let bounce = job.param::<u64>("pieces")? * 2 * CHUNK * DEPTH;
    let most = bounce + WORDS;
    if pinned < bounce || pinned > most {
        return Err(format!("{pinned} bytes of page-locked memory; the settings say {most}").into());
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}
