//! Operations that somebody waits for: a count of segments that are not complete.

#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::segment::NIL;
#[cfg(any(test, feature = "audit"))]
use crate::state::segment::table::SegmentTable;

/// Names an operation between its start and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId(pub(crate) u32);

impl OpId {
    /// No operation: the segments are waited for by quiet alone.
    pub const NONE: OpId = OpId(NIL);
}

/// The counted operations of a lane. It grows to the number that are under way at a time, and no
/// further.
#[derive(Debug, Default)]
pub(crate) struct OpTable {
    ops: Vec<Op>,
    free: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    /// Segments that have not ended.
    pending: u32,
    /// The segment that may leave once all have, or [`NIL`].
    then: u32,
    /// Its writes are done with when they have left as messages: what was chained has its order
    /// from the target.
    departs: bool,
}

impl OpTable {
    pub(crate) fn with_capacity(capacity: u32) -> Self {
        let capacity = capacity as usize;
        Self { ops: Vec::with_capacity(capacity), free: Vec::with_capacity(capacity) }
    }

    pub(crate) fn start(&mut self) -> OpId {
        self.start_as(Op { pending: 0, then: NIL, departs: false })
    }

    pub(crate) fn start_departing(&mut self) -> OpId {
        self.start_as(Op { pending: 0, then: NIL, departs: true })
    }

    pub(crate) fn departs(&self, op: OpId) -> bool {
        op != OpId::NONE && self.ops[op.0 as usize].departs
    }

    fn start_as(&mut self, op: Op) -> OpId {
        if let Some(index) = self.free.pop() {
            self.ops[index as usize] = op;
            return OpId(index);
        }
        self.ops.push(op);
        OpId(self.ops.len() as u32 - 1)
    }

    #[inline]
    pub(crate) fn add(&mut self, op: u32) {
        self.ops[op as usize].pending += 1;
    }

    /// Chains a segment to the operation: it may leave once all others have ended. Whether it may
    /// at once, because they have; the operation is over then.
    pub(crate) fn chain(&mut self, op: OpId, then: u32) -> bool {
        if self.is_done(op) {
            self.end(op);
            return true;
        }
        self.ops[op.0 as usize].then = then;
        false
    }

    #[inline]
    pub(crate) fn done(&mut self, op: u32) -> Option<u32> {
        let entry = &mut self.ops[op as usize];
        entry.pending -= 1;
        if entry.pending > 0 || entry.then == NIL {
            return None;
        }
        let then = entry.then;
        self.free.push(op);
        Some(then)
    }

    pub(crate) fn is_done(&self, op: OpId) -> bool {
        self.ops[op.0 as usize].pending == 0
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self, segments: &SegmentTable, chained: u32) -> Result<(), Discrepancy> {
        let mut pending = vec![0; self.ops.len()];
        for (_, segment) in segments.all_in_use().filter(|(_, segment)| segment.op() != NIL) {
            pending[segment.op() as usize] += 1;
        }
        for (op, pending) in self.ops.iter().zip(pending) {
            same("segments of an operation", op.pending, pending)?;
        }
        let free = self.free.iter().filter(|op| self.ops[**op as usize].pending != 0);
        same("free operations that have not ended", 0, free.count())?;
        let waits = self.ops.iter().filter(|op| op.pending != 0 && op.then != NIL);
        same("operations with a signal behind them", waits.count() as u32, chained)
    }

    pub(crate) fn end(&mut self, op: OpId) {
        debug_assert!(self.is_done(op), "operation ended with segments under way");
        self.free.push(op.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_leaves_its_place_to_the_next() {
        let mut ops = OpTable::with_capacity(64);
        assert!(
            ops.ops.capacity() >= 64 && ops.free.capacity() >= 64,
            "nothing is allocated later"
        );
        let op = ops.start();
        ops.add(op.0);
        ops.add(op.0);
        assert_eq!((ops.done(op.0), ops.is_done(op)), (None, false));
        assert_eq!((ops.done(op.0), ops.is_done(op)), (None, true), "nothing was chained");
        ops.end(op);
        assert_eq!(ops.start(), op);
        ops.add(op.0);
        assert!(!ops.chain(op, 7));
        assert_eq!(ops.done(op.0), Some(7), "with the last segment it is over");
        assert_eq!(ops.start(), op);
        assert!(ops.chain(op, 7), "there is nothing to wait for, and it is over");
        assert_eq!(ops.start(), op);
        assert_ne!(ops.start(), op, "as it is under way");
    }

    #[test]
    fn only_what_was_started_so_is_done_with_as_it_departs() {
        let mut ops = OpTable::with_capacity(1);
        let op = ops.start_departing();
        assert!(ops.departs(op) && !ops.departs(OpId::NONE));
        ops.end(op);
        assert_eq!(ops.start(), op);
        assert!(!ops.departs(op));
    }
}
