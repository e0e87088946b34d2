//! A queue of segments, threaded through their slots.

#[cfg(any(test, feature = "audit"))]
use std::iter;

#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::segment::NIL;
#[cfg(any(test, feature = "audit"))]
use crate::state::segment::Stage;
use crate::state::segment::table::SegmentTable;

/// A first-in first-out queue of segments, threaded through their slots. A segment is in at
/// most one queue at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Queue {
    pub(crate) const EMPTY: Queue = Queue { head: NIL, tail: NIL, len: 0 };

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn push(&mut self, table: &mut SegmentTable, index: u32) {
        table[index].set_next(NIL);
        if self.tail == NIL {
            self.head = index;
        } else {
            table[self.tail].set_next(index);
        }
        self.tail = index;
        self.len += 1;
    }

    pub(crate) fn pop(&mut self, table: &SegmentTable) -> Option<u32> {
        let index = self.front()?;
        self.head = table[index].next();
        if self.head == NIL {
            self.tail = NIL;
        }
        self.len -= 1;
        Some(index)
    }
}

impl Queue {
    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self, table: &SegmentTable, stage: Stage) -> Result<u32, Discrepancy> {
        let next = |index: &u32| Some(table[*index].next()).filter(|next| *next != NIL);
        let queued = || iter::successors(self.front(), next).take(self.len as usize + 1);
        same("the length of a queue", self.len as usize, queued().count())?;
        same("the end of a queue", self.tail, queued().last().unwrap_or(NIL))?;
        for index in queued() {
            same("the stage of what is queued", stage, table[index].stage)?;
        }
        Ok(self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WrId;
    use crate::port::Context;
    use crate::state::segment::Stage;

    fn take(table: &mut SegmentTable) -> u32 {
        let WrId(index) = table.take().unwrap();
        table[index].stage = Stage::Ready;
        index
    }

    #[test]
    fn a_queue_is_first_in_first_out() {
        let mut table = SegmentTable::new(4, |_| Context(0));
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
}
