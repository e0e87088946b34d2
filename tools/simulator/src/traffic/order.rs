//! Fence, signals and quiet, seen from the target: a flag behind a fence never comes before its
//! data, nor does a signal that is sent apart from it, and what a quiet has ended is visible.

use crate::{Amo, BoxError, Error, Host, Job, Pattern, SymAddr};
use nvshmem_abi::c;

use crate::traffic::Resident;

const ROUNDS: u64 = 60;
const LEN: u64 = 50_000;
const SLOT: u64 = 64 << 10;
const FLAG: u64 = SLOT - 16;
const ANSWER: u64 = SLOT - 8;

/// Who sends: a user thread, the proxy with a fence before its flag, and the proxy with a signal's
/// operation in place of fence and flag.
const USER: u64 = 0;
const FENCED: u64 = 1;
const SIGNALLED: u64 = 2;
const KINDS: [u64; 3] = [USER, FENCED, SIGNALLED];

/// Everybody sends to everybody else, from both threads. Each receiver watches the flags and checks
/// the data at the moment it sees one. The scenario.
pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let kernel = Resident::start(job, &host)?;
    let inbox = host.alloc(3 * u64::from(n) * SLOT, 4096)?;
    let slot = |kind: u64, peer: u32| inbox.plus((kind * u64::from(n) + u64::from(peer)) * SLOT);
    let sources = [host.alloc(LEN, 8)?, host.alloc(LEN, 8)?, host.alloc(LEN, 8)?];
    host.barrier()?;
    let peers: Vec<u32> = (0..n).filter(|pe| *pe != me).collect();
    for round in 1..=job.param_or("rounds", ROUNDS)? {
        for kind in KINDS {
            let pattern = Pattern::of(&[kind, me.into(), round]);
            host.local(sources[kind as usize], LEN)?.fill(pattern, 0)?;
        }
        for &pe in &peers {
            send(&host, round, pe, KINDS.map(|kind| slot(kind, me)), sources)?;
        }
        // Wait for the others' flags of this round, and answer each.
        let mut open: Vec<(u64, u32)> =
            KINDS.into_iter().flat_map(|kind| peers.iter().map(move |pe| (kind, *pe))).collect();
        host.wait_until(|| {
            let mut left = Vec::new();
            for (kind, pe) in open.drain(..) {
                let flag = host.local(slot(kind, pe).plus(FLAG), 8)?.load_acquire()?;
                if flag != round {
                    left.push((kind, pe));
                    continue;
                }
                host.local(slot(kind, pe), LEN)?
                    .verify(Pattern::of(&[kind, pe.into(), round]), 0)
                    .map_err(|error| {
                        Error::Plugin(format!("round {round}: flag before data: {error}"))
                    })?;
                host.proxy().p(pe, slot(kind, me).plus(ANSWER), round, 8)?;
            }
            open = left;
            Ok(open.is_empty())
        })?;
        // The sources may be changed once everybody has seen them.
        for kind in KINDS {
            for &pe in &peers {
                let answer = host.local(slot(kind, pe).plus(ANSWER), 8)?;
                host.wait_until(|| Ok(answer.load_acquire()? == round))?;
            }
        }
    }
    quiet_means_visible(&host, job, me, n)?;
    kernel.end()?;
    host.finalize()?;
    Ok(())
}

fn send(
    host: &Host<'_>,
    round: u64,
    pe: u32,
    [user, fenced, signalled]: [SymAddr; 3],
    [from_user, from_fenced, from_signalled]: [SymAddr; 3],
) -> Result<(), BoxError> {
    // In two halves, so that the rails have something to reorder.
    let half = LEN / 2;
    let halves = [(half, LEN - half), (0, half)];
    for (offset, len) in halves {
        host.proxy().put(pe, fenced.plus(offset), from_fenced.plus(offset), len)?;
        host.user().put_nbi(pe, user.plus(offset), from_user.plus(offset), len)?;
    }
    // As NVSHMEM sends a put with signal of a stream that does not block: no fence, and the signal
    // by itself. Before the fence of the others, or behind it.
    let with_signal = || -> Result<(), BoxError> {
        for (offset, len) in halves {
            host.proxy().put(pe, signalled.plus(offset), from_signalled.plus(offset), len)?;
        }
        let signal = match round % 3 {
            0 => Amo::new(c::NVT_AMO_SIGNAL, 8, round),
            1 => Amo::new(c::NVT_AMO_SIGNAL_SET, 8, round),
            _ => Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1),
        };
        Ok(host.proxy().amo(pe, signalled.plus(FLAG), signal)?)
    };
    if round % 2 == 0 {
        with_signal()?;
    }
    host.proxy().fence()?;
    host.user().fence()?;
    host.proxy().p(pe, fenced.plus(FLAG), round, 8)?;
    host.user().p(pe, user.plus(FLAG), round, 8)?;
    if round % 2 != 0 {
        with_signal()?;
    }
    // A user thread's flag must leave without another call of that thread: it now only watches
    // memory.
    Ok(())
}

/// After a quiet the target's memory holds the data, whatever the target's threads do.
fn quiet_means_visible(host: &Host<'_>, job: &Job, me: u32, n: u32) -> Result<(), BoxError> {
    let target = host.alloc(LEN, 8)?;
    let source = host.alloc(LEN, 8)?;
    for round in 0..50 {
        host.local(source, LEN)?.fill(Pattern::of(&[round, me.into()]), 0)?;
        let len = [8, 4096, LEN][round as usize % 3];
        if round % 2 == 0 {
            host.user().put_nbi((me + 1) % n, target, source, len)?;
            host.user().quiet_pe((me + 1) % n)?;
        } else {
            host.proxy().put((me + 1) % n, target, source, len)?;
            host.proxy().quiet()?;
        }
        // The bootstrap's barrier involves no transport.
        job.bootstrap().barrier()?;
        let sender = (me + n - 1) % n;
        host.local(target, len)?.verify(Pattern::of(&[round, sender.into()]), 0)?;
        job.bootstrap().barrier()?;
    }
    Ok(())
}
