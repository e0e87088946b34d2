//! The memory that operations read and write, and what is put there to check them.
//!
//! A pattern over a whole window proves every byte, once per case and side. Stamps at both ends of
//! every slot are new in every round, so that no round can be mistaken for an earlier one.

use nvshmem_sim::{Local, Ops, Pattern, SymAddr};

/// Bytes of each of the two areas: the largest window.
pub(crate) const AREA_BYTES: u64 = 64 << 20;

/// Where operations read and write: the same places on every PE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    /// Read by operations.
    pub(crate) from: SymAddr,
    /// Written by operations.
    pub(crate) to: SymAddr,
}

/// Fills an area with the seed's pattern.
pub(crate) fn fill(ops: &Ops, area: SymAddr, len: u64, seed: u64) -> Result<(), String> {
    let local = ops.local(area, len).map_err(|e| e.to_string())?;
    local.fill(Pattern::new(seed), 0).map_err(|e| e.to_string())?;
    Ok(())
}

/// Clears an area.
pub(crate) fn clear(ops: &Ops, area: SymAddr, len: u64) -> Result<(), String> {
    ops.local(area, len).and_then(|local| local.set(0)).map_err(|e| e.to_string())?;
    Ok(())
}

/// Compares an area with the seed's pattern.
pub(crate) fn verify(ops: &Ops, area: SymAddr, len: u64, seed: u64) -> Result<(), String> {
    let local = ops.local(area, len).map_err(|e| e.to_string())?;
    local.verify(Pattern::new(seed), 0).map_err(|e| format!("wrong bytes: {e}"))
}

/// What a slot's first word is stamped with; the last gets the complement.
fn stamp_of(seed: u64, slot: u64) -> u64 {
    // Odd factors, so that neighbours differ in many bits and none is zero by accident of both.
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ slot.wrapping_mul(0xd6e8_feb8_6659_fd93)) | 1
}

/// The stamps of a slot: where, and what.
fn stamps(bytes: u64, window: u64, seed: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..window).flat_map(move |slot| {
        let value = stamp_of(seed, slot);
        let last = (bytes >= 16).then_some(((slot + 1) * bytes - 8, !value));
        [(slot * bytes, value)].into_iter().chain(last)
    })
}

/// Stamps every slot.
pub(crate) fn stamp(
    ops: &Ops,
    area: SymAddr,
    bytes: u64,
    window: u64,
    seed: u64,
) -> Result<(), String> {
    for (at, value) in stamps(bytes, window, seed) {
        let word = ops.local(area.plus(at), 8).map_err(|e| e.to_string())?;
        word.store_release(value).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// The first stamp that is not there, as an offset.
pub(crate) fn missing_stamp(
    ops: &Ops,
    area: SymAddr,
    bytes: u64,
    window: u64,
    seed: u64,
) -> Result<Option<u64>, String> {
    for (at, value) in stamps(bytes, window, seed) {
        let word = ops.local(area.plus(at), 8).map_err(|e| e.to_string())?;
        if word.load_acquire().map_err(|e| e.to_string())? != value {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Checks the stamps of every slot.
pub(crate) fn check_stamps(
    ops: &Ops,
    area: SymAddr,
    bytes: u64,
    window: u64,
    seed: u64,
) -> Result<(), String> {
    match missing_stamp(ops, area, bytes, window, seed)? {
        None => Ok(()),
        Some(at) => Err(format!("round {seed} of {bytes} bytes: wrong stamp at offset {at}")),
    }
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
        let word = |at| ops.local(at, 8).map_err(|e| e.to_string());
        let last = (bytes >= 16).then(|| word(at.plus(bytes - 8))).transpose()?;
        Ok(Self { first: word(at)?, last, bytes })
    }

    /// Stamps it.
    #[inline]
    pub(crate) fn stamp(&self, seed: u64) -> Result<(), String> {
        let value = stamp_of(seed, 0);
        self.first.store_release(value).map_err(|e| e.to_string())?;
        match self.last {
            Some(last) => last.store_release(!value).map_err(|e| e.to_string()),
            None => Ok(()),
        }
    }

    /// Checks its stamps.
    #[inline]
    pub(crate) fn check(&self, seed: u64) -> Result<(), String> {
        let value = stamp_of(seed, 0);
        let right = self.first.load_acquire().map_err(|e| e.to_string())? == value
            && match self.last {
                Some(last) => last.load_acquire().map_err(|e| e.to_string())? == !value,
                None => true,
            };
        if right {
            Ok(())
        } else {
            Err(format!("{} bytes were not there: number {seed}", self.bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_mark_both_ends_of_each_slot_and_differ_by_round() {
        let places: Vec<u64> = stamps(64, 2, 7).map(|(at, _)| at).collect();
        assert_eq!(places, [0, 56, 64, 120]);
        assert_eq!(stamps(8, 2, 7).map(|(at, _)| at).collect::<Vec<_>>(), [0, 8]);
        for slot in 0..64 {
            assert_ne!(stamp_of(1, slot), stamp_of(2, slot));
            assert_ne!(stamp_of(1, slot), stamp_of(1, slot + 1));
        }
    }
}
