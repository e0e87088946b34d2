//! What the other cases stand on: each PE reads and writes its own memory, of every kind, while a
//! kernel stays on the device. No transfer: what fails here is not the plugin's doing.

use libtest_mimic::Trial;
use nvshmem_sim::{BoxError, Job, Layout, MemoryKind, Pattern, UserMapped};

use super::device::{Needs, done_with, job, staged};
use crate::fabric::Fabric;
use crate::matrix::run;
use nvshmem_sim::traffic::resident::{RESIDENT, Resident};

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for kind in [
        MemoryKind::Device,
        MemoryKind::DeviceVmm,
        MemoryKind::DeviceVmmPieces,
        MemoryKind::Managed,
    ] {
        trials.push(staged(format!("{kind}::own_memory"), Fabric::Shm, Needs::Any, move || {
            run(job(Fabric::Shm, kind, "own_memory", 2, 1, Layout::V7).param(RESIDENT, true))
                .map(drop)
        }));
    }
    for mapped in [UserMapped::Device, UserMapped::HostNuma] {
        let name = format!("vmm::own_memory_with_users_{mapped:?}").to_lowercase();
        trials.push(staged(name, Fabric::Shm, Needs::Any, move || {
            let job = job(Fabric::Shm, MemoryKind::DeviceVmm, "own_memory", 2, 1, Layout::V7);
            done_with(mapped, job.user_mapped(mapped).param(RESIDENT, true))
        }));
    }
    trials
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let kernel = Resident::start(job, &host)?;
    let whole = host.heap()?;
    let (inside, pattern) = (whole.part(5, whole.len() - 12)?, Pattern::new(job.pe().into()));
    whole.set(0xee)?;
    inside.fill(pattern, 3)?;
    inside.verify(pattern, 3)?;
    if whole.part(0, 5)?.to_vec()? != [0xee; 5] {
        return Err("a write began before its place".into());
    }
    let word = whole.part(64, 8)?;
    for value in 0..100 {
        word.store_release(value)?;
        if word.load_acquire()? != value {
            return Err(format!("a word is not {value}, which was stored").into());
        }
    }
    for kind in [MemoryKind::Host, MemoryKind::Device] {
        for buffer in [host.register_in(kind, 100_000, 13)?, host.unregistered_in(kind, 100_000)?] {
            let local = host.local(buffer.at(0), 100_000)?;
            local.fill(pattern, 1)?;
            local.verify(pattern, 1)?;
        }
    }
    if let Some((at, by_user)) = host.user_mapped()? {
        host.local(at, by_user.len())?.fill(pattern, 7)?;
        by_user.verify(pattern, 7)?;
    }
    kernel.end()?;
    host.finalize()?;
    Ok(())
}
