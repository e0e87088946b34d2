//! A lane: one thread's access to the fabric over one or more rails.

pub mod batches;
pub mod host;
pub mod idle;
pub(crate) mod incoming;
pub(crate) mod progress;
mod pulse;
mod queues;
pub(crate) mod submit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::core::Core;
use crate::error::EngineError;
use crate::ids::{LaneKind, Pe};
use crate::lane::host::handover::Inbox;
use crate::op::QueueEntry;
use crate::peers::Peer;
use crate::port::Port;
use crate::port::copies::DeferredOrder;
use crate::port::packet::LongPacket;
use crate::rails::Rail;
use crate::rails::counters::{PeerCounters, RailCounters, StagedCounters};
use crate::staging::Staging;

pub use crate::core::config::{LaneConfig, SignalChoice};
pub use crate::core::segments_for;
pub use crate::lane::idle::is_idle;
pub use crate::lane::pulse::Pulse;

/// One lane. One thread at a time uses it: the proxy lane belongs to the proxy thread; the host
/// lane is behind the mutex of [`HostLane`](crate::lane::host::HostLane).
#[derive(Debug)]
pub struct Lane<P: Port> {
    pub(crate) core: Core<P>,
    pub(crate) staging: Staging,
    /// Operations handed over by user threads; only on a proxy lane.
    inbox: Option<Box<Inbox>>,
    /// Buffer of the message being handled, taken out meanwhile. None on a host lane.
    packet: Option<Box<LongPacket>>,
    /// Buffer for completions that do more than uncount their segment.
    others: Vec<u32>,
    /// Set by another thread: submitters no longer wait for capacity.
    abandoned: Option<Arc<AtomicBool>>,
    /// Order of the next own word: after those before it if there was a fence since.
    own_order: DeferredOrder,
    pulse: Arc<Pulse>,
    /// Whether staged transfers go before queued work in the next iteration.
    staged_first: bool,
    pub(crate) allows_peer_exit: bool,
    has_sent_last_messages: bool,
}

impl<P: Port> Lane<P> {
    pub fn new(port: P, config: LaneConfig) -> Self {
        let is_proxy = config.kind == LaneKind::Proxy;
        let longest = port.limits().iter().map(|rail| rail.longest_message).min();
        let longest = longest.map_or(0, |rails| rails.min(config.longest_message));
        Self {
            core: Core::new(port, config),
            staging: Staging::new(longest),
            inbox: None,
            // A host lane only initiates: no peer sends to it.
            packet: is_proxy.then(|| Box::new(LongPacket::EMPTY)),
            others: Vec::new(),
            own_order: DeferredOrder::Any,
            abandoned: None,
            pulse: Arc::default(),
            staged_first: false,
            allows_peer_exit: false,
            has_sent_last_messages: false,
        }
    }

    /// Orders signals from now on: each follows all puts and signals that the lane has started
    /// before to the same PE, whether it belongs to a put or stands alone
    /// ([`AtomicOp::is_signal`](crate::atomic::AtomicOp::is_signal)).
    pub fn order_signals(&mut self) {
        self.core.signals.strong = true;
    }

    /// Makes this the proxy lane that executes operations handed over by user threads.
    #[must_use]
    pub fn with_inbox(mut self, inbox: Inbox) -> Self {
        self.inbox = Some(Box::new(inbox));
        self
    }

    /// Allows the processes of peers with nothing in flight to exit. Otherwise the lane fails when
    /// a peer's process has been gone for the deadline of waits.
    pub fn allow_peer_exit(&mut self) {
        self.allows_peer_exit = true;
    }

    /// Returns the count of the lane's iterations, those of calls that wait included.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Makes submitters that wait for capacity give up once another thread sets the flag.
    pub fn set_abandon(&mut self, flag: Arc<AtomicBool>) {
        self.abandoned = Some(flag);
    }

    /// Orders writes: those to the PE from here on become visible after those before. Gets are not
    /// ordered. Never blocks, and affects no other PE.
    #[inline]
    pub fn fence(&mut self, pe: Pe) -> Result<(), EngineError> {
        self.own_order = DeferredOrder::After;
        if self.core.peers.of(pe).is_none() {
            return self.check_pe(pe);
        }
        self.fence_peer(pe);
        Ok(())
    }

    /// Fences every PE that the lane has used, see [`Lane::fence`].
    pub fn fence_all(&mut self) {
        self.own_order = DeferredOrder::After;
        let all: Vec<Pe> = self.core.peers.iter().map(|peer| peer.pe).collect();
        all.into_iter().for_each(|pe| self.fence_peer(pe));
    }

    fn fence_peer(&mut self, pe: Pe) {
        let peer = self.core.peers.get_mut(pe);
        // After nothing a fence would only use up a group.
        if peer.is_quiet() || peer.error.is_some() {
            return;
        }
        peer.fences = peer.fences.wrapping_add(1);
        // A fence follows what is queued, so it has to be queued after it.
        let closed = if peer.queue.is_empty() { peer.close() } else { None };
        match closed {
            Some(fence) => peer.fence = fence,
            // Two fences in a row are one; own words are stored before what is queued after them.
            None if matches!(peer.queue.back(), Some(QueueEntry::Fence | QueueEntry::OwnWords)) => {
            }
            None => {
                peer.queue.push_back(QueueEntry::Fence);
                self.core.queued += 1;
                self.core.settle_later(pe);
            }
        }
        let peer = self.core.peers.get_mut(pe);
        // Earlier groups may have finished, which opens the fence at once.
        peer.order.settle();
        peer.update_fast_path();
    }

    /// Blocks until all issued to the PE is visible there and all read from it has landed.
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

    /// Returns true if nothing to or from the PE is unfinished; else requests all acknowledgements.
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

    /// Returns true if anything is in flight or queued, so that the lane needs iterations.
    #[inline]
    pub fn has_work(&self) -> bool {
        let Core { rails, messages, queued, ring, ready, .. } = &self.core;
        rails.iter().any(Rail::is_busy)
            || !messages.is_empty()
            || *queued > 0
            // A signal whose data is delivered is in no queue while the fabric refuses it.
            || !ring.is_empty()
            || !ready.is_empty()
            || self.staging.has_work()
    }

    /// Returns the counters of each rail, in rail order.
    pub fn counters(&self) -> impl Iterator<Item = RailCounters> + '_ {
        self.core.rails.iter().map(Rail::counters)
    }

    pub fn staged_counters(&self) -> StagedCounters {
        self.staging.counters()
    }

    /// Returns the counters of each peer that this lane has used, in no order.
    pub fn peers(&self) -> impl Iterator<Item = PeerCounters> + '_ {
        self.core.peers.iter().map(Peer::counters)
    }

    pub fn me(&self) -> Pe {
        self.core.me
    }

    pub fn port(&self) -> &P {
        &self.core.port
    }

    #[inline]
    pub fn has_pe(&self, pe: Pe) -> bool {
        pe.0 < self.core.peers.n_pes()
    }

    fn check_pe(&self, pe: Pe) -> Result<(), EngineError> {
        let n_pes = self.core.peers.n_pes();
        if self.has_pe(pe) { Ok(()) } else { Err(EngineError::NoSuchPe { pe, n_pes }) }
    }

    /// Requests acknowledgements from all PEs with messages for which none was requested.
    #[cold]
    pub fn request_acks(&mut self) {
        self.core.request_acks();
    }

    /// Returns the first failure of the lane. Data has been lost then.
    #[inline]
    pub fn failure(&self) -> Option<&EngineError> {
        self.core.failures.first()
    }

    /// Returns the number of operations and fences queued for a PE.
    pub fn pending(&self, pe: Pe) -> usize {
        self.core.peers.of(pe).map_or(0, |peer| peer.queue.len())
    }

    /// Returns true if an operation for this PE should stay with its caller: queues are full.
    #[inline]
    pub fn is_saturated(&self, pe: Pe) -> bool {
        let queued = self.pending(pe);
        // With nothing queued for it, an operation may start at once.
        queued > 0 && self.core.queued + queued >= submit::MAX_QUEUED - submit::SPARE
    }

    /// Returns true if [`Lane::is_saturated`] may be true for some PE.
    #[inline]
    pub fn has_saturated_peer(&self) -> bool {
        // The queue of one peer has at most all entries.
        2 * self.core.queued >= submit::MAX_QUEUED - submit::SPARE
    }

    /// Returns true if an operation can probably be submitted without being queued.
    #[inline]
    pub fn has_room(&self) -> bool {
        let Core { messages, rails, .. } = &self.core;
        // A host lane has no table of messages.
        (messages.free() > 0 || self.packet.is_none()) && rails.iter().any(|rail| rail.quota > 0)
    }

    /// Returns an error if a submitter without capacity may never get any.
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
