//! Random numbers, and bytes that are told by a number.

use std::sync::LazyLock;

/// Numbers that follow from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// One that has nothing in common with those of other numbers.
    pub fn of(numbers: &[u64]) -> Self {
        Self(numbers.iter().fold(0, |seed, number| mix(seed ^ mix(*number))))
    }

    #[allow(clippy::should_implement_trait, reason = "there is no end of them")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below<N: TryInto<u64> + TryFrom<u64>>(&mut self, end: N) -> N {
        let end = end.try_into().ok().expect("no negative number");
        N::try_from(self.next() % end).ok().expect("less than a number of that type")
    }

    pub fn between(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// So many bytes. Those of two keys, or of two places, are not alike but by a chance of one in
/// fifty thousand.
pub fn bytes(key: u64, len: usize) -> Vec<u8> {
    bytes_from(key, 0, len)
}

/// A part of such bytes. They are pieces of some that were drawn once: each is made a few times.
pub fn bytes_from(key: u64, from: usize, len: usize) -> Vec<u8> {
    const PIECE: usize = 4096;
    const DRAWN: usize = 64 << 10;
    static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Random::new(7);
        (0..DRAWN / 8).flat_map(|_| random.next().to_le_bytes()).collect()
    });
    let mut all = Vec::with_capacity(len);
    let mut at = from;
    while at < from + len {
        let inside = at % PIECE;
        let take = (PIECE - inside).min(from + len - at);
        let start = mix(key.wrapping_add((at / PIECE) as u64)) as usize % (DRAWN - PIECE);
        all.extend_from_slice(&BYTES[start + inside..][..take]);
        at += take;
    }
    all
}

/// Bytes that differ from their neighbours and from one seed to the next.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    let mut random = Random::new(seed as u64);
    (0..len).map(|_| random.next() as u8).collect()
}
