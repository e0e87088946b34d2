//! Bytes that say where they belong.
//!
//! The byte at a position depends on the position and a seed, so data that landed at the wrong
//! place, came from the wrong PE or round, or was not written at all does not verify. Eight bytes
//! cost one multiplication: gigabytes are checked in about the time a copy takes.

const BLOCK: usize = 4096;

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
    fn word(self, index: u64) -> u64 {
        let x = (index ^ self.seed).wrapping_mul(0x9fb2_1c65_1e98_df25);
        x ^ (x >> 32)
    }

    #[inline]
    pub fn byte(self, position: u64) -> u8 {
        (self.word(position / 8) >> (position % 8 * 8)) as u8
    }

    /// Writes the bytes from `position` on into `out`.
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

    /// Compares `data` with the bytes from `position` on.
    pub fn verify(self, position: u64, data: &[u8]) -> Result<(), Mismatch> {
        let mut block = [0; BLOCK];
        let is_right = (position..).step_by(BLOCK).zip(data.chunks(BLOCK)).all(|(at, found)| {
            let expected = &mut block[..found.len()];
            self.fill(at, expected);
            expected == found
        });
        if is_right {
            return Ok(());
        }
        let mut wrong = (position..).zip(data).filter(|(at, byte)| **byte != self.byte(*at));
        let (first, &found) = wrong.next().unwrap_or((position, &0));
        Err(Mismatch {
            offset: first - position,
            expected: self.byte(first),
            found,
            wrong: 1 + wrong.count() as u64,
            len: data.len() as u64,
        })
    }
}

/// Memory that does not hold the pattern it should.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{wrong} of {len} bytes are wrong, the first at offset {offset}: {found:#04x} instead of \
     {expected:#04x}"
)]
pub struct Mismatch {
    /// Offset of the first wrong byte in what was verified.
    pub offset: u64,
    /// What the first wrong byte should be.
    pub expected: u8,
    pub found: u8,
    pub wrong: u64,
    pub len: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_byte_is_found_anywhere() {
        let pattern = Pattern::of(&[1, 2, 3]);
        for (position, len) in (0..20).flat_map(|at| (0..40).map(move |len| (at, len))) {
            let mut data = vec![0; len];
            pattern.fill(position, &mut data);
            pattern.verify(position, &data).unwrap();
            for at in 0..len {
                data[at] ^= 0x10;
                let found = pattern.verify(position, &data).unwrap_err();
                assert_eq!((found.offset, found.wrong, found.len), (at as u64, 1, len as u64));
                data[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn place_and_seed_change_bytes() {
        let mut data = vec![0; 256];
        Pattern::new(1).fill(0, &mut data);
        assert!(Pattern::new(1).verify(8, &data).is_err());
        assert!(Pattern::new(1).verify(1, &data).is_err());
        assert!(Pattern::new(2).verify(0, &data).unwrap_err().wrong > 200);
        assert_ne!(Pattern::of(&[1, 2]), Pattern::of(&[2, 1]));
    }
}
