//! Transmission: the port, the rails and their queues, the segments on them, and the room that
//! there is for more.

mod blocked;
mod completions;
pub(crate) mod dispatch;
mod doorbell;
mod drain;
pub(in crate::posting) mod fast;
pub(crate) mod load;
mod memory;
mod rails;
mod segments;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Port, RailLimits};
use crate::posting::Core;
#[cfg(any(test, feature = "audit"))]
use crate::posting::peers::Peers;

use crate::posting::transmit::doorbell::Burst;
use crate::posting::transmit::drain::Rare;
use crate::rails::balance::{Balance, Spread};
use crate::rails::paths::PathTable;
#[cfg(any(test, feature = "audit"))]
use crate::state::audit::{Found, tally};
use crate::state::connection::Connection;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::state::operation::OpTable;
use crate::state::rail::Rail;
use crate::state::regions::RegionCache;
#[cfg(any(test, feature = "audit"))]
use crate::state::segment::Stage;
use crate::state::segment::table::SegmentTable;

/// What posts and completes segments.
#[derive(Debug)]
pub(crate) struct Transmit<P: Port> {
    port: P,
    segments: SegmentTable,
    rails: Box<[Rail<P::Fast>]>,
    paths: PathTable,
    regions: RegionCache,
    needs_desc: bool,
    /// The fabric takes no local memory that is not registered.
    refuses_bare: bool,
    /// Local memory may be staged.
    devices: bool,
    ops: OpTable,
    balance: Box<Balance>,
    /// Segments whose rail was chosen by load, of those that may be under way at a time.
    stripes: Room,
    /// Something has ended since the pool of operations that wait for rails was last gone through.
    load_changed: bool,
    /// Segments in use that mechanisms have set aside for themselves.
    reserved: u32,
    transfer_room: u32,
    in_flight_room: u32,
    /// Segments in the rails' queues or blocked, and operations that wait for rails or are pending.
    ready: u32,
    rare: Rare,
    phase: Phase,
    burst: Burst,
    /// What the fabric has not taken in the fast path, until it is seen to.
    not_taken: Option<WrId>,
}

/// Who comes first where several want the place that becomes free in a queue of the fabric. Each
/// does in half of the turns, whoever else does in these, so that nobody gets every place. It is as
/// if drawn: with iterations that alternate, a caller whose own steps come at the same pace had
/// each place that became free.
#[derive(Clone, Copy, Debug)]
struct Phase(u32);

impl Phase {
    fn advance(&mut self) {
        // A linear congruential generator of full period (Numerical Recipes, 3rd edition, section
        // 7.1); its upper bits are the random ones.
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }

    fn control_first(self) -> bool {
        self.0 >> 31 != 0
    }

    fn blocked_first(self) -> bool {
        self.0 >> 30 & 1 != 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Room {
    used: u32,
    most: u32,
}

impl Room {
    fn of(most: u32) -> Self {
        Self { used: 0, most }
    }

    fn is_left(self) -> bool {
        self.used < self.most
    }
}

/// Most peers of a rail that are tried in vain in one iteration.
pub(super) const REFUSALS: usize = 8;

const SHARE: u32 = 8;

fn fits_quota(mine: u32, used: u32, room: u32) -> bool {
    mine <= 1 || mine < SHARE * room.saturating_sub(used)
}

/// Room of a lane's tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) segments: u32,
    pub(crate) transfers: u32,
    pub(crate) messages: u32,
    pub(crate) stripes: u32,
}

impl<P: Port> Transmit<P> {
    pub(super) fn new(
        port: P,
        me: Pe,
        paths: PathTable,
        regions: RegionCache,
        spread: Spread,
        sizes: Sizes,
        devices: bool,
    ) -> Self {
        let limits = port.limits();
        let rail =
            |(at, limits): (usize, &RailLimits)| Rail::new(limits, port.fast(RailId(at as u8)));
        let rails: Box<[Rail<P::Fast>]> = limits.iter().enumerate().map(rail).collect();
        let least = rails.iter().map(|rail| rail.max_segment).min().unwrap_or(0);
        let needs_desc = limits.iter().any(|rail| rail.needs_desc);
        Self {
            segments: SegmentTable::new(sizes.segments, |wr_id| port.context(wr_id)),
            balance: Box::new(
                Balance::new(spread, rails.len(), least, me.index())
                    .with_bulk(limits.iter().map(|rail| rail.bulk)),
            ),
            stripes: Room::of(sizes.stripes),
            load_changed: false,
            reserved: 0,
            transfer_room: sizes.transfers,
            in_flight_room: rails.iter().map(|rail| rail.depth).sum(),
            devices,
            needs_desc,
            refuses_bare: needs_desc && !port.takes_unregistered(),
            rails,
            paths,
            regions,
            ops: OpTable::with_capacity(64),
            ready: 0,
            rare: Rare::EMPTY,
            phase: Phase(0),
            burst: Burst::new(port.batches()),
            not_taken: None,
            port,
        }
    }

    pub(super) fn fast_limit(&self) -> usize {
        let least = self.rails.iter().map(|rail| rail.max_segment).min().unwrap_or(0);
        let limit = if self.port.has_fast_path() { least } else { 0 };
        limit.min(self.balance.balanced_from - 1)
    }

    #[inline(always)]
    pub(crate) fn port(&self) -> &P {
        &self.port
    }

    #[inline(always)]
    pub(crate) fn port_mut(&mut self) -> &mut P {
        &mut self.port
    }

    #[inline(always)]
    pub(crate) fn now(&mut self) -> u64 {
        self.port.now()
    }

    fn transfers(&self, messages: u32) -> u32 {
        let others = messages + self.stripes.used + self.reserved;
        self.segments.used().saturating_sub(others)
    }
}

impl<P: Port> Core<P> {
    /// Whether another transfer may be submitted. Messages have slots of their own, so that a lane
    /// full of transfers can still send them, and the other way round.
    pub(crate) fn has_transfer_room(&self) -> bool {
        self.transmit.transfers(self.peers.message_segments()) < self.transmit.transfer_room
    }

    /// Whether another transfer to a peer may be submitted. A peer has a share of the room: two, or
    /// several times as many under way as the rails have room for besides. So one that takes
    /// nothing does not fill the rails, and leaves some of their room to the next such peer as
    /// well.
    pub(crate) fn is_within_quota(&self, pe: Pe) -> bool {
        let mine = |connection: &Connection| {
            let channel = connection.channel.as_deref();
            let messages = channel.map_or(0, |channel| channel.unacknowledged() + channel.unsent);
            connection
                .all_under_way()
                .saturating_sub(messages + u32::from(connection.has_pending()))
        };
        self.fits_quota(self.peers.find(pe).map_or(0, mine))
    }

    pub(crate) fn fits_quota(&self, mine: u32) -> bool {
        let used = self.transmit.transfers(self.peers.message_segments());
        used < self.transmit.transfer_room && fits_quota(mine, used, self.transmit.in_flight_room)
    }
}

/// See [`Lane::audit`](crate::lane::Lane::audit).
#[cfg(any(test, feature = "audit"))]
impl<P: Port> Transmit<P> {
    pub(crate) fn table(&self) -> &SegmentTable {
        &self.segments
    }

    pub(crate) fn tally(
        &self,
        peers: &Peers,
        has_pending: bool,
        raised: &[WrId],
    ) -> Result<Found, Discrepancy> {
        self.segments.audit(has_pending, peers.without_segment())?;
        let found = tally(&self.segments, peers.without_segment(), self.rails.len(), raised);
        self.ops.audit(&self.segments, found.all.chained)?;
        Ok(found)
    }

    pub(crate) fn audit(
        &self,
        found: &Found,
        reserved: u32,
        waiting: u32,
    ) -> Result<(), Discrepancy> {
        same("segments set aside in use", self.reserved, reserved)?;
        same("stripes", self.stripes.used, found.all.stripes)?;
        let mut queued = 0;
        for rail in self.rail_ids() {
            queued += self.audit_rail(rail, found).map_err(|differs| differs.of(rail))?;
        }
        same("segments in queues", queued, found.all.ready)?;
        same("what is ready", self.ready, queued + waiting)
    }

    fn audit_rail(&self, rail: RailId, found: &Found) -> Result<u32, Discrepancy> {
        let state = &self.rails[rail.index()];
        let (in_flight, ahead) = found.rails[rail.index()];
        same("segments in flight", state.in_flight(), in_flight)?;
        same("bytes ahead", self.balance.ahead(rail), ahead)?;
        state.blocked.audit("blocked segments of a rail")?;
        for (pe, index) in state.blocked.iter() {
            let segment = &self.segments[*index];
            let is = (segment.pe, segment.stage);
            same("whom a blocked segment is for, and its stage", (pe, Stage::Ready), is)?;
        }
        Ok(state.audit(&self.segments)? + state.blocked.len() as u32)
    }
}

#[cfg(test)]
mod tests;
