//! Batches of operations, and what else a caller asks who submits many and waits for none.

use crate::error::EngineError;
use crate::ids::Pe;
use crate::lane::Lane;
use crate::lane::user_threads::handoff::Inbox;
use crate::port::Port;
use crate::request::Touched;
use crate::state::batch::Batch;
#[cfg(doc)]
use crate::state::batch::MAX_BATCHES;
use crate::state::orphans::overlap;
use crate::state::segment::work::Work;

impl<P: Port> Lane<P> {
    /// Begins a batch, which has nothing in it. None when there are [`MAX_BATCHES`].
    pub fn begin_batch(&mut self) -> Option<Batch> {
        self.core.transmit.batches_mut().start()
    }

    /// What is submitted from here on belongs to the batch, or with [`Batch::NONE`] to none; but
    /// for the fast paths, which are counting. Gives the batch that was entered before.
    pub fn enter_batch(&mut self, batch: Batch) -> Batch {
        self.core.transmit.batches_mut().enter(batch)
    }

    /// Whether everything submitted to the batch so far is delivered, unless [`Lane::failure`] says
    /// otherwise. A few instructions. What was sent in messages is asked about with
    /// [`Lane::want_ack`].
    #[inline]
    pub fn is_batch_done(&self, batch: Batch) -> bool {
        self.core.transmit.batches().is_done(batch)
    }

    /// Ends a batch in which nothing is under way, and which is not entered.
    pub fn end_batch(&mut self, batch: Batch) {
        self.core.transmit.batches_mut().finish(batch);
    }

    /// The first failure of the lane: data has been lost.
    #[inline]
    pub fn failure(&self) -> Option<&EngineError> {
        self.core.failures.first()
    }

    /// Whether an operation can probably be submitted without waiting. While there is no room,
    /// iterations of the loop make some.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.core.has_transfer_room() && self.core.peers.has_message_room() && self.pool.has_room()
    }

    /// That nothing that is under way for this lane touches these bytes of local memory, or is
    /// going to.
    ///
    /// # Errors
    /// What does. Of peers that were declared failed the table of regions knows: see
    /// [`RegionTable::release`](crate::state::regions::RegionTable::release).
    pub fn check_unused(&mut self, addr: usize, len: usize) -> Result<(), EngineError> {
        if let Some(inbox) = self.inbox.as_deref_mut() {
            inbox.take_all();
        }
        let Self { core, staging, pool, pending_queue, inbox, .. } = self;
        // What was not submitted yet, or waits for a bounce buffer, has no segment.
        let handed_over = inbox.as_deref().into_iter().flat_map(Inbox::memory);
        let without = pending_queue.memory().chain(handed_over).chain(staging.waiting_memory());
        let segments = core.transmit.all_in_use().filter_map(|(wr_id, segment)| {
            let memory = match *segment.work() {
                Work::Fragment { .. } | Work::PeerRequest { .. } => staging.memory_of(wr_id),
                Work::Pooled { place, .. } => Some(pool.memory_of(place)),
                _ => core.memory_of(segment),
            };
            Some(Touched { what: segment.what(), pe: segment.pe, memory: memory? })
        });
        let messages = core.without_segment().filter_map(|segment| {
            let memory = core.memory_of(&segment)?;
            Some(Touched { what: segment.what(), pe: segment.pe, memory })
        });
        let touches = |touched: &Touched| {
            overlap(touched.memory, (addr, len)) && core.peers.check(touched.pe).is_ok()
        };
        match without.chain(segments).chain(messages).find(touches) {
            Some(Touched { what, pe, .. }) => Err(EngineError::InUse { addr, len, what, pe }),
            None => Ok(()),
        }
    }

    /// As [`Lane::fence`], for every PE.
    pub fn fence_all(&mut self) {
        self.end_burst();
        self.fenced_own = true;
        self.settle_own();
        self.core.peers.for_each(|connection| {
            if !connection.has_pending() {
                connection.fence();
            }
        });
        self.pending_queue.fence_all();
    }

    /// Whether a PE is one of the job.
    #[inline]
    pub fn has_pe(&self, pe: Pe) -> bool {
        pe.0 < self.core.peers.n_pes()
    }
}
