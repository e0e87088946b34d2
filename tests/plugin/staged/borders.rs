//! Transfers that begin and end anywhere, across the borders of chunks, of registrations and of the
//! device's allocations, on both sides.

use libtest_mimic::Trial;
use nvshmem_sim::{BoxError, Host, Job, Layout, MemoryKind, Pattern, UserMapped};

use super::device::{Needs, done_with, job, staged};
use super::matrix::done;
use crate::fabric::Fabric;
use nvshmem_sim::traffic::{check, with_host};

const MIB: u64 = 1 << 20;

/// The heap: of the two halves one is sent from and one written to, both up to the last byte.
const HEAP: u64 = 32 * MIB;

pub(crate) fn trials() -> Vec<Trial> {
    let borders = |fabric: Fabric, kind: MemoryKind, rails, layout, chunk| {
        let name = format!("{kind}::borders_{}", fabric.name());
        staged(name, fabric, Needs::Any, move || {
            done(job(fabric, kind, "borders", 2, rails, layout).heap(HEAP, chunk))
        })
    };
    let mapped = |fabric: Fabric, mapped: UserMapped, layout| {
        let name = format!("vmm::users_buffer_{mapped:?}_{}", fabric.name()).to_lowercase();
        staged(name, fabric, Needs::Any, move || {
            let job = job(fabric, MemoryKind::DeviceVmm, "borders", 2, 2, layout);
            done_with(mapped, job.heap(HEAP, 4 * MIB).user_mapped(mapped))
        })
    };
    vec![
        borders(Fabric::Rxm, MemoryKind::Device, 1, Layout::V4, 2 * MIB),
        borders(Fabric::Tcp2, MemoryKind::DeviceVmmPieces, 3, Layout::V7, 8 * MIB),
        mapped(Fabric::Shm, UserMapped::Device, Layout::V3b),
        mapped(Fabric::Tcp2, UserMapped::HostNuma, Layout::V7),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    from: u64,
    to: u64,
    len: u64,
}

/// Around every kind of border, with odd places and lengths, none into another's bytes.
fn transfers() -> Vec<Transfer> {
    const HALF: u64 = HEAP / 2;
    let mut all = Vec::new();
    let mut to = 1;
    for (at, len) in [1, 7, 8, 61, 4097, 65_539, 524_287, 2 * MIB + 3, 3 * MIB + 77, 5 * MIB - 1]
        .into_iter()
        .enumerate()
    {
        // Half before a border of the source; in the middle of a page where it is short.
        let border = 2 * MIB * (1 + at as u64 % 7);
        let from = (border - len.min(border) / 2).min(HALF - len);
        all.push(Transfer { from, to, len });
        to += len + 1 + at as u64 * 5;
    }
    // Up to the last byte of the heap, from the first byte of it.
    let len = HALF - to - 3;
    all.push(Transfer { from: 0, to: HALF - len, len });
    all
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    with_host(job, |host| over_borders(host, me, n))
}

fn over_borders(host: &Host<'_>, me: u32, n: u32) -> Result<(), BoxError> {
    let source = host.alloc(HEAP / 2, 8)?;
    let target = host.alloc(HEAP / 2, 8)?;
    let (next, last) = ((me + 1) % n, (me + n - 1) % n);
    let pattern = |pe: u32, round: u64| Pattern::of(&[pe.into(), round]);
    for round in 0..4 {
        host.local(source, HEAP / 2)?.fill(pattern(me, round), 0)?;
        host.local(target, HEAP / 2)?.set(0xdd)?;
        host.barrier()?;
        for Transfer { from, to, len } in transfers() {
            let (here, there) = (source.plus(from), target.plus(to));
            match round {
                0 => host.proxy().put(next, there, here, len)?,
                1 => host.user().put(next, there, here, len)?,
                // Gets write what the others' puts would.
                2 => host.proxy().get(last, here, there, len)?,
                _ => host.user().get(last, here, there, len)?,
            }
        }
        host.barrier()?;
        let places = transfers().into_iter().map(|Transfer { from, to, len }| (to, from, len));
        check(&host.local(target, HEAP / 2)?.to_vec()?, places, pattern(last, round), 0xdd)?;
        host.barrier()?;
    }
    if let Some((at, by_user)) = host.user_mapped()? {
        // What came to the heap's address is there at the user's.
        let here = host.local(at, by_user.len())?.to_vec()?;
        if by_user.to_vec()? != here {
            return Err("the user's address of the last chunk shows other bytes".into());
        }
    }
    Ok(())
}
