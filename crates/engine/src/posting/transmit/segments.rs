//! The segments of a lane, as everybody sees them: taken, looked up, listed and given back.

use crate::ids::WrId;
use crate::port::Port;
use crate::posting::transmit::Transmit;
use crate::state::batch::{Batch, Batches};
use crate::state::operation::OpTable;
use crate::state::segment::Segment;
use crate::state::segment::queue::Queue;

impl<P: Port> Transmit<P> {
    /// A segment.
    #[inline(always)]
    pub(crate) fn segment(&self, wr_id: WrId) -> &Segment {
        &self.segments[wr_id.0]
    }

    /// As [`Transmit::segment`], to change it.
    #[inline(always)]
    pub(crate) fn segment_mut(&mut self, wr_id: WrId) -> &mut Segment {
        &mut self.segments[wr_id.0]
    }

    /// Takes a segment; its content is what its last user left. None when all are in use.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<WrId> {
        self.segments.take()
    }

    /// Takes this segment, which its batch counts already.
    pub(in crate::posting) fn take_as(&mut self, segment: Segment) -> Option<WrId> {
        self.segments.take_as(segment)
    }

    /// Takes a segment for a mechanism itself, which belongs to no batch and is no transfer of this
    /// lane's. It is given back with [`Transmit::give_reserved`].
    pub(crate) fn take_reserved(&mut self) -> Option<WrId> {
        let submitted = self.segments.batches.enter(Batch::NONE);
        let wr_id = self.segments.take();
        self.segments.batches.enter(submitted);
        self.reserved += u32::from(wr_id.is_some());
        wr_id
    }

    /// A segment that was taken is a mechanism's own from here on: it is no transfer any longer.
    pub(crate) fn reserve(&mut self) {
        self.reserved += 1;
    }

    /// A segment that was a mechanism's own is to be given back like any other.
    pub(crate) fn unreserve(&mut self) {
        self.reserved -= 1;
    }

    /// Gives back a segment that was a mechanism's own.
    pub(crate) fn give_reserved(&mut self, wr_id: WrId) {
        self.segments.give(wr_id);
        self.unreserve();
    }

    /// Gives a segment back.
    pub(crate) fn give(&mut self, wr_id: WrId) {
        self.segments.give(wr_id);
    }

    /// Gives back a segment that was just taken and put to no use.
    pub(crate) fn give_unused(&mut self, wr_id: WrId) {
        self.segments.give_unused(wr_id);
    }

    /// The segment, if the work-request id is one that the fabric or the peer has at present.
    pub(crate) fn away(&self, wr_id: WrId) -> Option<&Segment> {
        self.segments.away(wr_id)
    }

    /// Whether any segment is in use.
    #[inline]
    pub(crate) fn has_segments(&self) -> bool {
        self.segments.used() != 0
    }

    /// All segments in use.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Segment> {
        self.segments.in_use()
    }

    /// As [`Transmit::in_use`], with their work-request ids.
    pub(crate) fn all_in_use(&self) -> impl Iterator<Item = (WrId, &Segment)> {
        self.segments.all_in_use()
    }

    /// As [`Transmit::in_use`], to change them.
    pub(crate) fn in_use_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.segments.in_use_mut().map(|(_, segment)| segment)
    }

    /// A message has left and stands for itself: its segment is gone.
    #[inline]
    pub(in crate::posting) fn free(&mut self, wr_id: WrId) {
        self.segments.free(wr_id);
    }

    /// The work-request ids of all segments in use that are so.
    pub(crate) fn wr_ids(&self, so: impl FnMut(&Segment) -> bool) -> Vec<WrId> {
        self.segments.wr_ids(so)
    }

    /// Puts a segment, which is in no queue, at the end of one.
    pub(crate) fn enqueue(&mut self, queue: &mut Queue, wr_id: WrId) {
        queue.push(&mut self.segments, wr_id.0);
    }

    /// Takes the first segment out of a queue.
    pub(crate) fn dequeue(&mut self, queue: &mut Queue) -> Option<WrId> {
        queue.pop(&self.segments).map(WrId)
    }

    /// What batches wait for.
    #[inline(always)]
    pub(crate) fn batches(&self) -> &Batches {
        &self.segments.batches
    }

    /// As [`Transmit::batches`], to begin, enter and end them.
    #[inline(always)]
    pub(crate) fn batches_mut(&mut self) -> &mut Batches {
        &mut self.segments.batches
    }

    /// The operations that count their segments.
    #[inline]
    pub(crate) fn ops(&self) -> &OpTable {
        &self.ops
    }

    /// As [`Transmit::ops`], to begin and end them.
    #[inline]
    pub(crate) fn ops_mut(&mut self) -> &mut OpTable {
        &mut self.ops
    }
}
