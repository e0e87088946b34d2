//! Submission of operations: started at once, or moved into the queue of their peer.

use crate::error::EngineError;
use crate::group::CompletionId;
use crate::ids::{LaneKind, Pe, RailId};
use crate::lane::Lane;
use crate::op::{Attempt, Op, OpKind, Outcome, QueueEntry, SignalProtocol, WordOp};
use crate::port::Port;
use crate::port::copies::{DeferredOrder, Reach};
use crate::request::{AtomicRequest, LocalSide, PutSignalRequest, Request, Start};
use crate::signal::Payload;
use crate::staging::Joined;
use crate::wire::handle::{HandleBytes, HandleView};
use crate::wire::message::{MAX_EAGER, RegionAddr};

/// Maximum number of entries in all queues of a lane. An operation takes 150 bytes, and each handle
/// 512. A submitter waits once its peer's queue has as many entries as are free, so a stopped peer
/// leaves some to others.
pub(super) const MAX_QUEUED: usize = 4096;

/// Free entries, beyond those of its peer, below which a caller that can wait should.
pub(super) const SPARE: usize = 256;

/// Maximum time in nanoseconds that a submitter waits for capacity before its operation is queued.
/// A peer that keeps up frees capacity sooner, and its caller then runs at the peer's pace.
const MAX_SUBMIT_WAIT: u64 = 1_000_000;

/// Queued operations after which a submitter makes an iteration, to free capacity.
const QUEUED_PER_ITERATION: usize = 16;

/// Entries of a peer's queue from which on user threads wait.
const MAX_OFFERED: usize = 64;

impl<P: Port> Lane<P> {
    /// Starts a put or a get. [`Lane::quiet`] waits for its end, as does the batch that is entered.
    /// Waits up to 1 ms for capacity before the operation is queued, longer if queues are full.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a fabric that refuses the operation.
    #[inline(always)]
    pub fn start(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        if self.try_start(request) { Ok(()) } else { self.start_slow(request) }
    }

    /// Starts a put or a get on the fast path: one segment between memory that the fabric reaches,
    /// to a peer with nothing queued and no pending fence, over a rail with capacity. Returns
    /// false if anything prevents that: nothing is under way then. Never panics.
    #[inline(always)]
    pub fn try_start(&mut self, request: &Request<'_>) -> bool {
        let start = self.core.try_post(request, self.core.current);
        if start == Start::Refused {
            self.undo_start();
        }
        start == Start::Done
    }

    /// Starts an operation as [`Lane::try_start`] does, where no batch is entered. If it is refused
    /// [`Lane::undo_start`] must come next.
    #[inline(always)]
    pub fn try_start_unbatched(&mut self, request: &Request<'_>) -> Start {
        debug_assert!(self.core.current == CompletionId::NONE, "a batch is entered");
        self.core.try_post(request, CompletionId::NONE)
    }

    #[cold]
    #[inline(never)]
    pub fn undo_start(&mut self) {
        self.core.undo_last_post();
    }

    /// Starts an operation as [`Lane::start`] does, after [`Lane::try_start`] has returned false.
    #[cold]
    #[inline(never)]
    pub fn start_slow(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        self.core.reach_peer(request.pe)?;
        if request.len == 0 {
            return request.remote().map(drop);
        }
        let op = self.transfer(request, self.core.current);
        self.submit(request.pe, op, request.remote_handle)
    }

    pub(crate) fn transfer(&mut self, request: &Request<'_>, completion: CompletionId) -> Op {
        // Found here once, so that its segments only compare it with the region found last.
        if let LocalSide::Memory(addr) = request.local {
            self.core.regions.find(addr, request.len, self.core.needs_desc);
        }
        let Request { direction, remote_addr: remote, local, len, .. } = *request;
        Op { remote, local, len, ..Op::new(OpKind::Transfer(direction), completion) }
    }

    /// Executes a put or a get, and blocks until its end.
    ///
    /// # Errors
    /// As [`Lane::start`], and a failure of the PE.
    pub fn complete(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let Some(group) = self.core.groups.start() else {
            // Without a group only the quiet of the whole PE tells of the end.
            self.start(request)?;
            return self.quiet(request.pe);
        };
        let before = self.enter_batch(group);
        let started = self.start(request);
        self.enter_batch(before);
        let mut idle = 0;
        while started.is_ok() && !self.core.groups.is_done(group) {
            self.core.request_acks();
            self.wait_iteration(&mut idle);
        }
        if self.core.groups.is_done(group) {
            self.core.groups.finish(group);
        }
        started?;
        self.core.reach_peer(request.pe)
    }

    /// Starts an atomic operation. [`Lane::quiet`] waits for its end; a fetched word, and its flag
    /// after it, are stored as soon as they arrive.
    ///
    /// The peer's proxy thread executes it exactly once, and after fenced writes. The operations of
    /// signals ([`AtomicOp::is_signal`](crate::atomic::AtomicOp::is_signal)) take effect after the
    /// puts that this lane has started to the same PE before: NVSHMEM's proxy thread sends a
    /// stream's non-blocking put with signal as two calls with no fence in between.
    #[inline(always)]
    pub fn atomic(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError> {
        if self.try_atomic(request) { Ok(()) } else { self.atomic_slow(request) }
    }

    /// Starts an atomic that fetches nothing on the fast path, as [`Lane::try_start`] does.
    #[inline(always)]
    pub fn try_atomic(&mut self, request: &AtomicRequest<'_>) -> bool {
        // Atomics of a PE on its own words follow its writes to itself, see `atomic_slow`.
        !request.atomic.op.fetches()
            && request.pe != self.core.me
            && self.core.try_send(request, None, self.core.current)
    }

    /// Starts an atomic as [`Lane::atomic`] does, after [`Lane::try_atomic`] has returned false.
    #[cold]
    #[inline(never)]
    pub fn atomic_slow(&mut self, request: &AtomicRequest<'_>) -> Result<(), EngineError> {
        self.core.reach_peer(request.pe)?;
        let word = WordOp { addr: request.word()?, atomic: request.atomic };
        if request.pe == self.core.me {
            if !request.atomic.op.fetches() && self.apply_own(word)? {
                return Ok(());
            }
            // Before 3.5 (layout 4 of its host interface) NVSHMEM sends a put with signal as put,
            // fence and atomic, and leaves out the fence for the PE itself.
            self.fence_peer(request.pe);
        }
        let kind = match request.result {
            Some(result) if request.atomic.op.fetches() => OpKind::Fetch(word, result),
            _ if request.atomic.op.is_signal() => OpKind::Signal(word),
            _ => OpKind::Atomic(word),
        };
        let op = Op::new(kind, self.core.current);
        self.submit(request.pe, op, request.remote_handle)
    }

    /// Executes an atomic on a word of this PE without a message, if nothing is unfinished that it
    /// may have to follow. A word that the CPU does not reach is stored by the next iteration.
    /// Returns false, without effect, where a message has to execute it or report what is wrong.
    fn apply_own(&mut self, word: WordOp) -> Result<bool, EngineError> {
        let Self { core, staging, own_order, .. } = self;
        let me = core.me;
        let peer = core.peers.get_mut(me);
        let may_follow = match peer.queue.front() {
            None => peer.order.is_empty(),
            Some(queued) => peer.queue.len() == 1 && matches!(queued, QueueEntry::OwnWords),
        };
        // No batch counts these words, and no other lane flushes them.
        let has_batch = core.current != CompletionId::NONE;
        if !may_follow || has_batch || core.regions.kind != LaneKind::Proxy {
            return Ok(false);
        }
        core.regions.sync();
        let Ok(location) = core.locate_word(word.addr, &word.atomic) else { return Ok(false) };
        // Before 3.5 NVSHMEM leaves out the PE itself when it fences all.
        let fenced = std::mem::replace(own_order, DeferredOrder::Any);
        // A word of the CPU would overtake words before the fence if one behind it is deferred too.
        let is_after = core.signals.strong || location.reach == Reach::Direct;
        let order = if is_after { DeferredOrder::After } else { fenced };
        let applied = staging.apply(core, location, &word.atomic, order);
        let is_deferred = staging.track_own();
        let peer = core.peers.get_mut(me);
        if is_deferred && peer.queue.is_empty() {
            peer.queue.push_back(QueueEntry::OwnWords);
            peer.update_fast_path();
            core.queued += 1;
            core.make_ready(me);
        }
        // No message repeats one that failed: it may have taken effect.
        let (what, len) = ("atomic", word.atomic.width.bytes());
        let failed = |error| EngineError::Staging { what, pe: me, len, error };
        applied.map(|()| true).map_err(failed)
    }

    /// Starts a put whose signal becomes visible after its data. A put of one part waits for
    /// fences, and for other operations only if the lane orders signals; the signal of a put of
    /// several parts follows earlier puts, as a signal alone does.
    pub fn put_signal(&mut self, request: &PutSignalRequest<'_>) -> Result<(), EngineError> {
        let signal = &request.signal;
        self.core.reach_peer(signal.pe)?;
        let word = WordOp { addr: signal.word()?, atomic: signal.atomic };
        for part in request.parts.iter().filter(|part| part.len == 0) {
            part.remote()?;
        }
        let mut parts = request.parts.iter().filter(|part| part.len > 0);
        let (first, second) = (parts.next(), parts.next());
        if let (Some(part), None) = (first, second) {
            if self.find_local(part) && self.try_put_signal(part, signal) {
                return Ok(());
            }
            let op = self.transfer(part, self.core.current);
            let op = Op { kind: OpKind::PutSignal(word, SignalProtocol::Undecided), ..op };
            return self.submit(signal.pe, op, part.remote_handle);
        }
        // Several parts have no common tag or group: the signal follows all earlier puts.
        for part in request.parts {
            part.remote()?;
        }
        for part in request.parts {
            self.start(part)?;
        }
        let op = Op::new(OpKind::Signal(word), self.core.current);
        self.submit(signal.pe, op, signal.remote_handle)
    }

    /// Starts a put with signal as one message on the fast path, as [`Lane::try_start`] does.
    #[inline(always)]
    pub fn try_put_signal(&mut self, part: &Request<'_>, signal: &AtomicRequest<'_>) -> bool {
        self.try_eager(part, signal, self.core.current)
    }

    /// Starts a put with signal as [`Lane::try_put_signal`] does, where no batch is entered.
    #[inline(always)]
    pub fn try_put_signal_unbatched(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
    ) -> bool {
        debug_assert!(self.core.current == CompletionId::NONE, "a batch is entered");
        self.try_eager(part, signal, CompletionId::NONE)
    }

    #[inline(always)]
    fn try_eager(
        &mut self,
        part: &Request<'_>,
        signal: &AtomicRequest<'_>,
        completion: CompletionId,
    ) -> bool {
        self.core.signals.eager
            && part.len.wrapping_sub(1) < MAX_EAGER
            && !signal.atomic.op.fetches()
            && self.core.try_send(signal, Some(part), completion)
    }

    /// Looks up the local memory of a request. Returns true if processors reach it.
    fn find_local(&mut self, request: &Request<'_>) -> bool {
        let LocalSide::Memory(addr) = request.local else { return false };
        self.core.regions.find(addr, request.len, self.core.needs_desc);
        self.core.regions.is_known_cpu_memory(addr, request.len)
    }

    /// Submits an operation as far as capacity permits, and queues the rest.
    pub(crate) fn submit(
        &mut self,
        pe: Pe,
        mut op: Op,
        handle: &HandleBytes,
    ) -> Result<(), EngineError> {
        if self.join_values(pe, &op, handle)? {
            return Ok(());
        }
        let (mut idle, mut since) = (0, None);
        if self.core.queued % QUEUED_PER_ITERATION == QUEUED_PER_ITERATION - 1 {
            self.iterate();
            self.core.peers.get(pe).check()?;
        }
        let outcome = loop {
            let peer = self.core.peers.get(pe);
            let ended = peer.ended();
            let waits = if peer.queue.is_empty() {
                match self.advance(pe, &mut op, handle)? {
                    Outcome::Done => return Ok(()),
                    Outcome::Blocked => break Outcome::Blocked,
                    // A long operation is queued at once: its caller would wait for most of its
                    // transfer.
                    outcome if op.has_begun() => break outcome,
                    outcome => outcome,
                }
            } else if peer.in_ring && peer.stalled_at != Some(ended) && !peer.is_amid_operation() {
                Outcome::LaneFull
            } else {
                break Outcome::Blocked;
            };
            let now = self.core.port.now();
            let (start, before) = *since.get_or_insert((now, ended));
            let peer = self.core.peers.get_mut(pe);
            if peer.stalled_at == Some(ended) || now.saturating_sub(start) >= MAX_SUBMIT_WAIT {
                // Until some work of the peer ends, its next submitters do not wait again.
                peer.stalled_at = (before == ended).then_some(ended);
                break waits;
            }
            self.wait_iteration(&mut idle);
            self.core.peers.get(pe).check()?;
            self.room_or_failure()?;
        };
        if !op.has_begun() {
            self.check(pe, &op, handle)?;
        }
        let has_waited = !self.has_space(pe);
        let space = self.wait_for_space(pe).and_then(|()| self.core.peers.get(pe).check());
        if let Err(failed) = &space {
            self.abandon(pe, &op, failed);
            return space;
        }
        self.enqueue(pe, op, handle, outcome);
        if has_waited {
            // What the operation waits for may have ended meanwhile.
            self.core.make_ready(pe);
        }
        Ok(())
    }

    /// Queues a value for staged memory, so that it leaves together with values right after it.
    /// Returns false, without effect, for anything else, and if there is no capacity.
    fn join_values(&mut self, pe: Pe, op: &Op, handle: &HandleBytes) -> Result<bool, EngineError> {
        let (OpKind::Transfer(_), LocalSide::Value(value)) = (op.kind, op.local) else {
            return Ok(false);
        };
        let request = op.request(pe, handle);
        let (remote, offset) = request.remote()?;
        if !remote.is_staged() || !self.has_space(pe) {
            return Ok(false);
        }
        let to = RegionAddr { region: remote.region(), offset };
        let mut joined = self.staging.join_value(&mut self.core, pe, (op, value), to);
        if let Joined::Busy(other) = joined {
            // Runs of one peer at a time: those before are sent now if there is capacity.
            self.serve_peer(other, &mut false);
            joined = self.staging.join_value(&mut self.core, pe, (op, value), to);
        }
        if joined == Joined::Begun {
            let run = Op { kind: OpKind::Values, staged: true, ..*op };
            self.enqueue(pe, run, handle, Outcome::Blocked);
            // Sent by the next iteration, whatever else happens.
            self.core.make_ready(pe);
        }
        Ok(!matches!(joined, Joined::Busy(_)))
    }

    fn has_space(&self, pe: Pe) -> bool {
        self.core.queued + self.core.peers.get(pe).queue.len() < MAX_QUEUED
    }

    fn wait_for_space(&mut self, pe: Pe) -> Result<(), EngineError> {
        let mut idle = 0;
        while !self.has_space(pe) {
            self.core.request_acks();
            self.wait_iteration(&mut idle);
            if !self.has_space(pe) {
                if let Some(failed) = self.core.failures.first() {
                    return Err(failed.clone());
                }
                self.room_or_failure()?;
            }
        }
        Ok(())
    }

    fn enqueue(&mut self, pe: Pe, op: Op, handle: &HandleBytes, outcome: Outcome) {
        self.core.groups.begin(op.completion);
        let peer = self.core.peers.get_mut(pe);
        let handle = peer.share_handle(handle);
        // Operations queued while this one waited come after it if it has begun.
        if op.has_begun() {
            peer.queue.push_front(QueueEntry::Op(op, handle));
        } else {
            peer.queue.push_back(QueueEntry::Op(op, handle));
        }
        peer.update_fast_path();
        self.core.queued += 1;
        self.core.rails[RailId(0)].counters.queued += 1;
        if outcome == Outcome::LaneFull {
            self.core.enter_ring(pe);
        }
    }

    /// Submits an operation for a caller that waits elsewhere. Returns false if queues are full.
    pub(crate) fn offer(
        &mut self,
        request: &Request<'_>,
        completion: CompletionId,
    ) -> Result<bool, EngineError> {
        self.core.reach_peer(request.pe)?;
        if request.len == 0 {
            return request.remote().map(|_| true);
        }
        let peer = self.core.peers.get(request.pe);
        if self.core.queued >= MAX_QUEUED || peer.queue.len() >= MAX_OFFERED {
            self.room_or_failure()?;
            return Ok(false);
        }
        let mut op = self.transfer(request, completion);
        if self.core.peers.get(request.pe).queue.is_empty() {
            match self.advance(request.pe, &mut op, request.remote_handle)? {
                Outcome::Done => return Ok(true),
                outcome => self.enqueue(request.pe, op, request.remote_handle, outcome),
            }
        } else {
            self.check(request.pe, &op, request.remote_handle)?;
            self.enqueue(request.pe, op, request.remote_handle, Outcome::Blocked);
        }
        Ok(true)
    }

    fn check(&mut self, pe: Pe, op: &Op, handle: &HandleBytes) -> Result<(), EngineError> {
        // The caller gets the error now, not the peer when the queued operation has its turn.
        let request = op.request(pe, handle);
        if op.len > 0 && !self.is_staged(&request, &request.remote()?.0)? {
            let rail = self.core.peers.get(pe).path.rail;
            self.core.local(&request, 0, op.len, rail)?;
        }
        Ok(())
    }

    pub(super) fn advance(&mut self, pe: Pe, op: &mut Op, handle: &HandleBytes) -> Attempt {
        let outcome = self.try_advance(pe, op, handle);
        match outcome {
            Err(ref failed) => self.abandon(pe, op, failed),
            // What a full peer lacks comes unasked, or was asked for.
            Ok(Outcome::Blocked) => self.core.request_ack(pe),
            _ => {}
        }
        outcome
    }

    fn abandon(&mut self, pe: Pe, op: &Op, failed: &EngineError) {
        // Part of the operation may have arrived and the rest never will, so the peer fails.
        if op.has_begun() && self.core.peers.get(pe).error.is_none() {
            self.core.fail_peer(pe, failed.clone());
        }
        if let OpKind::PutSignal(_, SignalProtocol::Chained { data, .. }) = op.kind {
            self.core.end_in_group(data);
        }
    }

    fn try_advance(&mut self, pe: Pe, op: &mut Op, handle: &HandleBytes) -> Attempt {
        match op.kind {
            OpKind::Atomic(word) => return self.core.submit_word(pe, word, op.completion),
            OpKind::Signal(word) => {
                // Puts that wait for a bounce buffer take the signal along, and so do signals that
                // wait for copies.
                if self.staging.submit_signal(&mut self.core, pe, op, word, handle)? {
                    return Ok(Outcome::Done);
                }
                return self.core.submit_signal(pe, word, None, op.completion);
            }
            OpKind::Fetch(word, result) => {
                return self.core.submit_fetch(pe, word, result, op.completion);
            }
            OpKind::Transfer(_) | OpKind::Values | OpKind::PutSignal(..) => {}
        }
        let request = op.request(pe, handle);
        if op.staged {
            return self.staging.submit(&mut self.core, pe, op, &request);
        }
        let (remote, _) = request.remote()?;
        // Once begun, an operation stays on its path, even if regions change.
        let is_staged = op.sent == 0 && self.is_staged(&request, &remote)?;
        let OpKind::PutSignal(word, protocol) = op.kind else {
            return match is_staged {
                true => self.staging.submit(&mut self.core, pe, op, &request),
                false => self.core.post_parts(pe, op, &request, None).map(|(_, outcome)| outcome),
            };
        };
        let mut buffer = [0; MAX_EAGER];
        let mut payload = Payload { bytes: None, is_direct: false };
        // Loaded anew at each attempt: the frame is not kept while the operation waits.
        if matches!(protocol, SignalProtocol::Undecided | SignalProtocol::Eager) {
            payload = self.load_payload(pe, &request, remote.is_direct(), &mut buffer)?;
        }
        if protocol == SignalProtocol::Undecided {
            let is_eager = payload.bytes.is_some() && self.core.may_be_eager(pe, op);
            if is_staged && !is_eager {
                return self.staging.submit(&mut self.core, pe, op, &request);
            }
            if !is_staged {
                let rail = self.core.peers.get(pe).path.rail;
                self.core.local(&request, 0, op.len, rail)?;
            }
            let Some(protocol) = self.core.choose_protocol(pe, op, word, &payload) else {
                return Ok(Outcome::PeerFull);
            };
            op.kind = OpKind::PutSignal(word, protocol);
        }
        self.core.advance_put_signal(pe, op, &request, &payload)
    }

    /// Loads a payload that fits every message, and notes whether processors reach both ends.
    fn load_payload<'a>(
        &mut self,
        pe: Pe,
        request: &Request<'_>,
        is_remote_direct: bool,
        buffer: &'a mut [u8; MAX_EAGER],
    ) -> Result<Payload<'a>, EngineError> {
        let LocalSide::Memory(addr) = request.local else {
            return Ok(Payload { bytes: None, is_direct: false });
        };
        let what = (request.what(), pe);
        let reach = self.staging.local_reach(&mut self.core, what, addr, request.len)?;
        let is_direct = reach == Reach::Direct && is_remote_direct;
        let Some(bytes) = buffer.get_mut(..request.len) else {
            return Ok(Payload { bytes: None, is_direct });
        };
        self.staging.load(&mut self.core, addr, reach, bytes).map_err(|error| {
            let (what, pe, len) = (request.what(), request.pe, request.len);
            EngineError::Staging { what, pe, len, error }
        })?;
        Ok(Payload { bytes: Some(bytes), is_direct })
    }

    fn is_staged(
        &mut self,
        request: &Request<'_>,
        remote: &HandleView<'_>,
    ) -> Result<bool, EngineError> {
        if remote.is_staged() {
            return Ok(true);
        }
        let LocalSide::Memory(addr) = request.local else { return Ok(false) };
        let (devices, needs_desc) = (self.core.regions.has_devices(), self.core.needs_desc);
        if !devices && !needs_desc {
            return Ok(false);
        }
        let found = self.core.regions.lookup(addr, request.len);
        if found.fabric.is_some() {
            return Ok(false);
        }
        if found.device {
            return Ok(true);
        }
        if needs_desc && found.cut.is_some() {
            // Posting it reports the region that ends too early.
            return Ok(false);
        }
        self.core.open(request.pe)?;
        let what = (request.what(), request.pe);
        let staged = devices
            && self.staging.reach(&mut self.core, what, addr, request.len)? == Reach::Staged;
        // Unregistered host memory is staged too, but not here in a host lane: that hands it over.
        Ok(staged || needs_desc && self.core.regions.kind == LaneKind::Proxy)
    }
}
