//! What a PE does to another one in a round of a storm: drawn from the seed, so that both know it,
//! and what it comes to.

use nvshmem_abi::c;
use nvshmem_sim::Pattern;
use test_support::random::Random;

use super::Storm;

/// Transfers to each PE in a round, at most.
const TRANSFERS: u64 = 14;
/// Words that only one PE works on, and those of them that are of eight bytes; the others are of
/// four.
pub(super) const WORDS: usize = 8;
const WIDE: usize = 5;

/// How bytes come to another PE, or from there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    Put,
    /// From the user's thread: with a wait for the source, or without.
    UserPut,
    UserPutNbi,
    /// A value of 1, 2, 4 or 8 bytes.
    P,
    UserP,
    /// With a signal, whose word gets a value or is added to.
    SignalSet(u64),
    SignalAdd(u64),
}

/// A transfer. It is at the same offset of the area at either end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) how: How,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) pattern: Pattern,
}

impl Transfer {
    /// What the word of its signal has afterwards.
    pub(super) fn signalled(&self, before: u64) -> Option<u64> {
        match self.how {
            How::SignalSet(value) => Some(value),
            How::SignalAdd(value) => Some(before.wrapping_add(value)),
            _ => None,
        }
    }
}

/// An atomic operation on the word of that number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atomic {
    pub(super) word: usize,
    pub(super) op: i32,
    pub(super) bytes: i32,
    pub(super) value: u64,
    /// For a compare and swap: whether it compares with what is there.
    pub(super) matches: bool,
}

impl Atomic {
    pub(super) fn fetches(&self) -> bool {
        self.op > c::NVT_AMO_END_OF_NONFETCH
    }

    pub(super) fn mask(&self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes)
    }

    /// What a compare and swap compares with.
    pub(super) fn compare(&self, before: u64) -> u64 {
        (if self.matches { before } else { !before }) & self.mask()
    }

    /// What is there afterwards.
    pub(super) fn after(&self, before: u64) -> u64 {
        let value = self.value;
        let after = match self.op {
            c::NVT_AMO_INC | c::NVT_AMO_FETCH_INC => before.wrapping_add(1),
            c::NVT_AMO_ADD | c::NVT_AMO_SIGNAL_ADD | c::NVT_AMO_FETCH_ADD => {
                before.wrapping_add(value)
            }
            c::NVT_AMO_AND | c::NVT_AMO_FETCH_AND => before & value,
            c::NVT_AMO_OR | c::NVT_AMO_FETCH_OR => before | value,
            c::NVT_AMO_XOR | c::NVT_AMO_FETCH_XOR => before ^ value,
            c::NVT_AMO_SET | c::NVT_AMO_SIGNAL_SET | c::NVT_AMO_SWAP => value,
            c::NVT_AMO_COMPARE_SWAP if self.matches => value,
            _ => before,
        };
        after & self.mask()
    }
}

const ATOMICS: [i32; 16] = [
    c::NVT_AMO_INC,
    c::NVT_AMO_SET,
    c::NVT_AMO_ADD,
    c::NVT_AMO_AND,
    c::NVT_AMO_OR,
    c::NVT_AMO_XOR,
    c::NVT_AMO_SIGNAL_SET,
    c::NVT_AMO_SIGNAL_ADD,
    c::NVT_AMO_FETCH,
    c::NVT_AMO_FETCH_INC,
    c::NVT_AMO_FETCH_ADD,
    c::NVT_AMO_FETCH_AND,
    c::NVT_AMO_FETCH_OR,
    c::NVT_AMO_FETCH_XOR,
    c::NVT_AMO_SWAP,
    c::NVT_AMO_COMPARE_SWAP,
];

/// What one PE does to another one in a round.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) transfers: Vec<Transfer>,
    pub(super) atomics: Vec<Atomic>,
    /// What it adds to the word that all add to.
    pub(super) added: u64,
    /// Which of the transfers of the round before it reads back.
    pub(super) reads: Vec<usize>,
}

impl Plan {
    pub(super) fn of(storm: &Storm, round: u64, from: u32, to: u32) -> Self {
        let Storm { seed, users, area, longest } = *storm;
        let key = [seed, round, from.into(), to.into()];
        let mut random = Random::of(&key);
        let mut transfers = Vec::new();
        let mut offset = 0;
        for index in 0..TRANSFERS {
            let longest = 1 << random.below(u64::from(longest) + 1);
            let mut len = 1 + random.below(longest);
            let how = match random.below(8) {
                0 if users => How::UserPut,
                1 if users => How::UserPutNbi,
                2 if users => How::UserP,
                3 => How::P,
                // Never what is there.
                4 => How::SignalSet(random.next() | 1 << 63),
                5 => How::SignalAdd(random.next() >> 1 | 1),
                _ => How::Put,
            };
            if matches!(how, How::P | How::UserP) {
                len = 1 << random.below(4);
            }
            offset += random.below(40);
            if offset + len > area {
                break;
            }
            let pattern = Pattern::of(&[seed, round, from.into(), to.into(), index]);
            transfers.push(Transfer { how, offset, len, pattern });
            offset += len;
        }
        let atomics = (0..WORDS).filter_map(|word| {
            let op = ATOMICS[random.below(2 * ATOMICS.len() as u64) as usize % ATOMICS.len()];
            let bytes = if word < WIDE { 8 } else { 4 };
            let (value, matches) = (random.next() >> (64 - 8 * bytes), random.below(2) == 0);
            let is_used = random.below(2) == 0;
            is_used.then_some(Atomic { word, op, bytes, value, matches })
        });
        let (atomics, added) = (atomics.collect(), random.next());
        let reads = (0..TRANSFERS as usize).filter(|_| random.below(4) == 0).collect();
        Self { transfers, atomics, added, reads }
    }
}
