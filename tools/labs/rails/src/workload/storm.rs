//! Everybody puts to, signals, adds to and reads from everybody else, round after round, and every
//! byte and every total is checked.
//!
//! In round R a PE asks for all its operations of that round without waiting. Half way it tells the
//! launcher that the round has begun: events happen while operations are under way, and are over
//! before the round's barrier is. Then it checks what the others have sent: a signalled slot as
//! soon as its signal is there, the others after the barrier, while the next round is under way.
//! Two sets of slots take turns for that.

use std::time::{Duration, Instant};

use nvshmem_abi::c;

use nvshmem_sim::{Amo, BoxError, Error, Host, Job, Pattern, SymAddr};

use super::tally::{BYTES, ROUND, SECONDS, Tally};

/// Bytes of the slots that a PE writes in one round at each other PE. Every second is put with a
/// signal.
const SLOTS: [u64; 20] = [
    8,
    64,
    500,
    777,
    4096,
    5000,
    10_000,
    20_000,
    65_536,
    65_536,
    100_001,
    131_072,
    200_000,
    262_144,
    1,
    17,
    1 << 20,
    33_000,
    4,
    150_000,
];

/// Bytes between slots, which nobody writes.
const GUARD: u64 = 64;

/// Adds and fetching adds in one round at each other PE.
const ADDS: u64 = 16;
const TICKETS: u64 = 4;

/// Bytes of the get in each round from each other PE.
const READ: u64 = 80_000;

/// Time between two looks at a signal that is not there.
const LOOK: Duration = Duration::from_micros(200);

/// Bytes of heap that a storm needs.
pub(crate) fn heap(n_pes: u32, rounds: u64) -> u64 {
    let per_pe = 4 * slot_start(SLOTS.len()) + 2 * READ + SLOTS.len() as u64 * 8;
    u64::from(n_pes) * (per_pe + rounds * TICKETS * 16) + READ + (1 << 16)
}

/// Where a slot begins, and behind the last one where the set ends.
fn slot_start(slot: usize) -> u64 {
    SLOTS[..slot].iter().map(|len| (len + GUARD).next_multiple_of(8)).sum()
}

fn is_signalled(slot: usize) -> bool {
    slot % 2 == 1
}

/// Everything of one PE. Places are the same in all heaps.
struct Storm<'a> {
    job: &'a Job,
    host: &'a Host<'a>,
    rounds: u64,
    me: u32,
    n: u32,
    /// By parity of the round and PE: what goes to it, and what has come from it.
    outbox: SymAddr,
    inbox: SymAddr,
    /// By PE and slot: how often it was signalled.
    signals: SymAddr,
    /// To be read by all, and what was read, by parity and PE.
    fixed: SymAddr,
    read: SymAddr,
    /// One word that all add to, one that all draw numbers from, and the numbers drawn here.
    sum: SymAddr,
    next: SymAddr,
    drawn: SymAddr,
    tally: Tally,
}

pub(super) fn run(job: &Job, rounds: u64) -> Result<(), BoxError> {
    let host = job.init()?;
    let (me, n) = (job.pe(), job.n_pes());
    let n64 = u64::from(n);
    let set = slot_start(SLOTS.len());
    let mut storm = Storm {
        job,
        host: &host,
        rounds,
        me,
        n,
        outbox: host.alloc(2 * n64 * set, 4096)?,
        inbox: host.alloc(2 * n64 * set, 4096)?,
        signals: host.alloc(n64 * SLOTS.len() as u64 * 8, 8)?,
        fixed: host.alloc(READ, 8)?,
        read: host.alloc(2 * n64 * READ, 8)?,
        sum: host.alloc(8, 8)?,
        next: host.alloc(8, 8)?,
        drawn: host.alloc(rounds * n64 * TICKETS * 16, 16)?,
        tally: Tally::default(),
    };
    host.local(storm.fixed, READ)?.fill(storm.fixed_pattern(me), 0)?;
    host.barrier()?;

    let start = Instant::now();
    for round in 0..rounds {
        storm.ask(round)?;
        if round > 0 {
            storm.check_unsignalled(round - 1)?;
        }
        storm.check_signalled(round)?;
        host.barrier()?;
    }
    let seconds = start.elapsed().as_secs_f64();
    storm.check_unsignalled(rounds - 1)?;
    storm.check_totals()?;
    let per_peer = SLOTS.iter().sum::<u64>() + READ;
    job.report(BYTES, per_peer * (n64 - 1) * rounds)?;
    job.report(SECONDS, seconds)?;
    storm.tally.report(job)?;
    host.finalize()?;
    Ok(())
}

impl Storm<'_> {
    fn others(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, n) = (self.me, self.n);
        (1..n).map(move |step| (me + step) % n)
    }

    fn place(&self, area: SymAddr, round: u64, pe: u32, slot: usize) -> SymAddr {
        let set = round % 2 * u64::from(self.n) + u64::from(pe);
        area.plus(set * slot_start(SLOTS.len()) + slot_start(slot))
    }

    fn read_place(&self, round: u64, pe: u32) -> SymAddr {
        self.read.plus((round % 2 * u64::from(self.n) + u64::from(pe)) * READ)
    }

    fn signal(&self, from: u32, slot: usize) -> SymAddr {
        self.signals.plus((u64::from(from) * SLOTS.len() as u64 + slot as u64) * 8)
    }

    fn drawn_place(&self, round: u64, pe: u32, ticket: u64) -> SymAddr {
        let at = (round * u64::from(self.n) + u64::from(pe)) * TICKETS + ticket;
        self.drawn.plus(at * 16)
    }

    fn pattern(&self, round: u64, from: u32, to: u32, slot: usize) -> Pattern {
        Pattern::of(&[round, from.into(), to.into(), slot as u64])
    }

    fn fixed_pattern(&self, pe: u32) -> Pattern {
        Pattern::of(&[u64::from(pe)])
    }

    /// Asks the proxy for the operations of a round.
    fn ask(&self, round: u64) -> Result<(), BoxError> {
        let (host, proxy) = (self.host, self.host.proxy());
        for pe in self.others() {
            for (slot, len) in SLOTS.into_iter().enumerate() {
                let pattern = self.pattern(round, self.me, pe, slot);
                host.local(self.place(self.outbox, round, pe, slot), len)?.fill(pattern, 0)?;
            }
        }
        for (slot, len) in SLOTS.into_iter().enumerate() {
            if slot == SLOTS.len() / 2 {
                self.job.report(ROUND, round)?;
                proxy.fence()?;
            }
            for pe in self.others() {
                let from = self.place(self.outbox, round, pe, slot);
                let to = self.place(self.inbox, round, self.me, slot);
                if is_signalled(slot) {
                    // Either way the word is the number of rounds; added twice it would not be.
                    let amo = if slot % 4 == 1 {
                        Amo::new(c::NVT_AMO_SIGNAL_SET, 8, round + 1)
                    } else {
                        Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, 1)
                    };
                    proxy.put_signal(pe, to, from, len, self.signal(self.me, slot), amo)?;
                } else {
                    proxy.put(pe, to, from, len)?;
                }
                if (slot as u64) < ADDS {
                    let add = Amo::new(c::NVT_AMO_ADD, 8, added(self.me, round, slot as u64));
                    proxy.amo(pe, self.sum, add)?;
                }
                if (slot as u64) < TICKETS {
                    let mut draw = Amo::new(c::NVT_AMO_FETCH_ADD, 8, 1);
                    draw.fetch_to = Some(self.drawn_place(round, pe, slot as u64));
                    draw.flag = 1;
                    proxy.amo(pe, self.next, draw)?;
                }
            }
        }
        for pe in self.others() {
            proxy.get(pe, self.fixed, self.read_place(round, pe), READ)?;
        }
        Ok(())
    }

    /// Waits for each signal of a round, and checks the data that it follows.
    fn check_signalled(&mut self, round: u64) -> Result<(), BoxError> {
        for slot in (0..SLOTS.len()).filter(|slot| is_signalled(*slot)) {
            for pe in self.others() {
                let found = self.wait_for(self.signal(pe, slot), round + 1)?;
                let what = || format!("round {round}: signal {slot} of PE {pe}");
                self.tally.word(what, found, round + 1);
                self.check_slot(round, pe, slot)?;
            }
        }
        Ok(())
    }

    /// Checks what no signal has told of, once the round's barrier is over.
    fn check_unsignalled(&mut self, round: u64) -> Result<(), BoxError> {
        for pe in self.others() {
            for slot in (0..SLOTS.len()).filter(|slot| !is_signalled(*slot)) {
                self.check_slot(round, pe, slot)?;
            }
            let read = self.host.local(self.read_place(round, pe), READ)?;
            let what = || format!("round {round}: get from PE {pe}");
            self.tally.take(what, read.verify(self.fixed_pattern(pe), 0))?;
            // Nothing of an earlier round passes for one of the next.
            read.set(0)?;
        }
        Ok(())
    }

    fn check_slot(&mut self, round: u64, from: u32, slot: usize) -> Result<(), BoxError> {
        let len = SLOTS[slot];
        let place = self.place(self.inbox, round, from, slot);
        let pattern = self.pattern(round, from, self.me, slot);
        let what = || format!("round {round}: slot {slot} of PE {from}");
        self.tally.take(what, self.host.local(place, len)?.verify(pattern, 0))?;
        let guard = slot_start(slot + 1) - slot_start(slot) - len;
        let behind = self.host.local(place.plus(len), guard)?.to_vec()?;
        let touched = behind.iter().filter(|byte| **byte != 0).count() as u64;
        if touched > 0 {
            self.tally.add(touched, || format!("{}: bytes behind it were written", what()));
        }
        Ok(())
    }

    /// Checks the sums, and that every number was drawn once.
    fn check_totals(&mut self) -> Result<(), BoxError> {
        let (host, rounds) = (self.host, self.rounds);
        let expected = self
            .others()
            .flat_map(|pe| (0..rounds).map(move |round| (pe, round)))
            .flat_map(|(pe, round)| (0..ADDS).map(move |at| added(pe, round, at)))
            .fold(0, u64::wrapping_add);
        self.tally.word(|| "the sum".into(), host.local(self.sum, 8)?.load_acquire()?, expected);
        for (pe, slot) in self.others().flat_map(|pe| (0..SLOTS.len()).map(move |s| (pe, s))) {
            if is_signalled(slot) {
                let found = host.local(self.signal(pe, slot), 8)?.load_acquire()?;
                self.tally.word(|| format!("signal {slot} of PE {pe} at the end"), found, rounds);
            }
        }
        let mut mine = Vec::new();
        for pe in 0..self.n {
            for (round, ticket) in (0..rounds).flat_map(|r| (0..TICKETS).map(move |t| (r, t))) {
                let place = self.drawn_place(round, pe, ticket);
                let number = if pe == self.me {
                    u64::MAX
                } else {
                    self.wait_for(place.plus(8), 1)?;
                    host.local(place, 8)?.load_acquire()?
                };
                mine.extend_from_slice(&number.to_le_bytes());
            }
        }
        let all = self.job.bootstrap().allgather(&mine)?;
        let per_pair = (rounds * TICKETS * 8) as usize;
        let mut drawn: Vec<u64> = all
            .chunks_exact(per_pair)
            .skip(self.me as usize)
            .step_by(self.n as usize)
            .flat_map(|pair| pair.chunks_exact(8))
            .filter_map(|word| word.try_into().ok().map(u64::from_le_bytes))
            .filter(|number| *number != u64::MAX)
            .collect();
        drawn.sort_unstable();
        let total = u64::from(self.n - 1) * rounds * TICKETS;
        let wrong = (0..total).zip(&drawn).filter(|(expected, found)| expected != *found).count();
        if wrong > 0 || drawn.len() as u64 != total {
            self.tally.add(wrong.max(1) as u64 * 8, || {
                format!("{wrong} of {total} numbers were not drawn exactly once")
            });
        }
        let left = host.local(self.next, 8)?.load_acquire()?;
        self.tally.word(|| "the number that is next".into(), left, total);
        Ok(())
    }

    /// Waits until a word is at least that, and gives what it is.
    fn wait_for(&self, place: SymAddr, least: u64) -> Result<u64, Error> {
        let mut found = 0;
        let waited = self.host.wait_until(|| {
            found = self.host.local(place, 8)?.load_acquire()?;
            if found < least {
                // The cores are for those who bring it.
                std::thread::sleep(LOOK);
            }
            Ok(found >= least)
        });
        match waited {
            Ok(()) => Ok(found),
            Err(Error::Timeout(text)) => {
                Err(Error::Timeout(format!("{text}: a word is {found} and not {least}")))
            }
            Err(error) => Err(error),
        }
    }
}

/// What a PE adds: different for every add, so a lost one is not made up for by another done twice.
fn added(pe: u32, round: u64, at: u64) -> u64 {
    ((u64::from(pe) * 100_003 + round) * ADDS + at).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
