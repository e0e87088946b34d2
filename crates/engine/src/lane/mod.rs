//! A lane: one thread's access to the fabric over one or more rails.

pub mod batches;
pub mod host;
pub mod idle;
pub(crate) mod incoming;
pub mod loopback;
pub(crate) mod progress;
pub(crate) mod submit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::core::Core;
use crate::error::EngineError;
use crate::ids::{LaneKind, Pe};
use crate::lane::host::handoff::Inbox;
use crate::op::QueueEntry;
use crate::port::Port;
use crate::port::packet::LongPacket;
use crate::rails::counters::{PeerCounters, RailCounters, StagedCounters};
use crate::rails::paths::PathTable;
use crate::rails::{Rail, Spread};
use crate::regions::RegionIndex;
use crate::staging::Staging;
use crate::watchdog::Watchdog;
use crate::wire::cookie::Cookie;

pub use crate::core::segments_for;
pub use crate::lane::idle::is_idle;
pub use crate::signal::SignalEngine;

/// Configuration of a lane.
#[derive(Debug)]
pub struct LaneConfig {
    /// This PE.
    pub me: Pe,
    /// The job's secret.
    pub cookie: Cookie,
    /// The kind of lane.
    pub kind: LaneKind,
    /// Paths to every PE of the job.
    pub paths: PathTable,
    /// The process' registered memory.
    pub regions: Arc<RegionIndex>,
    /// Deadlines of waits.
    pub watchdog: Watchdog,
    /// How signals follow their data.
    pub signals: SignalEngine,
    /// Most counted puts to one peer at a time, of at most
    /// [`TAGS`](crate::channel::counts::TAGS). 0 where some rail of some PE carries no immediate
    /// data.
    pub counted: u16,
    /// Bytes of immediate data that every rail of every PE carries: four or eight, if any.
    pub immediate_bytes: u8,
    /// Longest message in bytes that every PE accepts on every rail.
    pub longest_message: usize,
    /// How operations are spread over rails.
    pub spread: Spread,
    /// Whether local memory may be a device's before any is registered, so that each operation has
    /// to look.
    pub devices: bool,
}

/// One lane.
///
/// # Threads
/// One at a time. The proxy lane belongs to the proxy thread; the host lane is behind the mutex of
/// [`HostLane`](crate::lane::host::HostLane).
#[derive(Debug)]
pub struct Lane<P: Port> {
    pub(crate) core: Core<P>,
    pub(crate) staging: Staging,
    /// Operations of user threads, on a proxy lane.
    inbox: Option<Box<Inbox>>,
    /// The message being handled; taken out meanwhile. None on a host lane, which gets none.
    packet: Option<Box<LongPacket>>,
    /// Buffer for completions that are more than plain transfers.
    others: Vec<u32>,
    /// Set by another thread: submitters no longer wait for room.
    abandoned: Option<Arc<AtomicBool>>,
    /// Whether what is due without a number goes before what waited for room, in this iteration.
    control_first: bool,
    /// Whether peers that nothing is under way with may end.
    pub(crate) allows_peer_exit: bool,
    /// The lane has failed and tried to tell its peers.
    has_sent_last_messages: bool,
}

impl<P: Port> Lane<P> {
    /// A lane over an open port.
    pub fn new(port: P, config: LaneConfig) -> Self {
        let is_proxy = config.kind == LaneKind::Proxy;
        let longest = port.limits().iter().map(|rail| rail.longest_message).min();
        let longest = longest.map_or(0, |rails| rails.min(config.longest_message));
        Self {
            core: Core::new(port, config),
            staging: Staging::new(longest),
            inbox: None,
            packet: is_proxy.then(|| Box::new(LongPacket::EMPTY)),
            others: Vec::new(),
            abandoned: None,
            control_first: false,
            allows_peer_exit: false,
            has_sent_last_messages: false,
        }
    }

    /// From now on signals come behind all puts and signals that the lane has started before to the
    /// same PE: those of puts, and those by themselves
    /// ([`AtomicOp::is_signal`](crate::atomic::AtomicOp::is_signal)).
    pub fn order_signals(&mut self) {
        self.core.signals.strong = true;
    }

    /// The proxy lane, executing what user threads hand over as well.
    #[must_use]
    pub fn with_inbox(mut self, inbox: Inbox) -> Self {
        self.inbox = Some(Box::new(inbox));
        self
    }

    /// From now on a peer that nothing is under way with may end. Otherwise the lane fails when a
    /// peer's process has been gone for as long as waits last.
    pub fn allow_peer_exit(&mut self) {
        self.allows_peer_exit = true;
    }

    /// From now on a submitter that waits for room gives up once another thread sets the flag.
    pub fn set_abandon(&mut self, flag: Arc<AtomicBool>) {
        self.abandoned = Some(flag);
    }

    /// Orders writes: those to the PE from here on become visible after those before. Gets are not
    /// ordered. It returns at once and touches no other peer.
    ///
    /// # Errors
    /// A PE outside the job.
    #[inline]
    pub fn fence(&mut self, pe: Pe) -> Result<(), EngineError> {
        match self.core.peers.find(pe) {
            Some(at) => self.fence_peer(at),
            None => self.check_pe(pe)?,
        }
        Ok(())
    }

    /// As [`Lane::fence`], for every PE.
    pub fn fence_all(&mut self) {
        let all: Vec<u32> = self.core.peers.iter().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.fence_peer(at));
    }

    fn fence_peer(&mut self, at: u32) {
        let peer = self.core.peers.get_mut(at);
        if peer.is_quiet() || peer.error.is_some() {
            return;
        }
        peer.fences = peer.fences.wrapping_add(1);
        let closed = if peer.queue.is_empty() { peer.close() } else { None };
        match closed {
            Some(number) => peer.fence = number,
            // Behind what is queued, or until a group is free.
            None if matches!(peer.queue.back(), Some(QueueEntry::Fence)) => {}
            None => {
                peer.queue.push_back(QueueEntry::Fence);
                self.core.queued += 1;
                self.core.settle_later(at);
            }
        }
        let peer = self.core.peers.get_mut(at);
        peer.order.settle();
        peer.update_fast_path();
    }

    /// Waits until everything issued to the PE is visible there and everything read from it has
    /// landed.
    ///
    /// # Errors
    /// A failure of anything sent to the PE, now or earlier.
    #[inline]
    pub fn quiet(&mut self, pe: Pe) -> Result<(), EngineError> {
        let peer = self.core.peers.of(pe);
        if peer.is_some_and(|peer| peer.error.is_none() && peer.is_quiet()) {
            return Ok(());
        }
        self.quiet_slow(pe)
    }

    #[inline(never)]
    fn quiet_slow(&mut self, pe: Pe) -> Result<(), EngineError> {
        let mut idle = 0;
        while !self.is_quiet(pe)? {
            self.wait_iteration(&mut idle);
        }
        Ok(())
    }

    /// Whether nothing sent to the PE or read from it is unfinished. If something is, all peers
    /// with unacknowledged messages are asked to acknowledge them.
    ///
    /// # Errors
    /// As [`Lane::quiet`].
    #[inline]
    pub fn is_quiet(&mut self, pe: Pe) -> Result<bool, EngineError> {
        let Some(peer) = self.core.peers.of(pe) else { return self.check_pe(pe).map(|()| true) };
        peer.check()?;
        let quiet = peer.is_quiet();
        if !quiet {
            self.core.request_acks();
        }
        Ok(quiet)
    }

    /// Whether anything is under way or queued, so that the lane needs iterations.
    #[inline]
    pub fn has_work(&self) -> bool {
        let Core { rails, messages, queued, .. } = &self.core;
        rails.iter().any(Rail::is_busy)
            || !messages.is_empty()
            || *queued > 0
            || self.staging.has_work()
    }

    /// Counters per rail, in rail order.
    pub fn counters(&self) -> impl Iterator<Item = RailCounters> + '_ {
        self.core.rails.iter().map(Rail::counters)
    }

    /// How bytes of staged operations have got from one process to the other.
    pub fn staged_counters(&self) -> StagedCounters {
        self.staging.counters()
    }

    /// Counters per peer that this lane has had to do with, in no order.
    pub fn peers(&self) -> impl Iterator<Item = PeerCounters> + '_ {
        self.core.peers.iter().map(|(_, peer)| peer.counters())
    }

    /// This PE.
    pub fn me(&self) -> Pe {
        self.core.me
    }

    /// The port.
    pub fn port(&self) -> &P {
        &self.core.port
    }

    /// Whether a PE is one of the job.
    #[inline]
    pub fn has_pe(&self, pe: Pe) -> bool {
        pe.0 < self.core.peers.n_pes()
    }

    fn check_pe(&self, pe: Pe) -> Result<(), EngineError> {
        let n_pes = self.core.peers.n_pes();
        if pe.0 < n_pes { Ok(()) } else { Err(EngineError::NoSuchPe { pe, n_pes }) }
    }

    /// Requests an acknowledgement from a PE, unless one was requested.
    pub fn request_ack(&mut self, pe: Pe) {
        if let Some(at) = self.core.peers.find(pe) {
            self.core.request_ack(at);
        }
    }

    /// Requests acknowledgements from all PEs with messages that nobody has asked about.
    #[cold]
    pub fn request_acks(&mut self) {
        self.core.request_acks();
    }

    /// The first failure of the lane: data has been lost.
    #[inline]
    pub fn failure(&self) -> Option<&EngineError> {
        self.core.failures.first()
    }

    /// Operations for a PE that are queued, fences among them.
    pub fn pending(&self, pe: Pe) -> usize {
        self.core.peers.of(pe).map_or(0, |peer| peer.queue.len())
    }

    /// Whether so much is queued that an operation for this PE had better stay with its caller.
    #[inline]
    pub fn is_saturated(&self, pe: Pe) -> bool {
        let queued = self.pending(pe);
        queued > 0 && self.core.queued + queued >= submit::MAX_QUEUED - submit::SPARE
    }

    /// Whether [`Lane::is_saturated`] may be true for some PE.
    #[inline]
    pub fn has_saturated_peer(&self) -> bool {
        2 * self.core.queued >= submit::MAX_QUEUED - submit::SPARE
    }

    /// Whether an operation can probably be submitted without being queued.
    #[inline]
    pub fn has_room(&self) -> bool {
        let Core { messages, rails, .. } = &self.core;
        (messages.free() > 0 || self.packet.is_none()) && rails.iter().any(|rail| rail.quota > 0)
    }

    /// While there is no room: an error once there may never be any.
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
