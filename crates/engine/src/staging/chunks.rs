//! The chunks of bounce memory for one direction.

use crate::port::copies::Bounce;

/// Names a chunk among those of its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Chunk(u16);

/// Which of them are free.
#[derive(Debug)]
pub(crate) struct Chunks {
    /// Offset of the first one in the bounce memory.
    first: usize,
    chunk_len: usize,
    count: usize,
    free: Vec<u16>,
}

impl Chunks {
    /// Those for bytes on their way out, and those for bytes on their way in.
    pub(crate) fn of(bounce: &Bounce) -> (Self, Self) {
        let Bounce { chunk_len, out, inward, .. } = *bounce;
        // The one given back last is taken first: it is the warmest.
        let free = |count: u16| (0..count).rev().collect();
        let first = usize::from(out) * chunk_len;
        (
            Self { first: 0, chunk_len, count: out.into(), free: free(out) },
            Self { first, chunk_len, count: inward.into(), free: free(inward) },
        )
    }

    /// How many are free, of how many.
    pub(crate) fn free(&self) -> (usize, usize) {
        (self.free.len(), self.count)
    }

    /// Takes a chunk. None when all are in use.
    pub(crate) fn take(&mut self) -> Option<Chunk> {
        self.free.pop().map(Chunk)
    }

    /// Gives a chunk back.
    pub(crate) fn give(&mut self, chunk: Chunk) {
        debug_assert!(!self.free.contains(&chunk.0), "a chunk is given back once");
        self.free.push(chunk.0);
    }

    /// Where a chunk begins in the bounce memory.
    pub(crate) fn offset(&self, chunk: Chunk) -> usize {
        self.first + usize::from(chunk.0) * self.chunk_len
    }
}
