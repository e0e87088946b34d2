//! The segments of a lane, as everybody sees them: taken, looked up, listed and given back.

use crate::ids::WrId;
use crate::port::Port;
use crate::posting::transmit::Transmit;
use crate::state::batch::{Batch, Batches};
use crate::state::operation::OpTable;
use crate::state::segment::Segment;
use crate::state::segment::queue::Queue;

impl<P: Port> Transmit<P> {
    #[inline(always)]
    pub(crate) fn segment(&self, wr_id: WrId) -> &Segment {
        &self.segments[wr_id.0]
    }

    #[inline(always)]
    pub(crate) fn segment_mut(&mut self, wr_id: WrId) -> &mut Segment {
        &mut self.segments[wr_id.0]
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<WrId> {
        self.segments.take()
    }

    /// Takes this segment, which its batch counts already.
    pub(in crate::posting) fn take_as(&mut self, segment: Segment) -> Option<WrId> {
        self.segments.take_as(segment)
    }

    pub(crate) fn take_reserved(&mut self) -> Option<WrId> {
        let submitted = self.segments.batches.enter(Batch::NONE);
        let wr_id = self.segments.take();
        self.segments.batches.enter(submitted);
        self.reserved += u32::from(wr_id.is_some());
        wr_id
    }

    pub(crate) fn reserve(&mut self) {
        self.reserved += 1;
    }

    pub(crate) fn unreserve(&mut self) {
        self.reserved -= 1;
    }

    pub(crate) fn give_reserved(&mut self, wr_id: WrId) {
        self.segments.give(wr_id);
        self.unreserve();
    }

    pub(crate) fn give(&mut self, wr_id: WrId) {
        self.segments.give(wr_id);
    }

    pub(crate) fn give_unused(&mut self, wr_id: WrId) {
        self.segments.give_unused(wr_id);
    }

    pub(crate) fn away(&self, wr_id: WrId) -> Option<&Segment> {
        self.segments.away(wr_id)
    }

    #[inline]
    pub(crate) fn has_segments(&self) -> bool {
        self.segments.used() != 0
    }

    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Segment> {
        self.segments.in_use()
    }

    pub(crate) fn all_in_use(&self) -> impl Iterator<Item = (WrId, &Segment)> {
        self.segments.all_in_use()
    }

    pub(crate) fn in_use_mut(&mut self) -> impl Iterator<Item = &mut Segment> {
        self.segments.in_use_mut().map(|(_, segment)| segment)
    }

    /// A message has left and stands for itself: its segment is gone.
    #[inline]
    pub(in crate::posting) fn free(&mut self, wr_id: WrId) {
        self.segments.free(wr_id);
    }

    pub(crate) fn wr_ids(&self, so: impl FnMut(&Segment) -> bool) -> Vec<WrId> {
        self.segments.wr_ids(so)
    }

    pub(crate) fn enqueue(&mut self, queue: &mut Queue, wr_id: WrId) {
        queue.push(&mut self.segments, wr_id.0);
    }

    pub(crate) fn dequeue(&mut self, queue: &mut Queue) -> Option<WrId> {
        queue.pop(&self.segments).map(WrId)
    }

    #[inline(always)]
    pub(crate) fn batches(&self) -> &Batches {
        &self.segments.batches
    }

    #[inline(always)]
    pub(crate) fn batches_mut(&mut self) -> &mut Batches {
        &mut self.segments.batches
    }

    #[inline]
    pub(crate) fn ops(&self) -> &OpTable {
        &self.ops
    }

    #[inline]
    pub(crate) fn ops_mut(&mut self) -> &mut OpTable {
        &mut self.ops
    }
}
