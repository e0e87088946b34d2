//! Signals, fences and quiet, seen from the target: a receiver that has seen a signal or a flag
//! finds its data complete, at that moment, and what a quiet has ended is visible.

use crate::{Amo, BoxError, Host, Job, Pattern, SymAddr};
use nvshmem_abi::c;

use crate::error::{Result, error};
use crate::traffic::with_host;

const SLOTS: u64 = 4;

/// Bytes of each operation in [`order`], and rounds of each way.
const LEN: u64 = 50_000;
const ROUNDS: u64 = 60;

/// How data is told of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// A put with signal of the proxy.
    PutSignal,
    /// A fence and a P of the user's thread, whose flag must leave without another call of it.
    User,
    /// The same of the proxy.
    Fenced,
    /// As NVSHMEM sends a put with signal of a stream that does not block: no fence, and the
    /// signal's operation by itself.
    Apart,
}

struct Places {
    inbox: SymAddr,
    /// A word for each (sender, slot): the round whose data is there.
    signals: SymAddr,
    /// A word for each receiver: how many of mine it has taken.
    taken: SymAddr,
    outbox: SymAddr,
    slot_bytes: u64,
}

impl Places {
    fn new(host: &Host<'_>, n: u32, slot_bytes: u64) -> Result<Self, BoxError> {
        let words = u64::from(n) * SLOTS;
        Ok(Self {
            inbox: host.alloc(words * slot_bytes, 4096)?,
            signals: host.alloc(words * 8, 4096)?,
            taken: host.alloc(u64::from(n) * 8, 4096)?,
            outbox: host.alloc(words * slot_bytes, 4096)?,
            slot_bytes,
        })
    }

    fn slot(&self, base: SymAddr, pe: u32, round: u64) -> SymAddr {
        base.plus((u64::from(pe) * SLOTS + round % SLOTS) * self.slot_bytes)
    }

    fn signal(&self, pe: u32, round: u64) -> SymAddr {
        self.signals.plus((u64::from(pe) * SLOTS + round % SLOTS) * 8)
    }
}

fn length(sender: u32, receiver: u32, round: u64, most: u64) -> u64 {
    let x = Pattern::of(&[sender.into(), receiver.into()]).word(round);
    match x % 16 {
        0 => 0,
        1..=6 => 1 + x / 16 % 64,
        7..=9 => 200 + x / 16 % 20,
        10..=12 => 1 + x / 16 % 4096,
        13 | 14 => 1 + x / 16 % 70_000,
        _ => 1 + x / 16 % most,
    }
    .min(most)
}

/// Puts with signal of many lengths, from all to all.
pub(super) fn signals(job: &mut Job) -> Result<(), BoxError> {
    let (rounds, most) = (job.param_or("rounds", ROUNDS)?, job.param_or("most", 300_000)?);
    with_host(job, |host| exchange(host, &[Way::PutSignal], rounds, most))
}

/// Data and what tells of it in operations of their own, from both kinds of threads.
pub(super) fn order(job: &mut Job) -> Result<(), BoxError> {
    const WAYS: [Way; 3] = [Way::User, Way::Fenced, Way::Apart];
    let rounds = WAYS.len() as u64 * job.param_or("rounds", ROUNDS)?;
    with_host(job, |host| {
        exchange(host, &WAYS, rounds, LEN)?;
        quiet_means_visible(job, host)
    })
}

fn exchange(host: &Host<'_>, ways: &[Way], rounds: u64, most: u64) -> Result<(), BoxError> {
    let (me, n) = (host.user.pe(), host.user.n_pes());
    let places = Places::new(host, n, most.next_multiple_of(64) + 64)?;
    host.barrier()?;
    let (mut sent, mut received) = (vec![0; n as usize], vec![0; n as usize]);
    // This PE puts with signals to itself as well: NVSHMEM does that through the transport too.
    let peers: Vec<u32> = (0..n).filter(|pe| ways.len() == 1 || *pe != me).collect();
    host.wait_until(|| {
        for &pe in &peers {
            let (sent, received) = (&mut sent[pe as usize], &mut received[pe as usize]);
            let message = |round: u64| {
                let way = ways[(round % ways.len() as u64) as usize];
                let is_long = way != Way::PutSignal;
                move |from, to| (way, if is_long { most } else { length(from, to, round, most) })
            };
            if *sent < rounds {
                send(host, &places, (me, pe), sent, message(*sent)(me, pe))?;
            }
            if *received < rounds {
                receive(host, &places, (pe, me), received, message(*received)(pe, me).1)?;
            }
        }
        Ok(peers.iter().all(|pe| sent[*pe as usize] + received[*pe as usize] == 2 * rounds))
    })?;
    Ok(host.barrier()?)
}

fn send(
    host: &Host<'_>,
    places: &Places,
    (me, pe): (u32, u32),
    sent: &mut u64,
    (way, len): (Way, u64),
) -> Result<()> {
    let round = *sent;
    let taken = host.local(places.taken.plus(u64::from(pe) * 8), 8)?.load_acquire()?;
    if round >= taken + SLOTS {
        return Ok(());
    }
    let from = places.slot(places.outbox, pe, round);
    host.local(from, len)?.fill(Pattern::of(&[me.into(), pe.into(), round]), 0)?;
    // An odd place at the target, so that nothing is aligned by accident.
    let to = places.slot(places.inbox, me, round).plus(round % 8);
    let signal = places.signal(me, round);
    // Each slot's word counts the rounds it has had: by adding one, or by setting the count.
    let count = round / SLOTS + 1;
    let amo = match (round % 2, way) {
        (0, Way::Apart) => Amo::new(c::NVT_AMO_SIGNAL, 8, count),
        (0, _) => Amo::new(c::NVT_AMO_SIGNAL_SET, 8, count),
        _ => Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1),
    };
    // In two halves, so that the rails have something to reorder.
    let halves = [(len / 2, len - len / 2), (0, len / 2)];
    let (proxy, user) = (&host.proxy, &host.user);
    for (at, len) in halves.into_iter().filter(|_| way != Way::PutSignal) {
        match way {
            Way::User => user.put_nbi(pe, to.plus(at), from.plus(at), len)?,
            _ => proxy.put(pe, to.plus(at), from.plus(at), len)?,
        }
    }
    match way {
        Way::PutSignal => proxy.put_signal(pe, to, from, len, signal, amo)?,
        Way::User => user.fence().and_then(|()| user.p(pe, signal, count, 8))?,
        Way::Fenced => proxy.fence().and_then(|()| proxy.p(pe, signal, count, 8))?,
        Way::Apart => proxy.amo(pe, signal, amo)?,
    }
    *sent += 1;
    Ok(())
}

fn receive(
    host: &Host<'_>,
    places: &Places,
    (pe, me): (u32, u32),
    received: &mut u64,
    len: u64,
) -> Result<()> {
    let round = *received;
    let signal = host.local(places.signal(pe, round), 8)?.load_acquire()?;
    if signal < round / SLOTS + 1 {
        return Ok(());
    }
    if signal > round / SLOTS + 1 {
        return Err(error!("round {round} of PE {pe}: signal {signal} came too often"));
    }
    let at = places.slot(places.inbox, pe, round).plus(round % 8);
    host.local(at, len)?
        .verify(Pattern::of(&[pe.into(), me.into(), round]), 0)
        .map_err(|error| error!("round {round} of PE {pe}, {len} bytes: {error}"))?;
    *received += 1;
    let taken = places.taken.plus(u64::from(me) * 8);
    host.proxy.amo(pe, taken, Amo::new(c::NVT_AMO_INC, 8, 1))?;
    Ok(())
}

/// After a quiet the target's memory holds the data, whatever the target's threads do.
fn quiet_means_visible(job: &Job, host: &Host<'_>) -> Result<(), BoxError> {
    let (me, n) = (job.pe, job.n_pes());
    let target = host.alloc(LEN, 8)?;
    let source = host.alloc(LEN, 8)?;
    for round in 0..50 {
        host.local(source, LEN)?.fill(Pattern::of(&[round, me.into()]), 0)?;
        let len = [8, 4096, LEN][round as usize % 3];
        if round % 2 == 0 {
            host.user.put_nbi((me + 1) % n, target, source, len)?;
            host.user.quiet_pe((me + 1) % n)?;
        } else {
            host.proxy.put((me + 1) % n, target, source, len)?;
            host.proxy.quiet()?;
        }
        // The bootstrap's barrier involves no transport.
        job.bootstrap.barrier()?;
        let sender = (me + n - 1) % n;
        host.local(target, len)?.verify(Pattern::of(&[round, sender.into()]), 0)?;
        job.bootstrap.barrier()?;
    }
    Ok(())
}
