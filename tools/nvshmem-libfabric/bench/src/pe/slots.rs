//! Slots: the memory that the operations of a window read or write, and what is put there to check
//! them.
//!
//! A pattern over all slots proves every byte, once per case and side. Stamps at both ends of every
//! slot are new in every round, so that no round can be mistaken for an earlier one.

use nvshmem_sim::{Local, Ops, Pattern, SymAddr};
use serde::{Deserialize, Serialize};

/// Slots of equal size, one behind the other, at the same place on every PE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Slots {
    pub(crate) at: SymAddr,
    /// Bytes of one, at least 8 and a multiple of 8.
    pub(crate) bytes: u64,
    pub(crate) count: u64,
}

impl Slots {
    /// The place of a slot.
    pub(crate) fn slot(self, index: u64) -> SymAddr {
        self.at.plus(index * self.bytes)
    }

    fn all(self, ops: &Ops) -> Result<Local<'_>, String> {
        ops.local(self.at, self.bytes * self.count).map_err(text)
    }

    /// Fills them with the seed's pattern.
    pub(crate) fn fill(self, ops: &Ops, seed: u64) -> Result<(), String> {
        self.all(ops)?.fill(Pattern::new(seed), 0).map_err(text)
    }

    /// Clears them.
    pub(crate) fn clear(self, ops: &Ops) -> Result<(), String> {
        self.all(ops)?.set(0).map_err(text)
    }

    /// Compares them with the seed's pattern.
    pub(crate) fn verify(self, ops: &Ops, seed: u64) -> Result<(), String> {
        let verified = self.all(ops)?.verify(Pattern::new(seed), 0);
        verified.map_err(|e| format!("wrong bytes: {e}"))
    }

    /// The stamps: where, and what.
    fn stamps(self, seed: u64) -> impl Iterator<Item = (SymAddr, u64)> {
        (0..self.count).flat_map(move |index| {
            let (slot, value) = (self.slot(index), stamp_of(seed, index));
            let last = (self.bytes >= 16).then_some((slot.plus(self.bytes - 8), !value));
            [(slot, value)].into_iter().chain(last)
        })
    }

    /// Stamps every slot.
    pub(crate) fn stamp(self, ops: &Ops, seed: u64) -> Result<(), String> {
        self.stamps(seed).try_for_each(|(at, value)| {
            ops.local(at, 8).and_then(|word| word.store_release(value)).map_err(text)
        })
    }

    /// The first stamp that is not there.
    pub(crate) fn missing_stamp(self, ops: &Ops, seed: u64) -> Result<Option<SymAddr>, String> {
        for (at, value) in self.stamps(seed) {
            let found = ops.local(at, 8).and_then(|word| word.load_acquire()).map_err(text)?;
            if found != value {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Checks the stamps of every slot.
    pub(crate) fn check(self, ops: &Ops, seed: u64) -> Result<(), String> {
        match self.missing_stamp(ops, seed)? {
            None => Ok(()),
            Some(at) => {
                let bytes = self.bytes;
                Err(format!("round {seed} of {bytes} bytes: wrong stamp at {at:?}"))
            }
        }
    }
}

/// What a slot's first word is stamped with; the last gets the complement.
fn stamp_of(seed: u64, slot: u64) -> u64 {
    // Odd factors, so that neighbours differ in many bits and none is zero by accident of both.
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ slot.wrapping_mul(0xd6e8_feb8_6659_fd93)) | 1
}

/// One slot, found once: for loops that stamp or check it at every turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'a> {
    first: Local<'a>,
    /// Where it is not the same word.
    last: Option<Local<'a>>,
    bytes: u64,
}

impl<'a> Slot<'a> {
    /// The slot of so many bytes at a place.
    pub(crate) fn new(ops: &'a Ops, at: SymAddr, bytes: u64) -> Result<Self, String> {
        let word = |at| ops.local(at, 8).map_err(text);
        let last = (bytes >= 16).then(|| word(at.plus(bytes - 8))).transpose()?;
        Ok(Self { first: word(at)?, last, bytes })
    }

    /// Stamps it.
    #[inline]
    pub(crate) fn stamp(&self, seed: u64) -> Result<(), String> {
        let value = stamp_of(seed, 0);
        self.first.store_release(value).map_err(text)?;
        match self.last {
            Some(last) => last.store_release(!value).map_err(text),
            None => Ok(()),
        }
    }

    /// Checks its stamps.
    #[inline]
    pub(crate) fn check(&self, seed: u64) -> Result<(), String> {
        let value = stamp_of(seed, 0);
        let right = self.first.load_acquire().map_err(text)? == value
            && match self.last {
                Some(last) => last.load_acquire().map_err(text)? == !value,
                None => true,
            };
        if right {
            Ok(())
        } else {
            Err(format!("{} bytes were not there: number {seed}", self.bytes))
        }
    }
}

fn text(error: nvshmem_sim::Error) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_mark_both_ends_of_each_slot_and_differ_by_round() {
        let places = |bytes| {
            let slots = Slots { at: SymAddr(100), bytes, count: 2 };
            slots.stamps(7).map(|(at, _)| at.0).collect::<Vec<_>>()
        };
        assert_eq!(places(64), [100, 156, 164, 220]);
        assert_eq!(places(8), [100, 108]);
        for slot in 0..64 {
            assert_ne!(stamp_of(1, slot), stamp_of(2, slot));
            assert_ne!(stamp_of(1, slot), stamp_of(1, slot + 1));
        }
    }
}
