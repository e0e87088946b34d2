//! A lane: one thread's way into the fabric, over one or more rails. It holds the mechanisms, and
//! its iteration drives them.
//!
//! Why it cannot deadlock is said in [`crate::posting`], and of each mechanism where that is.

#[cfg(any(test, feature = "audit"))]
pub(crate) mod audit;
pub(crate) mod batches;
pub mod fast_path;
pub mod idle;
pub(crate) mod incoming;
pub mod loopback;
pub(crate) mod pending_queue;
pub(crate) mod progress;
pub(crate) mod shutdown;
pub(crate) mod signals;
pub(crate) mod submit;
pub mod user_threads;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::EngineError;
use crate::ids::{LaneKind, Pe};
use crate::lane::pending_queue::PendingQueue;
use crate::lane::user_threads::handoff::Inbox;
use crate::port::packet::LongPacket;
use crate::port::{PeerAddr, Port, RailLimits};
use crate::posting::Core;
use crate::posting::failures::watchdog::Watchdog;
use crate::posting::peers::answers::ANSWERS;
use crate::posting::transmit::Sizes;
use crate::rails::balance::Spread;
use crate::rails::counters::{PeerCounters, RailCounters, StagedCounters};
use crate::rails::paths::{AddressTable, PathTable};
use crate::recovery::Recovery;
use crate::recovery::fallback_routes::FallbackRoutes;
use crate::recovery::health::RailHealth;
pub use crate::signal::SignalEngine;
use crate::signal::Signals;
use crate::staging::Staging;
use crate::staging::state::PEER_SEGMENTS;
use crate::state::connection::Connection;
use crate::state::messages::table::MOST_MESSAGES;
use crate::state::regions::{RegionCache, RegionIndex};
use crate::striping::pool::{self, Pool};
use crate::wire::cookie::Cookie;

pub use crate::lane::idle::is_idle;

const MESSAGES: u32 = 2048;

const _: () = assert!(MESSAGES + ANSWERS <= MOST_MESSAGES);

const WAITING_PER_DEPTH: u32 = 1;

/// Most segments that a lane of this kind, over rails of these limits, has under way. All
/// work-request ids that the lane gives to its port are below it, but for the one of control
/// messages.
pub fn segments_for(kind: LaneKind, limits: &[RailLimits]) -> u32 {
    let peer_segments = if kind == LaneKind::Proxy { PEER_SEGMENTS } else { 0 };
    let pooled = if kind == LaneKind::Proxy { pool::segments_for(limits) } else { 0 };
    // The fast path looks at the rails' depths alone: so many may be under way beside those that
    // wait.
    let depths: u32 = limits.iter().map(|rail| rail.depth.max(1)).sum();
    let fast = if kind == LaneKind::Proxy { depths } else { 0 };
    transfers_for(limits) + fast + messages_for(kind) + peer_segments + pooled
}

fn transfers_for(limits: &[RailLimits]) -> u32 {
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
    /// What messages of the job have in common.
    pub cookie: Cookie,
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
    /// [`TAGS`](crate::signal::counted::TAGS) makes no difference. 0 where some rail of some PE of
    /// the job does not carry immediate data.
    pub counted: u16,
    /// Bytes of immediate data that every rail of every PE of the job carries, if they carry any:
    /// four or eight.
    pub mark_bytes: u8,
    /// Bytes of the longest message that every PE of the job takes on every rail: see
    /// [`RailLimits::longest_message`].
    pub longest_message: usize,
    /// How operations are spread over rails.
    pub spread: Spread,
    /// Whether local memory may be such that the fabric does not reach it, so that each operation
    /// has to look. Memory that is staged is registered by processes with this set only.
    pub devices: bool,
}

/// One lane.
///
/// # Threads
/// One at a time. The proxy lane belongs to the proxy thread alone; the host lane is behind a
/// mutex (see [`crate::lane::user_threads::host_lane::HostLane`]).
#[derive(Debug)]
pub struct Lane<P: Port> {
    core: Core<P>,
    signals: Signals,
    /// Operations that wait for rails.
    pool: Box<Pool>,
    staging: Staging,
    recovery: Option<Box<Recovery>>,
    /// Operations that wait for their peers.
    pending_queue: PendingQueue,
    /// What user threads have handed over.
    inbox: Option<Box<Inbox>>,
    /// Whether peers send messages to this lane: only to proxy lanes.
    receives: bool,
    /// For the message being handled; taken out meanwhile.
    packet: Option<Box<LongPacket>>,
    /// The lane has failed, and has tried to tell peers so.
    has_waited: bool,
    /// Set by another thread: submitters do not wait for room any longer.
    abandoned: Option<Arc<AtomicBool>>,
    /// There was a fence since this PE's last operation on its own memory.
    fenced_own: bool,
    /// Peers may end while this PE goes on.
    lets_peers_end: bool,
}

impl<P: Port> Lane<P> {
    /// A lane over an open port.
    pub fn new(port: P, config: LaneConfig) -> Self {
        let limits = port.limits();
        let receives = config.kind == LaneKind::Proxy;
        let sizes = Sizes {
            segments: segments_for(config.kind, limits),
            transfers: transfers_for(limits),
            messages: messages_for(config.kind),
            stripes: pool::stripes_for(limits),
        };
        // The rails of user threads are not cut over: they have no room for it.
        let spread = if receives { config.spread } else { Spread::ROUND_ROBIN };
        let longest = limits.iter().map(|rail| rail.longest_message).min();
        let longest = longest.map_or(0, |longest| longest.min(config.longest_message));
        let counts = limits.iter().all(|rail| rail.immediate_data);
        let pool = Box::new(Pool::new(limits));
        let regions = RegionCache::new(config.regions, config.kind);
        let LaneConfig { me, cookie, mark_bytes, paths, watchdog, devices, .. } = config;
        let identity = (me, cookie, mark_bytes);
        Self {
            core: Core::new(port, identity, paths, regions, watchdog, spread, sizes, devices),
            signals: Signals::new(config.signals, if counts { config.counted } else { 0 }, longest),
            pool,
            staging: Staging::new(sizes.segments, longest),
            recovery: None,
            pending_queue: PendingQueue::default(),
            inbox: None,
            receives,
            packet: Some(Box::new(LongPacket::EMPTY)),
            has_waited: false,
            abandoned: None,
            fenced_own: false,
            lets_peers_end: false,
        }
    }

    /// The lane looking after its rails: one that fails is done without while there is another.
    /// `control` has, for each PE in turn, the address of the control endpoint at the end of each
    /// local rail's path. All lanes of the job do so, or none. Nothing is counted then: what tells
    /// a peer of segments that have landed can be lost with its rail.
    #[must_use]
    pub fn with_rail_health(mut self, config: &RailHealth, control: Vec<PeerAddr>) -> Self {
        let control = AddressTable::new(&control, self.core.transmit.rails().len());
        let reach = self.core.transmit.reach().clone();
        let rails = self.core.transmit.rails().len();
        self.recovery = Some(Box::new(Recovery::new(config, control, reach, rails)));
        self.core.monitor_rails(MESSAGES, ANSWERS);
        self.signals.most_counted = 0;
        self
    }

    /// The lane, if it monitors its rails, having user threads' operations for a PE handed over
    /// to it as soon as a path to that PE has failed, or one of the PE's rails.
    #[must_use]
    pub fn with_fallback_routes(mut self, fallback_routes: Arc<FallbackRoutes>) -> Self {
        if let Some(recovery) = self.recovery.as_deref_mut() {
            // Its own rails it knows.
            fallback_routes.settle(self.core.peers.me());
            recovery.fallback_routes = Some(fallback_routes);
        }
        self
    }

    /// From now on signals come behind all puts and signals that the lane has started before to the
    /// same PE: those of puts, and those by themselves
    /// ([`AtomicOp::is_signal`](crate::atomic::AtomicOp::is_signal)). Puts are not started with
    /// [`Lane::start_fast`] then, but with [`Lane::start_in_order_fast`].
    pub fn order_signals(&mut self) {
        self.core.peers.order_signals();
        self.signals.order();
    }

    /// The lane, executing what user threads hand over as well. A proxy lane.
    #[must_use]
    pub fn with_inbox(mut self, inbox: Inbox) -> Self {
        self.inbox = Some(Box::new(inbox));
        self
    }

    /// From now on a peer that nothing is under way with may end. Otherwise the lane fails when a
    /// peer's process has been gone for as long as waits last.
    pub fn let_peers_end(&mut self) {
        self.lets_peers_end = true;
    }

    /// From now on a submitter that waits for room gives up once another thread sets the flag.
    pub fn set_abandon(&mut self, flag: Arc<AtomicBool>) {
        self.abandoned = Some(flag);
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
        self.fenced_own = true;
        if pe == self.core.peers.me() {
            self.settle_own();
        }
        if let Some(connection) = self.core.peers.find_mut(pe) {
            if connection.has_pending() {
                self.pending_queue.fence(pe);
            } else {
                connection.fence();
            }
            return Ok(());
        }
        self.core.peers.check_pe(pe)
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
            self.wait_iteration(&mut idle);
        }
        Ok(())
    }

    /// Whether nothing sent to the peer or read from it is outstanding. Constant time. If something
    /// is, all peers are asked to acknowledge what they have, unless they were before.
    ///
    /// # Errors
    /// As [`Lane::quiet`].
    #[inline]
    pub fn is_quiet(&mut self, pe: Pe) -> Result<bool, EngineError> {
        if pe == self.core.peers.me() {
            self.settle_own();
        }
        let Some(connection) = self.core.peers.find(pe) else {
            return self.core.peers.check_pe(pe).map(|()| true);
        };
        connection.check()?;
        let quiet = connection.is_quiet();
        if !quiet {
            // Who waits for this peer waits for others next.
            self.core.peers.want_acks();
        }
        Ok(quiet)
    }

    /// Whether any segment is under way, so that the lane needs iterations to move it.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.core.transmit.has_segments()
            || self.core.peers.has_without_segment()
            || !self.pending_queue.is_empty()
    }

    /// Counters per rail, in rail order.
    pub fn counters(&self) -> impl Iterator<Item = RailCounters> + '_ {
        self.core.transmit.counters()
    }

    /// How bytes of staged operations have got from one process to the other.
    pub fn staged_counters(&self) -> StagedCounters {
        self.staging.counters()
    }

    /// Counters per peer that this lane has had to do with, in no order.
    pub fn peers(&self) -> impl Iterator<Item = PeerCounters> + '_ {
        self.core.peers.iter().map(Connection::counters)
    }

    /// This PE.
    pub fn me(&self) -> Pe {
        self.core.peers.me()
    }

    /// The port.
    pub fn port(&self) -> &P {
        self.core.transmit.port()
    }

    /// Somebody waits for what was sent to a peer: it is asked to acknowledge, unless it was
    /// before.
    pub fn want_ack(&mut self, pe: Pe) {
        self.core.peers.want_ack(pe);
    }

    /// Somebody waits for what only acknowledgements of any peer may bring: room, or the end of a
    /// batch.
    #[cold]
    pub fn want_acks(&mut self) {
        self.core.peers.want_acks();
    }

    /// While there is no room: an error once a failure means that there may never be any.
    pub(crate) fn room_or_failure(&self) -> Result<(), EngineError> {
        if self.abandoned.as_ref().is_some_and(|flag| flag.load(Ordering::Relaxed)) {
            return Err(EngineError::Abandoned);
        }
        match self.core.failures.first() {
            Some(failed) if !self.has_room() => Err(failed.clone()),
            _ => Ok(()),
        }
    }
}

/// What tests of other rooms look at.
#[cfg(test)]
impl<P: Port> Lane<P> {
    pub(crate) fn core(&self) -> &Core<P> {
        &self.core
    }

    pub(crate) fn core_mut(&mut self) -> &mut Core<P> {
        &mut self.core
    }

    pub(crate) fn signals_mut(&mut self) -> &mut Signals {
        &mut self.signals
    }

    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(crate) fn pool_and_core(&mut self) -> (&mut Pool, &mut Core<P>) {
        (&mut self.pool, &mut self.core)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posting::tests::{Bed, PLAIN, Setup, failed, limits};

    /// Transfers: twice the depth of each rail, and two at least. The rest proxy lanes alone have:
    /// as many again as the depths, for the fast path; the last part is the pool with its stripes,
    /// where there is a choice of rails.
    #[test]
    fn segments_are_set_aside_by_kind_and_by_rails() {
        let messages = MESSAGES + PEER_SEGMENTS;
        for (kind, depths, most) in [
            (LaneKind::Host, &[16][..], 32),
            (LaneKind::Host, &[16, 0], 34),
            (LaneKind::Proxy, &[16], 32 + 16 + messages),
            (LaneKind::Proxy, &[16, 1], 34 + 17 + messages + 64 + 16 + 4),
        ] {
            assert_eq!(segments_for(kind, &limits(depths)), most, "{kind:?} {depths:?}");
        }
    }

    #[test]
    fn who_waits_for_room_gives_up_when_told_and_when_there_may_never_be_any() {
        let mut bed = Bed::new(Setup { depth: 1, ..PLAIN });
        let flag = Arc::new(AtomicBool::new(false));
        bed.lane.set_abandon(Arc::clone(&flag));
        bed.lane.room_or_failure().unwrap();
        flag.store(true, Ordering::Relaxed);
        assert!(matches!(bed.lane.room_or_failure(), Err(EngineError::Abandoned)));
        flag.store(false, Ordering::Relaxed);
        bed.lane.core.fail_lane(failed(1));
        bed.lane.room_or_failure().unwrap();
        [1, 2].into_iter().for_each(|pe| bed.put(pe));
        assert!(matches!(bed.lane.room_or_failure(), Err(EngineError::BadMessage { .. })));
    }

    #[test]
    fn a_fence_for_all_is_pending_where_something_is() {
        let mut bed = Bed::new(PLAIN);
        [1, 2].into_iter().for_each(|pe| bed.put(pe));
        bed.enqueue_pending(1);
        bed.lane.fence_all();
        let fenced = [1, 2, 3].map(|pe| {
            let connection = bed.lane.core.peers.find(Pe(pe));
            (connection.is_some_and(Connection::is_closed), bed.lane.pending(Pe(pe)))
        });
        assert_eq!(fenced, [(false, 2), (true, 0), (false, 0)]);
    }
}
