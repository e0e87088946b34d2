//! The core of a lane: it posts segments, sends messages, and counts their ends.
//!
//! # Why it cannot deadlock
//! Posting neither blocks nor recurses. Handling a completion or an acknowledgement only changes
//! counts and puts peers into lists; it posts nothing. One loop does everything in turn: poll
//! completions and messages, settle peers whose groups have finished, serve those that waited for
//! room, send what is due. What is posted waits for the fabric alone. What is queued waits for work
//! of the same peer that has left or stands before it, or for room, which completions and
//! acknowledgements make. So the oldest work of each peer can always move, whatever the bounds are,
//! and only a submitter is ever held back, in a call that keeps running the loop.

pub(crate) mod complete;
pub(crate) mod fail;
pub(crate) mod post;
pub(crate) mod send;

use std::collections::VecDeque;

use crate::atomic::Atomic;
use crate::channel::Channel;
use crate::channel::slots::{MessageSlots, SLOTS};
use crate::core::fail::{ActiveCopy, Failures};
use crate::error::EngineError;
use crate::group::{GroupId, GroupRef, Groups};
use crate::ids::{LaneKind, Pe, RailId};
use crate::lane::LaneConfig;
use crate::lane::host::handoff::ActiveHandover;
use crate::op::WordOp;
use crate::peers::{Peer, Peers};
use crate::port::{Local, Port, RailLimits};
use crate::rails::paths::PathTable;
use crate::rails::{Rail, Spread};
use crate::regions::{Location, Regions};
use crate::request::{LocalSide, Request};
use crate::segments::Segments;
use crate::signal::Signals;
use crate::watchdog::Watchdog;
use crate::wire::handle::{HandleError, HandleView};
use crate::wire::immediate::ImmediateCodec;
use crate::wire::message::{RegionAddr, Seq};
use crate::wire::seal::Seal;

/// What follows when a completion group becomes empty.
#[derive(Debug)]
pub(crate) enum Continuation {
    /// The signal of a put leaves.
    Signal { peer: u32, word: WordOp, held: GroupRef, completion: GroupId },
    /// A user thread's operation has ended.
    Handover(ActiveHandover),
}

/// What has ended of staging's work.
#[derive(Clone, Debug)]
pub(crate) enum StagingEvent {
    /// The segment of a transfer has completed, or failed after its peer.
    Segment { token: u32 },
    /// The message of a transfer was executed, or its peer has failed.
    Message { token: u32, ok: bool },
    /// All messages of a peer before the mark of one that staging executes may be executed.
    Advanced { peer: u32 },
    /// A peer that has failed has executed all messages before a number, or drops them.
    Acknowledged { peer: u32, before: Seq },
    /// A message of a peer was refused: nothing more of it is executed.
    Refused { peer: u32 },
    /// A peer has failed.
    Failed { peer: u32 },
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Core<P: Port> {
    pub(crate) port: P,
    pub(crate) me: Pe,
    pub(crate) rails: Box<[Rail<P::Fast>]>,
    paths: PathTable,
    pub(crate) peers: Peers,
    pub(crate) segments: Segments,
    pub(crate) messages: MessageSlots,
    pub(crate) groups: Groups<Continuation>,
    pub(crate) regions: Regions,
    pub(crate) seal: Seal,
    pub(crate) immediate: ImmediateCodec,
    pub(crate) signals: Signals,
    pub(crate) spread: Spread,
    pub(crate) failures: Failures,
    pub(crate) watchdog: Watchdog,
    /// Whether the fabric takes no local memory without descriptor.
    pub(crate) needs_desc: bool,
    /// What is submitted now counts in this group.
    pub(crate) current: GroupId,
    /// Entries in all queues.
    pub(crate) queued: usize,
    /// Peers that wait for something shared, in turn.
    pub(crate) ring: VecDeque<u32>,
    /// Peers of whose own something has ended that their queue or a held signal waited for.
    pub(crate) ready: Vec<u32>,
    /// Peers with groups whose cursors may move.
    settling: Vec<u32>,
    /// Groups that are empty and have a continuation.
    emptied: Vec<GroupId>,
    /// Peers to which something without number is due.
    control: VecDeque<u32>,
    /// Peers with messages whose acknowledgement nobody has requested.
    unrequested: Vec<u32>,
    /// Peers with messages that may be executed now.
    pub(crate) due: Vec<u32>,
    /// What has ended of staging's work.
    pub(crate) staging_events: VecDeque<StagingEvent>,
    /// Copies that staging has under way.
    pub(crate) copies: Vec<ActiveCopy>,
}

/// Most segments that a lane over rails of these limits has under way. Their work-request ids are
/// below it.
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
            // There is nothing to choose, and no worker to be kept from having too much ahead.
            spread.balanced_from = usize::MAX;
        }
        let rail = |(at, limits): (u8, &RailLimits)| {
            let fast = port.fast(RailId(at));
            Rail::new(limits, port.limits().len(), &spread, fast)
        };
        let rails = (0..).zip(limits).map(rail).collect();
        let unregistered = port.takes_unregistered();
        let needs_desc = !unregistered && limits.iter().any(|rail| rail.needs_desc);
        let signals = Signals::new(&config, limits);
        let n_pes = config.paths.n_pes();
        Self {
            me: config.me,
            rails,
            peers: Peers::new(n_pes),
            segments: Segments::new(count, |wr_id| port.context(wr_id)),
            // User threads send no messages: peers do not listen to host lanes.
            messages: MessageSlots::new(if is_proxy { SLOTS } else { 0 }),
            groups: Groups::new(),
            regions: Regions::new(config.regions, config.kind, config.devices),
            seal: Seal::new(config.cookie, config.me),
            immediate: ImmediateCodec::new(config.cookie, config.me, n_pes, config.immediate_bytes),
            paths: config.paths,
            signals,
            spread,
            failures: Failures::new(),
            watchdog: config.watchdog,
            needs_desc,
            current: GroupId::NONE,
            queued: 0,
            ring: VecDeque::new(),
            ready: Vec::new(),
            settling: Vec::new(),
            emptied: Vec::new(),
            control: VecDeque::new(),
            unrequested: Vec::new(),
            due: Vec::new(),
            staging_events: VecDeque::new(),
            copies: Vec::new(),
            port,
        }
    }

    /// Number of a PE's peer, opened if need be.
    ///
    /// # Errors
    /// A PE outside the job.
    pub(crate) fn open(&mut self, pe: Pe) -> Result<u32, EngineError> {
        if let Some(at) = self.peers.find(pe) {
            return Ok(at);
        }
        let n_pes = self.peers.n_pes();
        if pe.0 >= n_pes {
            return Err(EngineError::NoSuchPe { pe, n_pes });
        }
        let at = self.peers.open(pe, self.paths.peer_paths(self.me, pe));
        if self.regions.kind() == LaneKind::Proxy {
            // So that a stripe finds its counters.
            self.peers.get_mut(at).ahead = vec![0; self.rails.len()].into();
        }
        Ok(at)
    }

    /// Number of a PE's peer that has not failed, opened if need be.
    ///
    /// # Errors
    /// A PE outside the job, or the failure of its peer.
    pub(crate) fn reach_peer(&mut self, pe: Pe) -> Result<u32, EngineError> {
        let at = self.open(pe)?;
        self.peers.get(at).check()?;
        Ok(at)
    }

    /// The channel of a peer.
    pub(crate) fn channel(&mut self, at: u32) -> &mut Channel {
        let Peer { channel, pe, .. } = self.peers.get_mut(at);
        let tags = self.signals.tags;
        channel.get_or_insert_with(|| Channel::new(&self.seal, *pe, tags))
    }

    /// Puts a peer into the list of those to be served in this iteration.
    pub(crate) fn make_ready(&mut self, at: u32) {
        if !self.ready.contains(&at) {
            self.ready.push(at);
        }
    }

    /// Puts a peer into the ring of those that wait for something shared.
    pub(crate) fn enter_ring(&mut self, at: u32) {
        let peer = self.peers.get_mut(at);
        if !std::mem::replace(&mut peer.in_ring, true) {
            self.ring.push_back(at);
        }
    }

    /// The local side of a segment: `len` bytes behind the first `sent` of an operation.
    ///
    /// # Errors
    /// Memory that is not registered, where the fabric wants that.
    pub(crate) fn local(
        &mut self,
        request: &Request<'_>,
        sent: usize,
        len: usize,
        rail: RailId,
    ) -> Result<Local, EngineError> {
        let addr = match request.local {
            LocalSide::Value(value) => return Ok(Local::Value(value >> (8 * sent.min(7)))),
            LocalSide::Memory(addr) => addr,
        };
        let at = addr + sent;
        if self.regions.recent_desc(at, len, rail).is_none() {
            self.regions.find(addr, request.len, self.needs_desc);
        }
        match self.regions.recent_desc(at, len, rail) {
            Some(desc) => Ok(Local::Memory { addr: at, desc }),
            None if self.needs_desc => {
                let fault = match self.regions.lookup(addr, request.len).cut {
                    Some(region) => HandleError::Outside {
                        addr: addr as u64,
                        len: request.len as u64,
                        base: region.base as u64,
                        region: region.len as u64,
                    },
                    None => HandleError::Unregistered,
                };
                Err(request.refuse("local", fault))
            }
            None => Ok(Local::Memory { addr: at, desc: Default::default() }),
        }
    }

    /// The word of this process that a peer's message names.
    pub(crate) fn locate_word(
        &mut self,
        spot: RegionAddr,
        atomic: &Atomic,
    ) -> Result<Location, String> {
        let width = atomic.width.bytes();
        let place = self.regions.locate(spot, width).map_err(|fault| fault.to_string())?;
        if place.addr % width != 0 {
            return Err(format!("a word of {width} bytes at {:#x} is not aligned", place.addr));
        }
        Ok(place)
    }

    /// Remembers the first bytes of a peer's handles, for the fast path.
    pub(crate) fn note_handle(&mut self, at: u32, remote: &HandleView<'_>) {
        if remote.rails() > 0 {
            let fits =
                |peer: &Peer| peer.paths.iter().all(|path| path.remote.rail().0 < remote.rails());
            let peer = self.peers.get_mut(at);
            if fits(peer) {
                peer.note_prefix(remote.prefix());
            }
        }
    }
}
