//! Batches: operations of callers that submit many and wait for all of them together.

use crate::error::EngineError;
use crate::group::CompletionId;
use crate::ids::Pe;
use crate::lane::Lane;
use crate::op::QueueEntry;
use crate::port::Port;
use crate::regions::overlap;

/// A batch of operations from its begin to its end: a completion group.
pub type Batch = CompletionId;

impl<P: Port> Lane<P> {
    /// Begins an empty batch. None when all [`MAX_GROUPS`](crate::group::MAX_GROUPS) are in use.
    pub fn begin_batch(&mut self) -> Option<Batch> {
        self.core.groups.start()
    }

    /// Adds later operations to the batch, or to none. Returns the batch entered before.
    pub fn enter_batch(&mut self, batch: Batch) -> Batch {
        std::mem::replace(&mut self.core.current, batch)
    }

    /// Returns true if everything submitted to the batch is delivered, unless [`Lane::failure`]
    /// reports a failure. Messages end when acknowledged, see [`Lane::request_acks`].
    #[inline]
    pub fn is_batch_done(&self, batch: Batch) -> bool {
        self.core.groups.is_done(batch)
    }

    /// Ends a batch that is done and not entered.
    pub fn end_batch(&mut self, batch: Batch) {
        self.core.groups.finish(batch);
    }

    /// Checks that no operation in flight or queued in this lane accesses this local memory.
    ///
    /// # Errors
    /// The operation that does. The release of the region waits for those of failed peers.
    pub fn check_unused(&mut self, addr: usize, len: usize) -> Result<(), EngineError> {
        // Operations handed over by user threads access memory as well.
        self.serve_inbox();
        // No queue tells which words are deferred.
        self.staging.flush_own(&mut self.core);
        let Self { core, staging, .. } = self;
        let queued = core.peers.iter().flat_map(|peer| {
            peer.queue.iter().filter_map(move |queued| match queued {
                QueueEntry::Op(op, _) => op.memory().map(|(what, memory)| (peer.pe, what, memory)),
                QueueEntry::Fence | QueueEntry::OwnWords | QueueEntry::Quiet(_) => None,
            })
        });
        let segments = core.segments.posted().filter_map(|(_, segment)| {
            Some((segment.account.pe(), segment.what(), segment.memory()?))
        });
        let sent = core.messages.sent();
        let messages =
            sent.filter_map(|(_, slot)| Some((slot.account.pe(), slot.what(), slot.memory()?)));
        let touches = |&(pe, _, memory): &(Pe, &str, (usize, usize))| {
            overlap(memory, (addr, len)) && core.peers.get(pe).error.is_none()
        };
        let copies = core.copies.iter().map(|copying| (copying.pe, copying.what, copying.memory));
        let staged = staging.memory().chain(copies);
        match queued.chain(segments).chain(messages).chain(staged).find(touches) {
            Some((pe, what, _)) => Err(EngineError::InUse { addr, len, what, pe }),
            None => Ok(()),
        }
    }
}
