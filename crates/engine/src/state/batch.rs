//! Batches: whether all of some operations have ended, for who submits many and waits for none.
//!
//! A batch counts the segments that were taken while it was submitted, and what stands for them
//! later, until that is given back: other segments, and messages that have left. So it is over when
//! each of its operations is delivered, whatever way that went: a write is visible, a read has
//! landed, an atomic was applied and what it fetched is here. That takes no word per operation.
//! Other batches do not matter to it: under
//! continuous traffic it ends as soon as it would alone, with one exception. The end of a message
//! is the peer's acknowledgement, which peers give when they are asked: see `want_ack` of the lane.
//!
//! After a failure segments end that have delivered nothing, so a batch says nothing any more:
//! the lane's failure comes first.

#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};

/// Batches of a lane at a time.
pub const MAX_BATCHES: usize = 254;

/// Names a batch from its begin to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch(pub(crate) u8);

impl Batch {
    /// No batch: quiet alone waits.
    pub const NONE: Batch = Batch(0);
}

/// The batches of a lane.
#[derive(Debug)]
pub(crate) struct Batches {
    /// Segments that each has under way. What is counted for [`Batch::NONE`] means nothing.
    under_way: [u32; 256],
    current: Batch,
    free: Vec<Batch>,
}

impl Batches {
    pub(crate) fn new() -> Self {
        let free = (1..=MAX_BATCHES as u8).rev().map(Batch).collect();
        Self { under_way: [0; 256], current: Batch::NONE, free }
    }

    pub(crate) fn start(&mut self) -> Option<Batch> {
        self.free.pop()
    }

    pub(crate) fn finish(&mut self, batch: Batch) {
        debug_assert!(self.is_done(batch), "a batch ended with segments under way");
        debug_assert!(batch != Batch::NONE && self.current != batch);
        self.free.push(batch);
    }

    #[inline]
    pub(crate) fn is_done(&self, batch: Batch) -> bool {
        self.under_way[usize::from(batch.0)] == 0
    }

    pub(crate) fn enter(&mut self, batch: Batch) -> Batch {
        std::mem::replace(&mut self.current, batch)
    }

    pub(crate) fn current(&self) -> Batch {
        self.current
    }

    #[inline]
    pub(crate) fn take_current(&mut self) -> Batch {
        let of = &mut self.under_way[usize::from(self.current.0)];
        *of = of.wrapping_add(1);
        self.current
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self, batch: Batch) {
        if batch != Batch::NONE {
            self.under_way[usize::from(batch.0)] += 1;
        }
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self, segments: &[u32; 256], pending: bool) -> Result<(), Discrepancy> {
        let batches = self.under_way.iter().zip(segments).skip(1);
        for (batch, (kept, found)) in (1..).zip(batches) {
            let is_more = pending && kept > found;
            same("segments", kept, if is_more { kept } else { found })
                .map_err(|differs| differs.of(format_args!("batch {batch}")))?;
        }
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn end(&mut self, batch: Batch, count: u32) {
        let of = &mut self.under_way[usize::from(batch.0)];
        *of = of.wrapping_sub(count);
    }
}
