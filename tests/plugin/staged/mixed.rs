//! Transfers between memory of the host and of a device: local buffers of either, registered and
//! not, and heaps of either at the other side.

use libtest_mimic::Trial;
use nvshmem_sim::{
    BoxError, BufferId, Host, Job, JobSettings, Layout, MemoryKind, Pattern, SymAddr,
};

use super::device::{Needs, job, staged};
use super::matrix::done;
use crate::fabric::Fabric;
use nvshmem_sim::traffic::with_host;

pub(crate) fn trials() -> Vec<Trial> {
    let new = |name: &str, fabric: Fabric, needs, job: fn() -> JobSettings| {
        let name = format!("mixed::{name}_{}", fabric.name());
        staged(name, fabric, needs, move || done(job()))
    };
    vec![
        new("buffers", Fabric::Rxm, Needs::Any, || {
            job(Fabric::Rxm, MemoryKind::Device, "mixed", 2, 1, Layout::V3a)
        }),
        new("buffers", Fabric::Tcp2, Needs::Any, || {
            let job = job(Fabric::Tcp2, MemoryKind::DeviceVmm, "mixed", 2, 2, Layout::V7);
            job.memory_of_pe(1, MemoryKind::Host)
        }),
        new("atomics", Fabric::Shm, Needs::Any, || {
            let job = job(Fabric::Shm, MemoryKind::Device, "atomics", 2, 2, Layout::V7);
            job.memory_of_pe(0, MemoryKind::Host)
        }),
        new("all_kinds_of_heap", Fabric::Shm, Needs::StandIn, || {
            let job = job(Fabric::Shm, MemoryKind::Device, "operations", 4, 2, Layout::V6);
            let job = job.memory_of_pe(1, MemoryKind::Host);
            let job = job.memory_of_pe(2, MemoryKind::DeviceVmm);
            job.memory_of_pe(3, MemoryKind::Managed)
        }),
    ]
}

const SIZES: [u64; 8] = [1, 8, 100, 1023, 4096 + 3, 70_001, 262_144, 600_003];
const LARGEST: u64 = 600_003;

fn buffers(host: &Host<'_>) -> Result<Vec<(BufferId, String)>, BoxError> {
    let mut buffers = Vec::new();
    for kind in [MemoryKind::Host, MemoryKind::Device] {
        if kind == MemoryKind::Device && host.device().is_none() {
            continue;
        }
        let registered = host.register(kind, LARGEST, 3)?;
        let unregistered = host.unregistered(kind, LARGEST)?;
        buffers.push((registered, format!("registered {kind} memory")));
        buffers.push((unregistered, format!("unregistered {kind} memory")));
    }
    Ok(buffers)
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    with_host(job, |host| all_buffers(host, me, n))
}

fn all_buffers(host: &Host<'_>, me: u32, n: u32) -> Result<(), BoxError> {
    let next = (me + 1) % n;
    // A part for each sender and each kind of thread.
    let inbox = host.alloc(2 * u64::from(n) * LARGEST, 4096)?;
    let part = |thread: u64, sender: u32| {
        inbox.plus((thread * u64::from(n) + u64::from(sender)) * LARGEST)
    };
    for (index, (buffer, what)) in (0..).zip(buffers(host)?) {
        for len in SIZES {
            for thread in [0, 1] {
                let pattern = Pattern::of(&[me.into(), index, len, thread]);
                round_trip(host, next, part(thread, me), buffer, len, thread, pattern)
                    .map_err(|error| format!("{what}, {len} bytes, thread {thread}: {error}"))?;
            }
        }
    }
    Ok(host.barrier()?)
}

fn round_trip(
    host: &Host<'_>,
    pe: u32,
    there: SymAddr,
    buffer: BufferId,
    len: u64,
    thread: u64,
    pattern: Pattern,
) -> Result<(), BoxError> {
    let local = host.local(buffer.at(0), len)?;
    local.fill(pattern, 0)?;
    match thread {
        // The blocking call is done with its source on return, whoever it belongs to.
        0 => host.user().put(pe, there, buffer.at(0), len)?,
        _ => {
            host.proxy().put(pe, there, buffer.at(0), len)?;
            host.proxy().quiet()?;
        }
    }
    local.set(0x5a)?;
    match thread {
        0 => {
            // Without a quiet the get might pass the put.
            host.user().quiet()?;
            host.user().get(pe, there, buffer.at(0), len)?;
        }
        _ => {
            host.proxy().get(pe, there, buffer.at(0), len)?;
            host.proxy().quiet()?;
        }
    }
    local.verify(pattern, 0)?;
    // And as two calls that do not wait, with a fence between for good measure at the other end.
    local.fill(pattern, 1)?;
    host.user().put_nbi(pe, there, buffer.at(0), len)?;
    host.user().fence()?;
    host.user().quiet()?;
    local.set(0xa5)?;
    host.user().get_nbi(pe, there, buffer.at(0), len)?;
    host.user().quiet()?;
    local.verify(pattern, 1)?;
    Ok(())
}
