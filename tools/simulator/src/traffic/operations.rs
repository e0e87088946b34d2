//! Put, get, P and G of all sizes and alignments, from the user thread and the proxy thread at
//! once, every byte checked at the target and beside it.

use crate::traffic::with_host;
use crate::{BoxError, Host, Job, Layout, MemoryKind, Pattern};

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
const KINDS: [u64; 2] = [USER, PROXY];

#[derive(Clone, Copy)]
struct Piece {
    offset: u64,
    len: u64,
}

impl Piece {
    fn reaches(self, me: u32, pe: u32, n: u32) -> bool {
        self.len < LARGE || pe == me || pe == (me + 1) % n
    }
}

/// Every size, with gaps that shift the alignment, and words at every alignment. Each kind of
/// thread of each PE sends them to all.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let mut offset = 0;
    let mut pieces = Vec::new();
    for shift in [0, 1, 3, 7] {
        // Large ones once.
        for (at, len) in (0..).zip(SIZES).filter(|(_, len)| *len < LARGE || shift == 0) {
            pieces.push(Piece { offset, len });
            offset += len + 1 + (at + shift) % 9;
        }
    }
    for align in 0..8 {
        for len in [1, 2, 4, 8] {
            offset = (offset + 9).next_multiple_of(8) + align;
            pieces.push(Piece { offset, len });
            offset += len;
        }
    }
    with_host(job, |host| {
        if job.settings.layout >= Layout::V4 {
            // Queue pairs are declined: the indices stay what the host put there.
            let indices = host.create_qps(3)?;
            if indices.iter().any(|index| *index != 1) {
                return Err(format!("queue pair indices {indices:?}").into());
            }
        }
        exchange(job, host, &pieces, (offset + 1).next_multiple_of(4096))
    })
}

pub(super) fn storm(job: &mut Job) -> Result<(), BoxError> {
    const SLOT: u64 = 64;
    let n = u64::from(job.n_pes());
    // Each pair of PEs gets its share, which the two kinds of threads of the sender divide.
    let share = job.param_or::<u64>("operations", 10_000)?.div_ceil(2 * n * n);
    let len = |at: u64| match at % 6 {
        2 | 3 => [1, 2, 4, 8][(at / 6 % 4) as usize],
        _ => 1 + at * 7 % SLOT,
    };
    let pieces: Vec<_> = (0..share).map(|at| Piece { offset: at * SLOT, len: len(at) }).collect();
    with_host(job, |host| exchange(job, host, &pieces, share * SLOT))
}

fn exchange(job: &Job, host: &Host<'_>, pieces: &[Piece], area: u64) -> Result<(), BoxError> {
    let (me, n) = (job.pe, job.n_pes());
    // One part per kind of thread and sender.
    let inbox = host.alloc(2 * area * u64::from(n), 4096)?;
    let part =
        |kind: u64, sender: u32| inbox.plus((kind * u64::from(n) + u64::from(sender)) * area);
    let pattern = |kind: u64, sender: u32| Pattern::of(&[kind, sender.into()]);
    let source = host.alloc(area, 8)?;
    host.local(source, area)?.fill(pattern(PROXY, me), 0)?;
    // The user thread sends from a buffer of its own: some PEs from one at an odd address, which is
    // on a device where the heap is, and some from memory of the host that nobody registered.
    let own = job.settings.memory.of_buffers();
    let buffer = match me % 2 {
        0 => host.register(own, area, 13)?,
        _ => host.unregistered(MemoryKind::Host, area)?,
    };
    host.local(buffer.at(0), area)?.fill(pattern(USER, me), 0)?;
    host.barrier()?;
    // A P does not cross a chunk; the smallest chunk is a page.
    let is_value = |at: usize, Piece { offset, len }: Piece| {
        let is_word = matches!(len, 1 | 2 | 4 | 8) && offset % 4096 + len <= 4096;
        is_word && at % 2 == 1
    };
    let sent = |sender: u32, to: u32| {
        pieces.iter().copied().filter(move |piece| piece.reaches(sender, to, n))
    };

    for pe in (0..n).map(|step| (me + 1 + step) % n) {
        for (at, piece) in sent(me, pe).enumerate() {
            let Piece { offset, len } = piece;
            let [to_user, to_proxy] = KINDS.map(|kind| part(kind, me).plus(offset));
            if is_value(at, piece) {
                let value = |kind| {
                    let mut word = [0; 8];
                    pattern(kind, me).fill(offset, &mut word);
                    u64::from_le_bytes(word)
                };
                host.user.p(pe, to_user, value(USER), len as i32)?;
                host.proxy.p(pe, to_proxy, value(PROXY), len as i32)?;
                continue;
            }
            host.proxy.put(pe, to_proxy, source.plus(offset), len)?;
            match at % 6 {
                0 => host.user.put(pe, to_user, buffer.at(offset), len)?,
                2 => {
                    host.user.put_nbi(pe, to_user, buffer.at(offset), len)?;
                    host.user.fence_pe(pe)?;
                    host.proxy.fence()?;
                }
                _ => host.user.put_nbi(pe, to_user, buffer.at(offset), len)?,
            }
        }
    }
    host.barrier()?;
    for (kind, sender) in KINDS.into_iter().flat_map(|kind| (0..n).map(move |pe| (kind, pe))) {
        let arrived = host.local(part(kind, sender), area)?.to_vec()?;
        check(&arrived, sent(sender, me), pattern(kind, sender), 0)
            .map_err(|error| format!("kind {kind}, from PE {sender}: {error}"))?;
    }
    host.barrier()?;

    let into = [host.unregistered(MemoryKind::Host, area)?, host.register(own, area, 5)?];
    for pe in (0..n).map(|step| (me + step) % n) {
        for buffer in into {
            host.local(buffer.at(0), area)?.set(0xcc)?;
        }
        // What this PE has sent, from where it was sent to.
        for (at, Piece { offset, len }) in sent(me, pe).enumerate() {
            let [from_user, from] = KINDS.map(|kind| part(kind, me).plus(offset));
            let [to_user, to] = into.map(|buffer| buffer.at(offset));
            if len <= 8 {
                host.proxy.g(pe, from, to, len)?;
            } else {
                host.proxy.get(pe, from, to, len)?;
            }
            if at % 4 == 0 {
                host.user.get(pe, from_user, to_user, len)?;
                host.local(to_user, len)?.verify(pattern(USER, me), offset)?;
            } else {
                host.user.get_nbi(pe, from_user, to_user, len)?;
            }
        }
        host.user.quiet()?;
        host.proxy.quiet()?;
        for kind in KINDS {
            let found = host.local(into[kind as usize].at(0), area)?.to_vec()?;
            check(&found, sent(me, pe), pattern(kind, me), 0xcc)
                .map_err(|error| format!("kind {kind}, gets from PE {pe}: {error}"))?;
        }
    }
    for buffer in into {
        host.unregister(buffer)?;
    }
    Ok(host.unregister(buffer)?)
}

/// Compares memory with what was written there: pieces in order, and between them a byte as it was
/// before.
fn check(
    area: &[u8],
    pieces: impl Iterator<Item = Piece>,
    pattern: Pattern,
    beside: u8,
) -> Result<(), BoxError> {
    let mut end = 0;
    let is_as_before = |part: &[u8]| part.iter().all(|byte| *byte == beside);
    for Piece { offset, len } in pieces {
        let (from, to) = (offset as usize, (offset + len) as usize);
        if !is_as_before(&area[end..from]) {
            return Err(format!("something was written beside its target, before {offset}").into());
        }
        let verified = pattern.verify(offset, &area[from..to]);
        verified.map_err(|error| format!("{len} bytes at {offset}: {error}"))?;
        end = to;
    }
    match is_as_before(&area[end..]) {
        true => Ok(()),
        false => Err(format!("something was written beside its target, behind {end}").into()),
    }
}
