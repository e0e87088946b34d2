//! Put with signal: a receiver that has seen a signal finds its data complete, at that moment.

use crate::{Amo, BoxError, Host, Job, Pattern, SymAddr};
use nvshmem_abi::c;

use crate::traffic::Resident;

const SLOTS: u64 = 4;

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
    let mut x = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(sender * 31 + receiver) << 40;
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
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

pub(super) fn scenario(job: &mut Job) -> Result<(), BoxError> {
    let (me, n) = (job.pe(), job.n_pes());
    let rounds: u64 = job.param("rounds")?;
    let most: u64 = job.param("most")?;
    let host = job.init()?;
    let kernel = Resident::start(job, &host)?;
    let places = Places::new(&host, n, most.next_multiple_of(64) + 64)?;
    host.barrier()?;
    let (mut sent, mut received) = (vec![0; n as usize], vec![0; n as usize]);
    // This PE sends to itself as well: NVSHMEM does that through the transport too.
    let mut idle = 0u32;
    while sent.iter().chain(&received).any(|count| *count < rounds) {
        let mut moved = false;
        for pe in 0..n {
            moved |= send(&host, &places, me, pe, &mut sent[pe as usize], rounds, most)?;
            moved |= receive(&host, &places, me, pe, &mut received[pe as usize], rounds, most)?;
        }
        if !moved {
            std::thread::yield_now();
            idle += 1;
            if idle % 4096 == 0 {
                // Fails if the proxy thread has.
                host.proxy().run(|_| ())?;
            }
        }
    }
    host.barrier()?;
    kernel.end()?;
    host.finalize()?;
    Ok(())
}

fn send(
    host: &Host<'_>,
    places: &Places,
    me: u32,
    pe: u32,
    sent: &mut u64,
    rounds: u64,
    most: u64,
) -> Result<bool, BoxError> {
    let round = *sent;
    let taken = host.local(places.taken.plus(u64::from(pe) * 8), 8)?.load_acquire()?;
    if round == rounds || round >= taken + SLOTS {
        return Ok(false);
    }
    let len = length(me, pe, round, most);
    let from = places.slot(places.outbox, pe, round);
    host.local(from, len)?.fill(Pattern::of(&[me.into(), pe.into(), round]), 0)?;
    // An odd place at the target, so that nothing is aligned by accident.
    let to = places.slot(places.inbox, me, round).plus(round % 8);
    let signal = places.signal(me, round);
    // Each slot's word counts the rounds it has had: by adding one, or by setting the count.
    let count = round / SLOTS + 1;
    let amo = if round % 2 == 0 {
        Amo::new(c::NVT_AMO_SIGNAL_SET, 8, count)
    } else {
        Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1)
    };
    host.proxy().put_signal(pe, to, from, len, signal, amo)?;
    *sent += 1;
    Ok(true)
}

fn receive(
    host: &Host<'_>,
    places: &Places,
    me: u32,
    pe: u32,
    received: &mut u64,
    rounds: u64,
    most: u64,
) -> Result<bool, BoxError> {
    let round = *received;
    if round == rounds {
        return Ok(false);
    }
    let signal = host.local(places.signal(pe, round), 8)?.load_acquire()?;
    if signal < round / SLOTS + 1 {
        return Ok(false);
    }
    if signal > round / SLOTS + 1 {
        return Err(format!("round {round} of PE {pe}: signal {signal} came too often").into());
    }
    let len = length(pe, me, round, most);
    let at = places.slot(places.inbox, pe, round).plus(round % 8);
    host.local(at, len)?
        .verify(Pattern::of(&[pe.into(), me.into(), round]), 0)
        .map_err(|error| format!("round {round} of PE {pe}, {len} bytes: {error}"))?;
    *received += 1;
    let taken = places.taken.plus(u64::from(me) * 8);
    host.proxy().amo(pe, taken, Amo::new(c::NVT_AMO_INC, 8, 1))?;
    Ok(true)
}
