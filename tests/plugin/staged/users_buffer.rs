//! A user's buffer that is mapped into the heap, as its last chunk: transfers reach it by the
//! heap's address, across the borders of allocations, and the user sees their bytes at his own.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::traffic::with_host;
use nvshmem_sim::{BoxError, Job, Layout, MemoryKind, Pattern, UserMapped};

use super::device::{Needs, is_gpu, job, staged};
use crate::fabric::Fabric;
use crate::matrix::run;

/// The heap: of the two halves one is sent from and one written to, both up to the last byte.
const HEAP: u64 = 32 << 20;
const HALF: u64 = HEAP / 2;

pub(crate) fn trials() -> Vec<Trial> {
    let mapped = |fabric: Fabric, mapped: UserMapped, layout| {
        let name = format!("vmm::users_buffer_{mapped:?}_{}", fabric.name()).to_lowercase();
        staged(name, fabric, Needs::Any, move || {
            let job = job(fabric, MemoryKind::DeviceVmm, "users_buffer", 2, 2, layout);
            match run(job.heap(HEAP, 4 << 20).user_mapped(mapped)) {
                Err(error) if mapped == UserMapped::HostNuma => no_numa_memory(error),
                result => result.map(drop),
            }
        })
    };
    vec![
        mapped(Fabric::Shm, UserMapped::Device, Layout::V3b),
        mapped(Fabric::Tcp2, UserMapped::HostNuma, Layout::V7),
    ]
}

/// A GPU may have no memory of the host's NUMA nodes, and says so.
fn no_numa_memory(error: Failed) -> Result<(), Failed> {
    const REFUSED: &str = "cuMemCreate returned 801";
    if is_gpu() && error.message().is_some_and(|text| text.contains(REFUSED)) {
        println!("skipped: the device has no memory of NUMA nodes ({REFUSED})");
        return Ok(());
    }
    Err(error)
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, peer) = (job.pe, 1 - job.pe);
    with_host(job, |host| {
        let (source, target) = (host.alloc(HALF, 8)?, host.alloc(HALF, 8)?);
        for get in [false, true] {
            let pattern = |pe: u32| Pattern::of(&[pe.into(), get.into()]);
            host.local(source, HALF)?.fill(pattern(me), 0)?;
            host.barrier()?;
            match get {
                false => host.proxy.put(peer, target, source, HALF)?,
                // Gets write what the other's put would.
                true => host.proxy.get(peer, source, target, HALF)?,
            }
            host.barrier()?;
            host.local(target, HALF)?.verify(pattern(peer), 0)?;
            host.barrier()?;
        }
        let (at, by_user) = host.user_mapped()?.ok_or("a user's buffer is mapped")?;
        if by_user.to_vec()? != host.local(at, by_user.len())?.to_vec()? {
            return Err("the user's address of the last chunk shows other bytes".into());
        }
        Ok(())
    })
}
