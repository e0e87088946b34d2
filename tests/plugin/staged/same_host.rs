//! PEs of one host that share their bounce memory: no processor touches what goes between them,
//! whatever the fabric.

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{BoxError, Job, Layout, MemoryKind, Pattern};

use super::device::{Needs, job, staged};
use crate::counters;
use crate::fabric::Fabric;

const SIZES: [u64; 4] = [300, 4096, 512 << 10, (5 << 20) + 777];
const LARGEST: u64 = 6 << 20;
const ROUNDS: u64 = 4;
const WARM: u64 = 8;

pub(crate) fn trials() -> Vec<Trial> {
    let of = |(fabric, n_pes): (Fabric, u32)| {
        let name = format!("same_host::{n_pes}_pes_copy_every_byte_{}", fabric.name());
        staged(name, fabric, Needs::StandIn, move || no_processor(fabric, n_pes))
    };
    [(Fabric::Shm, 2), (Fabric::Tcp2, 4)].map(of).into()
}

fn no_processor(fabric: Fabric, n_pes: u32) -> Result<(), Failed> {
    let job = job(fabric, MemoryKind::DeviceVmm, "same_host", n_pes, 2, Layout::V7);
    let (report, all) = counters::counted(job.debug("share_bounce", 1))?;
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
    let (me, n) = (job.pe, job.n_pes());
    let next = (me + 1) % n;
    let host = job.init()?;
    let (source, target) = (host.alloc(LARGEST, 4096)?, host.alloc(LARGEST, 4096)?);
    let back = host.alloc(LARGEST, 4096)?;
    // Whose lane has had a message copies from others' memory, and has told them.
    host.local(source, WARM)?.set(0)?;
    host.proxy.put(next, target, source, WARM)?;
    host.proxy.quiet()?;
    host.barrier()?;
    for round in 0..ROUNDS {
        for len in SIZES {
            let pattern = |pe: u32| Pattern::of(&[pe.into(), round, len]);
            host.local(source, len)?.fill(pattern(me), 0)?;
            host.local(target, len)?.set(0)?;
            host.barrier()?;
            host.proxy.put(next, target, source, len)?;
            host.proxy.quiet()?;
            host.barrier()?;
            host.local(target, len)?.verify(pattern((me + n - 1) % n), 0)?;
            host.local(back, len)?.set(0)?;
            host.proxy.get(next, target, back, len)?;
            host.proxy.quiet()?;
            host.local(back, len)?.verify(pattern(me), 0)?;
            host.barrier()?;
        }
    }
    host.finalize()?;
    Ok(())
}
