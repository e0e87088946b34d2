//! The table of segments of one lane: a fixed array with a free list.
//!
//! Every list of the lane (free slots, a rail's queue, a stream's held segments, a stream's
//! segments in issue order) is threaded through the slots by index, so that nothing is allocated
//! after start and the room for every list is the room of the table.

use super::ids::{RailId, Token};
use super::port::{Desc, Direction, Local, PeerAddr, Transfer};

/// The end of a list, or the absence of a slot.
pub(super) const NIL: u32 = u32::MAX;

/// Where a segment is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The slot is free.
    Free,
    /// Waits behind a fence in its stream's held queue.
    Held,
    /// Waits in its rail's queue.
    Ready,
    /// Taken by the fabric; its completion is outstanding.
    Posted,
}

/// One segment and its places in the lists.
///
/// Two cache lines, so that an index becomes an address with a shift.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Segment {
    /// What to post.
    pub(super) transfer: Transfer,
    /// Where to.
    pub(super) to: PeerAddr,
    /// Place in its stream's issue order; rises by one with each segment of the stream.
    pub(super) seq: u64,
    /// While held: may leave once all of the stream's writes below this `seq` are delivered.
    pub(super) after: u64,
    /// Index of its stream.
    pub(super) stream: u32,
    /// The operation that counts its segments, or [`NIL`].
    pub(super) op: u32,
    /// Neighbours in the stream's issue order.
    pub(super) older: u32,
    pub(super) newer: u32,
    /// Next in the queue it is in: free list, held queue or rail queue.
    pub(super) next: u32,
    /// The rail it goes out on.
    pub(super) rail: RailId,
    /// Where it is.
    pub(super) stage: Stage,
}

impl Segment {
    const FREE: Segment = Segment {
        transfer: Transfer {
            direction: Direction::Write,
            local: Local::Memory { addr: 0, desc: Desc(0) },
            len: 0,
            remote: 0,
            key: 0,
        },
        to: PeerAddr(0),
        seq: 0,
        after: 0,
        stream: NIL,
        op: NIL,
        older: NIL,
        newer: NIL,
        next: NIL,
        rail: RailId(0),
        stage: Stage::Free,
    };
}

/// The segments of a lane.
#[derive(Debug)]
pub(super) struct SegmentTable {
    slots: Box<[Segment]>,
    free: u32,
    used: u32,
}

impl SegmentTable {
    /// A table of `capacity` free slots, at least 1 and below `u32::MAX`.
    pub(super) fn new(capacity: u32) -> Self {
        let mut slots = vec![Segment::FREE; capacity as usize].into_boxed_slice();
        for (index, slot) in slots.iter_mut().enumerate() {
            let next = index as u32 + 1;
            slot.next = if next == capacity { NIL } else { next };
        }
        Self { slots, free: 0, used: 0 }
    }

    /// Slots in use.
    #[inline]
    pub(super) fn used(&self) -> u32 {
        self.used
    }

    /// All slots.
    pub(super) fn capacity(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Takes a free slot; its content is what its last user left. None when the table is full.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Token> {
        let index = self.free;
        let slot = self.slots.get(index as usize)?;
        self.free = slot.next;
        self.used += 1;
        Some(Token(index))
    }

    /// The next free slot, which stays free until [`SegmentTable::take_next`].
    #[inline(always)]
    pub(super) fn peek(&mut self) -> Option<(Token, &mut Segment)> {
        let index = self.free;
        self.slots.get_mut(index as usize).map(|slot| (Token(index), slot))
    }

    /// Takes the slot that [`SegmentTable::peek`] has just given.
    #[inline(always)]
    pub(super) fn take_next(&mut self) {
        if let Some(slot) = self.slots.get(self.free as usize) {
            self.free = slot.next;
            self.used += 1;
        }
    }

    /// Gives a slot back.
    #[inline]
    pub(super) fn give(&mut self, token: Token) {
        let free = self.free;
        let slot = &mut self.slots[token.index()];
        debug_assert!(slot.stage != Stage::Free, "segment {token:?} given back twice");
        slot.stage = Stage::Free;
        slot.next = free;
        self.free = token.0;
        self.used -= 1;
    }

    /// The segment, if the token is one that is posted at present. The port hands tokens back from
    /// outside, so they are checked.
    #[inline]
    pub(super) fn posted(&self, token: Token) -> Option<&Segment> {
        self.slots.get(token.index()).filter(|segment| segment.stage == Stage::Posted)
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

/// A first-in first-out queue of segments, threaded through [`Segment::next`]. A segment is in at
/// most one queue at a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Queue {
    pub(super) const EMPTY: Queue = Queue { head: NIL, tail: NIL, len: 0 };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// Segments in the queue.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The segment that leaves next.
    #[inline]
    pub(super) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(super) fn push(&mut self, table: &mut SegmentTable, index: u32) {
        table[index].next = NIL;
        if self.tail == NIL {
            self.head = index;
        } else {
            table[self.tail].next = index;
        }
        self.tail = index;
        self.len += 1;
    }

    pub(super) fn pop(&mut self, table: &SegmentTable) -> Option<u32> {
        let index = self.front()?;
        self.head = table[index].next;
        if self.head == NIL {
            self.tail = NIL;
        }
        self.len -= 1;
        Some(index)
    }
}

/// Segments of one stream and one direction that have not completed, oldest first, threaded
/// through [`Segment::older`] and [`Segment::newer`]. They leave from any place: fabrics complete
/// out of order.
#[derive(Clone, Copy, Debug)]
pub(super) struct IssueOrder {
    oldest: u32,
    newest: u32,
}

impl IssueOrder {
    pub(super) const EMPTY: IssueOrder = IssueOrder { oldest: NIL, newest: NIL };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.oldest == NIL
    }

    /// The segment that was issued first.
    #[inline]
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NIL).then_some(self.oldest)
    }

    #[inline]
    pub(super) fn append(&mut self, table: &mut SegmentTable, index: u32) {
        let newest = self.newest;
        let segment = &mut table[index];
        segment.older = newest;
        segment.newer = NIL;
        if newest == NIL {
            self.oldest = index;
        } else {
            table[newest].newer = index;
        }
        self.newest = index;
    }

    #[inline]
    pub(super) fn remove(&mut self, table: &mut SegmentTable, index: u32) {
        let Segment { older, newer, .. } = table[index];
        if older == NIL {
            self.oldest = newer;
        } else {
            table[older].newer = newer;
        }
        if newer == NIL {
            self.newest = older;
        } else {
            table[newer].older = older;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(table: &mut SegmentTable) -> u32 {
        let token = table.take().unwrap();
        table[token.0].stage = Stage::Ready;
        token.0
    }

    #[test]
    fn a_full_table_gives_nothing_and_recovers() {
        let mut table = SegmentTable::new(3);
        let all: Vec<u32> = (0..3).map(|_| take(&mut table)).collect();
        assert_eq!(table.used(), 3);
        assert!(table.take().is_none());
        table.give(Token(all[1]));
        assert_eq!(take(&mut table), all[1]);
        assert!(table.take().is_none());
    }

    #[test]
    fn a_queue_is_first_in_first_out() {
        let mut table = SegmentTable::new(4);
        let mut queue = Queue::EMPTY;
        let all: Vec<u32> = (0..4).map(|_| take(&mut table)).collect();
        for &index in &all {
            queue.push(&mut table, index);
        }
        assert_eq!(queue.len(), 4);
        for &index in &all {
            assert_eq!(queue.front(), Some(index));
            assert_eq!(queue.pop(&table), Some(index));
        }
        assert!(queue.is_empty());
        queue.push(&mut table, all[2]);
        assert_eq!(queue.pop(&table), Some(all[2]));
        assert_eq!(queue.pop(&table), None);
    }

    #[test]
    fn issue_order_survives_removal_from_any_place() {
        // Every order in which four segments can complete.
        for first in 0..4usize {
            for second in 0..3usize {
                for third in 0..2usize {
                    let mut table = SegmentTable::new(4);
                    let mut order = IssueOrder::EMPTY;
                    let mut left: Vec<u32> = (0..4).map(|_| take(&mut table)).collect();
                    for &index in &left {
                        order.append(&mut table, index);
                    }
                    for pick in [first, second, third, 0] {
                        let index = left.remove(pick);
                        order.remove(&mut table, index);
                        assert_eq!(order.oldest(), left.first().copied());
                        let mut walked = Vec::new();
                        let mut at = order.oldest().unwrap_or(NIL);
                        while at != NIL {
                            walked.push(at);
                            at = table[at].newer;
                        }
                        assert_eq!(walked, left);
                    }
                    assert!(order.is_empty());
                }
            }
        }
    }
}
