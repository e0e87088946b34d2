//! Operations that NCCL has started and not seen complete.
//!
//! A request belongs to a batch of the engine's and is complete when all operations of that batch
//! are delivered. Batches are few, so requests to the same rank share them; a rank that has stopped
//! delays no other.
//!
//! NCCL's thread tests each request that is under way in every pass, so a test takes no lock: the
//! request itself names its batch, and [`Ended`] tells which batches are over. A request's pointer
//! points to no memory.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use engine::ids::Pe;
use engine::lane::Lane;
use engine::lane::batches::Batch;
use engine::port::{Direction, Port};

const PATIENCE: u32 = 6;

/// Most operations of one kind that share a batch, and bytes of the longest such operation.
const MAX_SHARING: u32 = 64;
const LONGEST_SHARING: usize = 64 << 10;

const MAX_BATCHES: usize = 254;

const MAX_RESERVED: usize = MAX_BATCHES / 2;

/// Index in requests without a batch, as none was free: they end when their rank is quiet.
const QUIET: u64 = u8::MAX as u64;

/// From the lowest bit: 8 bits with the index of an entry for batches, 16 that tell operations of
/// the batch apart, and the number of the entry's use, from 1; or [`QUIET`], such 16, and a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RequestId(u64);

impl RequestId {
    fn new(index: u64, operation: u32, number: u64) -> Self {
        Self(number << 24 | u64::from(operation as u16) << 8 | index)
    }

    fn index(self) -> u64 {
        self.0 & 0xff
    }

    fn number(self) -> u64 {
        self.0 >> 24
    }

    pub(super) fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    pub(super) fn of(pointer: *mut c_void) -> Self {
        Self(pointer.addr() as u64)
    }
}

/// How many uses of each entry for batches have ended; and the first request under way that was
/// tested in vain since NCCL called for progress, or 0.
#[derive(Debug)]
pub(super) struct Ended {
    uses: Box<[AtomicU64]>,
    in_vain: AtomicU64,
}

impl Ended {
    pub(super) fn new() -> Self {
        let uses = (0..MAX_BATCHES).map(|_| AtomicU64::new(0)).collect();
        Self { uses, in_vain: AtomicU64::new(0) }
    }

    /// Returns whether a request is delivered; None if only the lane knows.
    #[inline]
    pub(super) fn is_done(&self, request: RequestId) -> Option<bool> {
        let ended = self.uses.get(request.index() as usize)?;
        // What the batch has written is there for whoever is told that it is over.
        Some(ended.load(Ordering::Acquire) >= request.number())
    }

    /// Call after a test in vain. Returns true if NCCL waits for that request alone.
    #[inline]
    pub(super) fn is_tested_again(&self, request: RequestId) -> bool {
        let first = self.in_vain.load(Ordering::Relaxed);
        if first == 0 {
            self.in_vain.store(request.0, Ordering::Relaxed);
        }
        first == request.0
    }

    /// Call when NCCL is told that a request is done: from now on it tests others.
    #[inline]
    pub(super) fn told(&self, request: RequestId) {
        if self.in_vain.load(Ordering::Relaxed) == request.0 {
            self.progress_called();
        }
    }

    pub(super) fn progress_called(&self) {
        self.in_vain.store(0, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy, Debug)]
struct BatchEntry {
    batch: Batch,
    rank: usize,
    /// Number of its use, the first of which is 1.
    uses: u64,
    /// Direction of the operations that may still join, None if none may; and how many have.
    sharing: Option<Direction>,
    operations: u32,
    /// Number of the iteration of its latest operation.
    at: u64,
}

/// The batches of requests that are not known to be complete.
#[derive(Debug)]
pub(super) struct Requests {
    batches: Box<[BatchEntry]>,
    /// Entries in use, and the others.
    held: Vec<usize>,
    free: Vec<usize>,
    ranks: Box<[Vec<usize>]>,
    without: usize,
    /// Number of requests under way that have no batch.
    quiets: u32,
    /// Iterations until peers are asked to acknowledge.
    patience: u32,
    iterations: u64,
}

impl Requests {
    pub(super) fn new(ranks: u32) -> Self {
        let batch = Batch::NONE;
        let entry = BatchEntry { batch, rank: 0, uses: 0, sharing: None, operations: 0, at: 0 };
        let without = ranks as usize;
        Self {
            batches: vec![entry; MAX_BATCHES].into(),
            held: Vec::with_capacity(MAX_BATCHES),
            free: (0..MAX_BATCHES).rev().collect(),
            ranks: vec![Vec::new(); without].into(),
            without,
            quiets: 0,
            patience: PATIENCE,
            iterations: 0,
        }
    }

    /// Begins a request for a put or get of so many bytes, 0 for a signal alone, and returns the
    /// batch to start it in.
    ///
    /// Short puts and signals to one rank share a batch, and so do short gets, while each iteration
    /// brings another: the engine sends those of one batch together, and they are done at about the
    /// same time.
    #[inline]
    pub(super) fn begin<P: Port>(
        &mut self,
        lane: &mut Lane<P>,
        rank: u32,
        (direction, len): (Direction, usize),
    ) -> (RequestId, Batch) {
        let sharing = (len <= LONGEST_SHARING).then_some(direction);
        // An operation to no rank of the group is refused when it is started.
        let latest = self.ranks.get(rank as usize).and_then(|held| held.last().copied());
        if let (Some(index), Some(_)) = (latest, sharing) {
            let of = &mut self.batches[index];
            let is_open = of.operations < MAX_SHARING && self.iterations - of.at <= 1;
            if of.sharing == sharing && is_open {
                (of.operations, of.at) = (of.operations + 1, self.iterations);
                return (RequestId::new(index as u64, of.operations, of.uses), of.batch);
            }
        }
        self.begin_in_another(lane, rank, sharing)
    }

    #[inline(never)]
    fn begin_in_another<P: Port>(
        &mut self,
        lane: &mut Lane<P>,
        rank: u32,
        sharing: Option<Direction>,
    ) -> (RequestId, Batch) {
        let held = self.ranks.get(rank as usize).map_or(&[][..], |held| held);
        let latest = held.last().copied();
        // A rank gets no more batches than remain for others, besides those reserved for ranks
        // without any.
        let left = self.free.len().saturating_sub(self.without.min(MAX_RESERVED));
        let may_take = latest.is_none() || held.len() < left;
        let begun = if may_take { self.take(lane, rank as usize) } else { None };
        let Some(index) = begun.or(latest) else {
            self.quiets += 1;
            return (RequestId::new(QUIET, self.quiets, u64::from(rank)), Batch::NONE);
        };
        let of = &mut self.batches[index];
        // Nothing joins a batch that is shared because none is free.
        let others = if begun.is_some() { 0 } else { of.operations };
        (of.sharing, of.at) = (sharing.filter(|_| begun.is_some()), self.iterations);
        of.operations = others.wrapping_add(1);
        (RequestId::new(index as u64, of.operations, of.uses), of.batch)
    }

    fn take<P: Port>(&mut self, lane: &mut Lane<P>, rank: usize) -> Option<usize> {
        let held = self.ranks.get_mut(rank)?;
        let index = *self.free.last()?;
        let batch = lane.begin_batch()?;
        self.free.pop();
        self.held.push(index);
        let of = &mut self.batches[index];
        *of = BatchEntry { batch, rank, uses: of.uses + 1, ..*of };
        self.without -= usize::from(held.is_empty());
        held.push(index);
        Some(index)
    }

    /// Forgets a request whose operation was refused.
    pub(super) fn take_back<P: Port>(
        &mut self,
        lane: &mut Lane<P>,
        request: RequestId,
        ended: &Ended,
    ) {
        self.quiets -= u32::from(request.index() == QUIET);
        self.end_done(lane, ended);
    }

    /// Returns whether a request without a batch is delivered.
    pub(super) fn is_quiet<P: Port>(&mut self, lane: &mut Lane<P>, request: RequestId) -> bool {
        // A rank's failure is one of the lane, which is checked elsewhere.
        let is_quiet = lane.is_quiet(Pe(request.number() as u32)).unwrap_or(false);
        self.quiets -= u32::from(is_quiet).min(self.quiets);
        is_quiet
    }

    fn end_done<P: Port>(&mut self, lane: &mut Lane<P>, ended: &Ended) {
        // What a failure has ended is not delivered.
        if lane.failure().is_some() {
            return;
        }
        let Self { batches, held, free, ranks, without, .. } = self;
        held.retain(|&index| {
            let BatchEntry { batch, rank, uses, .. } = batches[index];
            let is_done = lane.is_batch_done(batch);
            if is_done {
                lane.end_batch(batch);
                ranks[rank].retain(|other| *other != index);
                *without += usize::from(ranks[rank].is_empty());
                free.push(index);
                ended.uses[index].store(uses, Ordering::Release);
            }
            !is_done
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.quiets == 0
    }

    /// Tells of batches that an iteration of the lane has ended. Now and then, if requests are
    /// open, asks all peers for acknowledgements.
    pub(super) fn iterated<P: Port>(&mut self, lane: &mut Lane<P>, ended: &Ended) {
        self.iterations += 1;
        if self.is_empty() {
            return;
        }
        self.end_done(lane, ended);
        self.patience -= 1;
        if self.patience == 0 {
            self.patience = PATIENCE;
            lane.request_acks();
        }
    }
}

#[cfg(test)]
mod tests;
