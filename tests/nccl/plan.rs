//! What PEs send to one another in a round, from a seed: each PE knows what all do, and so which
//! bytes and words it has to find, and behind which others.
//!
//! Each context of a sender has an area of its own at each target, in which no two puts overlap,
//! for puts come in any order. Between them are guards, which nobody writes.

use nvshmem_transport_libfabric::nccl::abi::{SIGNAL_ADD, SIGNAL_INC};
use test_support::random::{Random, bytes, mix};

/// What can be got from every PE, by all.
pub(crate) const STATIC: usize = 2 << 20;
/// Operations of a context to a target in a round at most, with the last signal.
pub(crate) const STEPS: usize = 64;
const LONGEST: usize = 2 << 20;

/// Words of a sender for each context of a target: one count, [`OWN`] own ones, [`SLOTS`] slots.
pub(crate) const WORDS: usize = 1 + OWN + SLOTS;
const OWN: usize = 3;
const SLOTS: usize = STEPS;
/// Words of a context of a target to which all senders add: of each kind so many.
pub(crate) const SHARED: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mix {
    /// Everything, long puts among it.
    Traffic,
    /// Many signals, behind many puts of a few lengths.
    Order,
}

impl Mix {
    pub(crate) fn area(self) -> usize {
        match self {
            Self::Traffic => 3 << 20,
            Self::Order => 512 << 10,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Way {
    pub(crate) context: usize,
    pub(crate) sender: usize,
    pub(crate) target: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Word {
    /// How many steps with a strong signal to this word there were.
    Count,
    /// Of this sender's context, added to by several steps.
    Own(usize),
    /// Of this sender's context, added to by the step of that number alone.
    Slot(usize),
    /// Of the target's context, added to by all senders.
    Shared(usize),
    /// The same, beside data, and set back after each round.
    BesideData(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mark {
    pub(crate) word: Word,
    /// As it is given. What it means depends on the operation.
    pub(crate) value: u64,
    pub(crate) operation: u32,
    pub(crate) strong: bool,
}

impl Mark {
    pub(crate) fn adds(&self) -> u64 {
        if self.operation == SIGNAL_INC { 1 } else { self.value }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum From {
    /// There in the way's area at the sender.
    Area(usize),
    /// In the step's word among the values that the sender has on the host.
    Inline,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PlannedOp {
    /// To there in the way's area at the target.
    Put {
        from: From,
        to: usize,
        len: usize,
        mark: Option<Mark>,
    },
    Signal(Mark),
    /// From there of what all can get, to there in the way's area of what the sender gets.
    Get {
        from: usize,
        to: usize,
        len: usize,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    pub(crate) what: PlannedOp,
    key: u64,
}

impl Step {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        match self.what {
            PlannedOp::Put { len, .. } => bytes(self.key, len),
            _ => Vec::new(),
        }
    }

    pub(crate) fn mark(&self) -> Option<Mark> {
        match self.what {
            PlannedOp::Put { mark, .. } => mark,
            PlannedOp::Signal(mark) => Some(mark),
            PlannedOp::Get { .. } => None,
        }
    }
}

pub(crate) fn fixed(pe: usize) -> u64 {
    mix(0x5747_4943 + pe as u64)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Round {
    pub(crate) seed: u64,
    pub(crate) number: u64,
    pub(crate) mix: Mix,
}

impl Round {
    fn key(&self, way: Way, what: u64) -> u64 {
        let Way { context, sender, target } = way;
        let numbers = [self.seed, self.number, context as u64, sender as u64, target as u64, what];
        Random::of(&numbers).next()
    }

    pub(crate) fn guards(&self, way: Way) -> u64 {
        self.key(way, u64::MAX)
    }

    /// The steps of one way, in order. The last is a strong signal to [`Word::Count`].
    pub(crate) fn steps(&self, way: Way) -> Vec<Step> {
        Maker {
            random: Random::new(self.key(way, u64::MAX - 1)),
            round: *self,
            source: 0,
            target: 0,
            got: 0,
        }
        .steps(|number| self.key(way, number))
    }
}

struct Maker {
    random: Random,
    round: Round,
    /// What is free of the way's areas.
    source: usize,
    target: usize,
    got: usize,
}

impl Maker {
    fn steps(mut self, key: impl Fn(u64) -> u64) -> Vec<Step> {
        let count = self.random.between(STEPS / 4, STEPS - 1);
        // One of some rounds is as long as any.
        let long = self.random.below(4 * count);
        let mut steps = Vec::with_capacity(count + 1);
        for number in 0..count {
            let what = self.what(number, number == long && self.round.mix == Mix::Traffic);
            steps.push(Step { what, key: key(number as u64) });
        }
        let last = Mark { word: Word::Count, value: 1, operation: SIGNAL_INC, strong: true };
        steps.push(Step { what: PlannedOp::Signal(last), key: 0 });
        steps
    }

    fn what(&mut self, number: usize, is_long: bool) -> PlannedOp {
        if is_long {
            let mark = self.random.once_in(2).then(|| self.mark(number));
            return self.put(LONGEST, mark);
        }
        let order = self.round.mix == Mix::Order;
        match self.random.below(16) {
            0..=1 => PlannedOp::Signal(self.mark(number)),
            2 if !order => self.get(),
            3..=4 => {
                let len = self.random.between(1, 8);
                let mark = self.random.once_in(2).then(|| self.mark(number));
                let to = self.place(len);
                PlannedOp::Put { from: From::Inline, to, len, mark }
            }
            kind => {
                let len = self.len();
                let mark = (kind >= if order { 7 } else { 11 }).then(|| self.mark(number));
                self.put(len, mark)
            }
        }
    }

    fn put(&mut self, len: usize, mark: Option<Mark>) -> PlannedOp {
        let len = len.min(self.room(self.source.max(self.target)));
        let from = From::Area(advance(&mut self.random, &mut self.source, len));
        PlannedOp::Put { from, to: self.place(len), len, mark }
    }

    /// How long an operation may be behind there, so that short ones find room to the end.
    fn room(&self, free: usize) -> usize {
        (self.round.mix.area() - 64 * STEPS).saturating_sub(free)
    }

    fn place(&mut self, len: usize) -> usize {
        advance(&mut self.random, &mut self.target, len)
    }

    fn get(&mut self) -> PlannedOp {
        let len = self.len().min(self.room(self.got));
        let from = self.random.below(STATIC - len + 1);
        PlannedOp::Get { from, to: advance(&mut self.random, &mut self.got, len), len }
    }

    fn len(&mut self) -> usize {
        let random = &mut self.random;
        match (random.below(16_usize), self.round.mix) {
            (0..=2, _) => random.between(0, 8),
            (3..=6, _) => random.between(1, 240),
            (7..=9, _) => random.between(200, 5000),
            (10..=11, Mix::Order) => random.between(4000, 9000),
            (12, Mix::Order) => random.between(10_000, 90_000),
            (13.., Mix::Order) => random.between(1, 64),
            (10..=13, Mix::Traffic) => random.between(4000, 20_000),
            (_, Mix::Traffic) => random.between(20_000, 120_000),
        }
    }

    fn mark(&mut self, number: usize) -> Mark {
        let random = &mut self.random;
        let word = match (self.round.mix, random.below(8)) {
            (Mix::Order, 0..=2) => Word::Count,
            (Mix::Order, 3..=4) | (Mix::Traffic, 0..=1) => Word::Own(random.below(OWN)),
            (Mix::Order, _) | (Mix::Traffic, 2..=3) => Word::Slot(number),
            (Mix::Traffic, 4..=5) => Word::Shared(random.below(SHARED)),
            (Mix::Traffic, _) => Word::BesideData(random.below(SHARED)),
        };
        let is_count = word == Word::Count;
        let operation = if is_count || random.once_in(2) { SIGNAL_INC } else { SIGNAL_ADD };
        // To add one whatever the value says.
        let value = random.next() >> random.between(16, 60);
        let value = if operation == SIGNAL_ADD { value.max(1) } else { value };
        let weak = !is_count && random.below(3) < 2;
        Mark { word, value, operation, strong: !weak }
    }
}

fn advance(random: &mut Random, free: &mut usize, len: usize) -> usize {
    let at = *free + if random.once_in(4) { 1 } else { random.between(1, 33) };
    *free = at + len;
    at
}
