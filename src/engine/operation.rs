//! Operations that somebody waits for: a count of segments that are not complete.

use super::segment::NIL;

/// Names an operation between its start and its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpId(pub(super) u32);

impl OpId {
    /// No operation: the segments are waited for by quiet alone.
    pub const NONE: OpId = OpId(NIL);
}

/// The counted operations of a lane. It grows to the number of threads that wait at a time, and
/// no further.
#[derive(Debug, Default)]
pub(super) struct OpTable {
    pending: Vec<u32>,
    free: Vec<u32>,
}

impl OpTable {
    /// Starts an operation with no segments.
    pub(super) fn start(&mut self) -> OpId {
        if let Some(index) = self.free.pop() {
            return OpId(index);
        }
        self.pending.push(0);
        OpId(self.pending.len() as u32 - 1)
    }

    /// One more segment is under way.
    #[inline]
    pub(super) fn add(&mut self, op: u32) {
        self.pending[op as usize] += 1;
    }

    /// One segment has ended.
    #[inline]
    pub(super) fn done(&mut self, op: u32) {
        self.pending[op as usize] -= 1;
    }

    /// Whether all segments given to it so far have ended.
    pub(super) fn is_done(&self, op: OpId) -> bool {
        self.pending[op.0 as usize] == 0
    }

    /// Ends an operation all of whose segments have ended.
    pub(super) fn end(&mut self, op: OpId) {
        debug_assert!(self.is_done(op), "operation ended with segments under way");
        self.free.push(op.0);
    }
}
