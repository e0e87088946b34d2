//! The memory that a kernel leaves: the heaps of all PEs, and one word of output a thread.

use channel_producer::AREAS;

/// Number of PEs.
pub(crate) const PES: u32 = 3;

/// Words in an area of the heap.
pub(crate) const AREA: u64 = 1 << 14;

const WORDS: usize = AREAS * AREA as usize;

/// Bytes of a heap.
pub(crate) const HEAP: usize = 8 * WORDS;

/// All is zero at first.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    heaps: Vec<Vec<u64>>,
    /// By thread.
    pub(crate) out: Vec<u64>,
}

impl Default for Image {
    fn default() -> Self {
        Self { heaps: vec![vec![0; WORDS]; PES as usize], out: Vec::new() }
    }
}

impl Image {
    pub(crate) fn words(&self, pe: u32) -> &[u64] {
        &self.heaps[pe as usize]
    }

    pub(crate) fn set_heap(&mut self, pe: u32, bytes: &[u8]) {
        assert!(bytes.len() == HEAP, "{} bytes are no heap", bytes.len());
        let word = |word: &[u8]| word.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        self.heaps[pe as usize] = bytes.chunks_exact(8).map(word).collect();
    }

    fn at(area: usize, index: u64) -> usize {
        assert!(area < AREAS && index < AREA);
        area * AREA as usize + index as usize
    }

    pub(crate) fn word(&self, pe: u32, area: usize, index: u64) -> u64 {
        self.heaps[pe as usize][Self::at(area, index)]
    }

    pub(crate) fn set_word(&mut self, pe: u32, area: usize, index: u64, value: u64) {
        self.heaps[pe as usize][Self::at(area, index)] = value;
    }

    pub(crate) fn half(&self, pe: u32, area: usize, index: u64) -> u32 {
        (self.word(pe, area, index / 2) >> (32 * (index % 2))) as u32
    }

    pub(crate) fn set_half(&mut self, pe: u32, area: usize, index: u64, value: u32) {
        let shift = 32 * (index % 2);
        let other = self.word(pe, area, index / 2) & !(u64::from(u32::MAX) << shift);
        self.set_word(pe, area, index / 2, other | u64::from(value) << shift);
    }

    pub(crate) fn out(&self, thread: u64) -> u64 {
        self.out[thread as usize]
    }
}
