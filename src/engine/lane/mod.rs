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

pub(in crate::engine) mod completions;
pub(in crate::engine) mod doorbell;
pub mod fast_path;
pub(in crate::engine) mod handed_over;
pub mod handoff;
pub mod host_lane;
pub mod loopback;
pub(in crate::engine) mod shutdown;
pub(in crate::engine) mod submit;
pub(in crate::engine) mod watchdog;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::atomics::fabric::Natives;
use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::lane::completions::{Drain, Rare};
use crate::engine::lane::doorbell::Doorbell;
use crate::engine::lane::handoff::Inbox;
use crate::engine::lane::watchdog::Watchdog;
use crate::engine::messages::notes::Note;
use crate::engine::port::{Direction, Polled, Port, PortError, Posted, RailLimits};
use crate::engine::recovery::failures::unknown_token;
use crate::engine::recovery::health::Health;
use crate::engine::staging::state::{FOR_PEERS, Staging};
use crate::engine::state::counters::{PeerCounters, RailCounters};
use crate::engine::state::link::MessageTable;
use crate::engine::state::operation::{OpId, OpTable};
use crate::engine::state::paths::PathTable;
use crate::engine::state::rail::Rail;
use crate::engine::state::regions::{LaneKind, RegionCache, RegionIndex};
use crate::engine::state::segment::{Finished, Kind, NIL, Segment, SegmentTable, Stage};
use crate::engine::state::stream::{Stream, Streams};
use crate::engine::striping::balance::{Balance, Spread};
use crate::engine::striping::pool::{self, Bulks};
use crate::engine::wire::message::Packet;

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

/// Most segments that a lane of this kind, over rails of these limits, has under way. All tokens
/// that the lane gives to its port are below it, but for the one of control messages.
pub fn segments_for(kind: LaneKind, limits: &[RailLimits]) -> u32 {
    let for_peers = if kind == LaneKind::Proxy { FOR_PEERS } else { 0 };
    let bulk = if kind == LaneKind::Proxy { pool::segments_for(limits) } else { 0 };
    transfers_for(limits) + messages_for(kind) + for_peers + bulk
}

/// Most transfers under way.
pub(in crate::engine) fn transfers_for(limits: &[RailLimits]) -> u32 {
    limits.iter().map(|rail| rail.depth.max(1) * (1 + WAITING_PER_DEPTH)).sum()
}

/// Most messages under way. User threads send none: peers do not listen to host lanes.
fn messages_for(kind: LaneKind) -> u32 {
    match kind {
        LaneKind::Host => 0,
        LaneKind::Proxy => MESSAGES,
    }
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
    /// Most counted puts to one peer that are under way at a time; beyond
    /// [`TAGS`](crate::engine::signal::counted::TAGS) makes no difference. 0 where some rail of some PE of the job
    /// does not carry remote data.
    pub counted: u16,
    /// How operations are spread over rails.
    pub spread: Spread,
    /// Whether local memory may be such that the fabric does not reach it, so that each operation has
    /// to look. Memory that is staged is registered by processes with this set only.
    pub devices: bool,
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
    /// Data and signal go out at once on all rails, and the peer applies the signal when it has
    /// counted the data's segments; chained where rails carry no remote data.
    Counted,
}

/// One lane.
///
/// # Threads
/// One at a time. The proxy lane belongs to the proxy thread alone; the host lane is behind a
/// mutex (see [`crate::engine::lane::host_lane::HostLane`]).
#[derive(Debug)]
pub struct Lane<P: Port> {
    pub(in crate::engine) port: P,
    pub(in crate::engine) me: Pe,
    pub(in crate::engine) segments: SegmentTable,
    pub(in crate::engine) streams: Streams,
    pub(in crate::engine) rails: Box<[Rail<P::Short>]>,
    pub(in crate::engine) paths: PathTable,
    pub(in crate::engine) regions: RegionCache,
    pub(in crate::engine) needs_desc: bool,
    /// Whether the port has a short way on every rail, and messages change words.
    pub(in crate::engine) has_short: bool,
    pub(in crate::engine) ops: OpTable,
    pub(in crate::engine) messages: MessageTable,
    /// Atomics that the fabric carries out. Without, the peers do, asked by messages.
    pub(in crate::engine) natives: Option<Box<Natives>>,
    /// Which paths are in service, where the lane looks after that.
    pub(in crate::engine) health: Option<Box<Health>>,
    /// What stages, once this process has memory that needs it.
    pub(in crate::engine) staging: Option<Box<Staging>>,
    /// How busy and how fast the rails are.
    pub(in crate::engine) balance: Box<Balance>,
    /// Operations that wait for rails.
    pub(in crate::engine) bulks: Box<Bulks>,
    /// What user threads have handed over.
    pub(in crate::engine) inbox: Option<Box<Inbox>>,
    /// Local memory may be staged.
    pub(in crate::engine) devices: bool,
    /// Most transfers under way.
    transfer_room: u32,
    /// Whether peers send messages to this lane: only to proxy lanes.
    pub(in crate::engine) receives: bool,
    /// Peers to whom control messages are due.
    pub(in crate::engine) control: VecDeque<Pe>,
    /// Answers and news that are due.
    pub(in crate::engine) notes: VecDeque<Note>,
    /// For the message being handled; taken out meanwhile.
    pub(in crate::engine) packet: Option<Box<Packet>>,
    pub(in crate::engine) signals: SignalEngine,
    /// Most counted puts to one peer; 0 when nothing is counted.
    pub(in crate::engine) counted: u16,
    /// Signals of all peers that have arrived and wait for their data.
    pub(in crate::engine) unapplied: u32,
    /// Segments in the rails' queues, and operations that wait for rails.
    pub(in crate::engine) ready: u32,
    /// The fabric gains from bursts.
    pub(in crate::engine) batches: bool,
    /// Puts of a burst are being submitted: they go into the queues.
    pub(in crate::engine) withholds: bool,
    /// Puts of a burst that may be in the queues only because others follow.
    pub(in crate::engine) withheld: u32,
    /// Completions that are being applied.
    rare: Rare,
    pub(in crate::engine) watchdog: Watchdog,
    /// The first failure of the lane.
    pub(in crate::engine) failure: Option<Box<EngineError>>,
    /// Set by another thread: submitters do not wait for room any longer.
    abandoned: Option<Arc<AtomicBool>>,
}

impl<P: Port> Lane<P> {
    /// A lane over an open port.
    pub fn new(port: P, config: LaneConfig) -> Self {
        let limits = port.limits();
        let rail = |(at, limits)| Rail::new(limits, port.short(RailId(at as u8)));
        let rails: Box<[Rail<P::Short>]> = limits.iter().enumerate().map(rail).collect();
        let n_rails = rails.len() as u8;
        let least = rails.iter().map(|rail| rail.max_segment).min().unwrap_or(0);
        let has_short = port.has_short();
        let first = config.me.index();
        // The rails of user threads are not cut over: they have no room for it.
        let spread =
            if config.kind == LaneKind::Proxy { config.spread } else { Spread::ROUND_ROBIN };
        let balance = Balance::new(spread, rails.len(), least, first);
        let short_limit = if has_short && !config.devices { least } else { 0 };
        let short_limit = short_limit.min(balance.weighed_from - 1);
        Self {
            me: config.me,
            segments: SegmentTable::new(segments_for(config.kind, limits), |token| {
                port.context(token)
            }),
            messages: MessageTable::new(messages_for(config.kind)),
            natives: None,
            health: None,
            staging: None,
            bulks: Box::new(Bulks::new(limits)),
            balance: Box::new(balance),
            inbox: None,
            devices: config.devices,
            transfer_room: transfers_for(limits),
            receives: config.kind == LaneKind::Proxy,
            control: VecDeque::with_capacity(64),
            notes: VecDeque::with_capacity(64),
            packet: Some(Box::new(Packet::EMPTY)),
            signals: config.signals,
            counted: if limits.iter().all(|rail| rail.remote_data) { config.counted } else { 0 },
            unapplied: 0,
            streams: Streams::new(config.me, config.paths.n_pes(), n_rails, short_limit),
            has_short,
            needs_desc: limits.iter().any(|rail| rail.needs_desc),
            rails,
            paths: config.paths,
            regions: RegionCache::new(config.regions, config.kind),
            ops: OpTable::with_capacity(64),
            ready: 0,
            batches: port.batches(),
            withholds: false,
            withheld: 0,
            rare: Rare::EMPTY,
            watchdog: config.watchdog,
            failure: None,
            abandoned: None,
            port,
        }
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
        self.end_burst();
        if let Some(stream) = self.streams.find_mut(pe) {
            stream.fence();
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
            self.want_ack(pe);
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
        if self.failure.is_some() && !self.notes.is_empty() {
            self.last_words();
        }
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
        let rate = |at| self.balance.shown(RailId(at as u8));
        let rails = self.rails.iter().enumerate();
        rails.map(move |(at, rail)| RailCounters { rate: rate(at), ..rail.counters() })
    }

    /// Counters per peer that this lane has had to do with, in the order of PEs.
    pub fn peers(&self) -> impl Iterator<Item = PeerCounters> + '_ {
        self.streams.iter().map(Stream::counters)
    }

    /// This PE.
    pub fn me(&self) -> Pe {
        self.me
    }

    /// The port.
    pub fn port(&self) -> &P {
        &self.port
    }

    /// One turn of the loop, whatever has failed before.
    #[inline]
    pub(in crate::engine) fn turn(&mut self) -> bool {
        let mut busy = false;
        for rail in 0..self.rails.len() {
            let rail = RailId(rail as u8);
            if self.port.has_completions(rail) {
                busy |= self.drain(rail);
            }
            if self.receives && self.port.has_message(rail) {
                busy |= self.receive(rail);
            }
        }
        if self.ready != 0 {
            busy |= self.post_ready();
        }
        if self.inbox.as_deref().is_some_and(Inbox::has_work) {
            busy |= self.serve_users();
        }
        if self.staging.as_deref().is_some_and(Staging::has_work) {
            busy |= self.pump();
        }
        if !self.notes.is_empty() || !self.control.is_empty() {
            busy |= self.send_control();
        }
        if self.watchdog.is_due() {
            self.inspect();
        }
        busy
    }

    /// Takes a rail's completions and applies them.
    #[inline(always)]
    pub(in crate::engine) fn drain(&mut self, rail: RailId) -> bool {
        let Self { port, segments, streams, rare, .. } = self;
        let mut drain = Drain::new(segments, streams, rare);
        let polled = port.drain(rail, |index| drain.take(index));
        let mut known = drain.finish();
        while let Some(token) = self.rare.pop() {
            known += u32::from(self.completed(token));
        }
        if known != 0 {
            let state = &mut self.rails[rail.index()];
            state.completed(known);
            state.moved = self.watchdog.stamp();
        }
        match polled {
            Polled::Empty => false,
            Polled::Completed(_) => true,
            Polled::Failed(failure) => {
                self.failed(rail, failure);
                true
            }
        }
    }

    #[inline]
    pub(in crate::engine) fn wait_turn(&mut self, idle: &mut u32) {
        let busy = self.turn();
        if is_idle(idle, busy) {
            self.port.relax();
        }
    }

    /// Whether another transfer may be submitted. Messages have slots of their own, so that a lane
    /// full of transfers can still send them, and the other way round.
    pub(in crate::engine) fn has_transfer_room(&self) -> bool {
        let natives = self.natives.as_deref().map_or(0, Natives::used);
        let for_peers = self.staging.as_deref().map_or(0, |staging| staging.for_peers);
        let others = self.messages.used() + natives + for_peers + self.bulks.used();
        self.segments.used().saturating_sub(others) < self.transfer_room
    }

    /// Whether another message, or another native atomic, may be submitted.
    pub(in crate::engine) fn has_message_room(&self) -> bool {
        self.natives.as_deref().map_or_else(|| self.messages.has_room(), Natives::has_room)
    }

    /// From now on a submitter that waits for room gives up once another thread sets the flag.
    pub fn set_abandon(&mut self, flag: Arc<AtomicBool>) {
        self.abandoned = Some(flag);
    }

    /// While there is no room: an error once a failure means that there may never be any.
    pub(in crate::engine) fn room_or_failure(&self) -> Result<(), EngineError> {
        if self.abandoned.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(EngineError::Abandoned);
        }
        match &self.failure {
            Some(failed)
                if !self.has_transfer_room()
                    || !self.has_message_room()
                    || !self.bulks.has_room() =>
            {
                Err((**failed).clone())
            }
            _ => Ok(()),
        }
    }

    /// Posts a new segment, or puts it into a queue.
    #[inline]
    pub(in crate::engine) fn dispatch(&mut self, token: Token, rail: RailId) {
        // Behind others in the rail's queue it may not go, whatever it is.
        let left = if self.rails[rail.index()].front().is_some() || self.withholds {
            Left::NoRoom
        } else {
            self.launch(token, rail, Doorbell::Ring)
        };
        match left {
            Left::Taken => {}
            Left::NoRoom => self.queue(token, rail),
            Left::NoWindow => self.wait_for_window(token),
            Left::Failed(error) => self.fail_segment(token, error),
        }
    }

    /// Hands a segment to the fabric.
    fn launch(&mut self, token: Token, rail: RailId, doorbell: Doorbell) -> Left {
        let segment = &mut self.segments[token.0];
        match segment.kind {
            Kind::Transfer | Kind::Counted | Kind::Weighed | Kind::Ordered | Kind::Reissued => {}
            // It waits in the pool, and is never launched itself.
            Kind::Bulk => return Left::NoRoom,
            // A piece has a message until its peer was asked, and is bytes to move then.
            Kind::Staged | Kind::ForPeer if segment.message == NIL => {}
            Kind::Message
            | Kind::CountedSignal
            | Kind::OrderedSignal
            | Kind::Fetch
            | Kind::Staged
            | Kind::ForPeer => {
                return self.send_message(token, rail);
            }
            Kind::Native => return self.launch_native(token, rail),
        }
        let state = &mut self.rails[rail.index()];
        if state.is_full() {
            return Left::NoRoom;
        }
        let (to, transfer) = (self.paths.get(segment.pe, rail).to, &segment.transfer);
        let posted = match (segment.kind, doorbell) {
            (Kind::Counted, _) => self.port.post_with_data(rail, to, token, transfer, segment.data),
            (_, Doorbell::Ring) => self.port.post(rail, to, token, transfer),
            (_, Doorbell::Owe) => self.port.post_more(rail, to, token, transfer),
        };
        self.launched(token, rail, Stage::Posted, posted)
    }

    /// Takes note of what the fabric has said to a segment; if it has taken it, that is the stage it is
    /// in.
    #[inline]
    pub(in crate::engine) fn launched(
        &mut self,
        token: Token,
        rail: RailId,
        stage: Stage,
        posted: Result<Posted, PortError>,
    ) -> Left {
        let (segment, state) = (&mut self.segments[token.0], &mut self.rails[rail.index()]);
        match posted {
            Ok(Posted::Yes) => {
                segment.stage = stage;
                segment.born = self.watchdog.stamp();
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

    /// A segment that has all it needs sets out, or waits behind its stream's fence.
    pub(in crate::engine) fn set_out(&mut self, token: Token) {
        let segment = &mut self.segments[token.0];
        let (pe, rail, direction, kind) =
            (segment.pe, segment.rail, segment.direction, segment.kind);
        let Some(stream) = self.streams.find_mut(pe) else { return };
        if stream.is_closed() && direction == Direction::Write {
            segment.epoch = stream.epoch();
            segment.stage = Stage::Held;
            stream.held.push(&mut self.segments, token.0);
            // What it waits for may be messages, whose delivery only the peer can tell.
            return self.want_ack(pe);
        }
        stream.begin(direction);
        if self.goes_its_own_way(token, kind) {
            return;
        }
        self.segments[token.0].stage = Stage::Ready;
        self.dispatch(token, rail);
    }

    /// Begins what has more ahead of it than a rail's queue: pieces of staged memory, and what is cut.
    /// Whether the segment is such.
    fn goes_its_own_way(&mut self, token: Token, kind: Kind) -> bool {
        match kind {
            Kind::Staged => self.begin_piece(token),
            Kind::Bulk => self.begin_bulk(token),
            _ => return false,
        }
        true
    }

    /// Puts a segment that is under way at the end of its rail's queue.
    pub(in crate::engine) fn queue(&mut self, token: Token, rail: RailId) {
        self.segments[token.0].stage = Stage::Ready;
        let state = &mut self.rails[rail.index()];
        state.counters.queued += 1;
        state.push(&mut self.segments, token.0);
        self.ready += 1;
    }

    /// Posts from the rails' queues what they take.
    #[cold]
    pub(in crate::engine) fn post_ready(&mut self) -> bool {
        let mut moved = false;
        self.withheld = 0;
        for rail in (0..self.rails.len()).map(|rail| RailId(rail as u8)) {
            let mut burst = 0;
            while let Some(index) = self.rails[rail.index()].front() {
                let token = Token(index);
                let doorbell = self.doorbell(rail, index, burst);
                // Nothing is sent to a peer after a failure: what follows might be a flag for data
                // that never left.
                let failed = self.check_stream(self.segments[index].pe).is_err();
                let left = if failed { None } else { Some(self.launch(token, rail, doorbell)) };
                if matches!(left, Some(Left::NoRoom)) {
                    break;
                }
                if matches!(left, Some(Left::Taken)) {
                    burst = self.rang(rail, index, doorbell);
                }
                self.rails[rail.index()].pop(&self.segments);
                self.ready -= 1;
                moved = true;
                match left {
                    None => self.drop_segment(token),
                    Some(Left::Failed(error)) => self.fail_segment(token, error),
                    Some(Left::NoWindow) => self.wait_for_window(token),
                    Some(Left::Taken | Left::NoRoom) => {}
                }
            }
        }
        moved | self.hand_out()
    }

    /// Applies one completion, except for the rail's own count. Says whether it was of a segment in
    /// flight.
    #[cold]
    pub(in crate::engine) fn completed(&mut self, token: Token) -> bool {
        let segment = self.segments.away(token);
        let is_limbo = segment.is_some_and(|segment| segment.stage == Stage::Limbo);
        let reissued = segment.is_some_and(Segment::is_reissued_write);
        if is_limbo && !self.came_back(token) {
            unknown_token(token);
            return false;
        }
        self.unweigh_completed(token);
        let Some(finished) = self.segments.finish(token) else {
            return self.completed_otherwise(token);
        };
        if reissued {
            self.reissued_ended(finished.pe);
        }
        self.ended(finished);
        true
    }

    /// A completion that is no transfer's: of a native atomic, or of nothing in flight.
    #[cold]
    fn completed_otherwise(&mut self, token: Token) -> bool {
        let known = self.completed_native(token) || self.completed_staged(token);
        if !known {
            unknown_token(token);
        }
        known
    }

    /// Tells the operation and the stream of a segment that was under way that it has ended.
    ///
    /// In this order: a signal chained to the operation is under way before its data is not, so the
    /// stream is never quiet in between.
    #[inline(always)]
    pub(in crate::engine) fn ended(&mut self, Finished { pe, op, direction }: Finished) {
        if op != OpId::NONE.0 {
            self.op_done(op);
        }
        let Some(stream) = self.streams.find_mut(pe) else { return };
        if stream.end(direction) {
            self.open_stream(pe);
        }
    }

    pub(in crate::engine) fn op_done(&mut self, op: u32) {
        if let Some(then) = self.ops.done(op) {
            self.unchain(Token(then));
        }
    }

    /// A signal's data is delivered: the signal may leave, or is dropped with the rest of a stream
    /// that has failed. Not before fences that came later, which is why it does not look at them.
    pub(in crate::engine) fn unchain(&mut self, token: Token) {
        let Segment { pe, rail, .. } = self.segments[token.0];
        match self.streams.find_mut(pe) {
            Some(stream) if stream.error.is_none() => {
                stream.begin(Direction::Write);
                self.queue(token, rail);
            }
            _ => self.drop_segment(token),
        }
    }

    /// Ends a segment that is not posted and will not be.
    #[cold]
    pub(in crate::engine) fn drop_segment(&mut self, token: Token) {
        self.unweigh(token, false);
        let segment = self.segments[token.0];
        let Segment { pe, stage, kind, direction, .. } = segment;
        let op = segment.op();
        if kind == Kind::ForPeer {
            return self.leave_for_peer(token);
        }
        if kind == Kind::Bulk {
            self.leave_bulk(token);
        } else if kind.is_noted() {
            self.leave_message(token);
        }
        if segment.is_reissued_write() {
            self.reissued_ended(pe);
        }
        self.segments.give(token);
        if matches!(stage, Stage::Held | Stage::Chained) {
            if op != OpId::NONE.0 {
                self.op_done(op);
            }
        } else {
            self.ended(Finished { pe, op, direction });
        }
    }

    /// Moves to the rails' queues the held writes whose fence has been passed.
    #[cold]
    pub(in crate::engine) fn open_stream(&mut self, pe: Pe) {
        let Some(stream) = self.streams.find_mut(pe) else { return };
        let Some(epoch) = stream.passed(&self.segments) else { return };
        while let Some(stream) = self.streams.find_mut(pe) {
            let Some(index) = stream.held.front() else { return };
            let segment = &mut self.segments[index];
            if segment.epoch != epoch {
                break;
            }
            segment.stage = Stage::Ready;
            segment.born = self.watchdog.stamp();
            let (rail, kind) = (segment.rail, segment.kind);
            stream.begin(Direction::Write);
            stream.held.pop(&self.segments);
            if self.goes_its_own_way(Token(index), kind) {
                continue;
            }
            if self.health.as_deref().is_some_and(|health| health.is_out(pe, rail)) {
                self.send_elsewhere(Token(index));
                continue;
            }
            self.rails[rail.index()].push(&mut self.segments, index);
            self.ready += 1;
        }
    }

    /// A segment that was held sets out, and its path has failed in the meantime.
    #[cold]
    fn send_elsewhere(&mut self, token: Token) {
        let Segment { pe, kind, rail, .. } = self.segments[token.0];
        if kind == Kind::Native {
            self.queue(token, rail);
        } else if kind.is_noted() {
            let rail = self.streams.find(pe).map_or(rail, |stream| stream.next.rail);
            self.segments[token.0].rail = rail;
            self.queue(token, rail);
        } else {
            self.lose(token, false);
        }
    }

    /// The failure of the stream to a peer, if there was one.
    #[inline]
    pub(in crate::engine) fn check_stream(&self, pe: Pe) -> Result<(), EngineError> {
        self.streams.find(pe).map_or(Ok(()), Stream::check)
    }

    #[cold]
    pub(in crate::engine) fn check_pe(&self, pe: Pe) -> Result<(), EngineError> {
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

/// What became of an attempt to hand a segment to the fabric.
pub(in crate::engine) enum Left {
    /// The fabric has it.
    Taken,
    /// The fabric has no room.
    NoRoom,
    /// The peer's window is full.
    NoWindow,
    /// The fabric refused it for good.
    Failed(PortError),
}
