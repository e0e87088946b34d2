//! The pending queue: operations that wait for their peer alone, so that its lane waits for nobody.
//!
//! A peer has bounded places for some operations (fetches, counted puts), and no peer gets all the
//! room of the lane. An operation that finds no place or no room within [`PATIENCE`] is *pending*:
//! kept here, and the call returns. From then on everything for the same peer is pending behind it,
//! fences among it, so the order stays as it was. Each iteration submits a few peers' pending
//! operations, in turn, as far as they go.
//!
//! What user threads have handed over is of another lane, in whose order it is, and does not come
//! behind what is pending here. It waits in a line of its own, and the two of a peer take turns:
//! see [`crate::lane::user_threads`].
//!
//! # When queuing ends
//! It ends when nothing is pending for the peer. While a caller queues as fast as the peer takes,
//! that would be never, and each operation would be copied. So where a peer takes what it is sent,
//! a call waits until nothing is pending for it, for [`PATIENCE`] at most: the caller goes at the
//! pace of the peer, as it would without queuing. When hardly anything has left by then, the calls
//! after it queue at once, without a look at the clock, until the peer takes something again.
//!
//! # What the rest of the lane sees
//! A connection with pending operations is not quiet, and its fast path is closed. The batch that
//! an operation was submitted to is not done while it is pending. If the connection fails, what is
//! pending ends with it.
//!
//! # Why it cannot deadlock
//! What is pending holds nothing that others wait for. It is submitted when what is under way to
//! its peer has ended, or when there is room in the lane, neither of which waits for it. Its room
//! is bounded: a caller that finds none waits, as for room in the lane.

use std::mem;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::lane::Lane;
use crate::port::Port;
use crate::posting::Tried;
use crate::request::{
    AtomicRequest, OwnedAtomic, OwnedRequest, PutSignalRequest, Request, Touched,
};
use crate::signal::progress::PutState;
use crate::state::batch::Batch;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::fair_queue::{FairQueue, Kept};

const MOST: usize = 4096;

const HIGH: usize = MOST - 256;

/// How long an operation waits for room or a place, or for those pending before it, before it is
/// pending, in nanoseconds. A peer that takes what it is sent makes room sooner.
const PATIENCE: u64 = 1_000_000;

/// An iteration is made when so many more are pending, so that it is seen when the peer goes on.
const LOOK: usize = 16;

const LEAVE: u64 = 2;

/// An operation that is being submitted, and how far that has got.
#[derive(Debug)]
pub(crate) enum Submission<'a> {
    /// A put or a get, and its bytes that were submitted.
    PutOrGet(Request<'a>, usize),
    Atomic(AtomicRequest<'a>),
    PutSignal(PutSignalRequest<'a>, PutState),
}

impl Submission<'_> {
    fn pe(&self) -> Pe {
        match self {
            Self::PutOrGet(request, _) => request.pe,
            Self::Atomic(request) => request.pe,
            Self::PutSignal(request, _) => request.signal.pe,
        }
    }

    fn own(self) -> PendingWork {
        match self {
            Self::PutOrGet(request, sent) => {
                PendingWork::PutOrGet(OwnedRequest::of(&request), sent)
            }
            Self::Atomic(request) => PendingWork::Atomic(OwnedAtomic::of(&request)),
            Self::PutSignal(PutSignalRequest { parts, signal }, state) => {
                let parts = parts.iter().map(OwnedRequest::of).collect();
                PendingWork::PutSignal(parts, OwnedAtomic::of(&signal), state)
            }
        }
    }
}

#[derive(Debug)]
enum PendingWork {
    Fence,
    PutOrGet(OwnedRequest, usize),
    Atomic(OwnedAtomic),
    PutSignal(Box<[OwnedRequest]>, OwnedAtomic, PutState),
}

#[derive(Debug)]
struct Pending {
    what: PendingWork,
    batch: Batch,
}

impl Pending {
    /// The fence behind it, unless it is one.
    fn fence_behind(&self) -> Option<Self> {
        let is_fence = matches!(self.what, PendingWork::Fence);
        (!is_fence).then_some(Self { what: PendingWork::Fence, batch: Batch::NONE })
    }
}

#[derive(Debug, Default)]
struct Pace {
    left: u64,
    left_at: Option<u64>,
    /// Whether two left within [`PATIENCE`], and nobody has waited in vain since.
    moves: bool,
    /// Whether user threads have the next turn.
    users_first: bool,
}

impl Kept for Pace {}

impl Pace {
    fn leave(&mut self, count: u64, now: u64) {
        let soon = |before: u64| now.saturating_sub(before) < PATIENCE;
        self.moves |= count > 1 || self.left_at.is_some_and(soon);
        self.left += count;
        self.left_at = Some(now);
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PendingQueue {
    queue: FairQueue<Pending, Pace>,
}

impl PendingQueue {
    #[inline]
    fn count(&self) -> usize {
        self.queue.len()
    }

    /// Whether the peer takes what is pending for it, so that a call waits until nothing is.
    fn moves(&self, pe: Pe) -> bool {
        self.queue.kept(pe).is_some_and(|pace| pace.moves)
    }

    fn left(&self, pe: Pe) -> u64 {
        self.queue.kept(pe).map_or(0, |pace| pace.left)
    }

    fn was_waited_for(&mut self, pe: Pe, since: u64) {
        if let Some(pace) = self.queue.kept_mut(pe) {
            pace.moves = pace.left >= since + LEAVE;
        }
    }

    /// Whether it is the turn of user threads, of the two whose operations for the peer wait.
    pub(crate) fn users_first(&self, pe: Pe) -> bool {
        self.queue.kept(pe).is_some_and(|pace| pace.users_first)
    }

    pub(crate) fn pass_turn(&mut self, pe: Pe) {
        if let Some(pace) = self.queue.kept_mut(pe) {
            pace.users_first = !pace.users_first;
        }
    }

    pub(crate) fn turn_over(&mut self, pe: Pe) {
        self.queue.turn_over(pe);
    }

    pub(crate) fn fence(&mut self, pe: Pe) {
        if let Some(fence) = self.queue.back(pe).and_then(Pending::fence_behind) {
            self.queue.push(pe, fence);
        }
    }

    pub(crate) fn fence_all(&mut self) {
        self.queue.push_to_all(Pending::fence_behind);
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self, mut pending: Vec<Pe>) -> Result<(), Discrepancy> {
        self.queue.audit("operations pending")?;
        let mut waits: Vec<Pe> = self.peers().collect();
        for peers in [&mut waits, &mut pending] {
            peers.sort_unstable();
        }
        same("connections with pending operations", pending, waits)
    }

    pub(crate) fn peers(&self) -> impl Iterator<Item = Pe> {
        self.queue.peers().map(|(pe, ..)| pe)
    }

    pub(crate) fn memory(&self) -> impl Iterator<Item = Touched> + '_ {
        self.queue.iter().flat_map(|(_, Pending { what, .. })| {
            let (parts, word): (&[OwnedRequest], _) = match what {
                PendingWork::Fence => (&[], None),
                PendingWork::PutOrGet(request, _) => (std::slice::from_ref(request), None),
                PendingWork::Atomic(atomic) => (&[], Some(atomic)),
                PendingWork::PutSignal(parts, signal, _) => (parts, Some(signal)),
            };
            let word = word.and_then(OwnedAtomic::memory);
            parts.iter().filter_map(OwnedRequest::memory).chain(word)
        })
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl<P: Port> Lane<P> {
    #[inline]
    pub(crate) fn has_pending(&self, pe: Pe) -> bool {
        !self.pending_queue.is_empty()
            && self.core.peers.find(pe).is_some_and(|connection| connection.has_pending())
    }

    /// Operations for a peer that are pending, fences among them.
    pub fn pending(&self, pe: Pe) -> usize {
        self.pending_queue.queue.len_of(pe)
    }

    /// Whether so much is pending that an operation for this peer had better stay where it is.
    #[inline]
    pub fn is_saturated(&self, pe: Pe) -> bool {
        self.pending_queue.count() >= HIGH && self.has_pending(pe)
    }

    /// Whether an operation for some peer had better stay where it is: see [`Lane::is_saturated`].
    #[inline]
    pub fn has_saturated_peer(&self) -> bool {
        self.pending_queue.count() >= HIGH
    }

    #[cold]
    pub(crate) fn finish(&mut self, mut rest: Submission<'_>) -> Result<(), EngineError> {
        let pe = rest.pe();
        let (mut idle, mut wait) = (0, None);
        if self.pending_queue.count() % LOOK == LOOK - 1 {
            self.make_room(&mut idle)?;
        }
        loop {
            let behind = self.has_pending(pe);
            if behind {
                self.check(&rest)?;
            } else if self.try_submission(&mut rest)? == Tried::Submitted {
                return Ok(());
            }
            let in_vain = behind && !self.pending_queue.moves(pe);
            if (in_vain || self.has_waited(pe, &mut wait)) && self.pending_queue.count() < MOST {
                self.enqueue_pending(pe, rest.own());
                return Ok(());
            }
            self.make_room(&mut idle)?;
        }
    }

    fn has_waited(&mut self, pe: Pe, wait: &mut Option<(u64, u64)>) -> bool {
        let (now, left) = (self.core.transmit.now(), self.pending_queue.left(pe));
        let (since, before) = *wait.get_or_insert((now, left));
        let over = now.saturating_sub(since) >= PATIENCE;
        if over {
            self.pending_queue.was_waited_for(pe, before);
        }
        over
    }

    fn try_submission(&mut self, rest: &mut Submission<'_>) -> Result<Tried, EngineError> {
        match rest {
            Submission::PutOrGet(request, sent) => self.submit_transfer(request, sent),
            Submission::Atomic(request) => self.submit_amo(request),
            Submission::PutSignal(PutSignalRequest { parts, signal }, state) => {
                self.submit_put_signal(*parts, signal, state)
            }
        }
    }

    fn check(&mut self, rest: &Submission<'_>) -> Result<(), EngineError> {
        self.core.peers.check(rest.pe())?;
        match rest {
            Submission::PutOrGet(request, _) => self.core.check_request(request),
            Submission::Atomic(request) => request.word().map(drop),
            Submission::PutSignal(PutSignalRequest { parts, signal }, _) => {
                signal.word()?;
                parts.iter().try_for_each(|part| self.core.check_request(part))
            }
        }
    }

    fn enqueue_pending(&mut self, pe: Pe, what: PendingWork) {
        let batch = self.core.transmit.batches_mut().take_current();
        if self.pending_queue.is_empty() {
            // So that iterations find it.
            self.core.transmit.waits();
        }
        if let Some(connection) = self.core.peers.find_mut(pe) {
            connection.set_pending(true);
        }
        self.pending_queue.queue.push(pe, Pending { what, batch });
    }

    /// Submits what is pending, as far as it goes, and of the same peers what user threads have
    /// handed over. Whether some did.
    #[cold]
    pub(crate) fn serve_pending_queue(&mut self) -> bool {
        let (mut pending_queue, mut inbox) =
            (mem::take(&mut self.pending_queue), self.inbox.take());
        let mut moved = false;
        let mut walk = pending_queue.queue.walk();
        while let Some(pe) = pending_queue.queue.next(&mut walk) {
            let served = self.serve_both(&mut pending_queue, inbox.as_deref_mut(), pe);
            pending_queue.queue.tried(&mut walk, pe, served.pending);
            if let (true, Some(inbox)) = (served.handed_over, inbox.as_deref_mut()) {
                inbox.waiting.turn_over(pe);
            }
            moved |= served.any();
        }
        (self.pending_queue, self.inbox) = (pending_queue, inbox);
        moved
    }

    pub(crate) fn serve_pending(&mut self, pending_queue: &mut PendingQueue, pe: Pe) -> bool {
        let queue = &mut pending_queue.queue;
        let before = queue.len_of(pe);
        while let Some(Pending { what, batch }) = queue.front_mut(pe) {
            let submitted = self.core.transmit.batches_mut().enter(*batch);
            let tried = match self.core.peers.check(pe) {
                Ok(()) => self.try_pending(pe, what),
                // It ends with its connection.
                Err(_) => Ok(Tried::Submitted),
            };
            self.core.transmit.batches_mut().enter(submitted);
            match tried {
                Ok(Tried::Submitted) => {
                    self.core.transmit.batches_mut().end(*batch, 1);
                    queue.pop(pe);
                }
                Ok(Tried::NoRoom) => break,
                Err(failed) => self.core.fail_connection(pe, failed),
            }
        }
        let count = before - queue.len_of(pe);
        if count == 0 {
            return false;
        }
        match queue.kept_mut(pe) {
            Some(pace) => pace.leave(count as u64, self.core.transmit.now()),
            None => {
                if let Some(connection) = self.core.peers.find_mut(pe) {
                    connection.set_pending(false);
                }
            }
        }
        if pending_queue.is_empty() {
            self.core.transmit.waits_no_more();
        }
        true
    }

    fn try_pending(&mut self, pe: Pe, what: &mut PendingWork) -> Result<Tried, EngineError> {
        match what {
            PendingWork::Fence => {
                if let Some(connection) = self.core.peers.find_mut(pe) {
                    connection.fence();
                }
                Ok(Tried::Submitted)
            }
            PendingWork::PutOrGet(request, sent) => self.submit_transfer(&request.request(), sent),
            PendingWork::Atomic(request) => self.submit_amo(&request.request()),
            PendingWork::PutSignal(parts, signal, state) => {
                self.submit_put_signal(&**parts, &signal.request(), state)
            }
        }
    }

    fn submit_transfer(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
    ) -> Result<Tried, EngineError> {
        self.submit(request, sent, crate::state::operation::OpId::NONE)?;
        Ok(if *sent == request.len { Tried::Submitted } else { Tried::NoRoom })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::atomic::AtomicOp;
    use crate::fake::Call;
    use crate::port::Direction;
    use crate::posting::tests::{Bed, HEAP, PLAIN, RAIL, atomic, failed, request};

    const PEER: Pe = Pe(1);

    #[test]
    fn a_peer_moves_when_two_leave_in_time() {
        for (counts, second, moves) in [
            (&[2][..], 0, true),
            (&[1], 0, false),
            (&[1, 1], PATIENCE - 1, true),
            (&[1, 1], PATIENCE, false),
            (&[1, 1], PATIENCE + 1, false),
            (&[1, 2], PATIENCE + 1, true),
        ] {
            let mut pace = Pace::default();
            for (count, after) in counts.iter().zip([0, second]) {
                pace.leave(*count, 5 + after);
            }
            assert_eq!((pace.left, pace.moves), (counts.iter().sum(), moves), "{counts:?}");
        }
    }

    #[test]
    fn a_peer_moves_no_more_if_less_than_two_left_in_a_call() {
        for (left, moves) in [(5, false), (6, false), (7, true), (8, true)] {
            let mut pending_queue = PendingQueue::default();
            pending_queue
                .queue
                .push(PEER, Pending { what: PendingWork::Fence, batch: Batch::NONE });
            let pace = pending_queue.queue.kept_mut(PEER).unwrap();
            (pace.left, pace.moves) = (left, true);
            pending_queue.was_waited_for(PEER, 5);
            assert_eq!(pending_queue.moves(PEER), moves, "{left}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_operation_is_said_though_it_waits_for_others() {
        let mut bed = Bed::new(PLAIN);
        bed.enqueue_pending(PEER.0);
        let heaps = Arc::clone(&bed.heaps);
        let put = request(&heaps, Direction::Write, PEER.0);
        let outside = Request { remote_addr: put.remote_addr + HEAP as u64, ..put };
        let signal = atomic(&heaps, PEER.0, AtomicOp::SignalSet);
        let far = AtomicRequest { remote_addr: signal.remote_addr + HEAP as u64, ..signal };
        for (put, signal, pending) in [(outside, far, 1), (put, signal, 3)] {
            assert_eq!(bed.lane.start(&put).is_ok(), pending != 1);
            assert_eq!(bed.lane.atomic(&signal).is_ok(), pending != 1);
            assert_eq!(bed.lane.pending(PEER), pending);
        }
        for (part, signal, pending) in [(outside, signal, 3), (put, far, 3), (put, signal, 4)] {
            let request = PutSignalRequest { parts: &[part], signal };
            assert_eq!(bed.lane.put_signal(&request).is_ok(), pending != 3);
            assert_eq!(bed.lane.pending(PEER), pending);
        }
        bed.lane.audit().unwrap();
    }

    /// Now and then an iteration is made, so that it is seen when the peer goes on; and in each
    /// where there is no room.
    #[test]
    fn a_call_that_queues_runs_the_loop_now_and_then() {
        let mut bed = Bed::new(PLAIN);
        bed.enqueue_pending(PEER.0);
        bed.fabric.trace_calls();
        while bed.lane.pending_queue.count() < MOST {
            let before = bed.lane.pending_queue.count();
            bed.put(PEER.0);
            let polled = bed.fabric.calls().contains(&Call::Poll(Pe(0), RAIL));
            assert_eq!(polled, before % 16 == 15, "{before}");
            bed.fabric.trace_calls();
        }
        let flag = Arc::new(AtomicBool::new(true));
        bed.lane.set_abandon(flag);
        let heaps = Arc::clone(&bed.heaps);
        let refused = bed.lane.start(&request(&heaps, Direction::Write, PEER.0));
        assert!(matches!(refused, Err(EngineError::Abandoned)));
        assert_eq!(bed.lane.pending_queue.count(), MOST);
    }

    #[test]
    fn a_call_waits_for_so_long_and_no_longer() {
        for (after, over) in [(0, false), (PATIENCE - 1, false), (PATIENCE, true)] {
            let (mut bed, mut wait) = (Bed::new(PLAIN), None);
            assert!(!bed.lane.has_waited(PEER, &mut wait));
            bed.fabric.pass_time(after);
            assert_eq!(bed.lane.has_waited(PEER, &mut wait), over, "{after}");
        }
    }

    #[test]
    fn an_audit_finds_what_is_counted_wrongly() {
        let wrongs: [fn(&mut Bed); 4] = [
            |bed| drop(bed.lane.pending_queue.queue.pop(PEER)),
            |bed| {
                let fence = Pending { what: PendingWork::Fence, batch: Batch::NONE };
                bed.lane.pending_queue.queue.push(Pe(2), fence);
            },
            |bed| bed.lane.core.peers.find_mut(PEER).unwrap().set_pending(false),
            |bed| bed.lane.core.transmit.waits(),
        ];
        for wrong in wrongs {
            let mut bed = Bed::new(PLAIN);
            bed.enqueue_pending(PEER.0);
            bed.lane.audit().unwrap();
            wrong(&mut bed);
            bed.lane.audit().unwrap_err();
        }
    }

    #[test]
    fn an_iteration_that_submits_pending_operations_was_busy() {
        for goes in [&[][..], &[1], &[2], &[1, 2]] {
            let mut bed = Bed::new(PLAIN);
            [1, 2].into_iter().for_each(|pe| bed.enqueue_pending(pe));
            for pe in goes {
                bed.lane.core.fail_connection(Pe(*pe), failed(*pe));
            }
            assert_eq!(bed.lane.serve_pending_queue(), !goes.is_empty(), "{goes:?}");
            assert_eq!(bed.lane.pending_queue.count(), 2 - goes.len());
        }
    }
}
