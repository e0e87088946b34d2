//! Fence and quiet, seen from the target: a flag behind a fence never comes before its data, and
//! what a quiet has ended is visible.

use nvshmem_sim::{BoxError, Host, Job, Pattern, SymAddr};

use crate::resident::Resident;

const ROUNDS: u64 = 60;
const LEN: u64 = 50_000;
/// Data, then a flag word, then a word for the answer.
const SLOT: u64 = 64 << 10;
const FLAG: u64 = SLOT - 16;
const ANSWER: u64 = SLOT - 8;

/// Everybody sends to everybody else, from both threads, with fences only. Each receiver watches
/// the flags and checks the data at the moment it sees one.
pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let host = job.init()?;
    let kernel = Resident::start(job, &host)?;
    let inbox = host.alloc(2 * u64::from(n) * SLOT, 4096)?;
    let slot = |kind: u64, peer: u32| inbox.plus((kind * u64::from(n) + u64::from(peer)) * SLOT);
    let sources = [host.alloc(LEN, 8)?, host.alloc(LEN, 8)?];
    host.barrier()?;
    let peers: Vec<u32> = (0..n).filter(|pe| *pe != me).collect();
    for round in 1..=ROUNDS {
        for kind in [0, 1] {
            let pattern = Pattern::of(&[kind, me.into(), round]);
            host.local(sources[kind as usize], LEN)?.fill(pattern, 0)?;
        }
        for &pe in &peers {
            send(&host, round, pe, slot(0, me), slot(1, me), sources)?;
        }
        // Wait for the others' flags of this round, and answer each.
        let mut open: Vec<(u64, u32)> =
            [0, 1].into_iter().flat_map(|kind| peers.iter().map(move |pe| (kind, *pe))).collect();
        while !open.is_empty() {
            let mut left = Vec::new();
            for (kind, pe) in open {
                let flag = host.local(slot(kind, pe).plus(FLAG), 8)?.load_acquire()?;
                if flag != round {
                    left.push((kind, pe));
                    continue;
                }
                host.local(slot(kind, pe), LEN)?
                    .verify(Pattern::of(&[kind, pe.into(), round]), 0)
                    .map_err(|error| format!("round {round}: flag before data: {error}"))?;
                host.proxy().p(pe, slot(kind, me).plus(ANSWER), round, 8)?;
            }
            open = left;
            std::thread::yield_now();
        }
        // The sources may be changed once everybody has seen them.
        for kind in [0, 1] {
            for &pe in &peers {
                let answer = host.local(slot(kind, pe).plus(ANSWER), 8)?;
                while answer.load_acquire()? != round {
                    std::thread::yield_now();
                }
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
    user: SymAddr,
    proxy: SymAddr,
    [from_user, from_proxy]: [SymAddr; 2],
) -> Result<(), BoxError> {
    // In two halves, so that the rails have something to reorder.
    let half = LEN / 2;
    for (offset, len) in [(half, LEN - half), (0, half)] {
        host.proxy().put(pe, proxy.plus(offset), from_proxy.plus(offset), len)?;
        host.user().put_nbi(pe, user.plus(offset), from_user.plus(offset), len)?;
    }
    host.proxy().fence()?;
    host.user().fence()?;
    host.proxy().p(pe, proxy.plus(FLAG), round, 8)?;
    host.user().p(pe, user.plus(FLAG), round, 8)?;
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
