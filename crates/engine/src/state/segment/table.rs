//! The table of segments of one lane: a fixed array with a free list.
//!
//! Every list of the lane (free slots, a rail's queue, a connection's held segments) is threaded
//! through the slots by index, so that nothing is allocated after start and the room for every
//! list is the room of the table.

#[cfg(any(test, feature = "audit"))]
use std::iter;

use crate::ids::{Pe, WrId};
use crate::port::{Context, Direction};
use crate::state::batch::{Batch, Batches};
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::segment::{Follows, NIL, Plain, Segment, Stage, WriteClass};

/// What remains to be done for a segment that has completed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) pe: Pe,
    pub(crate) op: u32,
    pub(crate) direction: Direction,
    pub(crate) class: WriteClass,
}

impl Finished {
    pub(crate) fn of(segment: &Segment) -> Self {
        let Segment { pe, direction, class, .. } = *segment;
        Self { pe, op: segment.op(), direction, class }
    }
}

/// The segments of a lane.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    slots: Box<[Segment]>,
    free: u32,
    used: u32,
    /// What batches wait for.
    pub(crate) batches: Batches,
}

impl SegmentTable {
    pub(crate) fn new(capacity: u32, context: impl Fn(WrId) -> Context) -> Self {
        let mut slots = vec![Segment::FREE; capacity as usize].into_boxed_slice();
        for (index, slot) in slots.iter_mut().enumerate() {
            let next = index as u32 + 1;
            slot.next = if next == capacity { NIL } else { next };
            slot.context = context(WrId(index as u32));
        }
        Self { slots, free: 0, used: 0, batches: Batches::new() }
    }

    #[inline]
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Takes a free slot; its content is what its last user left, but for the batch, which is the
    /// current one, and what it is among the writes, which is a put. None when the table is full.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<WrId> {
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.used += 1;
        slot.plain = self.batches.take_current().0;
        (slot.class, slot.follows) = (WriteClass::EvenPut, Follows::Nothing);
        slot.behind_sent = false;
        Some(WrId(index))
    }

    #[inline(always)]
    pub(crate) fn take_slot(&mut self) -> Option<(WrId, &mut Segment)> {
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.used += 1;
        Some((WrId(index), slot))
    }

    #[cold]
    pub(crate) fn take_as(&mut self, segment: Segment) -> Option<WrId> {
        let (wr_id, slot) = self.take_slot()?;
        *slot = Segment { context: slot.context, ..segment };
        Some(wr_id)
    }

    #[inline]
    pub(crate) fn give(&mut self, wr_id: WrId) {
        let batch = self.free(wr_id);
        self.batches.end(batch, 1);
    }

    #[inline]
    pub(crate) fn free(&mut self, wr_id: WrId) -> Batch {
        let free = self.free;
        let slot = &mut self.slots[wr_id.index()];
        debug_assert!(slot.stage != Stage::Free, "segment {wr_id:?} given back twice");
        slot.stage = Stage::Free;
        slot.is_dropped = false;
        slot.next = free;
        self.free = wr_id.0;
        self.used -= 1;
        self.slots[wr_id.index()].batch()
    }

    pub(crate) fn away(&self, wr_id: WrId) -> Option<&Segment> {
        self.slots
            .get(wr_id.index())
            .filter(|segment| matches!(segment.stage, Stage::Posted | Stage::Sent | Stage::Lost))
    }

    pub(crate) fn give_unused(&mut self, wr_id: WrId) {
        self.slots[wr_id.index()].stage = Stage::Ready;
        self.give(wr_id);
    }

    pub(crate) fn finish(&mut self, wr_id: WrId) -> Option<Finished> {
        let slot = self.slots.get(wr_id.index())?;
        if slot.stage != Stage::Posted || slot.work.is_staged() {
            return None;
        }
        let finished = Finished::of(slot);
        self.give(wr_id);
        Some(finished)
    }

    pub(crate) fn plain(&self, wr_id: WrId) -> Option<Plain> {
        Plain::of(self.slots.get(wr_id.index())?)
    }

    /// Frees the slots at `indices` as far as there are such and their segments, which have
    /// completed, are plain ones of `of`. How many; [`SegmentTable::count_finished`] is told of
    /// them.
    #[inline(always)]
    pub(crate) fn finish_plain(
        &mut self,
        mut indices: impl ExactSizeIterator<Item = usize>,
        of: Plain,
    ) -> usize {
        let all = indices.len();
        let (slots, mut free) = (&mut *self.slots, self.free);
        let mut left = 0;
        while let Some(index) = indices.next() {
            let Some(slot) = slots.get_mut(index).filter(|slot| slot.signature() == of.signature)
            else {
                left = indices.len() + 1;
                break;
            };
            slot.stage = Stage::Free;
            slot.next = free;
            free = index as u32;
        }
        self.free = free;
        all - left
    }

    #[inline(always)]
    pub(crate) fn has(&self, index: usize) -> bool {
        self.slots.get(index).is_some()
    }

    pub(crate) fn count_finished(&mut self, of: Plain, count: u32) {
        self.used -= count;
        self.batches.end(of.batch(), count);
    }

    pub(crate) fn wr_ids(&self, mut so: impl FnMut(&Segment) -> bool) -> Vec<WrId> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.stage != Stage::Free);
        let used = used.take(self.used as usize).filter(|(_, slot)| so(slot));
        used.map(|(index, _)| WrId(index as u32)).collect()
    }

    pub(crate) fn in_use_mut(&mut self) -> impl Iterator<Item = (WrId, &mut Segment)> {
        let slots = self.slots.iter_mut().enumerate();
        let used = slots.filter(|(_, segment)| segment.stage != Stage::Free);
        used.take(self.used as usize).map(|(index, slot)| (WrId(index as u32), slot))
    }

    pub(crate) fn all_in_use(&self) -> impl Iterator<Item = (WrId, &Segment)> {
        let slots = self.slots.iter().enumerate();
        let used = slots.filter(|(_, segment)| segment.stage != Stage::Free);
        used.take(self.used as usize).map(|(index, slot)| (WrId(index as u32), slot))
    }

    /// All segments in use. Slots are reused last in first out, so they are found near the front
    /// of the table, and the search ends with the last of them.
    pub(crate) fn in_use(&self) -> impl Iterator<Item = &Segment> {
        let used = self.slots.iter().filter(|segment| segment.stage != Stage::Free);
        used.take(self.used as usize)
    }
}

impl SegmentTable {
    /// See [`Lane::audit`](crate::lane::Lane::audit). Batches have more than segments where
    /// operations of theirs are `pending`. `messages` that have left without a segment count for
    /// theirs.
    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(
        &self,
        pending: bool,
        messages: impl Iterator<Item = Segment>,
    ) -> Result<(), Discrepancy> {
        let used = || self.slots.iter().filter(|slot| slot.stage != Stage::Free);
        same("segments in use", self.used as usize, used().count())?;
        let free = iter::successors(self.slots.get(self.free as usize), |slot| {
            self.slots.get(slot.next as usize)
        });
        let free = free.take(self.slots.len() + 1);
        let free = free.inspect(|slot| debug_assert_eq!(slot.stage, Stage::Free)).count();
        same("free segments", free, self.slots.len() - self.used as usize)?;
        let mut of_batches = [0; 256];
        used().for_each(|slot| of_batches[usize::from(slot.batch().0)] += 1);
        messages.for_each(|message| of_batches[usize::from(message.batch().0)] += 1);
        self.batches.audit(&of_batches, pending)
    }
}

impl std::ops::Index<u32> for SegmentTable {
    type Output = Segment;
    #[inline]
    fn index(&self, index: u32) -> &Segment {
        &self.slots[index as usize]
    }
}

impl std::ops::IndexMut<u32> for SegmentTable {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Segment {
        &mut self.slots[index as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::format::Tag;

    fn take(table: &mut SegmentTable) -> u32 {
        let wr_id = table.take().unwrap();
        table[wr_id.0].stage = Stage::Ready;
        wr_id.0
    }

    #[test]
    fn a_full_table_gives_nothing_and_recovers() {
        let mut table = SegmentTable::new(3, |_| Context(0));
        let all: Vec<u32> = (0..3).map(|_| take(&mut table)).collect();
        assert_eq!(table.used(), 3);
        assert!(table.take().is_none());
        table.give(WrId(all[1]));
        assert_eq!(take(&mut table), all[1]);
        assert!(table.take().is_none());
    }

    #[test]
    fn a_slot_put_to_no_use_is_the_next_one_again() {
        let mut table = SegmentTable::new(2, |_| Context(0));
        let first = table.take().unwrap();
        table.give_unused(first);
        assert_eq!((table.used(), take(&mut table)), (0, first.0));
        take(&mut table);
        assert_eq!(table.take(), None, "it is full");
    }

    #[test]
    fn all_in_use_are_found_wherever_they_are() {
        let mut table = SegmentTable::new(4, |_| Context(0));
        let all: Vec<u32> = (0..4).map(|_| take(&mut table)).collect();
        table.give(WrId(all[0]));
        table.give(WrId(all[2]));
        let left = vec![WrId(all[1]), WrId(all[3])];
        assert_eq!(table.all_in_use().map(|(wr_id, _)| wr_id).collect::<Vec<_>>(), left);
        assert_eq!(table.in_use_mut().map(|(wr_id, _)| wr_id).collect::<Vec<_>>(), left);
        assert_eq!(table.wr_ids(|_| true), left);
        assert_eq!(table.in_use().count(), 2);
    }

    #[test]
    fn only_a_posted_transfer_that_no_operation_counts_is_plain() {
        let mut table = SegmentTable::new(2, |_| Context(0));
        let wr_id = table.take().unwrap();
        table[wr_id.0].make_plain(Pe(3), Direction::Read, WriteClass::EvenPut, Batch(7));
        let plain = table.plain(wr_id).unwrap();
        assert_eq!(
            (plain.pe(), plain.direction(), plain.batch()),
            (Pe(3), Direction::Read, Batch(7))
        );
        let other = |change: fn(&mut Segment)| {
            let mut table = SegmentTable::new(2, |_| Context(0));
            let wr_id = table.take().unwrap();
            table[wr_id.0].make_plain(Pe(3), Direction::Read, WriteClass::EvenPut, Batch(7));
            change(&mut table[wr_id.0]);
            table.plain(wr_id)
        };
        assert_eq!(other(|_| {}), Some(plain));
        assert_eq!(other(|segment| segment.stage = Stage::Ready), None);
        assert_eq!(other(|segment| segment.set_counted(Tag(1), WriteClass::EvenPut)), None);
        assert_eq!(other(|segment| segment.count_for(1)), None);
        assert!(table.has(1) && !table.has(2) && table.plain(WrId(2)).is_none());
    }
}
