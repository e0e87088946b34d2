//! The bounce buffers of bounce memory for one direction.

use crate::port::copies::Bounce;

/// Names a bounce buffer among those of its direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BounceBuffer(u16);

/// Which of them are free.
#[derive(Debug)]
pub(crate) struct BounceBuffers {
    first: usize,
    bounce_len: usize,
    count: usize,
    free: Vec<u16>,
}

impl BounceBuffers {
    /// Those for bytes on their way out, and those for bytes on their way in.
    pub(crate) fn of(bounce: &Bounce) -> (Self, Self) {
        let Bounce { bounce_len, out, inward, .. } = *bounce;
        // The one given back last is taken first: it is the warmest.
        let free = |count: u16| (0..count).rev().collect();
        let first = usize::from(out) * bounce_len;
        (
            Self { first: 0, bounce_len, count: out.into(), free: free(out) },
            Self { first, bounce_len, count: inward.into(), free: free(inward) },
        )
    }

    pub(crate) fn free(&self) -> (usize, usize) {
        (self.free.len(), self.count)
    }

    pub(crate) fn take(&mut self) -> Option<BounceBuffer> {
        self.free.pop().map(BounceBuffer)
    }

    pub(crate) fn give(&mut self, bounce: BounceBuffer) {
        debug_assert!(!self.free.contains(&bounce.0), "a bounce buffer is given back once");
        self.free.push(bounce.0);
    }

    pub(crate) fn offset(&self, bounce: BounceBuffer) -> usize {
        self.first + usize::from(bounce.0) * self.bounce_len
    }
}
