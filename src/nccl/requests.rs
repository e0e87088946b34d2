//! Operations that NCCL has started and not seen done.
//!
//! A request is a batch of the engine's, which is over when all of its operations are delivered. A
//! lane has fewer batches than NCCL has requests under way, so when they are all in use, operations
//! join the latest, and are done when all of that is. Requests have numbers that rise; the pointer
//! that NCCL is given is the number, and no memory.

use std::collections::VecDeque;
use std::ffi::c_void;

use engine::lane::Lane;
use engine::port::Port;
use engine::state::batch::Batch;

/// Looks at batches that are not over between two requests for acknowledgements.
const PATIENCE: u32 = 16;

/// Names a request of a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RequestId(u64);

impl RequestId {
    /// What NCCL is given for it; not null.
    pub(super) fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    /// The request of a pointer.
    pub(super) fn of(pointer: *mut c_void) -> Self {
        Self(pointer.addr() as u64)
    }
}

/// Those that are not known to be done yet.
#[derive(Debug)]
pub(super) struct Requests {
    /// The batch of each request, from `first` on; none if that is over.
    open: VecDeque<Option<Batch>>,
    first: u64,
    /// Until peers are asked.
    patience: u32,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self { open: VecDeque::with_capacity(256), first: 1, patience: PATIENCE }
    }

    /// A request for operations that are about to be started, and the batch that they belong to.
    pub(super) fn begin<P: Port>(&mut self, lane: &mut Lane<P>) -> (RequestId, Batch) {
        if let Some(batch) = lane.begin_batch() {
            self.open.push_back(Some(batch));
            return (RequestId(self.first + self.open.len() as u64 - 1), batch);
        }
        // All batches are in use, by requests here: nobody else begins any on this lane.
        let latest = self.open.iter().enumerate().rev();
        let mut latest = latest.filter_map(|(at, batch)| Some((at, (*batch)?)));
        let (at, batch) = latest.next().unwrap_or((0, Batch::NONE));
        (RequestId(self.first + at as u64), batch)
    }

    /// Whether all operations of a request are delivered. One that was never given out is of none.
    pub(super) fn is_done<P: Port>(&mut self, lane: &mut Lane<P>, request: RequestId) -> bool {
        let Some(at) = request.0.checked_sub(self.first) else { return true };
        let Some(Some(batch)) = self.open.get(at as usize).copied() else { return true };
        if !lane.is_batch_done(batch) {
            return false;
        }
        lane.end_batch(batch);
        self.open[at as usize] = None;
        while let Some(None) = self.open.front() {
            self.open.pop_front();
            self.first += 1;
        }
        true
    }

    /// Whether all are known to be done.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Somebody waits for those that are not done: now and then all peers are asked to acknowledge
    /// what they have.
    pub(super) fn ask<P: Port>(&mut self, lane: &mut Lane<P>) {
        if self.open.is_empty() {
            return;
        }
        self.patience -= 1;
        if self.patience == 0 {
            self.patience = PATIENCE;
            lane.want_acks();
        }
    }
}
