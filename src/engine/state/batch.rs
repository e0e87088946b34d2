//! Batches: whether all of some operations have ended, for who submits many and waits for none.
//!
//! A batch counts the segments that were taken while it was submitted, and those that stand for them
//! later, until they are given back. So it is over when each of its operations is delivered, whatever way
//! that went: a write is visible, a read has landed, an atomic was applied and what it fetched is here.
//! That takes no word per operation. Other batches do not matter to it: under continuous traffic it ends
//! as soon as it would alone, with one exception. The end of a message is the peer's acknowledgement, which
//! peers give when they are asked: see [`Lane::want_ack`].
//!
//! After a failure segments end that have delivered nothing, so a batch says nothing any more:
//! [`Lane::failure`] comes first.

use crate::engine::error::EngineError;
use crate::engine::ids::Pe;
use crate::engine::lane::Lane;
use crate::engine::port::Port;

/// Batches of a lane at a time.
pub const MAX_BATCHES: usize = 254;

/// Names a batch from its begin to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Batch(pub(in crate::engine) u8);

impl Batch {
    /// No batch: quiet alone waits.
    pub const NONE: Batch = Batch(0);
}

/// The batches of a lane.
#[derive(Debug)]
pub(in crate::engine) struct Batches {
    /// Segments that each has under way. What is counted for [`Batch::NONE`] means nothing.
    under_way: [u32; 256],
    /// What is submitted now belongs to it.
    current: Batch,
    free: Vec<Batch>,
}

impl Batches {
    pub(in crate::engine) fn new() -> Self {
        let free = (1..=MAX_BATCHES as u8).rev().map(Batch).collect();
        Self { under_way: [0; 256], current: Batch::NONE, free }
    }

    /// What is submitted from here on belongs to a batch. Gives the one before.
    pub(in crate::engine) fn enter(&mut self, batch: Batch) -> Batch {
        std::mem::replace(&mut self.current, batch)
    }

    /// The current batch has another segment.
    #[inline]
    pub(in crate::engine) fn take_current(&mut self) -> Batch {
        let of = &mut self.under_way[usize::from(self.current.0)];
        *of = of.wrapping_add(1);
        self.current
    }

    /// A batch has another segment.
    #[inline(always)]
    pub(in crate::engine) fn begin(&mut self, batch: Batch) {
        if batch != Batch::NONE {
            self.under_way[usize::from(batch.0)] += 1;
        }
    }

    /// So many segments of a batch have been given back.
    #[inline(always)]
    pub(in crate::engine) fn end(&mut self, batch: Batch, count: u32) {
        let of = &mut self.under_way[usize::from(batch.0)];
        *of = of.wrapping_sub(count);
    }
}

impl<P: Port> Lane<P> {
    /// Begins a batch, which has nothing in it. None when there are [`MAX_BATCHES`].
    pub fn begin_batch(&mut self) -> Option<Batch> {
        self.segments.batches.free.pop()
    }

    /// What is submitted from here on belongs to the batch, or with [`Batch::NONE`] to none; but for the
    /// short ways, which are told. Gives the batch that was entered before.
    pub fn enter_batch(&mut self, batch: Batch) -> Batch {
        self.segments.batches.enter(batch)
    }

    /// Whether everything submitted to the batch so far is delivered, unless [`Lane::failure`] says
    /// otherwise. A few instructions. What was sent in messages is asked about with [`Lane::want_ack`].
    #[inline]
    pub fn is_batch_done(&self, batch: Batch) -> bool {
        self.segments.batches.under_way[usize::from(batch.0)] == 0
    }

    /// Ends a batch in which nothing is under way, and which is not entered.
    pub fn end_batch(&mut self, batch: Batch) {
        debug_assert!(self.is_batch_done(batch), "a batch ended with segments under way");
        debug_assert!(batch != Batch::NONE && self.segments.batches.current != batch);
        self.segments.batches.free.push(batch);
    }

    /// The first failure of the lane: data has been lost.
    #[inline]
    pub fn failure(&self) -> Option<&EngineError> {
        self.failure.as_deref()
    }

    /// Whether an operation can probably be submitted without waiting. While there is no room, turns of
    /// the loop make some.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.has_transfer_room() && self.has_message_room() && self.bulks.has_room()
    }

    /// As [`Lane::fence`], for every PE.
    pub fn fence_all(&mut self) {
        self.end_burst();
        for stream in self.streams.iter_mut() {
            stream.fence();
        }
    }

    /// Whether a PE is one of the job.
    #[inline]
    pub fn has_pe(&self, pe: Pe) -> bool {
        pe.0 < self.streams.n_pes()
    }
}
