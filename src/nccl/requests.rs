//! Operations that NCCL has started and not seen complete.
//!
//! A request belongs to a batch of the engine's and is complete when all operations of that batch
//! are delivered. Batches are few, so requests to the same rank share them; a rank that has stopped
//! delays no other. Request numbers rise; NCCL's pointer is the number, and points to no memory.

use std::collections::VecDeque;
use std::ffi::c_void;

use engine::ids::Pe;
use engine::lane::Lane;
use engine::lane::batches::Batch;
use engine::port::Port;

const PATIENCE: u32 = 6;

/// Most puts that share a batch, and bytes of the longest such put.
const MAX_SHARING: u32 = 64;
const LONGEST_SHARING: usize = 64 << 10;

const MAX_BATCHES: usize = 254;

const MAX_RESERVED: usize = MAX_BATCHES / 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct RequestId(u64);

impl RequestId {
    pub(super) fn pointer(self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    pub(super) fn of(pointer: *mut c_void) -> Self {
        Self(pointer.addr() as u64)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awaited {
    /// This use of an entry for batches.
    Batch {
        index: usize,
        uses: u64,
    },
    Quiet(Pe),
    Nothing,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    awaited: Awaited,
    /// NCCL's call for progress before the last test of the request.
    tested: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct BatchEntry {
    batch: Option<Batch>,
    rank: usize,
    uses: u64,
    /// Short puts and signals in the batch; 0 if no other may share it.
    puts: u32,
    /// Number of the iteration of its latest operation.
    at: u64,
}

/// The requests that are not known to be complete.
#[derive(Debug)]
pub(super) struct Requests {
    /// Requests from number `first` on.
    open: VecDeque<Request>,
    first: u64,
    batches: Box<[BatchEntry]>,
    free: Vec<usize>,
    ranks: Box<[Vec<usize>]>,
    without: usize,
    /// Iterations until peers are asked to acknowledge.
    patience: u32,
    iterations: u64,
}

impl Requests {
    pub(super) fn new(ranks: u32) -> Self {
        let entry = BatchEntry { batch: None, rank: 0, uses: 0, puts: 0, at: 0 };
        let without = ranks as usize;
        Self {
            open: VecDeque::with_capacity(256),
            first: 1,
            batches: vec![entry; MAX_BATCHES].into(),
            free: (0..MAX_BATCHES).rev().collect(),
            ranks: vec![Vec::new(); without].into(),
            without,
            patience: PATIENCE,
            iterations: 0,
        }
    }

    /// Begins a request for an operation, and returns the batch to start it in. `put`: the bytes of
    /// a put, 0 for a signal alone.
    ///
    /// Short puts and signals to one rank share a batch while each iteration brings another: the
    /// engine sends those of one batch together, and they are done at about the same time.
    pub(super) fn begin<P: Port>(
        &mut self,
        lane: &mut Lane<P>,
        rank: u32,
        put: Option<usize>,
    ) -> (RequestId, Batch) {
        let (awaited, batch) = self.batch(lane, rank as usize, put);
        self.open.push_back(Request { awaited, tested: None });
        (RequestId(self.first + self.open.len() as u64 - 1), batch)
    }

    fn batch<P: Port>(
        &mut self,
        lane: &mut Lane<P>,
        rank: usize,
        put: Option<usize>,
    ) -> (Awaited, Batch) {
        // An operation to no rank of the group is refused when it is started.
        let Some(held) = self.ranks.get(rank) else { return (Awaited::Nothing, Batch::NONE) };
        let is_short = put.is_some_and(|len| len <= LONGEST_SHARING);
        let latest = held.last().copied();
        if let Some(index) = latest.filter(|_| is_short) {
            let of = &mut self.batches[index];
            if (1..MAX_SHARING).contains(&of.puts) && self.iterations - of.at <= 1 {
                (of.puts, of.at) = (of.puts + 1, self.iterations);
                return (Awaited::Batch { index, uses: of.uses }, of.batch.unwrap_or(Batch::NONE));
            }
        }
        // A rank gets no more batches than remain for others, besides those reserved for ranks
        // without any.
        let left = self.free.len().saturating_sub(self.without.min(MAX_RESERVED));
        let begun =
            if latest.is_none() || held.len() < left { self.take(lane, rank) } else { None };
        let Some(index) = begun.or(latest) else {
            return (Awaited::Quiet(Pe(rank as u32)), Batch::NONE);
        };
        let of = &mut self.batches[index];
        // No further short puts join a batch that is shared because none is free.
        (of.puts, of.at) = (u32::from(is_short && begun.is_some()), self.iterations);
        (Awaited::Batch { index, uses: of.uses }, of.batch.unwrap_or(Batch::NONE))
    }

    fn take<P: Port>(&mut self, lane: &mut Lane<P>, rank: usize) -> Option<usize> {
        let index = *self.free.last()?;
        let batch = lane.begin_batch()?;
        self.free.pop();
        let of = &mut self.batches[index];
        *of = BatchEntry { batch: Some(batch), rank, puts: 0, ..*of };
        self.without -= usize::from(self.ranks[rank].is_empty());
        self.ranks[rank].push(index);
        Some(index)
    }

    pub(super) fn take_back<P: Port>(&mut self, lane: &mut Lane<P>) {
        if let Some(Awaited::Batch { index, uses }) = self.open.pop_back().map(|last| last.awaited)
        {
            self.is_over(lane, index, uses);
        }
    }

    /// True if a request is delivered, or was never given out.
    pub(super) fn is_done<P: Port>(&mut self, lane: &mut Lane<P>, request: RequestId) -> bool {
        let Some(at) = self.index_of(request) else { return true };
        let is_done = match self.open[at].awaited {
            Awaited::Batch { index, uses } => self.is_over(lane, index, uses),
            // A rank's failure is one of the lane, which was checked first.
            Awaited::Quiet(pe) => lane.is_quiet(pe).unwrap_or(false),
            Awaited::Nothing => true,
        };
        if !is_done {
            return false;
        }
        self.open[at].awaited = Awaited::Nothing;
        while self.open.front().is_some_and(|first| first.awaited == Awaited::Nothing) {
            self.open.pop_front();
            self.first += 1;
        }
        true
    }

    pub(super) fn is_tested_again(&mut self, request: RequestId, calls: u64) -> bool {
        let Some(at) = self.index_of(request) else { return false };
        self.open[at].tested.replace(calls) == Some(calls)
    }

    fn index_of(&self, request: RequestId) -> Option<usize> {
        let at = request.0.checked_sub(self.first)? as usize;
        (at < self.open.len()).then_some(at)
    }

    fn is_over<P: Port>(&mut self, lane: &mut Lane<P>, index: usize, uses: u64) -> bool {
        let of = &mut self.batches[index];
        let Some(batch) = of.batch.filter(|_| of.uses == uses) else { return true };
        if !lane.is_batch_done(batch) {
            return false;
        }
        lane.end_batch(batch);
        (of.batch, of.uses) = (None, uses + 1);
        let held = &mut self.ranks[of.rank];
        held.retain(|other| *other != index);
        self.without += usize::from(held.is_empty());
        self.free.push(index);
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Counts an iteration of the lane. Now and then, if requests are open, asks all peers for
    /// acknowledgements.
    pub(super) fn iterated<P: Port>(&mut self, lane: &mut Lane<P>) {
        self.iterations += 1;
        if self.open.is_empty() {
            return;
        }
        self.patience -= 1;
        if self.patience == 0 {
            self.patience = PATIENCE;
            lane.request_acks();
        }
    }
}

#[cfg(test)]
mod tests;
