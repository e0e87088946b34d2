//! The core of a lane: its rails, the segments on them, the connections to peers, and what posts, queues, holds,
//! completes and ends segments.
//!
//! Mechanisms (signals, striping, staging, recovery) stand above it and use it. What one of them has to see
//! to is raised as an [`Event`], which the lane gives to it in the same iteration; nothing here calls up.
//!
//! # Why it cannot deadlock
//! Posting never blocks and never recurses. A segment that cannot go out at once waits in its
//! rail's queue, or for its peer where the fabric takes nothing for that one ([`blocked`]); a write behind a fence
//! waits in its connection's held queue. Handling a completion
//! only moves segments between queues, it never posts. One loop does everything, in this order:
//! poll completions, apply them, post from the rails' queues, and only then take new work. A
//! segment waits for nothing but (a) room on its rail, which completions make, and (b) if held,
//! older segments of its own connection, which already own a slot. So whatever the bounds are, the
//! oldest segment of each connection can always move, and only the submitter is ever held back, in a
//! call that keeps running the loop.

pub(crate) mod blocked;
pub(crate) mod completions;
pub(crate) mod dispatch;
pub(crate) mod doorbell;
pub(crate) mod failure;
pub(crate) mod load;
pub(crate) mod loss;
pub(crate) mod messages;
pub(crate) mod watchdog;

use std::collections::VecDeque;
use std::time::Duration;

use crate::error::EngineError;
use crate::ids::{Pe, RailId, WrId};
use crate::port::{Port, PortError, RailLimits};
use crate::posting::watchdog::Watchdog;
use crate::rails::balance::{Balance, Spread};
use crate::rails::paths::PathTable;
use crate::rate_limit::RateLimit;
use crate::state::connection::{Connection, Connections};
use crate::state::fabric_atomics::FabricAtomics;
use crate::state::messages::table::MessageTable;
use crate::state::messages::unnumbered::Unnumbered;
use crate::state::operation::OpTable;
use crate::state::rail::Rail;
use crate::state::regions::RegionCache;
use crate::state::segment::table::SegmentTable;
use crate::wire::cookie::Cookie;
use crate::wire::marks::Marks;
use crate::wire::seal::Seal;

/// What a lane does with segments, whatever they are for.
#[derive(Debug)]
pub(crate) struct Core<P: Port> {
    pub(crate) port: P,
    pub(crate) me: Pe,
    /// What messages leave under.
    pub(crate) seal: Box<Seal>,
    /// What segments of counted puts are known by.
    pub(crate) marks: Box<Marks>,
    pub(crate) segments: SegmentTable,
    pub(crate) connections: Connections,
    pub(crate) rails: Box<[Rail<P::Fast>]>,
    pub(crate) paths: PathTable,
    pub(crate) regions: RegionCache,
    pub(crate) needs_desc: bool,
    /// Local memory may be staged.
    pub(crate) devices: bool,
    /// Whether the port has a fast path on every rail, and messages change words.
    pub(crate) has_fast_path: bool,
    pub(crate) ops: OpTable,
    pub(crate) messages: MessageTable,
    /// Atomics that the fabric executes. Without, the peers do, asked by messages.
    pub(crate) atomics: Option<Box<FabricAtomics>>,
    /// How busy and how fast the rails are.
    pub(crate) balance: Box<Balance>,
    /// Segments whose rail was chosen by load, of those that may be under way at a time.
    pub(crate) stripes: Room,
    /// Something has ended since the pool of operations that wait for rails was last gone through.
    pub(crate) load_changed: bool,
    /// Segments in use that mechanisms have set aside for themselves.
    pub(crate) reserved: u32,
    /// Most transfers under way.
    transfer_room: u32,
    /// Most transfers that the fabric has.
    in_flight_room: u32,
    /// Peers to whom control messages are due.
    pub(crate) control: VecDeque<Pe>,
    /// Peers that answers were sent to since recovery looked last, each once.
    pub(crate) answered: Vec<Pe>,
    /// Messages without numbers that are due.
    pub(crate) unnumbered: VecDeque<Unnumbered>,
    /// Segments in the rails' queues, and operations that wait for rails.
    pub(crate) ready: u32,
    /// Who comes first.
    pub(crate) phase: Phase,
    /// The fabric gains from bursts.
    pub(crate) batches: bool,
    /// Puts of a burst are being submitted: they go into the queues.
    pub(crate) withholds: bool,
    /// Puts of a burst that may be in the queues only because others follow.
    pub(crate) withheld: u32,
    pub(crate) watchdog: Watchdog,
    /// The first failure of the lane.
    pub(crate) failure: Option<Box<EngineError>>,
    /// Rails are monitored: what fails on one may go over another.
    pub(crate) recovers: bool,
    /// What mechanisms have to see to, oldest first.
    pub(crate) events: VecDeque<Event>,
    /// Peers that were declared failed, and for whose answers something may still wait.
    pub(crate) given_up: Vec<Pe>,
    /// Of lines in the log that peers can bring about.
    pub(crate) lines: RateLimit,
    /// Segments that were in doubt and that recovery does not know of yet.
    pub(crate) lost: Vec<WrId>,
    /// Peers some of whose requests may wait no longer for others of theirs.
    pub(crate) due: Vec<Pe>,
    /// Segments in [`Orphans`](crate::state::orphans::Orphans).
    pub(crate) orphans: u32,
}

/// What a mechanism has to see to.
#[derive(Debug)]
pub(crate) enum Event {
    /// A segment that its mechanism moves has passed its fence.
    Begins(WrId),
    /// A segment that its mechanism moves is not posted and will not be: it ends with
    /// [`Core::end_dropped`], after what it has was given back.
    Dropped(WrId),
    /// The fabric has refused or failed a segment, and recovery may send it another way. A message is in no
    /// queue; bytes are among [`Core::lost`].
    Refused(WrId, PortError),
    /// The fabric has refused a message that belongs to no segment.
    PathFailed { pe: Pe, rail: RailId, error: PortError },
}

impl Event {
    /// The segment that it is about, which is in no queue.
    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn wr_id(&self) -> Option<WrId> {
        match self {
            Self::Begins(wr_id) | Self::Dropped(wr_id) | Self::Refused(wr_id, _) => Some(*wr_id),
            Self::PathFailed { .. } => None,
        }
    }
}

/// What became of an attempt to submit an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tried {
    /// All of it is submitted.
    Submitted,
    /// There is no room at present, or its peer has no place for another of its kind.
    NoRoom,
}

/// Who comes first where several want the place that becomes free in a queue of the fabric. Each does in half of the
/// iterations, whoever else does in these, so that nobody gets every place. It is as if drawn: with iterations that alternate, a caller
/// whose own steps come at the same pace had each place that became free.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase(u32);

impl Phase {
    /// Another iteration.
    pub(crate) fn advance(&mut self) {
        // A linear congruential generator of full period (Numerical Recipes, 3rd edition, section 7.1); its upper bits are
        // the random ones.
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }

    /// What is due without a number comes before segments.
    pub(crate) fn control_first(self) -> bool {
        self.0 >> 31 != 0
    }

    /// What waits for its peer comes before the rails' queues.
    pub(crate) fn blocked_first(self) -> bool {
        self.0 >> 30 & 1 != 0
    }
}

/// How many of something are under way, and how many may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) used: u32,
    pub(crate) most: u32,
}

impl Room {
    /// For at most so many.
    pub(crate) fn of(most: u32) -> Self {
        Self { used: 0, most }
    }

    /// Whether there may be another.
    pub(crate) fn is_left(self) -> bool {
        self.used < self.most
    }
}

/// Most peers of a rail that are tried in vain in one iteration.
pub(crate) const REFUSALS: usize = 8;

/// How much more a peer may have under way than is left.
const SHARE: u32 = 8;

/// Whether a peer with so many of what is in use has less than its share of the room.
fn fits_quota(mine: u32, used: u32, room: u32) -> bool {
    mine <= 1 || mine < SHARE * room.saturating_sub(used)
}

/// Most lines of a lane in the log, in ten seconds, of what peers can bring about.
const LINES: u64 = 64;

/// Room of a lane's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Segments of every kind.
    pub(crate) segments: u32,
    /// Transfers.
    pub(crate) transfers: u32,
    /// Messages.
    pub(crate) messages: u32,
    /// Segments whose rail was chosen by load.
    pub(crate) stripes: u32,
}

impl<P: Port> Core<P> {
    /// Over an open port. Bytes for rails are spread as `spread` says.
    #[expect(clippy::too_many_arguments, reason = "what a lane is opened with")]
    pub(crate) fn new(
        port: P,
        (me, cookie, mark_bytes): (Pe, Cookie, u8),
        paths: PathTable,
        regions: RegionCache,
        watchdog: Watchdog,
        spread: Spread,
        sizes: Sizes,
        devices: bool,
    ) -> Self {
        let limits = port.limits();
        let rail =
            |(at, limits): (usize, &RailLimits)| Rail::new(limits, port.fast(RailId(at as u8)));
        let rails: Box<[Rail<P::Fast>]> = limits.iter().enumerate().map(rail).collect();
        let n_rails = rails.len() as u8;
        let least = rails.iter().map(|rail| rail.max_segment).min().unwrap_or(0);
        let has_fast_path = port.has_fast_path();
        let balance = Balance::new(spread, rails.len(), least, me.index());
        let fast_limit = if has_fast_path { least } else { 0 };
        let fast_limit = fast_limit.min(balance.balanced_from - 1);
        Self {
            me,
            seal: Box::new(Seal::new(cookie, me)),
            marks: Box::new(Marks::new(cookie, me, paths.n_pes(), mark_bytes)),
            segments: SegmentTable::new(sizes.segments, |wr_id| port.context(wr_id)),
            messages: MessageTable::new(sizes.messages),
            atomics: None,
            balance: Box::new(balance),
            stripes: Room::of(sizes.stripes),
            load_changed: false,
            reserved: 0,
            transfer_room: sizes.transfers,
            in_flight_room: rails.iter().map(|rail| rail.depth).sum(),
            control: VecDeque::with_capacity(64),
            answered: Vec::new(),
            unnumbered: VecDeque::with_capacity(64),
            connections: Connections::new(me, paths.n_pes(), n_rails, fast_limit),
            has_fast_path,
            devices,
            needs_desc: limits.iter().any(|rail| rail.needs_desc),
            rails,
            paths,
            regions,
            ops: OpTable::with_capacity(64),
            ready: 0,
            phase: Phase(0),
            batches: port.batches(),
            withholds: false,
            withheld: 0,
            watchdog,
            failure: None,
            recovers: false,
            events: VecDeque::new(),
            given_up: Vec::new(),
            lines: RateLimit::most(LINES, Duration::from_secs(10)),
            lost: Vec::new(),
            due: Vec::new(),
            orphans: 0,
            port,
        }
    }

    /// Something for a mechanism to see to, in this iteration.
    #[cold]
    pub(crate) fn raise(&mut self, event: Event) {
        self.events.push_back(event);
        self.watchdog.hurry();
    }

    /// Whether another transfer may be submitted. Messages have slots of their own, so that a lane
    /// full of transfers can still send them, and the other way round.
    pub(crate) fn has_transfer_room(&self) -> bool {
        self.transfers() < self.transfer_room
    }

    /// Transfers submitted that have not ended.
    fn transfers(&self) -> u32 {
        let atomics = self.atomics.as_deref().map_or(0, FabricAtomics::used);
        let others = self.messages.segments() + atomics + self.stripes.used + self.reserved;
        self.segments.used().saturating_sub(others)
    }

    /// Whether another transfer to a peer may be submitted. A peer has a share of the room: two, or several times as
    /// many under way as the rails have room for besides. So one that takes nothing does not fill the rails, and
    /// leaves some of their room to the next such peer as well.
    pub(crate) fn is_within_quota(&self, pe: Pe) -> bool {
        let mine = |connection: &Connection| {
            let channel = connection.channel.as_deref();
            let messages = channel.map_or(0, |channel| channel.unacknowledged() + channel.unsent);
            connection
                .all_under_way()
                .saturating_sub(messages + u32::from(connection.has_pending()))
        };
        self.fits_quota(self.connections.find(pe).map_or(0, mine))
    }

    /// Whether a peer with so many transfers under way has less than its share.
    pub(crate) fn fits_quota(&self, mine: u32) -> bool {
        let used = self.transfers();
        used < self.transfer_room && fits_quota(mine, used, self.in_flight_room)
    }

    /// Whether another atomic of the fabric to a peer may be submitted, by this rail. A share of the rail's room, as
    /// for transfers.
    pub(crate) fn is_within_atomic_quota(&self, pe: Pe, rail: RailId) -> bool {
        let used = self.atomics.as_deref().map_or(0, FabricAtomics::used);
        let under_way = |connection: &Connection| {
            connection.all_under_way() - u32::from(connection.has_pending())
        };
        let mine = self.connections.find(pe).map_or(0, under_way);
        fits_quota(mine, used, self.rails[rail.index()].depth)
    }

    /// Whether another message, or another atomic of the fabric, may be submitted.
    pub(crate) fn has_message_room(&self) -> bool {
        self.atomics.as_deref().map_or_else(|| self.messages.has_room(), FabricAtomics::has_room)
    }

    /// The failure of the connection to a peer, if there was one.
    #[inline]
    pub(crate) fn check_connection(&self, pe: Pe) -> Result<(), EngineError> {
        self.connections.find(pe).map_or(Ok(()), Connection::check)
    }

    #[cold]
    pub(crate) fn check_pe(&self, pe: Pe) -> Result<(), EngineError> {
        let n_pes = self.connections.n_pes();
        if pe.0 < n_pes { Ok(()) } else { Err(EngineError::NoSuchPe { pe, n_pes }) }
    }

    /// The connection to a peer of the job, opened if need be, that has not failed.
    pub(crate) fn connection_to(&mut self, pe: Pe) -> Result<&mut Connection, EngineError> {
        self.check_pe(pe)?;
        let n_pes = self.connections.n_pes();
        let connection = self
            .connections
            .open(pe, &mut self.paths)
            .ok_or(EngineError::NoSuchPe { pe, n_pes })?;
        connection.check()?;
        Ok(connection)
    }

    /// The rails, by name.
    pub(crate) fn rail_ids(&self) -> impl Iterator<Item = RailId> + use<P> {
        (0..self.rails.len()).map(|rail| RailId(rail as u8))
    }
}

#[cfg(test)]
pub(crate) mod tests;
