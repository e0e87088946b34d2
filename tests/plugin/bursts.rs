//! Puts that the host announces in batches (layouts 6 and 7) and regions (layout 7): all of them
//! arrive, also when nothing follows and nobody waits for them.

use std::sync::mpsc::channel;

use libtest_mimic::Trial;
use nvshmem_abi::{Layout, c};
use nvshmem_sim::{Amo, BoxError, Host, Job, SymAddr};
use test_support::pairwise::rows;

use crate::fabric::{Fabric, trial};
use crate::matrix::{FABRICS, place, run};

const ROUNDS: u64 = 60;
/// Puts of a round to each PE: more than one batch.
const EACH: u64 = 40;

pub(crate) fn trials() -> Vec<Trial> {
    let batches = ["always", "auto"];
    // A depth of three makes room scarce in the middle of every burst.
    let room = [(1, 0), (2, 0), (2, 3), (1, 1)];
    let layouts = [Layout::V7, Layout::V6, Layout::V5];
    let of = |[fabric, layout, at, batch]: [usize; 4]| {
        let (fabric, layout, batch) = (FABRICS[fabric], layouts[layout], batches[batch]);
        let (rails, depth) = room[at];
        let place = place(fabric, 3, rails, layout);
        trial(format!("bursts_{place}_depth_{depth}_{batch}"), Some(fabric), move || {
            let job = fabric
                .job("bursts", 3, rails, layout)
                .debug("batch_rma", batch)
                .debug("queue_depth", depth);
            for pe in run(job)?.pes {
                let said = pe.text().contains("share a doorbell");
                if said != (batch == "always") {
                    return Err(format!("batches: {said}, set to {batch}").into());
                }
            }
            Ok(())
        })
    };
    let sizes = [FABRICS.len(), layouts.len(), room.len(), batches.len()];
    let mut trials: Vec<Trial> = rows(sizes, 4).into_iter().map(of).collect();
    for fabric in [Fabric::Rxm, Fabric::Tcp2, Fabric::Shm] {
        let name = format!("bursts_of_user_threads_are_none_{}", fabric.name());
        trials.push(trial(name, Some(fabric), move || {
            for layout in [Layout::V6, Layout::V7] {
                let job = fabric.job("announced_by_users", 2, 1, layout);
                run(job.debug("batch_rma", "always").debug("queue_depth", 1))?;
            }
            Ok(())
        }));
    }
    trials
}

/// A user thread announces that more follows, waits for what it has put, and reads it back, while
/// the proxy thread calls nothing: what the user thread puts is not the proxy lane's, where nobody
/// would send it.
pub(crate) fn announced_by_users(job: &mut Job) -> Result<(), BoxError> {
    let host = job.init()?;
    let (me, n) = (host.user().pe(), host.user().n_pes());
    let peer = (me + 1) % n;
    let words = host.alloc(3 * 8, 8)?;
    let (target, source, back) = (words, words.plus(8), words.plus(16));
    // Of one PE after the other: its peer's proxy thread has to run.
    for turn in 0..n {
        host.barrier()?;
        if turn != me {
            continue;
        }
        for value in 1..=ROUNDS {
            host.local(source, 8)?.store_release(value)?;
            let (entered, is_held) = channel();
            let (release, held) = channel::<()>();
            let running = host.proxy().start_run(move |ops| {
                // The only place of the proxy lane's queue is taken, until somebody polls it.
                let put = ops.put_nbi(peer, back, source, 8);
                let _ = entered.send(put);
                // Until the other end is dropped.
                let _ = held.recv();
            })?;
            is_held.recv()??;
            host.user().set_more_follows(true);
            host.user().put_nbi(peer, target, source, 8)?;
            host.user().set_more_follows(false);
            host.user().quiet()?;
            host.user().get(peer, target, back, 8)?;
            drop(release);
            running.wait()?;
            let found = host.local(back, 8)?.load_acquire()?;
            if found != value {
                return Err(format!("the peer has {found} in place of {value}").into());
            }
        }
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

pub(crate) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let layout = job.layout();
    let host = job.init()?;
    let (me, n) = (host.user().pe(), host.user().n_pes());
    let words = host.alloc(u64::from(n) * EACH * 8, 8)?;
    let source = host.alloc(EACH * 8, 8)?;
    let other = host.alloc(64, 8)?;
    for region in 1..=ROUNDS {
        // Everybody has what was sent in the last round, so the source may change.
        host.barrier()?;
        for number in 0..EACH {
            host.local(source.plus(number * 8), 8)?.store_release(region)?;
        }
        let in_region = layout == Layout::V7 && region % 2 == 0;
        for number in 0..EACH {
            for pe in 0..n {
                let to = words.plus((u64::from(me) * EACH + number) * 8);
                let from = source.plus(number * 8);
                if in_region {
                    host.proxy().put_in_region(region, pe, to, from, 8)?;
                } else {
                    host.proxy().put(pe, to, from, 8)?;
                }
            }
        }
        end(&host, region, in_region, other)?;
        wait(&host, words, u64::from(n) * EACH, region)?;
    }
    host.barrier()?;
    host.finalize()?;
    Ok(())
}

/// What follows the puts; mostly nothing but progress.
fn end(host: &Host<'_>, region: u64, in_region: bool, other: SymAddr) -> Result<(), BoxError> {
    if in_region {
        host.proxy().end_region(region)?;
    }
    let peer = (host.user().pe() + 1) % host.user().n_pes();
    match region % 7 {
        0 => host.proxy().fence()?,
        1 => host.proxy().quiet()?,
        2 => host.proxy().amo(peer, other, Amo::new(c::NVT_AMO_INC, 8, 0))?,
        3 => host.proxy().p(peer, other.plus(8), region, 8)?,
        4 => host.proxy().get(peer, other, other.plus(16), 8)?,
        _ => {}
    }
    // A region of a user's thread may end at any time.
    host.region_flush(1, region)?;
    Ok(())
}

/// Waits until all words have come, as a kernel does that looks at its memory.
fn wait(host: &Host<'_>, words: SymAddr, count: u64, value: u64) -> Result<(), BoxError> {
    let mut idle = 0u32;
    for number in 0..count {
        let word = host.local(words.plus(number * 8), 8)?;
        while word.load_acquire()? != value {
            std::thread::yield_now();
            idle += 1;
            if idle % 65536 == 0 {
                // Fails if the proxy thread has.
                host.proxy().run(|_| ())?;
            }
        }
    }
    Ok(())
}
