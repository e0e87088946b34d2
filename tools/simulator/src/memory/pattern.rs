//! Bytes that say where they belong.
//!
//! The byte at a position depends on the position and a seed, so data that landed at the wrong
//! place, came from the wrong PE or round, or was not written at all does not verify. Eight bytes
//! cost one multiplication: gigabytes are checked in about the time a copy takes.

use crate::error::{Result, error};

/// A stream of bytes without end, different for each seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    pub fn new(seed: u64) -> Pattern {
        // Seeds that differ in one bit must not give words that differ in one bit.
        let seed = (seed ^ (seed >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        Pattern { seed: seed.wrapping_mul(0xd6e8_feb8_6659_fd93) }
    }

    /// The pattern of several numbers, such as the PEs and the round a transfer belongs to.
    pub fn of(parts: &[u64]) -> Pattern {
        parts.iter().fold(Pattern::new(parts.len() as u64), |p, part| Pattern::new(p.seed ^ part))
    }

    /// The eight bytes from position `8 * index`, little endian.
    #[inline]
    pub(crate) fn word(self, index: u64) -> u64 {
        let x = (index ^ self.seed).wrapping_mul(0x9fb2_1c65_1e98_df25);
        x ^ (x >> 32)
    }

    #[inline]
    pub fn byte(self, position: u64) -> u8 {
        (self.word(position / 8) >> (position % 8 * 8)) as u8
    }

    pub fn fill(self, position: u64, out: &mut [u8]) {
        let head = (position.wrapping_neg() % 8).min(out.len() as u64) as usize;
        let (head, rest) = out.split_at_mut(head);
        for (at, byte) in (position..).zip(head.iter_mut()) {
            *byte = self.byte(at);
        }
        let position = position + head.len() as u64;
        let mut words = rest.chunks_exact_mut(8);
        let mut index = position / 8;
        for word in &mut words {
            word.copy_from_slice(&self.word(index).to_le_bytes());
            index += 1;
        }
        for (at, byte) in (index * 8..).zip(words.into_remainder()) {
            *byte = self.byte(at);
        }
    }

    /// Compares `data` with the bytes from `position` on. The error tells where the first
    /// difference is, and how many there are.
    pub fn verify(self, position: u64, data: &[u8]) -> Result<()> {
        let mut expected = vec![0; data.len()];
        self.fill(position, &mut expected);
        if expected == data {
            return Ok(());
        }
        let mut wrong = (0..data.len()).filter(|at| expected[*at] != data[*at]);
        let first = wrong.next().unwrap_or(0);
        let (count, found, right) = (1 + wrong.count(), data[first], expected[first]);
        Err(error!("{count} bytes are wrong, the first at offset {first}: {found}, not {right}"))
    }
}
