//! The state of staging: fragments, chunks, and what is under way with each peer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::ids::{LaneKind, Pe, Token};
use crate::port::copies::{Bounce, CopyDirection, CopyPort, MAX_CHUNKS};
use crate::port::{Desc, POLL_BATCH};
use crate::staging::chunks::{Chunk, Chunks};
use crate::staging::exposures::Exposures;
use crate::staging::role::Role;
use crate::staging::waiting::Waiting;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::regions::{Installed, View};
use crate::state::segment::queue::Queue;
use crate::wire::message::Spot;
use crate::wire::staged::Exposure;
use crate::wire::window::Seq;

/// Most pulls and asks of one PE to another that are under way.
pub(crate) const PEER_REQUESTS: u32 = 64;

/// Segments set aside for what peers ask for: one for each chunk.
pub(crate) const PEER_SEGMENTS: u32 = 2 * MAX_CHUNKS as u32;

/// Bytes of a fragment where this process has no chunks and the peer's handle names no length.
pub(crate) const FRAGMENT: usize = 512 << 10;

/// How the peer's side of a fragment is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RemoteEnd {
    /// By the fabric: address and key for the segment's path.
    Fabric { remote: u64, key: u64 },
    /// By asking the peer, for a place of its own.
    Peer(Spot),
    /// What the peer has exposed.
    Exposed(Exposure),
}

/// How this side of a fragment is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LocalEnd {
    /// Through a chunk.
    Chunk,
    /// The fabric reaches it: with this descriptor for reads into it, exposed as this to be read.
    Fabric { desc: Desc, exposed: Exposure },
}

/// Bytes that pass through staging as one, known by their segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    pub(crate) role: Role,
    /// Bytes, and how many of them the fabric has moved.
    pub(crate) len: usize,
    pub(crate) moved: usize,
    /// Address in this process.
    pub(crate) memory: usize,
    pub(crate) local_end: LocalEnd,
    pub(crate) remote_end: RemoteEnd,
    /// The chunk that it has.
    pub(crate) chunk: Option<Chunk>,
    /// It counts among the requests to its peer.
    pub(crate) counts: bool,
    /// For a pull: it is copied behind all requests of its peer before this number.
    pub(crate) mark: Option<Seq>,
}

impl Fragment {
    pub(crate) const NONE: Fragment = Fragment {
        role: Role::Put,
        len: 0,
        moved: 0,
        memory: 0,
        local_end: LocalEnd::Chunk,
        remote_end: RemoteEnd::Peer(Spot { slot: 0, offset: 0 }),
        chunk: None,
        counts: false,
        mark: None,
    };
}

/// Copies and chunks.
#[derive(Debug)]
pub(crate) struct Bouncing {
    pub(crate) copies: Box<dyn CopyPort>,
    pub(crate) bounce: Bounce,
    /// The bounce memory's region.
    pub(crate) view: Arc<View>,
    out: Chunks,
    inward: Chunks,
}

impl Bouncing {
    fn new(installed: Installed) -> Self {
        let Installed { copies, bounce, view } = installed;
        let (out, inward) = Chunks::of(&bounce);
        Self { copies, bounce, view, out, inward }
    }

    /// So many chunks are held, out and in.
    #[cfg(any(test, feature = "audit"))]
    pub(super) fn audit(&self, held: [usize; 2]) -> Result<(), Discrepancy> {
        for (chunks, held) in [&self.out, &self.inward].into_iter().zip(held) {
            let (free, count) = chunks.free();
            same("chunks that are held", count - free, held)?;
        }
        Ok(())
    }

    /// The chunks for one direction.
    pub(crate) fn chunks(&mut self, direction: CopyDirection) -> &mut Chunks {
        match direction {
            CopyDirection::Out => &mut self.out,
            CopyDirection::In => &mut self.inward,
        }
    }

    /// The address of a fragment's chunk.
    pub(crate) fn addr(&self, role: Role, chunk: Chunk) -> usize {
        let chunks = match role.direction() {
            CopyDirection::Out => &self.out,
            CopyDirection::In => &self.inward,
        };
        self.bounce.addr + chunks.offset(chunk)
    }

    /// A chunk for bytes on their way out, to be read by a peer.
    pub(crate) fn exposure(&self, chunk: Chunk) -> Exposure {
        let (slot, stamp) = (self.view.place, self.view.stamp);
        Exposure { slot, stamp, offset: self.out.offset(chunk) as u64 }
    }

    /// The descriptors of the bounce memory, by proxy rail.
    pub(crate) fn descs(&self) -> &[Desc] {
        self.view.descs(LaneKind::Proxy)
    }
}

/// What a lane stages with.
#[derive(Debug)]
pub(crate) struct State {
    /// There once this process has memory that is staged.
    pub(crate) bouncing: Option<Bouncing>,
    /// By token.
    fragments: Box<[Fragment]>,
    /// Who waits for a chunk, by direction.
    pub(super) waiting_out: Waiting,
    pub(super) waiting_in: Waiting,
    /// What is exposed to peers that have asked.
    pub(crate) lent: Vec<Token>,
    /// Fragments that are in their chunk and wait until another copy can be started.
    pub(crate) landed: VecDeque<Token>,
    /// Copies under way.
    pub(crate) copying: u32,
    /// Requests of peers that were carried out since what was stored soon has been settled. At most a poll's.
    pub(crate) unsettled: Vec<(Pe, Seq)>,
    /// Segments in use for peers.
    pub(crate) peer_segments: u32,
    /// What is under way with each peer, from the first request on.
    pub(super) peers: HashMap<Pe, Peer>,
    /// When a chunk was last given back, on the watchdog's clock.
    pub(crate) moved: u32,
}

impl State {
    /// The copies, where there are some.
    pub(crate) fn copies(&mut self) -> Option<&mut dyn CopyPort> {
        self.bouncing.as_mut().map(|bouncing| &mut *bouncing.copies as &mut dyn CopyPort)
    }

    /// For a lane with so many segments.
    pub(crate) fn new(segments: u32) -> Self {
        Self {
            bouncing: None,
            fragments: vec![Fragment::NONE; segments as usize].into(),
            waiting_out: Waiting::default(),
            waiting_in: Waiting::default(),
            lent: Vec::new(),
            landed: VecDeque::new(),
            copying: 0,
            unsettled: Vec::with_capacity(POLL_BATCH),
            peer_segments: 0,
            peers: HashMap::new(),
            moved: 0,
        }
    }

    /// From here on there are chunks and copies.
    pub(crate) fn install(&mut self, installed: Installed) {
        let mut bouncing = Bouncing::new(installed);
        for direction in [CopyDirection::Out, CopyDirection::In] {
            let (_, chunks) = bouncing.chunks(direction).free();
            self.waiting(direction).share(chunks);
        }
        self.bouncing = Some(bouncing);
    }

    pub(crate) fn fragment(&mut self, token: Token) -> &mut Fragment {
        &mut self.fragments[token.index()]
    }

    pub(crate) fn peek(&self, token: Token) -> &Fragment {
        &self.fragments[token.index()]
    }

    /// What is under way with a peer, made if need be.
    pub(crate) fn peer(&mut self, pe: Pe) -> &mut Peer {
        self.peers.entry(pe).or_insert_with(Peer::new)
    }

    /// Who waits for the chunks of one direction.
    pub(crate) fn waiting(&mut self, direction: CopyDirection) -> &mut Waiting {
        match direction {
            CopyDirection::Out => &mut self.waiting_out,
            CopyDirection::In => &mut self.waiting_in,
        }
    }

    /// Whether turns of the loop move anything here.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.copying != 0
            || !self.waiting_out.is_empty()
            || !self.waiting_in.is_empty()
            || !self.landed.is_empty()
    }
}

/// What is under way with one peer.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Fragments of this lane's that are under way to or from the peer.
    pub(crate) fragments: u32,
    /// Pulls and asks to the peer that are under way.
    pub(crate) requests: u32,
    /// Fragments that wait until there are fewer.
    pub(crate) blocked: Queue,
    pub(crate) exposures: Exposures,
    /// Fragments to be read from the peer whose keys are not here yet.
    pub(crate) keyless: VecDeque<Token>,
    /// Pulls of the peer that are in their chunks and come behind others.
    pub(crate) in_order: VecDeque<Token>,
}

impl Peer {
    pub(crate) fn new() -> Self {
        Self {
            fragments: 0,
            requests: 0,
            blocked: Queue::EMPTY,
            exposures: Exposures::default(),
            keyless: VecDeque::new(),
            in_order: VecDeque::new(),
        }
    }
}
