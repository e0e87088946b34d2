//! The fabric between the two lanes: what is under way, what has arrived, and the rules that must
//! hold whenever something takes effect.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

use engine::ids::WrId;
use engine::port::{Local, Transfer};

use super::program::{Case, OPS, ProgramOp, WORDS};
use crate::prelude::*;

/// Bytes of a PE's heap: the shared word's line, then a place per operation of either PE.
pub(crate) const HEAP: usize = LINE + 2 * OPS * PLACE;

const LINE: usize = 64;
const PLACE: usize = 8 * WORDS;

pub(crate) fn place(number: usize) -> usize {
    LINE + number * PLACE
}

/// Where a PE's heap is. PEs have addresses of their own, so that a mix-up is found.
pub(crate) fn heap(pe: usize) -> usize {
    (pe + 1) << 36
}

pub(crate) fn source(pe: usize, number: usize) -> usize {
    heap(pe) + (1 << 20) + place(number) + 8
}

pub(crate) fn result(pe: usize, number: usize) -> usize {
    heap(pe) + (2 << 20) + number * 16
}

pub(crate) fn flag(number: usize) -> u64 {
    0x7700 + number as u64
}

/// What an operation adds: a bit of its own, so that it is known by it.
pub(crate) fn operand(number: usize) -> u64 {
    1 << number
}

fn content(pe: usize, addr: usize) -> u64 {
    0xda7a_0000 + (addr - heap(pe) - (1 << 20)) as u64
}

pub(crate) fn key(pe: usize, rail: RailId) -> u64 {
    (pe as u64) << 8 | u64::from(rail.0)
}

#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) id: u32,
    pub(crate) from: usize,
    pub(crate) rail: RailId,
    pub(crate) to: usize,
    pub(crate) wr_id: WrId,
    pub(crate) transfer: Transfer,
    pub(crate) delivered: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) id: u32,
    pub(crate) from: usize,
    pub(crate) rail: RailId,
    pub(crate) to: usize,
    pub(crate) to_rail: RailId,
    pub(crate) wr_id: WrId,
    pub(crate) bytes: Vec<u8>,
    /// Whether it has arrived once and will again.
    pub(crate) again: bool,
}

/// Immediate data that will be found at the target of a write.
#[derive(Clone, Debug)]
pub(crate) struct Notice {
    pub(crate) id: u32,
    pub(crate) to: usize,
    pub(crate) to_rail: RailId,
    pub(crate) data: u64,
}

/// What a lane finds beside completions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Mail {
    Message(Vec<u8>),
    ImmediateData(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Done {
    Completed(WrId),
    Failed(WrId),
    MessageFailed(WrId),
    RailFailed,
}

/// What a lane's port has seen.
#[derive(Clone, Default, Hash, Debug)]
pub(crate) struct Side {
    /// A hash over everything that the lane was told. A lane is a function of that, so two lanes
    /// with the same history are in the same state.
    pub(crate) history: u64,
    pub(crate) next: usize,
    pub(crate) quieting: bool,
    pub(crate) failed: bool,
    pub(crate) done: Vec<VecDeque<Done>>,
    pub(crate) inbox: Vec<VecDeque<Mail>>,
    heap: Vec<u64>,
    results: Vec<u64>,
}

/// What a lane's next iteration will find.
#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct Fed {
    pub(crate) pe: usize,
    pub(crate) place: u32,
    /// How much more it may be.
    pub(crate) left: u32,
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) case: Rc<Case>,
    pub(crate) sides: [Side; 2],
    pub(crate) flights: Vec<Flight>,
    pub(crate) letters: Vec<Letter>,
    pub(crate) notices: Vec<Notice>,
    /// What may still go wrong.
    pub(crate) again: u32,
    pub(crate) duplicates: u32,
    pub(crate) failures: u32,
    pub(crate) rail_failures: u32,
    pub(crate) dead_rails: [Option<RailId>; 2],
    pub(crate) has_lost: [bool; 2],
    /// Writes that may still be delivered at once. All others are delivered at the last moment:
    /// when their completion is reported. That is enough to find whatever any time of delivery
    /// would break: a lane does not notice deliveries, and a broken rule is about two things of
    /// which the one came too early and the other too late.
    pub(crate) early: u32,
    pub(crate) fed: Option<Fed>,
    pub(crate) blocked: Option<usize>,
    effects: [[u8; WORDS]; 2 * OPS],
    /// What each fetching operation must fetch.
    fetched: [Option<u64>; 2 * OPS],
    next_id: u32,
}

impl World {
    pub(crate) fn new(case: Rc<Case>) -> Self {
        let rails = usize::from(case.rails);
        let side = Side {
            done: vec![VecDeque::new(); rails],
            inbox: vec![VecDeque::new(); rails],
            heap: vec![0; HEAP / 8],
            results: vec![0; 4 * OPS],
            ..Side::default()
        };
        Self {
            sides: [side.clone(), side],
            flights: Vec::new(),
            letters: Vec::new(),
            notices: Vec::new(),
            again: case.again,
            duplicates: case.duplicates,
            failures: case.failures,
            rail_failures: case.rail_failures,
            dead_rails: [None; 2],
            has_lost: [false; 2],
            early: 1,
            fed: None,
            blocked: None,
            effects: [[0; WORDS]; 2 * OPS],
            fetched: [None; 2 * OPS],
            next_id: 0,
            case,
        }
    }

    pub(crate) fn lost(&self) -> u32 {
        self.case.failures - self.failures + self.case.rail_failures - self.rail_failures
    }

    pub(crate) fn is_dead(&self, pe: usize, rail: RailId) -> bool {
        self.dead_rails[pe] == Some(rail)
    }

    pub(crate) fn fail_rail(&mut self, pe: usize, rail: RailId) {
        self.dead_rails[pe] = Some(rail);
        let on_it = |from: usize, at: RailId| from == pe && at == rail;
        let missing: Vec<u32> = self
            .flights
            .iter()
            .filter(|flight| on_it(flight.from, flight.rail) && !flight.delivered)
            .map(|flight| flight.id)
            .collect();
        self.notices.retain(|notice| !missing.contains(&notice.id));
        self.flights.retain(|flight| !on_it(flight.from, flight.rail));
        self.letters.retain(|letter| !on_it(letter.from, letter.rail));
        self.report(pe, rail, Done::RailFailed);
    }

    /// Has a PE's next poll of a rail find the end of something, which may be a loss.
    pub(crate) fn report(&mut self, pe: usize, rail: RailId, done: Done) {
        match done {
            Done::Completed(_) => {}
            Done::RailFailed => self.rail_failures -= 1,
            Done::Failed(_) | Done::MessageFailed(_) => self.failures -= 1,
        }
        self.has_lost[pe] |= !matches!(done, Done::Completed(_));
        self.feed(pe, rail, false);
        self.sides[pe].done[rail.index()].push_back(done);
    }

    pub(crate) fn told(&mut self, pe: usize, what: impl Hash) {
        let history = &mut self.sides[pe].history;
        *history = hash_of((*history, what));
    }

    fn id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// Takes a write that is told of at a rail of its target, if it has immediate data.
    pub(crate) fn post(&mut self, mut flight: Flight, told: Option<(RailId, u64)>, early: bool) {
        let Flight { from, rail, to, wr_id, .. } = flight;
        let flights = self.flights.iter().filter(|flight| flight.from == from);
        let used = flights.clone().any(|flight| flight.wr_id == wr_id);
        let done = self.sides[from].done.iter().flatten();
        let used = used || done.clone().any(|done| *done == Done::Completed(wr_id));
        assert!(!used, "{wr_id:?} is in flight");
        let taken = |done: &&Done| matches!(done, Done::Completed(_) | Done::Failed(_));
        let in_flight = flights.filter(|flight| flight.rail == rail).count()
            + self.sides[from].done[rail.index()].iter().filter(taken).count();
        assert!(in_flight < self.case.depth as usize, "{rail} is over its depth");
        flight.id = self.id();
        let id = flight.id;
        self.flights.push(flight);
        self.notices.extend(told.map(|(to_rail, data)| Notice { id, to, to_rail, data }));
        if early {
            self.deliver(id);
        }
    }

    pub(crate) fn send(&mut self, mut letter: Letter) {
        letter.id = self.id();
        self.letters.push(letter);
    }

    /// Whether a lane's next iteration may find something more: only what it looks at no sooner
    /// than at what it will find already. An iteration looks at rail after rail, at completions
    /// before messages.
    pub(crate) fn may_feed(&self, pe: usize, rail: RailId, message: bool) -> bool {
        let place = u32::from(rail.0) * 2 + u32::from(message);
        self.fed.is_none_or(|fed| fed.pe == pe && fed.place <= place && fed.left > 0)
    }

    pub(crate) fn feed(&mut self, pe: usize, rail: RailId, message: bool) {
        let left = self.fed.map_or(self.case.batch, |fed| fed.left) - 1;
        self.fed = Some(Fed { pe, place: u32::from(rail.0) * 2 + u32::from(message), left });
    }

    pub(crate) fn deliver(&mut self, id: u32) {
        let Some(flight) = self.flights.iter_mut().find(|flight| flight.id == id) else { return };
        if std::mem::replace(&mut flight.delivered, true) {
            return;
        }
        let (from, to, Transfer { local, len, remote, .. }) =
            (flight.from, flight.to, flight.transfer);
        let Local::Memory { addr, .. } = local else { panic!("an inline write") };
        for at in (0..len).step_by(8) {
            self.write(to, remote as usize + at, content(from, addr + at));
        }
    }

    fn write(&mut self, pe: usize, offset: usize, word: u64) {
        assert!((LINE..HEAP).contains(&offset) && offset % 8 == 0, "a write to {offset:#x}");
        let (number, part) = ((offset - LINE) / PLACE, (offset - LINE) % PLACE / 8);
        self.effect(pe, number, part);
        self.sides[pe].heap[offset / 8] = word;
    }

    pub(crate) fn store(&mut self, pe: usize, addr: usize, bytes: &[u8]) {
        assert!(bytes.len() % 8 == 0, "a store of {} bytes", bytes.len());
        let words = bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
        for (at, word) in words.enumerate() {
            let addr = addr + 8 * at;
            if addr < heap(pe) + HEAP {
                self.write(pe, addr - heap(pe), word);
            } else {
                self.store_result(pe, addr, word);
            }
        }
    }

    fn store_result(&mut self, pe: usize, addr: usize, word: u64) {
        let at = (addr - result(pe, 0)) / 8;
        let number = at / 2;
        let results = &mut self.sides[pe].results;
        assert_eq!(results[at], 0, "operation {number}: result stored twice");
        if at % 2 == 0 {
            assert_eq!(Some(word), self.fetched[number], "operation {number} fetched");
            // Told from a word that was not stored by its highest bit.
            results[at] = word | 1 << 63;
        } else {
            assert_ne!(results[at - 1], 0, "operation {number}: flag before value");
            assert_eq!(word, flag(number));
            results[at] = word;
        }
    }

    pub(crate) fn load(pe: usize, addr: usize, into: &mut [u8]) {
        for (at, word) in into.chunks_mut(8).enumerate() {
            word.copy_from_slice(&content(pe, addr + 8 * at).to_le_bytes()[..word.len()]);
        }
    }

    pub(crate) fn add(&mut self, pe: usize, addr: usize, operand: u64) -> u64 {
        let offset = addr - heap(pe);
        assert!(operand.is_power_of_two() && offset < HEAP, "{operand} at {addr:#x}");
        let number = operand.trailing_zeros() as usize;
        let op = self.case.op(number);
        let is_signal = matches!(op.what, ProgramOp::Signal(_) | ProgramOp::SignalBehind);
        let expected = if is_signal { place(number) } else { 0 };
        assert_eq!(offset, expected, "operation {number} applied at the wrong place");
        self.effect(pe, number, 0);
        let word = &mut self.sides[pe].heap[offset / 8];
        let before = *word;
        *word += operand;
        if op.what == ProgramOp::FetchAdd {
            self.fetched[number] = Some(before);
        }
        before
    }

    fn effect(&mut self, pe: usize, number: usize, part: usize) {
        let op = self.case.op(number);
        assert_eq!(op.to, pe, "operation {number} at the wrong PE");
        assert!(op.effects().contains(&part), "operation {number} has no word {part}");
        assert!(number % OPS < self.sides[op.from].next, "operation {number} was not issued");
        let count = &mut self.effects[number][part];
        *count += 1;
        assert_eq!(*count, 1, "operation {number}, word {part}: applied twice");
        if part == 0 {
            let data = op.effects().skip(1);
            for word in data {
                let there = self.effects[number][word] == 1;
                assert!(there, "operation {number}: signal before word {word} of its data");
            }
        }
        for (other, before) in self.case.ops() {
            // Its own data was looked at above.
            if op.what == ProgramOp::SignalBehind && other < number && before.from == op.from {
                let data = before.effects().filter(|word| *word > 0);
                let there = data.into_iter().all(|word| self.effects[other][word] == 1);
                assert!(there, "operation {number}: a signal before the data of operation {other}");
            }
            let behind = (before.from, before.to) == (op.from, op.to) && before.epoch < op.epoch;
            assert!(
                !behind || self.is_done(other),
                "operation {number} came before operation {other}, which is before its fence"
            );
        }
    }

    fn is_done(&self, number: usize) -> bool {
        self.case.op(number).effects().all(|word| self.effects[number][word] == 1)
    }

    pub(crate) fn quiet_returned(&self, pe: usize) {
        for (number, op) in self.case.ops() {
            if op.from != pe || number % OPS >= self.sides[pe].next {
                continue;
            }
            assert!(self.is_done(number), "quiet returned before operation {number} took effect");
            if op.what == ProgramOp::FetchAdd {
                let results = &self.sides[pe].results[2 * number..2 * number + 2];
                assert!(results.iter().all(|word| *word != 0), "quiet returned before a result");
            }
        }
    }

    pub(crate) fn check_end(&self) {
        assert!(self.flights.is_empty() && self.letters.is_empty() && self.notices.is_empty());
        for (pe, side) in self.sides.iter().enumerate() {
            let over = side.next == self.case.programs[pe].len() && !side.quieting;
            // Who waits for a PE that has failed is told by its watchdog, which lanes do not have
            // here.
            let waits_for_failed = self.sides[1 - pe].failed;
            let ended = over || side.failed || waits_for_failed;
            assert!(ended, "nothing can move, and PE {pe} still waits");
            assert!(!side.failed || self.lost() > 0, "PE {pe} failed for no reason");
            if self.has_lost[pe] {
                assert!(side.failed, "data was lost and PE {pe} was not told");
            } else if over {
                self.quiet_returned(pe);
            }
        }
        for (number, op) in self.case.ops() {
            for word in op.effects().filter(|word| *word > 0 && self.effects[number][*word] > 0) {
                let expected = content(op.from, source(op.from, number) + 8 * (word - 1));
                assert_eq!(self.sides[op.to].heap[place(number) / 8 + word], expected);
            }
        }
    }

    /// A hash over everything that the future depends on. What is under way counts as a set: two
    /// orders of sending the same things are one state.
    pub(crate) fn hash(&self) -> u64 {
        let flight =
            |it: &Flight| (it.from, it.rail, it.to, it.wr_id, it.delivered, it.transfer.remote);
        let letter = |it: &Letter| {
            hash_of((it.from, it.rail, it.to, it.to_rail, it.wr_id, it.again, &it.bytes))
        };
        // The data of a notice whose write has completed is there; else it is the flight's that
        // counts.
        let notice = |it: &Notice| {
            let write = self.flights.iter().find(|flight| flight.id == it.id);
            hash_of((it.to, it.to_rail, it.data, write.map(flight)))
        };
        let under_way = [
            self.flights.iter().map(|it| hash_of(flight(it))).fold(0, u64::wrapping_add),
            self.letters.iter().map(letter).fold(0, u64::wrapping_add),
            self.notices.iter().map(notice).fold(0, u64::wrapping_add),
        ];
        let left = (self.again, self.duplicates, self.failures, self.rail_failures, self.early);
        let lost = (self.dead_rails, self.has_lost);
        hash_of((left, lost, self.fed, self.blocked, &self.sides, self.effects, under_way))
    }
}

pub(crate) fn hash_of(what: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}
