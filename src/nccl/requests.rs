//! Operations that NCCL has started and not seen done.
//!
//! A request is a batch of the engine's, which is over when all of its operations are delivered.
//! Short puts that follow one another share one, and so does everything when all batches of the
//! lane are in use: these operations are done when all of the batch are. Requests have numbers that
//! rise; the pointer that NCCL is given is the number, and no memory.

use std::collections::VecDeque;
use std::ffi::c_void;

use engine::lane::Lane;
use engine::port::Port;
use engine::state::batch::Batch;

/// Looks at batches that are not over between two requests for acknowledgements.
const PATIENCE: u32 = 16;

/// Operations that are collected at most before the lane iterates. In a pass NCCL's progress thread
/// takes one operation of each queue of a block of contexts, and calls for progress of the block;
/// an iteration with copies takes as long as many such passes. What they bring leaves together.
const MOST_COLLECTED: u32 = 32;

/// Calls for progress of other blocks that are left out at most meanwhile.
const MOST_LEFT_OUT: u32 = 8;

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

/// Puts to a rank that share a request at most.
const MOST_SHARING: u32 = 64;

/// Bytes of the longest put that shares a request.
const LONGEST_SHARING: usize = 64 << 10;

/// Those that are not known to be done yet.
#[derive(Debug)]
pub(super) struct Requests {
    /// The batch of each request, from `first` on; none if that is over.
    open: VecDeque<Option<Batch>>,
    first: u64,
    /// Until peers are asked.
    patience: u32,
    /// Iterations of the lane.
    iterations: u64,
    /// The latest request of short puts, by rank.
    latest: Box<[Latest]>,
}

/// A request that further puts may share.
#[derive(Clone, Copy, Debug)]
struct Latest {
    request: RequestId,
    puts: u32,
    /// The iteration in which the last of them was started.
    at: u64,
}

/// What is about to be started.
#[derive(Clone, Copy, Debug)]
pub(super) enum Starting {
    /// A put of so many bytes to this rank, without a signal.
    Put { rank: u32, len: usize },
    /// Anything else.
    Other,
}

impl Requests {
    /// None, of a group of so many ranks.
    pub(super) fn new(ranks: u32) -> Self {
        let open = VecDeque::with_capacity(256);
        let latest = Latest { request: RequestId(0), puts: 0, at: 0 };
        let latest = vec![latest; ranks as usize].into();
        Self { open, first: 1, patience: PATIENCE, iterations: 0, latest }
    }

    /// A request for what is about to be started, and the batch that it belongs to.
    ///
    /// Short puts that are started one behind the other to one rank share a request: the engine
    /// sends those of one batch together, and they are done at about the same time. One iteration
    /// without another put is the end of it.
    pub(super) fn begin<P: Port>(
        &mut self,
        lane: &mut Lane<P>,
        starting: Starting,
    ) -> (RequestId, Batch) {
        let latest = match starting {
            Starting::Put { rank, len } if len <= LONGEST_SHARING => Some(rank as usize),
            _ => None,
        };
        if let Some(shared) = latest.and_then(|rank| self.share(rank)) {
            return shared;
        }
        let begun = self.begin_alone(lane);
        if let Some(latest) = latest.and_then(|rank| self.latest.get_mut(rank)) {
            *latest = Latest { request: begun.0, puts: 1, at: self.iterations };
        }
        begun
    }

    /// The latest request of short puts to a rank, if another may share it.
    fn share(&mut self, rank: usize) -> Option<(RequestId, Batch)> {
        let latest = self.latest.get_mut(rank)?;
        if latest.puts == MOST_SHARING || self.iterations - latest.at > 1 {
            return None;
        }
        let at = latest.request.0.checked_sub(self.first)?;
        let batch = (*self.open.get(at as usize)?)?;
        (latest.puts, latest.at) = (latest.puts + 1, self.iterations);
        Some((latest.request, batch))
    }

    fn begin_alone<P: Port>(&mut self, lane: &mut Lane<P>) -> (RequestId, Batch) {
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

    /// The lane has iterated. While somebody waits for those that are not done, now and then all
    /// peers are asked to acknowledge what they have.
    pub(super) fn iterated<P: Port>(&mut self, lane: &mut Lane<P>) {
        self.iterations += 1;
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

/// What NCCL has started since the last iteration.
#[derive(Debug, Default)]
pub(super) struct Collected {
    /// Operations since then, and since the last call for progress.
    operations: u32,
    pub(super) fresh: u32,
    /// The block whose last pass has brought some.
    block: Option<BlockId>,
    /// Calls for progress of other blocks since then.
    left_out: u32,
}

/// Names a block of contexts of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockId(pub(super) usize);

impl Collected {
    /// Whether the lane waits for the next pass, after one over a block.
    pub(super) fn goes_on(&mut self, block: BlockId) -> bool {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh == 0 {
            let is_others = self.block.is_some_and(|of| of != block);
            self.left_out += u32::from(is_others);
            return is_others && self.left_out <= MOST_LEFT_OUT;
        }
        self.operations += fresh;
        self.block = Some(block);
        self.operations < MOST_COLLECTED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: BlockId = BlockId(1);
    const OTHER: BlockId = BlockId(2);

    #[test]
    fn the_lane_iterates_once_a_pass_brings_nothing_more() {
        let mut collected = Collected::default();
        assert!(!collected.goes_on(ONE), "an idle group iterates with every pass");
        for _ in 1..MOST_COLLECTED {
            collected.fresh += 1;
            assert!(collected.goes_on(ONE));
        }
        assert!(!Collected { fresh: 0, block: Some(ONE), ..Collected::default() }.goes_on(ONE));
        collected.fresh += 1;
        assert!(!collected.goes_on(ONE), "as many as may be");
    }

    /// NCCL has blocks of its own, whose passes bring nothing.
    #[test]
    fn passes_over_other_blocks_are_waited_for_only_so_often() {
        let mut collected = Collected { fresh: 1, ..Collected::default() };
        assert!(collected.goes_on(ONE));
        let left_out = std::iter::repeat_with(|| collected.goes_on(OTHER)).take_while(|on| *on);
        assert_eq!(left_out.count() as u32, MOST_LEFT_OUT, "ONE may be over");
        let mut collected = Collected { fresh: 1, ..Collected::default() };
        assert!(collected.goes_on(ONE) && collected.goes_on(OTHER) && !collected.goes_on(ONE));
    }
}
