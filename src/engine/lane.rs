//! A lane: one thread's way into the fabric, over one or more rails.
//!
//! # Why it cannot deadlock
//! Posting never blocks and never recurses. A segment that cannot go out at once waits in its
//! rail's queue; a write behind a fence waits in its stream's held queue. Handling a completion
//! only moves segments between queues, it never posts. One loop does everything, in this order:
//! poll completions, apply them, post from the rails' queues, and only then take new work. A
//! segment waits for nothing but (a) room on its rail, which completions make, and (b) if held,
//! older segments of its own stream, which already own a slot. So whatever the bounds are, the
//! oldest segment of each stream can always move, and only the submitter is ever held back, in a
//! call that keeps running the loop.

use std::collections::VecDeque;
use std::sync::Arc;

use log::error;

use super::counters::RailCounters;
use super::error::EngineError;
use super::handle::{HandleBytes, HandleError, HandleView};
use super::ids::{Pe, RailId, Token};
use super::link::MessageTable;
use super::messages::PendingReply;
use super::operation::{OpId, OpTable};
use super::paths::PathTable;
use super::port::{
    Desc, Direction, Failure, Local, POLL_BATCH, Polled, Port, PortError, Posted, RailLimits,
    Transfer,
};
use super::rail::Rail;
use super::regions::{LaneKind, RegionCache, RegionIndex, desc_of};
use super::segment::{Kind, NIL, SegmentTable, Stage};
use super::stream::Streams;
use super::watchdog::Watchdog;
use super::wire::Packet;

/// Empty turns of a waiting loop before it gives up its core each time round.
///
/// Polling a completion queue in shared memory takes tens of nanoseconds, so this is below a
/// microsecond there; where polling is a system call it is a few. Beyond that the core is better
/// used by the peer or its progress thread, which may be waiting for it.
const SPINS: u32 = 8;

/// Messages a proxy lane has room for, over all peers: queued, or sent and not acknowledged.
const MESSAGES: u32 = 2048;

/// Segments a lane has room for, per rail, beyond those in flight.
const WAITING_PER_DEPTH: u32 = 1;

/// Most segments that a lane over rails of these limits has under way. All tokens that the lane
/// gives to its port are below it.
pub fn segments_for(limits: &[RailLimits]) -> u32 {
    limits.iter().map(|rail| rail.depth.max(1) * (1 + WAITING_PER_DEPTH)).sum()
}

/// What a lane is opened with.
#[derive(Debug)]
pub struct LaneConfig {
    /// This PE.
    pub me: Pe,
    /// Which rails it uses.
    pub kind: LaneKind,
    /// The way to every PE; its number of PEs is the size of the job.
    pub paths: PathTable,
    /// The process' registered memory.
    pub regions: Arc<RegionIndex>,
    /// When waits are reported and given up.
    pub watchdog: Watchdog,
    /// How signals follow their data.
    pub signals: SignalEngine,
}

/// How the signal of a put is made to follow its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalEngine {
    /// The fastest of the others that the put and the fabric allow.
    Auto,
    /// The signal is sent when its own data is delivered.
    Chained,
    /// Data and signal go out back to back on one rail that keeps their order; chained where the
    /// fabric does not.
    Ordered,
    /// Data and signal are one message; chained where the data is too long for that.
    Eager,
}

/// A put or a get.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Write for put, read for get.
    pub direction: Direction,
    /// The peer.
    pub pe: Pe,
    /// The peer's handle for the region that holds the remote bytes.
    pub remote_handle: &'a HandleBytes,
    /// Where the remote bytes are, in the peer's address space.
    pub remote_addr: u64,
    /// The local side.
    pub local: LocalSide<'a>,
    /// Bytes to move; 0 does nothing.
    pub len: usize,
}

/// The local side of a put or a get.
#[derive(Clone, Copy, Debug)]
pub enum LocalSide<'a> {
    /// Memory that stays valid until the operation completes, with its handle if it has one.
    Memory {
        /// Virtual address.
        addr: usize,
        /// This process' handle for the region around it.
        handle: Option<&'a HandleBytes>,
    },
    /// A value of at most 8 bytes (little endian), copied at once. Puts only.
    Value(u64),
}

/// One lane.
///
/// # Threads
/// One at a time. The proxy lane belongs to the proxy thread alone; the host lane is behind a
/// mutex (see [`super::host_lane::HostLane`]).
#[derive(Debug)]
pub struct Lane<P> {
    pub(super) port: P,
    pub(super) me: Pe,
    pub(super) segments: SegmentTable,
    pub(super) streams: Streams,
    pub(super) rails: Box<[Rail]>,
    pub(super) paths: PathTable,
    pub(super) regions: RegionCache,
    needs_desc: bool,
    pub(super) ops: OpTable,
    pub(super) messages: MessageTable,
    /// Whether peers send messages to this lane: only to proxy lanes.
    receives: bool,
    /// Streams with control messages due.
    pub(super) control: VecDeque<u32>,
    /// Replies that are due.
    pub(super) replies: VecDeque<PendingReply>,
    /// For the message being handled; taken out meanwhile.
    pub(super) packet: Option<Box<Packet>>,
    pub(super) signals: SignalEngine,
    /// Segments in the rails' queues.
    ready: u32,
    done: [Token; POLL_BATCH],
    watchdog: Watchdog,
    /// The first failure of the lane.
    failure: Option<Box<EngineError>>,
}

impl<P: Port> Lane<P> {
    /// A lane over an open port.
    pub fn new(port: P, config: LaneConfig) -> Self {
        let limits = port.limits();
        let rails: Box<[Rail]> = limits.iter().map(Rail::new).collect();
        let n_rails = rails.len() as u8;
        let receives = config.kind == LaneKind::Proxy;
        let messages = if receives { MESSAGES } else { 0 };
        Self {
            me: config.me,
            segments: SegmentTable::new(segments_for(limits) + messages),
            messages: MessageTable::new(messages),
            receives,
            control: VecDeque::with_capacity(64),
            replies: VecDeque::with_capacity(64),
            packet: Some(Box::new(Packet::EMPTY)),
            signals: config.signals,
            streams: Streams::new(config.me, config.paths.n_pes(), n_rails),
            needs_desc: limits.iter().any(|rail| rail.needs_desc),
            rails,
            paths: config.paths,
            regions: RegionCache::new(config.regions, config.kind),
            ops: OpTable::with_capacity(64),
            ready: 0,
            done: [Token(0); POLL_BATCH],
            watchdog: config.watchdog,
            failure: None,
            port,
        }
    }

    /// Starts a put or a get and returns once the fabric or the lane's queues have taken all of it.
    /// [`Lane::quiet`] waits for its end.
    ///
    /// Cost when there is room: no allocation, no lock, no system call of ours.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a fabric that takes nothing more.
    #[inline]
    pub fn start(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let mut sent = 0;
        self.submit(request, &mut sent, OpId::NONE)?;
        if sent == request.len { Ok(()) } else { self.finish_start(request, sent) }
    }

    #[cold]
    fn finish_start(&mut self, request: &Request<'_>, mut sent: usize) -> Result<(), EngineError> {
        let mut idle = 0;
        while sent < request.len {
            self.wait_turn(&mut idle);
            self.room_or_failure()?;
            self.submit(request, &mut sent, OpId::NONE)?;
        }
        Ok(())
    }

    /// Does a put or a get to its end: the put's data is visible at the peer, the get's data is in
    /// local memory.
    ///
    /// # Errors
    /// As [`Lane::start`], and a failure of the operation or of an earlier one to the peer.
    pub fn complete(&mut self, request: &Request<'_>) -> Result<(), EngineError> {
        let op = self.begin_op();
        let mut sent = 0;
        let mut idle = 0;
        while !self.advance_op(request, &mut sent, op)? {
            self.wait_turn(&mut idle);
        }
        Ok(())
    }

    /// Begins an operation that is waited for on its own. Every operation begun is carried on with
    /// [`Lane::advance_op`] until that says it has ended.
    pub fn begin_op(&mut self) -> OpId {
        self.ops.start()
    }

    /// Submits what there is room for, and says whether the operation has ended. Never blocks.
    ///
    /// # Errors
    /// As [`Lane::complete`]; the operation has then ended.
    pub fn advance_op(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
    ) -> Result<bool, EngineError> {
        let advanced = self.try_advance(request, sent, op);
        // After an error, segments already out may still point at the operation. It is then given
        // up rather than ended, which costs four bytes; errors are a lane's last act.
        if !matches!(advanced, Ok(false)) && self.ops.is_done(op) {
            self.ops.end(op);
        }
        advanced
    }

    fn try_advance(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
    ) -> Result<bool, EngineError> {
        if *sent < request.len {
            self.submit(request, sent, op)?;
        }
        if *sent < request.len {
            self.room_or_failure()?;
        }
        if let Some(stream) = self.streams.find(request.pe) {
            stream.check()?;
        }
        Ok(*sent == request.len && self.ops.is_done(op))
    }

    /// Submits as much of a request, from byte `*sent` on, as there is room for, and moves `*sent`
    /// on. Never blocks.
    ///
    /// # Errors
    /// Bad arguments, a peer that has failed before, or a segment the fabric refused.
    #[inline]
    pub fn submit(
        &mut self,
        request: &Request<'_>,
        sent: &mut usize,
        op: OpId,
    ) -> Result<(), EngineError> {
        let Some(stream_index) = self.streams.open(request.pe) else {
            return Err(EngineError::NoSuchPe { pe: request.pe, n_pes: self.streams.n_pes() });
        };
        self.streams[stream_index].check()?;
        let remote = HandleView::check(request.remote_handle)
            .map_err(|fault| refused(request, "remote", fault))?;
        let offset = remote
            .locate(request.remote_addr, request.len as u64)
            .map_err(|fault| refused(request, "remote", fault))?;
        let remote_addr = remote.remote_address(offset);

        while *sent < request.len {
            let rail = self.streams[stream_index].next_rail;
            let path = self.paths.get(request.pe, RailId(rail));
            let key = remote.key(path.remote).map_err(|fault| refused(request, "remote", fault))?;
            let local = match request.local {
                LocalSide::Value(value) => Local::Inline(value),
                LocalSide::Memory { addr, handle } => {
                    let desc = if self.needs_desc {
                        local_desc(&mut self.regions, request, addr, handle, RailId(rail))?
                    } else {
                        Desc(0)
                    };
                    Local::Memory { addr: addr + *sent, desc }
                }
            };
            let Some(token) = self.segments.take() else { return Ok(()) };
            let len = (request.len - *sent).min(self.rails[usize::from(rail)].max_segment);

            let stream = &mut self.streams[stream_index];
            stream.next_rail = if usize::from(rail) + 1 == self.rails.len() { 0 } else { rail + 1 };
            let seq = stream.issued;
            stream.issued = seq + 1;

            let segment = &mut self.segments[token.0];
            segment.transfer = Transfer {
                direction: request.direction,
                local,
                len,
                remote: remote_addr + *sent as u64,
                key,
            };
            segment.to = path.to;
            segment.seq = seq;
            segment.stream = stream_index;
            segment.op = op.0;
            segment.message = NIL;
            segment.rail = RailId(rail);
            segment.kind = Kind::Transfer;
            segment.stage = Stage::Ready;
            if op != OpId::NONE {
                self.ops.add(op.0);
            }
            stream.order_mut(request.direction).append(&mut self.segments, token.0);
            *sent += len;

            if stream.fence != 0
                && request.direction == Direction::Write
                && self.hold_behind_fence(token, stream_index)
            {
                continue;
            }
            self.dispatch(token, RailId(rail));
            self.streams[stream_index].check()?;
        }
        Ok(())
    }

    /// Holds a new write if its stream's fence has not been passed. Says whether it did.
    #[cold]
    pub(super) fn hold_behind_fence(&mut self, token: Token, stream_index: u32) -> bool {
        let stream = &mut self.streams[stream_index];
        if stream.delivered_below(&self.segments) >= stream.fence {
            stream.fence = 0;
            return false;
        }
        let segment = &mut self.segments[token.0];
        segment.after = stream.fence;
        segment.stage = Stage::Held;
        stream.held.push(&mut self.segments, token.0);
        // What it waits for may be messages, whose delivery only the peer can tell.
        self.want_ack(stream_index);
        true
    }

    /// Writes issued to the peer from here on become visible after all those issued before. Gets
    /// are not ordered.
    ///
    /// It records a number and returns: constant time, no other peer is touched.
    ///
    /// # Errors
    /// A PE outside the job.
    #[inline]
    pub fn fence(&mut self, pe: Pe) -> Result<(), EngineError> {
        if let Some(stream) = self.streams.find_mut(pe) {
            if !stream.order(Direction::Write).is_empty() {
                stream.fence = stream.issued;
            }
            return Ok(());
        }
        self.check_pe(pe)
    }

    /// Waits until everything issued to the peer is visible there and everything read from it has
    /// landed. With nothing outstanding it returns at once.
    ///
    /// # Errors
    /// A failure of anything sent to the peer, now or earlier.
    #[inline]
    pub fn quiet(&mut self, pe: Pe) -> Result<(), EngineError> {
        let mut idle = 0;
        while !self.is_quiet(pe)? {
            self.wait_turn(&mut idle);
        }
        Ok(())
    }

    /// Whether nothing sent to the peer or read from it is outstanding. Constant time. If something
    /// is, the peer will be asked to acknowledge what it has.
    ///
    /// # Errors
    /// As [`Lane::quiet`].
    #[inline]
    pub fn is_quiet(&mut self, pe: Pe) -> Result<bool, EngineError> {
        let Some(stream) = self.streams.find(pe) else {
            return self.check_pe(pe).map(|()| true);
        };
        stream.check()?;
        let quiet = stream.is_quiet();
        if !quiet {
            self.want_ack_of(pe);
        }
        Ok(quiet)
    }

    /// One turn of the loop: completions, queues, watchdog. Says whether it found anything to do.
    ///
    /// # Errors
    /// The lane's first failure, from then on at every call: data has been lost.
    #[inline]
    pub fn progress(&mut self) -> Result<bool, EngineError> {
        let busy = self.turn();
        match &self.failure {
            None => Ok(busy),
            Some(failed) => Err((**failed).clone()),
        }
    }

    /// Whether any segment is under way, so that the lane needs turns to move it.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.segments.used() != 0
    }

    /// Counters per rail, in rail order.
    pub fn counters(&self) -> impl Iterator<Item = RailCounters> + '_ {
        self.rails.iter().map(|rail| rail.counters)
    }

    /// The port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// One turn of the loop, whatever has failed before.
    #[inline]
    pub(super) fn turn(&mut self) -> bool {
        let mut busy = false;
        for rail in 0..self.rails.len() {
            let rail = RailId(rail as u8);
            match self.port.poll(rail, &mut self.done) {
                Polled::Empty => {}
                Polled::Completed(count) => {
                    busy = true;
                    for at in 0..count.min(POLL_BATCH) {
                        let token = self.done[at];
                        self.completed(token);
                    }
                }
                Polled::Failed(failure) => {
                    busy = true;
                    self.failed(rail, failure);
                }
            }
            if self.receives {
                busy |= self.receive(rail);
            }
        }
        if self.ready != 0 {
            busy |= self.post_ready();
        }
        if !self.replies.is_empty() || !self.control.is_empty() {
            busy |= self.send_control();
        }
        if self.watchdog.is_due() {
            self.inspect();
        }
        busy
    }

    #[inline]
    pub(super) fn wait_turn(&mut self, idle: &mut u32) {
        let busy = self.turn();
        if is_idle(idle, busy) {
            self.port.relax();
        }
    }

    /// While there is no room: an error once a failure means that there may never be any.
    pub(super) fn room_or_failure(&self) -> Result<(), EngineError> {
        match &self.failure {
            Some(failed) if self.segments.used() == self.segments.capacity() => {
                Err((**failed).clone())
            }
            _ => Ok(()),
        }
    }

    /// Posts a new segment, or puts it into a queue.
    #[inline]
    pub(super) fn dispatch(&mut self, token: Token, rail: RailId) {
        let state = &mut self.rails[rail.index()];
        if state.queue.is_empty() {
            let segment = &mut self.segments[token.0];
            if segment.kind != Kind::Transfer {
                return self.dispatch_message(token, rail);
            }
            if state.in_flight < state.depth {
                match self.port.post(rail, segment.to, token, &segment.transfer) {
                    Ok(Posted::Yes) => {
                        segment.stage = Stage::Posted;
                        state.taken(segment.transfer.len);
                        return;
                    }
                    Ok(Posted::Again) => state.counters.again += 1,
                    Err(error) => return self.fail_segment(token, error),
                }
            }
        }
        self.queue(token, rail);
    }

    /// Puts a segment at the end of its rail's queue.
    pub(super) fn queue(&mut self, token: Token, rail: RailId) {
        let state = &mut self.rails[rail.index()];
        state.counters.queued += 1;
        self.segments[token.0].stage = Stage::Ready;
        state.queue.push(&mut self.segments, token.0);
        self.ready += 1;
    }

    /// Posts from the rails' queues what they take.
    #[cold]
    fn post_ready(&mut self) -> bool {
        let mut moved = false;
        for rail in (0..self.rails.len()).map(|rail| RailId(rail as u8)) {
            while let Some(index) = self.rails[rail.index()].queue.front() {
                let token = Token(index);
                let segment = &self.segments[index];
                let outcome = if self.streams[segment.stream].error.is_some() {
                    // Nothing is sent to a peer after a failure: what follows might be a flag for
                    // data that never left.
                    Left::Dropped
                } else if segment.kind == Kind::Transfer {
                    self.post_transfer(token, rail)
                } else {
                    self.send_message(token, rail)
                };
                if matches!(outcome, Left::NoRoom) {
                    break;
                }
                let state = &mut self.rails[rail.index()];
                state.queue.pop(&self.segments);
                self.ready -= 1;
                moved = true;
                match outcome {
                    Left::Dropped => self.retire(token),
                    Left::Failed(error) => self.fail_segment(token, error),
                    Left::NoWindow => self.hold_for_window(token),
                    Left::Taken | Left::NoRoom => {}
                }
            }
        }
        moved
    }

    fn post_transfer(&mut self, token: Token, rail: RailId) -> Left {
        let state = &mut self.rails[rail.index()];
        if state.in_flight >= state.depth {
            return Left::NoRoom;
        }
        let segment = &mut self.segments[token.0];
        match self.port.post(rail, segment.to, token, &segment.transfer) {
            Ok(Posted::Yes) => {
                segment.stage = Stage::Posted;
                state.taken(segment.transfer.len);
                Left::Taken
            }
            Ok(Posted::Again) => {
                state.counters.again += 1;
                Left::NoRoom
            }
            Err(error) => Left::Failed(error),
        }
    }

    /// Applies one completion.
    #[inline]
    fn completed(&mut self, token: Token) {
        let Some(segment) = self.segments.posted(token) else {
            return unknown_token(token);
        };
        let stream_index = segment.stream;
        let rail = &mut self.rails[segment.rail.index()];
        rail.in_flight -= 1;
        rail.counters.completed += 1;
        self.retire(token);
        if !self.streams[stream_index].held.is_empty() {
            self.release_held(stream_index);
        }
    }

    /// Takes a segment out of its stream and its operation, and frees its slot.
    #[inline]
    pub(super) fn retire(&mut self, token: Token) {
        let segment = &self.segments[token.0];
        let (stream, op, direction) = (segment.stream, segment.op, segment.transfer.direction);
        if segment.kind != Kind::Transfer {
            self.retire_message(token);
        }
        self.streams[stream].order_mut(direction).remove(&mut self.segments, token.0);
        self.segments.give(token);
        if op != OpId::NONE.0 {
            if let Some(then) = self.ops.done(op) {
                self.unchain(Token(then));
            }
        }
    }

    /// A signal's data is delivered: the signal may leave, or is dropped with the rest of a stream
    /// that has failed.
    pub(super) fn unchain(&mut self, token: Token) {
        let segment = &self.segments[token.0];
        let rail = segment.rail;
        if self.streams[segment.stream].error.is_some() {
            self.retire(token);
        } else {
            self.queue(token, rail);
        }
    }

    /// Moves to the rails' queues the held writes whose fence has been passed.
    #[cold]
    pub(super) fn release_held(&mut self, stream_index: u32) {
        let stream = &mut self.streams[stream_index];
        let delivered = stream.delivered_below(&self.segments);
        while let Some(index) = stream.held.front() {
            let segment = &self.segments[index];
            let windowed = segment.kind != Kind::Transfer
                && stream.link.as_ref().is_some_and(|link| !link.has_room(&self.messages));
            if segment.after > delivered || windowed {
                break;
            }
            stream.held.pop(&self.segments);
            let rail = self.segments[index].rail;
            self.segments[index].stage = Stage::Ready;
            self.rails[rail.index()].queue.push(&mut self.segments, index);
            self.ready += 1;
        }
    }

    /// A completion with an error.
    #[cold]
    fn failed(&mut self, rail: RailId, failure: Failure) {
        let Some(token) = failure.token else {
            let rail_name = self.port.rail_name(rail).to_owned();
            return self.fail_lane(EngineError::Rail { rail, rail_name, error: failure.error });
        };
        match self.segments.in_flight(token) {
            Some(segment) if segment.kind == Kind::Transfer => {
                let state = &mut self.rails[segment.rail.index()];
                state.in_flight -= 1;
                state.counters.completed += 1;
            }
            Some(_) => {}
            None => return unknown_token(token),
        }
        self.fail_segment(token, failure.error);
    }

    /// Ends a segment that the fabric refused or failed, and its stream with it.
    #[cold]
    pub(super) fn fail_segment(&mut self, token: Token, error: PortError) {
        let segment = &self.segments[token.0];
        let stream_index = segment.stream;
        let failed = EngineError::Segment {
            what: segment.what(),
            pe: self.streams[stream_index].pe,
            len: segment.transfer.len,
            rail: segment.rail,
            rail_name: self.port.rail_name(segment.rail).to_owned(),
            error,
        };
        self.retire(token);
        self.fail_stream(stream_index, failed);
    }

    /// Marks a stream failed and drops what it holds back.
    #[cold]
    pub(super) fn fail_stream(&mut self, stream_index: u32, failed: EngineError) {
        let stream = &mut self.streams[stream_index];
        if stream.error.is_none() {
            stream.error = Some(Box::new(failed.clone()));
        }
        while let Some(index) = self.streams[stream_index].held.pop(&self.segments) {
            self.retire(Token(index));
        }
        self.fail_lane(failed);
    }

    #[cold]
    pub(super) fn fail_lane(&mut self, failed: EngineError) {
        error!(target: "TRANSPORT", "{failed}");
        if self.failure.is_none() {
            self.failure = Some(Box::new(failed));
        }
    }

    /// Looks for streams whose oldest segment does not move.
    #[cold]
    fn inspect(&mut self) {
        let now = self.port.now();
        if !self.watchdog.starts(now) {
            return;
        }
        let Self { streams, segments, watchdog, port, rails, .. } = self;
        let mut stuck = Vec::new();
        for index in 0..streams.len() as u32 {
            let stream = &mut streams[index];
            if stream.error.is_some() {
                continue;
            }
            if let Some(failed) = watchdog.look(stream, segments, port, rails) {
                stuck.push((index, failed));
            }
        }
        for (index, failed) in stuck {
            self.fail_stream(index, failed);
        }
    }

    #[cold]
    fn check_pe(&self, pe: Pe) -> Result<(), EngineError> {
        let n_pes = self.streams.n_pes();
        if pe.0 < n_pes { Ok(()) } else { Err(EngineError::NoSuchPe { pe, n_pes }) }
    }
}

/// Counts turns that found nothing; whether there have been enough to give up the core.
#[inline]
pub fn is_idle(idle: &mut u32, busy: bool) -> bool {
    *idle = if busy { 0 } else { idle.saturating_add(1) };
    *idle >= SPINS
}

/// What became of an attempt to post a segment.
pub(super) enum Left {
    /// The fabric has it.
    Taken,
    /// The fabric has no room.
    NoRoom,
    /// The peer's window is full.
    NoWindow,
    /// Its stream has failed.
    Dropped,
    /// The fabric refused it for good.
    Failed(PortError),
}

/// The words for a direction in messages.
pub(super) fn what(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "put",
        Direction::Read => "get",
    }
}

fn local_desc(
    regions: &mut RegionCache,
    request: &Request<'_>,
    addr: usize,
    handle: Option<&HandleBytes>,
    rail: RailId,
) -> Result<Desc, EngineError> {
    handle
        .ok_or(HandleError::Unregistered)
        .and_then(|handle| regions.descs(handle, addr, request.len))
        .map(|descs| desc_of(descs, rail))
        .map_err(|fault| refused(request, "local", fault))
}

#[cold]
fn refused(request: &Request<'_>, side: &'static str, fault: HandleError) -> EngineError {
    let addr = match (side, request.local) {
        ("local", LocalSide::Memory { addr, .. }) => addr as u64,
        _ => request.remote_addr,
    };
    EngineError::Refused {
        what: what(request.direction),
        pe: request.pe,
        side,
        addr,
        len: request.len,
        fault,
    }
}

#[cold]
fn unknown_token(token: Token) {
    // A provider that completes an operation twice, or one that was never posted. Acting on it
    // would corrupt another operation's state; ignoring it is safe.
    error!(target: "TRANSPORT", "libfabric completed an operation that is not in flight ({token:?})");
}
