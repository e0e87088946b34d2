//! The core of a lane: posts segments, sends messages, and counts what has ended.
//!
//! # Why it cannot deadlock
//! Posting neither blocks nor recurses. Handling a completion or an acknowledgement only changes
//! counts and puts peers into lists; it posts nothing. One loop does everything in turn: poll
//! completions and messages, settle peers whose groups have finished, serve peers that waited for
//! capacity, send what is due. Posted work waits for the fabric alone. Queued work waits for work
//! of the same peer that has left or stands before it, or for capacity, which completions and
//! acknowledgements free. So the oldest work of each peer can always advance, whatever the bounds
//! are, and only a submitter is ever delayed, in a call that keeps running the loop.

pub(crate) mod complete;
pub(crate) mod config;
pub(crate) mod fail;
pub(crate) mod post;
pub(crate) mod send;
mod signals;

use std::collections::VecDeque;

use crate::atomic::Atomic;
use crate::channel::Channel;
use crate::channel::slots::{MessageSlots, SLOTS};
use crate::core::config::LaneConfig;
use crate::core::fail::{ActiveCopy, Failures};
use crate::core::signals::Signals;
use crate::error::EngineError;
use crate::group::{CompletionGroups, CompletionId, OrderGroup};
use crate::ids::{LaneKind, Pe, RailId};
use crate::lane::host::handover::ActiveHandover;
use crate::op::WordOp;
use crate::peers::{Peer, Peers};
use crate::port::{Local, Port, RailLimits};
use crate::rails::paths::PathTable;
use crate::rails::{Rails, Spread};
use crate::regions::{LaneRegions, Location};
use crate::request::{LocalSide, Request};
use crate::segments::Segments;
use crate::watchdog::Watchdog;
use crate::wire::handle::{HandleError, HandleView};
use crate::wire::immediate::ImmediateCodec;
use crate::wire::message::{RegionAddr, Seq};
use crate::wire::seal::Seal;

/// Action that follows when a completion group becomes empty.
#[derive(Debug)]
pub(crate) enum Continuation {
    Signal { pe: Pe, word: WordOp, group: OrderGroup, completion: CompletionId },
    Handover(ActiveHandover),
}

#[derive(Clone, Debug)]
pub(crate) enum StagingEvent {
    /// A segment of a transfer has completed, or failed after its peer.
    Segment { token: u32 },
    /// The message of a transfer was executed, or its peer has failed.
    Message { token: u32, ok: bool },
    /// Earlier messages of a peer were executed, so receives may advance.
    Advanced { pe: Pe },
    /// A failed peer has executed, or drops, all its messages before a number.
    Acknowledged { pe: Pe, before: Seq },
    /// A message of a peer was refused: no later one is executed.
    Refused { pe: Pe },
    /// A peer has failed.
    Failed { pe: Pe },
}

#[derive(Debug)]
pub(crate) struct Core<P: Port> {
    pub(crate) port: P,
    pub(crate) me: Pe,
    pub(crate) rails: Rails<P::Fast>,
    paths: PathTable,
    pub(crate) peers: Peers,
    pub(crate) segments: Segments,
    pub(crate) messages: MessageSlots,
    pub(crate) groups: CompletionGroups<Continuation>,
    pub(crate) regions: LaneRegions,
    pub(crate) seal: Seal,
    pub(crate) immediate: ImmediateCodec,
    pub(crate) signals: Signals,
    pub(crate) spread: Spread,
    pub(crate) failures: Failures,
    pub(crate) watchdog: Watchdog,
    /// Whether local memory needs a descriptor, so that it has to be registered.
    pub(crate) needs_desc: bool,
    /// Completion group of new operations.
    pub(crate) current: CompletionId,
    /// Number of entries in all queues.
    pub(crate) queued: usize,
    /// Peers that wait for a shared resource, in turn.
    pub(crate) ring: VecDeque<Pe>,
    /// Peers whose queue or waiting signals waited for work of their own that has ended.
    pub(crate) ready: Vec<Pe>,
    /// Peers with groups whose cursors may move.
    settling: Vec<Pe>,
    /// Empty groups with a continuation to run.
    emptied: Vec<CompletionId>,
    /// Peers to which a control message is due.
    control: VecDeque<Pe>,
    /// Whether they go first in the next iteration.
    control_first: bool,
    /// Peers with messages whose acknowledgement was not requested.
    unrequested: Vec<Pe>,
    /// Peers with received messages that may be executed now.
    pub(crate) executable: Vec<Pe>,
    pub(crate) staging_events: VecDeque<StagingEvent>,
    pub(crate) copies: Vec<ActiveCopy>,
}

/// Returns the most segments in flight over rails with these limits: a bound of work-request ids.
pub fn segments_for(limits: &[RailLimits]) -> u32 {
    limits.iter().map(|rail| rail.depth.max(1)).sum()
}

impl<P: Port> Core<P> {
    pub(crate) fn new(port: P, config: LaneConfig) -> Self {
        let limits = port.limits();
        let count = segments_for(limits);
        let is_proxy = config.kind == LaneKind::Proxy;
        let mut spread = if is_proxy { config.spread } else { Spread::ROUND_ROBIN };
        if let [RailLimits { bulk: 0, .. }] = limits {
            // One rail without workers: neither a choice nor a bound on bytes ahead is needed.
            spread.balanced_from = usize::MAX;
        }
        let rails = Rails::new(&port, &spread);
        let unregistered = port.takes_unregistered();
        // An operation may take any of the rails, so the strictest one decides.
        let needs_desc = !unregistered && limits.iter().any(|rail| rail.needs_desc);
        let signals = Signals::new(&config, limits);
        let n_pes = config.paths.n_pes();
        Self {
            me: config.me,
            rails,
            peers: Peers::new(n_pes),
            segments: Segments::new(count),
            // User threads send no messages: peers do not listen to host lanes.
            messages: MessageSlots::new(if is_proxy { SLOTS } else { 0 }),
            groups: CompletionGroups::new(),
            regions: LaneRegions::new(config.regions, config.kind, config.devices),
            seal: Seal::new(config.cookie, config.me),
            immediate: ImmediateCodec::new(config.cookie, config.me, n_pes, config.immediate_bytes),
            paths: config.paths,
            signals,
            spread,
            failures: Failures::new(),
            watchdog: config.watchdog,
            needs_desc,
            current: CompletionId::NONE,
            queued: 0,
            ring: VecDeque::new(),
            ready: Vec::new(),
            settling: Vec::new(),
            emptied: Vec::new(),
            control: VecDeque::new(),
            control_first: false,
            unrequested: Vec::new(),
            executable: Vec::new(),
            staging_events: VecDeque::new(),
            copies: Vec::new(),
            port,
        }
    }

    /// Opens the peer of a PE if need be.
    pub(crate) fn open(&mut self, pe: Pe) -> Result<(), EngineError> {
        if self.peers.of(pe).is_some() {
            return Ok(());
        }
        let n_pes = self.peers.n_pes();
        if pe.0 >= n_pes {
            return Err(EngineError::NoSuchPe { pe, n_pes });
        }
        self.peers.open(pe, self.paths.peer_paths(self.me, pe));
        if self.regions.kind == LaneKind::Proxy {
            // Only proxy lanes choose rails by load, and count bytes ahead.
            self.peers.get_mut(pe).bytes_ahead = vec![0; self.rails.len()].into();
        }
        Ok(())
    }

    /// Opens the peer of a PE if need be, and checks that it has not failed.
    pub(crate) fn reach_peer(&mut self, pe: Pe) -> Result<(), EngineError> {
        self.open(pe)?;
        self.peers.get(pe).check()
    }

    pub(crate) fn channel(&mut self, pe: Pe) -> &mut Channel {
        let Peer { channel, .. } = self.peers.get_mut(pe);
        let tags = self.signals.tags;
        // A channel takes more than 1 KB, and most peers of a large job exchange no messages.
        channel.get_or_insert_with(|| Channel::new(&self.seal, pe, tags))
    }

    pub(crate) fn make_ready(&mut self, pe: Pe) {
        if !self.ready.contains(&pe) {
            self.ready.push(pe);
        }
    }

    pub(crate) fn enter_ring(&mut self, pe: Pe) {
        let peer = self.peers.get_mut(pe);
        if !std::mem::replace(&mut peer.in_ring, true) {
            self.ring.push_back(pe);
        }
    }

    /// Returns the local side of a segment: `len` bytes after the first `sent` of an operation.
    ///
    /// # Errors
    /// Memory that is not registered, where the fabric needs a descriptor.
    pub(crate) fn local(
        &mut self,
        request: &Request<'_>,
        sent: usize,
        len: usize,
        rail: RailId,
    ) -> Result<Local, EngineError> {
        let addr = match request.local {
            // Segments may be shorter than 8 bytes: little endian, the next one starts at a higher
            // byte.
            LocalSide::Value(value) => return Ok(Local::Value(value >> (8 * sent.min(7)))),
            LocalSide::Memory(addr) => addr,
        };
        let start = addr + sent;
        if self.regions.recent_desc(start, len, rail).is_none() {
            // The whole operation, so that its next segments find the region as well.
            self.regions.find(addr, request.len, self.needs_desc);
        }
        match self.regions.recent_desc(start, len, rail) {
            Some(desc) => Ok(Local::Memory { addr: start, desc }),
            None if self.needs_desc => {
                // A region that ends too early is a likelier mistake than an unregistered buffer.
                let fault = match self.regions.lookup(addr, request.len).cut {
                    Some(region) => region.outside(addr as u64, request.len),
                    None => HandleError::Unregistered,
                };
                Err(request.refuse("local", fault))
            }
            None => Ok(Local::Memory { addr: start, desc: Default::default() }),
        }
    }

    /// Returns the local word that a peer's message names, checked for bounds and alignment.
    pub(crate) fn locate_word(
        &mut self,
        named: RegionAddr,
        atomic: &Atomic,
    ) -> Result<Location, String> {
        let width = atomic.width.bytes();
        let location = self.regions.locate(named, width).map_err(|fault| fault.to_string())?;
        if location.addr % width != 0 {
            return Err(format!("a word of {width} bytes at {:#x} is not aligned", location.addr));
        }
        Ok(location)
    }

    /// Caches the first bytes of a peer's handles for the fast path.
    pub(crate) fn cache_prefix(&mut self, pe: Pe, remote: &HandleView<'_>) {
        // The fast path reads a key without looking at the number of rails again.
        let peer = self.peers.get_mut(pe);
        if peer.paths.iter().all(|path| path.remote.rail().0 < remote.rails()) {
            peer.set_prefix(remote.prefix());
        }
    }
}
