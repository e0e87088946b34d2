//! A storm: round after round each PE does to each PE, itself included, what its plan has, and
//! checks what the plans of the others have done here, every byte and every word.
//!
//! Three sets of areas take turns. While one is written, the one of the round before is read back
//! by those who wrote it and compared, and the third is overwritten with [`CANARY`]. Words that are
//! worked on have two sets. A round ends with a barrier, so nobody writes to what another one
//! compares; and so that events which come half way are over when it is.

mod plan;
mod tally;

use std::time::Duration;

use nvshmem_abi::c;
use nvshmem_sim::{Amo, BoxError, BufferId, Error, Host, Job, Pattern, SymAddr};
use test_support::random::Random;

pub(super) use tally::{FIRST, WRONG};

use plan::{How, Plan, Transfer, WORDS};
use tally::Tally;

const CANARY: u8 = 0xc5;
/// Signals in a round to each PE, at most.
const SIGNALS: usize = 16;
/// Numbers that each PE draws from each in a round.
const TICKETS: u64 = 2;
/// Time between two looks at a word that is not there.
const LOOK: Duration = Duration::from_micros(200);

/// What a storm is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Storm {
    /// What plans are drawn from.
    pub(super) seed: u64,
    /// Whether the user's thread takes part.
    pub(super) users: bool,
    /// Bytes that a PE has for what another one writes in a round: a power of two.
    pub(super) area: u64,
    /// The longest transfer, as a power of two.
    pub(super) longest: u32,
}

/// Where a storm is, for who is called at each of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Before a round. The answer of PE 0 says whether it is the end.
    Begins(u64),
    /// Half of a round's operations are under way.
    HalfWay(u64),
    /// Behind a round, and so many operations since the beginning.
    Ended(u64, u64),
}

/// What has come of it.
#[derive(Debug)]
pub(super) struct Stormed {
    /// Operations.
    pub(super) operations: u64,
    /// Rounds, or why there are no more.
    pub(super) rounds: Result<u64, BoxError>,
    tally: Tally,
}

impl Storm {
    /// Bytes of heap that it takes.
    pub(super) fn heap(&self, n_pes: u32) -> u64 {
        u64::from(n_pes) * (5 * self.area + (64 << 10)) + (1 << 20)
    }

    /// One PE's part.
    ///
    /// # Errors
    /// It does not begin.
    pub(super) fn run(
        self,
        job: &Job,
        host: &Host<'_>,
        step: &mut dyn FnMut(Step) -> Result<bool, BoxError>,
    ) -> Result<Stormed, BoxError> {
        let (area, n) = (self.area, u64::from(job.n_pes()));
        let at = Places {
            // No area crosses the border of a chunk, which a P must not; what is local does.
            inbox: host.alloc(3 * n * area, area)?,
            signals: host.alloc(n * SIGNALS as u64 * 8, 8)?,
            outbox: host.alloc(n * area, 8)?,
            back: host.alloc(n * area, 8)?,
            words: host.alloc(2 * n * WORDS as u64 * 8, 8)?,
            shared: host.alloc(4 * 8, 8)?,
            fetched: host.alloc(n * WORDS as u64 * 16, 16)?,
            drawn: host.alloc(n * TICKETS * 16, 16)?,
        };
        let fresh = Model { signals: [0; SIGNALS], words: [[0; WORDS]; 2] };
        let mut part = Part {
            storm: self,
            job,
            host,
            step,
            me: job.pe(),
            n: job.n_pes(),
            at,
            buffer: host.register(area, 13)?,
            here: vec![fresh.clone(); n as usize],
            there: vec![fresh; n as usize],
            sums: [0; 2],
            tickets: [0; 2],
            before: vec![[0; WORDS]; n as usize],
            operations: 0,
            tally: Tally::default(),
        };
        host.unregister(part.buffer)?;
        host.local(part.at.inbox, 3 * n * area)?.set(CANARY)?;
        host.barrier()?;
        let rounds = part.run();
        let Part { operations, tally, .. } = part;
        Ok(Stormed { operations, rounds, tally })
    }
}

impl Stormed {
    /// Hands what was wrong to the launcher, and gives the number of rounds.
    ///
    /// # Errors
    /// Why there are no more; or the launcher is gone.
    pub(super) fn report(self, job: &Job) -> Result<u64, BoxError> {
        self.tally.report(job)?;
        self.rounds
    }
}

/// Where things are, the same on every PE, each by sender or by target.
struct Places {
    inbox: SymAddr,
    outbox: SymAddr,
    back: SymAddr,
    signals: SymAddr,
    words: SymAddr,
    /// Behind each other, for each set: what all add to, and what all draw numbers from.
    shared: SymAddr,
    fetched: SymAddr,
    drawn: SymAddr,
}

/// What words have to have, as the plans go on: of what came here, or went from here.
#[derive(Clone)]
struct Model {
    signals: [u64; SIGNALS],
    words: [[u64; WORDS]; 2],
}

/// Everything of one PE.
struct Part<'a, 's> {
    storm: Storm,
    job: &'a Job,
    host: &'a Host<'a>,
    step: &'s mut dyn FnMut(Step) -> Result<bool, BoxError>,
    me: u32,
    n: u32,
    at: Places,
    /// What goes to the next PE, registered anew in every round.
    buffer: BufferId,
    here: Vec<Model>,
    there: Vec<Model>,
    sums: [u64; 2],
    tickets: [u64; 2],
    /// What words had before the operations of this round, by target.
    before: Vec<[u64; WORDS]>,
    operations: u64,
    tally: Tally,
}

impl Part<'_, '_> {
    fn all(&self) -> impl Iterator<Item = u32> + use<> {
        let (me, n) = (self.me, self.n);
        (0..n).map(move |step| (me + step) % n)
    }

    fn inbox(&self, round: u64, sender: u32) -> SymAddr {
        self.at.inbox.plus((round % 3 * u64::from(self.n) + u64::from(sender)) * self.storm.area)
    }

    fn signal(&self, sender: u32, index: usize) -> SymAddr {
        self.at.signals.plus((u64::from(sender) * SIGNALS as u64 + index as u64) * 8)
    }

    fn word(&self, round: u64, sender: u32, word: usize) -> SymAddr {
        let set = round % 2 * u64::from(self.n) + u64::from(sender);
        self.at.words.plus((set * WORDS as u64 + word as u64) * 8)
    }

    fn fetched(&self, target: u32, word: usize) -> SymAddr {
        self.at.fetched.plus((u64::from(target) * WORDS as u64 + word as u64) * 16)
    }

    fn drawn(&self, target: u32, ticket: u64) -> SymAddr {
        self.at.drawn.plus((u64::from(target) * TICKETS + ticket) * 16)
    }

    fn plan(&self, round: u64, from: u32, to: u32) -> Plan {
        Plan::of(&self.storm, round, from, to)
    }

    /// Goes on until it is told to end, and gives the number of rounds.
    fn run(&mut self) -> Result<u64, BoxError> {
        for round in 0.. {
            let over = (self.step)(Step::Begins(round))?;
            if self.together(round, over)? {
                self.check_areas(round)?;
                self.check_words(round)?;
                return Ok(round);
            }
            self.ask(round)?;
            self.check_areas(round)?;
            self.check_words(round)?;
            let next = self.inbox(round + 1, 0);
            self.host.local(next, u64::from(self.n) * self.storm.area)?.set(CANARY)?;
            self.check_signals(round)?;
            self.host.barrier()?;
            self.check_back(round)?;
            (self.step)(Step::Ended(round, self.operations))?;
        }
        Ok(0)
    }

    /// Says whether it is over, and looks through the numbers that were drawn here in the round
    /// before: each was drawn once.
    fn together(&mut self, round: u64, over: bool) -> Result<bool, BoxError> {
        let mut mine = u64::from(over).to_le_bytes().to_vec();
        for target in 0..self.n {
            for ticket in 0..TICKETS {
                let drawn = self.host.local(self.drawn(target, ticket), 8)?.load_acquire()?;
                mine.extend_from_slice(&drawn.to_le_bytes());
            }
        }
        let all = self.job.bootstrap().allgather(&mine)?;
        let word = |pe: u32, index: u64| {
            let at = pe as usize * mine.len() + index as usize * 8;
            u64::from_le_bytes(all[at..at + 8].try_into().expect("eight bytes"))
        };
        if let Some(before) = round.checked_sub(1) {
            let first = 1 + u64::from(self.me) * TICKETS;
            let pes = (0..self.n).flat_map(|pe| (first..first + TICKETS).map(move |at| (pe, at)));
            let mut drawn: Vec<u64> = pes.map(|(pe, at)| word(pe, at)).collect();
            drawn.sort_unstable();
            let next = &mut self.tickets[before as usize % 2];
            let expected: Vec<u64> = (*next..).take(drawn.len()).collect();
            *next += expected.len() as u64;
            if drawn != expected {
                self.tally
                    .add(8, || format!("round {before}: {drawn:?} were drawn, not {expected:?}"));
            }
        }
        Ok(word(0, 0) == 1)
    }

    /// Asks for all operations of a round, those to different PEs among each other.
    fn ask(&mut self, round: u64) -> Result<(), BoxError> {
        let (host, buffer) = (self.host, self.buffer);
        let mut random = Random::of(&[self.storm.seed, round, self.me.into()]);
        let neighbour = (self.me + 1) % self.n;
        let mut asked: Vec<(u32, Asked)> = Vec::new();
        for to in self.all() {
            let plan = self.plan(round, self.me, to);
            let mut signal = 0;
            for transfer in plan.transfers {
                let index = signal;
                signal += usize::from(transfer.signalled(0).is_some());
                asked.push((to, Asked::Transfer(transfer, index)));
                let from = self.at.outbox.plus(u64::from(to) * self.storm.area + transfer.offset);
                let source = match to == neighbour {
                    true => host.local(buffer.at(transfer.offset), transfer.len)?,
                    false => host.local(from, transfer.len)?,
                };
                source.fill(transfer.pattern, 0)?;
            }
            for atomic in plan.atomics {
                let word = &mut self.there[to as usize].words[round as usize % 2][atomic.word];
                let before = *word;
                *word = atomic.after(before);
                self.before[to as usize][atomic.word] = before;
                let mut amo = Amo::new(atomic.op, atomic.bytes, atomic.value);
                amo.compare = atomic.compare(before);
                if atomic.fetches() {
                    let into = self.fetched(to, atomic.word);
                    // What is there afterwards, beside the flag.
                    host.local(into, 8)?.store_release(!before)?;
                    (amo.fetch_to, amo.flag) = (Some(into), round + 1);
                }
                asked.push((to, Asked::Amo(self.word(round, self.me, atomic.word), amo)));
            }
            let shared = self.at.shared.plus(round % 2 * 16);
            asked.push((to, Asked::Amo(shared, Amo::new(c::NVT_AMO_ADD, 8, plan.added))));
            for ticket in 0..TICKETS {
                let mut amo = Amo::new(c::NVT_AMO_FETCH_ADD, 8, 1);
                (amo.fetch_to, amo.flag) = (Some(self.drawn(to, ticket)), round + 1);
                asked.push((to, Asked::Amo(shared.plus(8), amo)));
            }
            if let Some(before) = round.checked_sub(1) {
                let sent = self.plan(before, self.me, to).transfers;
                let read = plan.reads.iter().filter_map(|index| sent.get(*index));
                asked.extend(read.map(|transfer| (to, Asked::Read(*transfer))));
            }
        }
        // No two are about one word or one place, so any order will do.
        for last in (1..asked.len()).rev() {
            asked.swap(last, random.below(last as u64 + 1) as usize);
        }
        self.operations += asked.len() as u64;
        let (proxy, user) = (host.proxy(), host.user());
        let half = asked.len() / 2;
        for (number, (to, asked)) in asked.into_iter().enumerate() {
            if number == half {
                (self.step)(Step::HalfWay(round))?;
            }
            if random.below(64) == 0 {
                proxy.fence()?;
            }
            match asked {
                Asked::Amo(at, amo) => proxy.amo(to, at, amo)?,
                Asked::Read(sent) => {
                    let from = self.inbox(round - 1, self.me).plus(sent.offset);
                    let into = self.at.back.plus(u64::from(to) * self.storm.area + sent.offset);
                    match (self.storm.users && random.below(4) == 0, sent.len) {
                        (true, _) => user.get_nbi(to, from, into, sent.len)?,
                        (false, ..=8) => proxy.g(to, from, into, sent.len)?,
                        (false, _) => proxy.get(to, from, into, sent.len)?,
                    }
                }
                Asked::Transfer(transfer, index) => {
                    let Transfer { how, offset, len, pattern } = transfer;
                    let place = self.inbox(round, self.me).plus(offset);
                    let source: nvshmem_sim::Place = match to == neighbour {
                        true => buffer.at(offset),
                        false => {
                            self.at.outbox.plus(u64::from(to) * self.storm.area + offset).into()
                        }
                    };
                    let value = value_of(pattern);
                    let signal = self.signal(self.me, index);
                    match how {
                        How::Put => proxy.put(to, place, source, len)?,
                        How::UserPut => user.put(to, place, source, len)?,
                        How::UserPutNbi => user.put_nbi(to, place, source, len)?,
                        How::P => proxy.p(to, place, value, len as i32)?,
                        How::UserP => user.p(to, place, value, len as i32)?,
                        How::SignalSet(value) => {
                            let amo = Amo::new(c::NVT_AMO_SIGNAL_SET, 8, value);
                            proxy.put_signal(to, place, source, len, signal, amo)?;
                        }
                        How::SignalAdd(value) => {
                            let amo = Amo::new(c::NVT_AMO_SIGNAL_ADD, 8, value);
                            proxy.put_signal(to, place, source, len, signal, amo)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the signals of a round, and compares the data behind each.
    fn check_signals(&mut self, round: u64) -> Result<(), BoxError> {
        for sender in self.all() {
            let plan = self.plan(round, sender, self.me);
            let signalled = plan.transfers.iter().filter(|t| t.signalled(0).is_some());
            for (index, transfer) in signalled.enumerate() {
                let before = self.here[sender as usize].signals[index];
                let expected = transfer.signalled(before).unwrap_or(before);
                let found = self.wait(self.signal(sender, index), |found| found != before)?;
                self.here[sender as usize].signals[index] = expected;
                let what = || format!("round {round}: signal {index} of PE {sender}");
                self.tally.word(what, found, expected);
                let place = self.inbox(round, sender).plus(transfer.offset);
                let arrived = self.host.local(place, transfer.len)?;
                self.tally.take(what, arrived.verify(transfer.pattern, 0))?;
            }
        }
        Ok(())
    }

    /// Compares all that was written here in the round before, and all beside it.
    fn check_areas(&mut self, round: u64) -> Result<(), BoxError> {
        let Some(round) = round.checked_sub(1) else { return Ok(()) };
        let mut expected = vec![0; self.storm.area as usize];
        for sender in self.all() {
            expected.fill(CANARY);
            for transfer in self.plan(round, sender, self.me).transfers {
                let (start, len) = (transfer.offset as usize, transfer.len as usize);
                transfer.pattern.fill(0, &mut expected[start..start + len]);
            }
            let found = self.host.local(self.inbox(round, sender), self.storm.area)?.to_vec()?;
            if found != expected {
                let differ = |at: &usize| found[*at] != expected[*at];
                let wrong: Vec<usize> = (0..self.storm.area as usize).filter(differ).collect();
                let (first, last) = (wrong[0], wrong[wrong.len() - 1]);
                self.tally.add(wrong.len() as u64, || {
                    format!("round {round}: from PE {sender}, bytes {first} to {last} of its area")
                });
            }
        }
        Ok(())
    }

    /// Compares the words that were worked on in the round before.
    fn check_words(&mut self, round: u64) -> Result<(), BoxError> {
        let Some(round) = round.checked_sub(1) else { return Ok(()) };
        let set = round as usize % 2;
        for sender in self.all() {
            let plan = self.plan(round, sender, self.me);
            self.sums[set] = self.sums[set].wrapping_add(plan.added);
            for atomic in plan.atomics {
                let word = &mut self.here[sender as usize].words[set][atomic.word];
                *word = atomic.after(*word);
            }
            for word in 0..WORDS {
                let found = self.host.local(self.word(round, sender, word), 8)?.load_acquire()?;
                let expected = self.here[sender as usize].words[set][word];
                self.tally.word(
                    || format!("round {round}: word {word} of PE {sender}"),
                    found,
                    expected,
                );
            }
        }
        let sum = self.host.local(self.at.shared.plus(round % 2 * 16), 8)?.load_acquire()?;
        self.tally.word(|| format!("round {round}: the sum"), sum, self.sums[set]);
        Ok(())
    }

    /// Compares what has come back: words that were fetched, and bytes that were read.
    fn check_back(&mut self, round: u64) -> Result<(), BoxError> {
        for to in self.all() {
            let plan = self.plan(round, self.me, to);
            for atomic in plan.atomics.iter().filter(|atomic| atomic.fetches()) {
                let into = self.fetched(to, atomic.word);
                self.wait(into.plus(8), |flag| flag == round + 1)?;
                let found = self.host.local(into, 8)?.load_acquire()? & atomic.mask();
                let expected = self.before[to as usize][atomic.word];
                self.tally.word(
                    || format!("round {round}: word {} fetched from PE {to}", atomic.word),
                    found,
                    expected,
                );
            }
            for ticket in 0..TICKETS {
                self.wait(self.drawn(to, ticket).plus(8), |flag| flag == round + 1)?;
            }
            let Some(before) = round.checked_sub(1) else { continue };
            let sent = self.plan(before, self.me, to).transfers;
            for transfer in plan.reads.iter().filter_map(|index| sent.get(*index)) {
                let into = self.at.back.plus(u64::from(to) * self.storm.area + transfer.offset);
                let local = self.host.local(into, transfer.len)?;
                let what = || format!("round {round}: read from PE {to}");
                self.tally.take(what, local.verify(transfer.pattern, 0))?;
                // Nothing of this round passes for something of a later one.
                local.set(CANARY)?;
            }
        }
        Ok(())
    }

    /// Waits until a word is as wanted, and gives what it is.
    fn wait(&self, at: SymAddr, wanted: impl Fn(u64) -> bool) -> Result<u64, Error> {
        let mut found = 0;
        let waited = self.host.wait_until(|| {
            found = self.host.local(at, 8)?.load_acquire()?;
            let there = wanted(found);
            if !there {
                // The cores are for those who bring it.
                std::thread::sleep(LOOK);
            }
            Ok(there)
        });
        match waited {
            Ok(()) => Ok(found),
            Err(Error::Timeout(text)) => {
                Err(Error::Timeout(format!("{text}: a word is {found:#x}")))
            }
            Err(error) => Err(error),
        }
    }
}

/// An operation that is asked for.
enum Asked {
    /// With the number of its signal, if it has one.
    Transfer(Transfer, usize),
    Amo(SymAddr, Amo),
    Read(Transfer),
}

/// The value that a P has to write for its bytes to be those of the pattern.
fn value_of(pattern: Pattern) -> u64 {
    let mut bytes = [0; 8];
    pattern.fill(0, &mut bytes);
    u64::from_le_bytes(bytes)
}
