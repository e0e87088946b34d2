//! Put, get, P and G of all sizes and alignments, from the user thread and the proxy thread at
//! once, every byte checked at the target.

use crate::{Amo, BoxError, Host, Job, Layout, MemoryKind, Pattern, SymAddr};
use nvshmem_abi::c;

use crate::traffic::resident::Resident;
use crate::traffic::wanted;

/// Sizes that matter: around words, cache lines, pages, inject limits, and chunk borders.
const SIZES: [u64; 25] = [
    0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 63, 64, 65, 127, 128, 129, 255, 1000, 4095, 4096, 4097,
    65_537, 300_001, 1_200_007,
];

/// From this size on an operation goes to one peer and to this PE only: it is about cutting at
/// chunk borders, not about peers.
const LARGE: u64 = 65_537;

/// The two kinds of threads, as indices.
const USER: u64 = 0;
const PROXY: u64 = 1;

/// One transfer: the same offset at the source and in the sender's part of the target.
#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    len: u64,
}

/// All transfers of one sender to one target, with gaps that shift the alignment.
fn pieces() -> (Vec<Piece>, u64) {
    let mut offset = 0;
    let mut pieces = Vec::new();
    for shift in [0, 1, 3, 7] {
        for (at, len) in SIZES.into_iter().enumerate() {
            // Large ones once.
            if len >= LARGE && shift > 0 {
                continue;
            }
            pieces.push(Piece { offset, len });
            offset += len + 1 + (at as u64 + shift) % 9;
        }
    }
    (pieces, offset.next_multiple_of(4096))
}

fn reaches(me: u32, pe: u32, n: u32, len: u64) -> bool {
    len < LARGE || pe == me || pe == (me + 1) % n
}

/// The scenario.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let kernel = Resident::start(job, &host)?;
    if job.layout() >= Layout::V4 {
        // Queue pairs are declined: the indices stay what the host put there.
        let indices = host.create_qps(3)?;
        if indices.iter().any(|index| *index != 1) {
            return Err(format!("queue pair indices {indices:?}").into());
        }
    }
    let (pieces, area) = pieces();
    // One part per kind of thread and sender.
    let inbox = host.alloc(2 * area * u64::from(n), 4096)?;
    let part =
        |kind: u64, sender: u32| inbox.plus((kind * u64::from(n) + u64::from(sender)) * area);
    let pattern = |kind: u64, sender: u32| Pattern::of(&[kind, sender.into()]);
    let source = host.alloc(area, 8)?;
    host.local(source, area)?.fill(pattern(PROXY, me), 0)?;
    // The user thread sends from a buffer of its own, at an odd address: where the heap is on a
    // device, some PEs have the buffer there, and some in the host's memory.
    let buffer = match me % 2 {
        0 => host.register(area, 13)?,
        _ => host.register_in(MemoryKind::Host, area, 13)?,
    };
    host.local(buffer.at(0), area)?.fill(pattern(USER, me), 0)?;
    host.barrier()?;

    if wanted(job, "put")? {
        for pe in (0..n).map(|step| (me + 1 + step) % n) {
            for (at, piece) in pieces.iter().enumerate() {
                let Piece { offset, len } = *piece;
                if !reaches(me, pe, n, len) {
                    continue;
                }
                host.proxy().put(pe, part(PROXY, me).plus(offset), source.plus(offset), len)?;
                let (to, from) = (part(USER, me).plus(offset), buffer.at(offset));
                match at % 3 {
                    0 => host.user().put(pe, to, from, len)?,
                    1 => host.user().put_nbi(pe, to, from, len)?,
                    _ => {
                        host.user().put_nbi(pe, to, from, len)?;
                        host.user().fence_pe(pe)?;
                        host.proxy().fence()?;
                    }
                }
            }
        }
        host.barrier()?;
        for kind in [USER, PROXY] {
            for sender in 0..n {
                let mut end = 0;
                for Piece { offset, len } in pieces.iter().copied() {
                    zeroes(&host, part(kind, sender).plus(end), offset - end)?;
                    end = offset + len;
                    let arrived = host.local(part(kind, sender).plus(offset), len)?;
                    if reaches(sender, me, n, len) {
                        arrived.verify(pattern(kind, sender), offset).map_err(|error| {
                            format!(
                                "kind {kind}, from PE {sender}, {len} bytes at {offset}: {error}"
                            )
                        })?;
                    } else {
                        zeroes(&host, part(kind, sender).plus(offset), len)?;
                    }
                }
                zeroes(&host, part(kind, sender).plus(end), area - end)?;
            }
        }
        host.barrier()?;
    } else {
        // What gets are to find, and nobody has put there.
        for kind in [USER, PROXY] {
            for sender in 0..n {
                host.local(part(kind, sender), area)?.fill(pattern(kind, sender), 0)?;
            }
        }
        host.barrier()?;
    }

    if wanted(job, "get")? {
        read_back(&host, me, n, &pieces, area, &part, &pattern)?;
    }
    if wanted(job, "p")? {
        values(&host, me, n)?;
    }
    if wanted(job, "put")? {
        unregistered(&host, me, n)?;
    }
    host.unregister(buffer)?;
    kernel.end()?;
    host.finalize()?;
    Ok(())
}

/// Gets what this PE has sent, from where it was sent to.
fn read_back(
    host: &Host<'_>,
    me: u32,
    n: u32,
    pieces: &[Piece],
    area: u64,
    part: &dyn Fn(u64, u32) -> SymAddr,
    pattern: &dyn Fn(u64, u32) -> Pattern,
) -> Result<(), BoxError> {
    let into = [host.register_in(MemoryKind::Host, area, 5)?, host.register(area, 5)?];
    for pe in (0..n).map(|step| (me + step) % n) {
        for kind in [USER, PROXY] {
            host.local(into[kind as usize].at(0), area)?.set(0xcc)?;
        }
        let mut sent = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            let Piece { offset, len } = *piece;
            if !reaches(me, pe, n, len) {
                continue;
            }
            sent.push(*piece);
            let from = part(PROXY, me).plus(offset);
            let to = into[PROXY as usize].at(offset);
            if len <= 8 {
                host.proxy().g(pe, from, to, len)?;
            } else if at % 4 == 0 {
                host.proxy().run(move |ops| ops.get_blocking(pe, from, to, len))??;
                // A blocking get has its data on return, whoever asks.
                host.local(to, len)?.verify(pattern(PROXY, me), offset)?;
            } else {
                host.proxy().get(pe, from, to, len)?;
            }
            let (from, to) = (part(USER, me).plus(offset), into[USER as usize].at(offset));
            if at % 2 == 0 {
                host.user().get(pe, from, to, len)?;
                host.local(to, len)?.verify(pattern(USER, me), offset)?;
            } else {
                host.user().get_nbi(pe, from, to, len)?;
            }
        }
        host.user().quiet()?;
        host.proxy().quiet()?;
        for kind in [USER, PROXY] {
            let mut end = 0;
            for Piece { offset, len } in sent.iter().copied() {
                let gap = host.local(into[kind as usize].at(end), offset - end)?.to_vec()?;
                if gap.iter().any(|byte| *byte != 0xcc) {
                    return Err(format!("a get wrote beside its target, before {offset}").into());
                }
                end = offset + len;
                host.local(into[kind as usize].at(offset), len)?
                    .verify(pattern(kind, me), offset)
                    .map_err(|error| format!("get of {len} bytes from PE {pe}: {error}"))?;
            }
        }
    }
    for buffer in into {
        host.unregister(buffer)?;
    }
    Ok(())
}

/// P of each width at each alignment, from both threads, with bytes around that must not change.
fn values(host: &Host<'_>, me: u32, n: u32) -> Result<(), BoxError> {
    // 8 alignments of 4 widths in slots of 24 bytes, per kind and sender; a row is 1 KiB.
    const ROW: u64 = 1024;
    let inbox = host.alloc(2 * u64::from(n) * ROW, 4096)?;
    host.local(inbox, 2 * u64::from(n) * ROW)?.set(0xee)?;
    host.barrier()?;
    let row = |kind: u64, sender: u32| inbox.plus((kind * u64::from(n) + u64::from(sender)) * ROW);
    let slots =
        || (0..8).flat_map(|align| [1, 2, 4, 8].into_iter().map(move |width| (align, width)));
    let value = |sender: u32, slot: usize| {
        let byte = Pattern::of(&[9, sender.into()]).byte(slot as u64) | 1;
        u64::from(byte).wrapping_mul(0x0123_4567_89ab_cdef)
    };
    for pe in 0..n {
        for (slot, (align, width)) in slots().enumerate() {
            let at = slot as u64 * 24 + 8 + align;
            host.user().p(pe, row(USER, me).plus(at), value(me, slot), width)?;
            host.proxy().p(pe, row(PROXY, me).plus(at), value(me, slot), width)?;
        }
    }
    host.barrier()?;
    for kind in [USER, PROXY] {
        for sender in 0..n {
            let mut expected = vec![0xee; ROW as usize];
            for (slot, (align, width)) in slots().enumerate() {
                let at = slot * 24 + 8 + align as usize;
                let bytes = value(sender, slot).to_le_bytes();
                expected[at..at + width as usize].copy_from_slice(&bytes[..width as usize]);
            }
            if host.local(row(kind, sender), ROW)?.to_vec()? != expected {
                return Err(format!("values of PE {sender}, kind {kind}, are wrong").into());
            }
        }
    }
    Ok(())
}

/// Buffers that nobody registered: puts and gets of both threads, and a put with its signal.
fn unregistered(host: &Host<'_>, me: u32, n: u32) -> Result<(), BoxError> {
    const LENGTHS: [u64; 4] = [8, 209, 10_000, 300_001];
    let (target, signal) = (host.alloc(LENGTHS[3], 64)?, host.alloc(8, 8)?);
    let seen = host.local(signal, 8)?;
    let start = seen.load_acquire()?;
    let buffer = host.unregistered(LENGTHS[3])?;
    let (next, before) = ((me + 1) % n, (me + n - 1) % n);
    for (round, len) in (1..).zip(LENGTHS) {
        let pattern = |pe: u32, part: u64| Pattern::new(u64::from(pe) << 16 | round << 8 | part);
        let local = host.local(buffer.at(0), len)?;
        let arrived = host.local(target, len)?;
        local.fill(pattern(me, 0), 0)?;
        host.barrier()?;
        host.user().put(next, target, buffer.at(0), len)?;
        host.barrier()?;
        arrived.verify(pattern(before, 0), 0)?;
        local.fill(pattern(me, 1), 0)?;
        host.user().get(next, target, buffer.at(0), len)?;
        local.verify(pattern(me, 0), 0)?;
        local.fill(pattern(me, 1), 0)?;
        host.proxy().get(next, target, buffer.at(0), len)?;
        host.proxy().quiet()?;
        local.verify(pattern(me, 0), 0)?;
        local.fill(pattern(me, 1), 0)?;
        host.barrier()?;
        let add = Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1);
        host.proxy().put_signal(next, target, buffer.at(0), len, signal, add)?;
        host.wait_until(|| Ok(seen.load_acquire()? == start + round))?;
        arrived.verify(pattern(before, 1), 0)?;
        host.barrier()?;
    }
    Ok(())
}

fn zeroes(host: &Host<'_>, at: SymAddr, len: u64) -> Result<(), BoxError> {
    if host.local(at, len)?.to_vec()?.iter().any(|byte| *byte != 0) {
        return Err(format!("something was written beside its target, near {at:?}").into());
    }
    Ok(())
}

/// A put and a get of a whole chunk, the largest that the host passes in one call.
pub(super) fn largest(job: &mut Job) -> Result<(), BoxError> {
    const CHUNK: u64 = 64 << 20;
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let source = host.alloc(CHUNK, CHUNK)?;
    let target = host.alloc(CHUNK, CHUNK)?;
    let back = host.alloc(CHUNK, CHUNK)?;
    host.local(source, CHUNK)?.fill(Pattern::new(me.into()), 0)?;
    host.barrier()?;
    host.proxy().put((me + 1) % n, target, source, CHUNK)?;
    host.barrier()?;
    host.local(target, CHUNK)?.verify(Pattern::new(((me + n - 1) % n).into()), 0)?;
    host.user().get((me + 1) % n, target, back, CHUNK)?;
    host.local(back, CHUNK)?.verify(Pattern::new(me.into()), 0)?;
    host.finalize()?;
    Ok(())
}
