//! The table of atomics that the fabric executes, and the paths they take.

use crate::atomic::{Atomic, AtomicOp, Width};
use crate::ids::Pe;
use crate::port::PeerAddr;
use crate::port::fabric_atomic::{FabricAtomic, Number, Row, Verb, operand};
use crate::rails::paths::AtomicPath;
use crate::request::ResultPlace;

/// Most atomics of a lane under way, over all peers.
const ATOMICS: u32 = 2048;

/// The atomics that the fabric executes for a lane.
#[derive(Debug)]
pub(crate) struct FabricAtomics {
    /// By PE.
    paths: Box<[AtomicPath]>,
    slots: Box<[UnderWay]>,
    free: Vec<u32>,
}

/// One atomic under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    atomic: Atomic,
    posted: FabricAtomic,
    result: Option<ResultPlace>,
}

/// What comes after a completion.
pub(crate) enum Next {
    /// The operation has ended with this word before it, of so many bytes, which goes there.
    Ended { before: u64, width: usize, result: Option<ResultPlace> },
    /// Another operation of the fabric belongs to it.
    Again,
}

impl FabricAtomics {
    pub(crate) fn new(paths: Box<[AtomicPath]>) -> Self {
        let unused = UnderWay {
            atomic: Atomic {
                op: AtomicOp::Fetch,
                width: Width::Eight,
                float: false,
                operand: 0,
                compare: 0,
            },
            posted: FabricAtomic { row: READ_HALF, operand: 0, compare: 0, remote: 0, key: 0 },
            result: None,
        };
        let slots = vec![unused; ATOMICS as usize].into_boxed_slice();
        Self { paths, slots, free: (0..ATOMICS).rev().collect() }
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> u32 {
        ATOMICS - self.free.len() as u32
    }

    /// Whether there is a free slot.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// How atomics for a PE go.
    pub(crate) fn path(&self, pe: Pe) -> Option<AtomicPath> {
        self.paths.get(pe.index()).copied()
    }

    /// Takes a slot for an atomic whose word is at this address and key of the peer. What it
    /// fetches goes to `result`.
    pub(crate) fn take(
        &mut self,
        atomic: Atomic,
        (remote, key): (u64, u64),
        result: Option<ResultPlace>,
    ) -> Option<u32> {
        let row = Row::of(&atomic).unwrap_or(READ_HALF);
        let (operand, compare) = (operand(&atomic), atomic.compare);
        let posted = FabricAtomic { row, operand, compare, remote, key };
        let slot = self.free.pop()?;
        self.slots[slot as usize] = UnderWay { atomic, posted, result };
        Some(slot)
    }

    /// Where an atomic goes to, and what is posted next for it.
    pub(crate) fn to_post(&self, pe: Pe, slot: u32) -> (PeerAddr, &FabricAtomic) {
        (self.paths[pe.index()].to, &self.slots[slot as usize].posted)
    }

    /// The memory that what an atomic fetches goes to.
    pub(crate) fn memory_of(&self, slot: u32) -> Option<(usize, usize)> {
        let UnderWay { atomic, result, .. } = self.slots.get(slot as usize)?;
        Some((*result)?.memory(atomic.width.bytes()))
    }

    /// Gives a slot back.
    pub(crate) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Takes note of a completion, with the word that was fetched.
    ///
    /// A sum of IEEE halves, which no fabric has, is a read, and then compare and swaps until no
    /// other change came between.
    pub(crate) fn completed(&mut self, slot: u32, fetched: u64) -> Next {
        let atomic = &mut self.slots[slot as usize];
        let fetched = fetched & atomic.atomic.width.mask();
        let is_loop = Row::of(&atomic.atomic).is_none();
        let swapped = atomic.posted.row.verb == Verb::CompareSwap;
        if !is_loop || swapped && fetched == atomic.posted.compare {
            let (width, result) = (atomic.atomic.width.bytes(), atomic.result);
            return Next::Ended { before: fetched, width, result };
        }
        atomic.posted.row = SWAP_HALF;
        atomic.posted.compare = fetched;
        atomic.posted.operand = atomic.atomic.apply(fetched);
        Next::Again
    }
}

const READ_HALF: Row = Row { verb: Verb::Read, number: Number::U16, fetches: true };
const SWAP_HALF: Row = Row { verb: Verb::CompareSwap, number: Number::U16, fetches: true };

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_until_every_slot_is_taken() {
        let mut atomics = FabricAtomics::new(Box::default());
        let add =
            Atomic { op: AtomicOp::Add, width: Width::Eight, float: false, operand: 1, compare: 0 };
        for used in 0..ATOMICS {
            assert!(atomics.has_room() && atomics.used() == used);
            assert_eq!(atomics.take(add, (0, 0), None), Some(used));
        }
        assert!(!atomics.has_room() && atomics.take(add, (0, 0), None).is_none());
        atomics.give(7);
        assert!(atomics.has_room() && atomics.used() == ATOMICS - 1);
        assert_eq!(atomics.take(add, (0, 0), None), Some(7));
    }
}
