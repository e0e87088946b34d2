//! The state of staging: fragments, bounce buffers, and what is under way with each peer.

pub(crate) mod bounce_buffers;
mod exposures;
mod fragment;
mod influx;
pub(super) mod lists;
mod ready;
pub(crate) mod role;
mod same_host;
pub(crate) mod waiting;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::ids::{LaneKind, Pe, WrId};
use crate::port::copies::{Bounce, CopyDirection, CopyPort, MAX_BOUNCE_BUFFERS};
use crate::port::{Desc, POLL_BATCH};
use crate::request::Touched;
use crate::staging::state::bounce_buffers::{BounceBuffer, BounceBuffers};
use crate::staging::state::exposures::Exposures;
pub(crate) use crate::staging::state::fragment::{
    ALL, Fragment, Listed, LocalEnd, NOWHERE, RemoteEnd,
};
use crate::staging::state::influx::Influx;
use crate::staging::state::lists::{Gathered, Open};
use crate::staging::state::ready::Ready;
use crate::staging::state::role::Role;
pub(crate) use crate::staging::state::same_host::SHARED_COPIES;
use crate::staging::state::same_host::SameHost;
use crate::staging::state::waiting::{Waiting, Wanted};
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::regions::{Installed, View};
use crate::state::segment::queue::Queue;
use crate::wire::staged::Exposure;
use crate::wire::window::Seq;

/// Most pulls and asks of one PE to another that are under way.
pub(crate) const PEER_REQUESTS: u32 = 64;

/// Segments set aside for what peers ask for: one for each bounce buffer, and for copies from
/// bounce buffers of theirs.
pub(crate) const PEER_SEGMENTS: u32 = 2 * MAX_BOUNCE_BUFFERS as u32 + SHARED_COPIES;

/// Bytes of a fragment where this process has no bounce buffers and the peer's handle names no
/// length.
pub(crate) const FRAGMENT: usize = 512 << 10;

/// Copies and bounce buffers.
#[derive(Debug)]
pub(crate) struct Bouncing {
    pub(crate) copies: Box<dyn CopyPort>,
    pub(crate) bounce: Bounce,
    pub(crate) view: Arc<View>,
    out: BounceBuffers,
    inward: BounceBuffers,
}

impl Bouncing {
    fn new(installed: Installed) -> Self {
        let Installed { copies, bounce, view, .. } = installed;
        let (out, inward) = BounceBuffers::of(&bounce);
        Self { copies, bounce, view, out, inward }
    }

    #[cfg(any(test, feature = "audit"))]
    pub(super) fn audit(&self, held: [usize; 2]) -> Result<(), Discrepancy> {
        for (bounces, held) in [&self.out, &self.inward].into_iter().zip(held) {
            let (free, count) = bounces.free();
            same("bounce buffers that are held", count - free, held)?;
        }
        Ok(())
    }

    pub(crate) fn bounces(&mut self, direction: CopyDirection) -> &mut BounceBuffers {
        match direction {
            CopyDirection::Out => &mut self.out,
            CopyDirection::In => &mut self.inward,
        }
    }

    pub(crate) fn addr(&self, role: Role, bounce: BounceBuffer) -> usize {
        let bounces = match role.direction() {
            CopyDirection::Out => &self.out,
            CopyDirection::In => &self.inward,
        };
        self.bounce.addr + bounces.offset(bounce)
    }

    /// A bounce buffer for bytes on their way out, to be read by a peer.
    pub(crate) fn exposure(&self, bounce: BounceBuffer) -> Exposure {
        let (slot, stamp) = (self.view.place, self.view.stamp);
        Exposure { slot, stamp, offset: self.out.offset(bounce) as u64 }
    }

    pub(crate) fn descs(&self) -> &[Desc] {
        self.view.descs(LaneKind::Proxy)
    }
}

/// What a lane stages with.
#[derive(Debug)]
pub(crate) struct State {
    /// There once this process has memory that is staged.
    pub(crate) bouncing: Option<Bouncing>,
    fragments: Box<[Fragment]>,
    pub(super) waiting_out: Waiting,
    pub(super) waiting_in: Waiting,
    pub(crate) lent: Vec<WrId>,
    pub(super) gathered: Gathered,
    /// Fragments that wait until copies can be started.
    pub(super) ready: Ready,
    /// Whether short operations come one behind the other.
    pub(super) influx: Influx,
    pub(crate) copying: u32,
    /// Pulls that are copied, and whose signals have to be settled before they are answered.
    pub(super) signalled: Vec<WrId>,
    /// Requests of peers that were executed since what was stored soon has been settled, at most a
    /// poll's; none in place of a number for this PE's own.
    pub(crate) unsettled: Vec<(Pe, Option<Seq>)>,
    pub(crate) peer_segments: u32,
    /// What is under way with each peer, from the first request on.
    pub(super) peers: HashMap<Pe, Peer>,
    pub(crate) same_host: SameHost,
    /// When a bounce buffer was last given back, on the watchdog's clock.
    pub(crate) moved: u32,
}

impl State {
    pub(crate) fn copies(&mut self) -> Option<&mut dyn CopyPort> {
        self.bouncing.as_mut().map(|bouncing| &mut *bouncing.copies as &mut dyn CopyPort)
    }

    pub(crate) fn new(segments: u32) -> Self {
        Self {
            bouncing: None,
            fragments: vec![Fragment::NONE; segments as usize].into(),
            waiting_out: Waiting::default(),
            waiting_in: Waiting::default(),
            lent: Vec::new(),
            gathered: Gathered::new(),
            ready: Ready::new(),
            influx: Influx::new(),
            copying: 0,
            unsettled: Vec::with_capacity(POLL_BATCH),
            signalled: Vec::with_capacity(POLL_BATCH),
            peer_segments: 0,
            peers: HashMap::new(),
            same_host: SameHost::default(),
            moved: 0,
        }
    }

    pub(crate) fn install(&mut self, installed: Installed) {
        let mut bouncing = Bouncing::new(installed);
        for direction in [CopyDirection::Out, CopyDirection::In] {
            let (_, bounces) = bouncing.bounces(direction).free();
            self.waiting(direction).share(bounces);
        }
        bouncing.copies.announce();
        self.bouncing = Some(bouncing);
    }

    pub(crate) fn fragment(&mut self, wr_id: WrId) -> &mut Fragment {
        &mut self.fragments[wr_id.index()]
    }

    pub(crate) fn peek(&self, wr_id: WrId) -> &Fragment {
        &self.fragments[wr_id.index()]
    }

    pub(crate) fn peer(&mut self, pe: Pe) -> &mut Peer {
        self.peers.entry(pe).or_insert_with(Peer::new)
    }

    pub(crate) fn waiting(&mut self, direction: CopyDirection) -> &mut Waiting {
        match direction {
            CopyDirection::Out => &mut self.waiting_out,
            CopyDirection::In => &mut self.waiting_in,
        }
    }

    pub(super) fn waiting_memory(&self) -> impl Iterator<Item = Touched> + '_ {
        let behind = self.peers.values().flat_map(|peer| &peer.behind);
        self.same_host.queue.iter().chain(behind).map(|wanted| {
            let Wanted { pe, place, len, .. } = *wanted;
            Touched { what: "put or get of the peer", pe, memory: (place.addr, len) }
        })
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.copying != 0
            || !self.waiting_out.is_empty()
            || !self.waiting_in.is_empty()
            || !self.ready.is_empty()
            || self.same_host.has_work()
            || !self.unsettled.is_empty()
    }
}

/// What is under way with one peer.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Fragments of this lane's that are under way to or from the peer.
    pub(crate) fragments: u32,
    /// Pulls and asks to the peer that are under way.
    pub(crate) requests: u32,
    /// The put that others may join.
    pub(crate) open: Option<Open>,
    /// Fragments that wait until there are fewer.
    pub(crate) blocked: Queue,
    pub(crate) exposures: Exposures,
    /// Fragments to be read from the peer whose keys are not here yet.
    pub(crate) keyless: VecDeque<WrId>,
    /// Pulls of the peer that are in their bounce buffers and come behind others.
    pub(crate) in_order: VecDeque<WrId>,
    /// Pulls from the peer's own bounce buffers that come behind others.
    pub(crate) behind: VecDeque<Wanted>,
    /// Pulls from the peer's own bounce buffers that wait, for others or for a place.
    pub(crate) shared_waiting: u32,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            fragments: 0,
            requests: 0,
            open: None,
            blocked: Queue::EMPTY,
            exposures: Exposures::default(),
            keyless: VecDeque::new(),
            in_order: VecDeque::new(),
            behind: VecDeque::new(),
            shared_waiting: 0,
        }
    }
}
