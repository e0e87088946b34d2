//! Per-peer state of a lane.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::channel::Channel;
use crate::error::EngineError;
use crate::group::{Class, CompletionId, Fence, OrderGroup, OrderGroups};
use crate::ids::Pe;
use crate::op::{QueueEntry, WordOp};
use crate::port::Direction;
use crate::rails::counters::PeerCounters;
use crate::rails::paths::PeerPath;
use crate::segments::Account;
use crate::wire::handle::{HandleBytes, HandlePrefix};
use crate::wire::message::{Seq, Tag};

/// A signal that waits until earlier writes are delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingSignal {
    pub(crate) word: WordOp,
    /// Tag and number of the segments that the target has to count.
    pub(crate) counted: Option<(Tag, u32)>,
    /// The signal leaves when all writes before this fence are delivered.
    pub(crate) fence: Fence,
    /// Order group that counts the signal as a write: later signals and fences wait for it.
    pub(crate) group: OrderGroup,
    pub(crate) completion: CompletionId,
}

/// A PE as the lane sees it. Fields of the fast path come first.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    pub(crate) pe: Pe,
    /// First bytes of handles that may take the fast path; [`HandlePrefix::NONE`] while something
    /// is queued, a fence is pending, or the peer has failed.
    pub(crate) fast_prefix: HandlePrefix,
    /// Segments posted and not completed, in both directions.
    pub(crate) in_flight: u32,
    /// Path of the next segment; paths take turns.
    pub(crate) path: PeerPath,
    /// Account of plain writes over `path` in the last order group.
    pub(crate) account: Account,
    pub(crate) paths: Box<[PeerPath]>,
    /// First bytes of the peer's handles with keys, as last seen.
    prefix: HandlePrefix,
    pub(crate) order: OrderGroups,
    /// Last fence: writes wait until all before it is ordered, messages until it is written.
    pub(crate) fence: Fence,
    pub(crate) fences: u32,
    /// Segments completed since start, by direction.
    pub(crate) completed: [u32; 2],
    /// Gets of staged memory requested from the peer, and replies to them, since start.
    pub(crate) gets_requested: u32,
    pub(crate) gets_answered: u32,
    /// Segments that have ended of reads of what the peer puts.
    pub(crate) served: u32,
    /// Outbound bounce buffers with replies to the peer's gets.
    pub(crate) replies_owed: u32,
    pub(crate) channel: Option<Box<Channel>>,
    /// Whether staged transfers of this lane are in flight: signals then share a message.
    pub(crate) is_staging: bool,
    /// Operations that cannot start yet, in program order.
    pub(crate) queue: VecDeque<QueueEntry>,
    /// Whether the peer is in the lane's ring of peers that wait for a shared resource.
    pub(crate) in_ring: bool,
    /// [`Peer::ended`] when a submitter last waited without success, until work of the peer ends.
    pub(crate) stalled_at: Option<u64>,
    /// Whether the fabric refused the last post for lack of capacity.
    pub(crate) is_refused: bool,
    /// Whether the peer is in the lane's list of peers whose cursors may move.
    pub(crate) is_settling: bool,
    pub(crate) waiting_signals: VecDeque<WaitingSignal>,
    /// Waits of user threads: a fence, and the completion group that ends with all work before it.
    pub(crate) quiets: Vec<(Fence, CompletionId)>,
    /// Handle of the last queued operation, shared with the queue.
    handle: Option<Arc<HandleBytes>>,
    /// Bytes in flight per rail, for segments whose rail was chosen by load.
    pub(crate) bytes_ahead: Box<[u64]>,
    pub(crate) error: Option<Box<EngineError>>,
    pub(crate) watch: PeerWatch,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerWatch {
    /// [`Peer::ended`] at the last check, and as far as this PE began it.
    pub(crate) ended: u64,
    pub(crate) own: u64,
    /// Number of that check.
    pub(crate) checked: u32,
    /// Time of the last change of `ended`, in the watchdog's units.
    pub(crate) since: u32,
    /// Time when the peer's work last waited for a resource that other peers hold.
    pub(crate) starved: u32,
    /// Warnings since `since`.
    pub(crate) warned: u32,
}

impl Peer {
    fn new(pe: Pe, (paths, path): (Box<[PeerPath]>, PeerPath)) -> Self {
        let (order, prefix) = (OrderGroups::default(), HandlePrefix::unseen(pe));
        let (fast_prefix, fence) = (prefix, order.start());
        let mut peer =
            Self { pe, fast_prefix, path, paths, prefix, fence, order, ..Self::default() };
        peer.renew_account();
        peer
    }

    #[inline(always)]
    fn renew_account(&mut self) {
        self.account =
            self.path.account.in_groups(CompletionId::NONE, self.order.next(Class::Write));
    }

    /// Closes the order group of new work. Returns the fence, or None if all groups are in use.
    pub(crate) fn close(&mut self) -> Option<Fence> {
        let newest = self.channel.as_deref().map_or(Seq::NONE, Channel::last_sent);
        let fence = self.order.close(newest);
        self.renew_account();
        fence
    }

    /// Drops all counts of a failed peer.
    pub(crate) fn reset_order(&mut self) {
        self.order = OrderGroups::default();
        self.fence = self.order.start();
        // No reply is awaited any more, so the watchdog leaves the peer alone.
        self.gets_answered = self.gets_requested;
        // The cached account names the group.
        self.renew_account();
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self, group: OrderGroup) {
        self.order.begin(group);
        self.in_flight += 1;
    }

    /// Uncounts segments that have completed.
    #[inline(always)]
    pub(crate) fn end(&mut self, direction: Direction, count: u32) {
        self.in_flight -= count;
        let completed = &mut self.completed[direction as usize];
        *completed = completed.wrapping_add(count);
    }

    /// Advances to the path with index `next`, if there is more than one.
    #[inline(always)]
    pub(crate) fn advance_path(&mut self, next: u32) {
        if self.paths.len() > 1 {
            if let Some(next) = self.paths.get(next as usize) {
                self.set_path(*next);
            }
        }
    }

    #[inline(always)]
    pub(crate) fn set_path(&mut self, path: PeerPath) {
        self.path = path;
        self.renew_account();
    }

    #[inline(always)]
    pub(crate) fn check(&self) -> Result<(), EngineError> {
        match &self.error {
            None => Ok(()),
            Some(failed) => Err((**failed).clone()),
        }
    }

    /// Opens or closes the fast path; to be called after any change of what it depends on.
    pub(crate) fn update_fast_path(&mut self) {
        let is_ordered = self.order.is_ordered(self.fence);
        if is_ordered {
            // Group numbers are compared within half of their range: a fence of 2^31 groups ago
            // would look new.
            self.fence = self.order.start();
        }
        let is_open = self.queue.is_empty() && self.error.is_none() && is_ordered;
        self.fast_prefix = if is_open { self.prefix } else { HandlePrefix::NONE };
    }

    /// Sets the first bytes by which the fast path recognises the peer's handles.
    pub(crate) fn set_prefix(&mut self, prefix: HandlePrefix) {
        self.prefix = prefix;
        self.update_fast_path();
    }

    /// Returns true if parts of the first queued operation are submitted.
    pub(crate) fn is_amid_operation(&self) -> bool {
        matches!(self.queue.front(), Some(QueueEntry::Op(op, _)) if op.has_begun())
    }

    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.order.is_empty() && self.queue.is_empty()
    }

    pub(crate) fn share_handle(&mut self, handle: &HandleBytes) -> Arc<HandleBytes> {
        // Operations on one region follow one another, so a long queue shares one copy of 512
        // bytes.
        match &self.handle {
            Some(kept) if **kept == *handle => Arc::clone(kept),
            _ => Arc::clone(self.handle.insert(Arc::new(*handle))),
        }
    }

    /// Returns a number that changes whenever a segment or get of the peer ends, or its oldest
    /// message.
    pub(crate) fn ended(&self) -> u64 {
        // The counters wrap: the sum is only compared for equality.
        let segments = self.completed[0].wrapping_add(self.completed[1]);
        let acked = self.channel.as_deref().map_or(0, |channel| channel.acked.0);
        u64::from(segments) + u64::from(self.gets_answered) + acked
    }

    pub(crate) fn counters(&self) -> PeerCounters {
        let channel = self.channel.as_deref();
        let first = Seq::FIRST.0;
        PeerCounters {
            pe: self.pe,
            writes: self.completed[0],
            reads: self.completed[1],
            sent: channel.map_or(0, |channel| (channel.next.0 - first) as u32),
            received: channel.map_or(0, |channel| (channel.executed.next().0 - first) as u32),
        }
    }
}

/// Peers of a lane by PE. A PE that the lane has never used costs eight bytes.
#[derive(Debug)]
pub(crate) struct Peers {
    by_pe: Box<[Option<Box<Peer>>]>,
    /// Open peers in the order of opening.
    open: Vec<Pe>,
}

impl Peers {
    pub(crate) fn new(n_pes: u32) -> Self {
        Self { by_pe: (0..n_pes).map(|_| None).collect(), open: Vec::new() }
    }

    pub(crate) fn n_pes(&self) -> u32 {
        self.by_pe.len() as u32
    }

    /// Opens a peer that is in the job and not open yet.
    pub(crate) fn open(&mut self, pe: Pe, paths: (Box<[PeerPath]>, PeerPath)) {
        // Boxed: the table has an entry for each PE of the job, and most lanes use few.
        self.by_pe[pe.index()] = Some(Box::new(Peer::new(pe, paths)));
        self.open.push(pe);
    }

    /// Returns an open peer; panics if there is none.
    #[inline(always)]
    pub(crate) fn get(&self, pe: Pe) -> &Peer {
        let Some(peer) = self.of(pe) else { unreachable!("{pe} was not opened") };
        peer
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, pe: Pe) -> &mut Peer {
        let Some(peer) = self.of_mut(pe) else { unreachable!("{pe} was not opened") };
        peer
    }

    #[inline(always)]
    pub(crate) fn of_mut(&mut self, pe: Pe) -> Option<&mut Peer> {
        self.by_pe.get_mut(pe.index())?.as_deref_mut()
    }

    #[inline(always)]
    pub(crate) fn of(&self, pe: Pe) -> Option<&Peer> {
        self.by_pe.get(pe.index())?.as_deref()
    }

    /// Iterates over open peers by PE; the cost grows with the size of the job.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.by_pe.iter_mut().flatten().map(|peer| &mut **peer)
    }

    /// Iterates over open peers in the order of opening.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Peer> {
        self.open.iter().map(|pe| self.get(*pe))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::RailId;
    use crate::port::PeerAddr;
    use crate::rails::paths::{Path, PathTable};

    /// Separate signals close a group each, and a program may have no fence.
    #[test]
    fn fence_of_long_ago_stays_reached() {
        let paths = PathTable::new(&[Path { to: PeerAddr(0), remote: RailId(0) }], 1);
        let mut peer = Peer::new(Pe(0), paths.peer_paths(Pe(0), Pe(0)));
        for _ in 0..5 {
            peer.order.skip(1 << 30);
            peer.update_fast_path();
            assert!(peer.order.is_ordered(peer.fence));
        }
    }
}
