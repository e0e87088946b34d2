//! Bursts: puts of which the caller says that another follows at once, posted so that the NIC's
//! doorbell is rung once for several.
//!
//! # How a burst ends
//! A fabric that was told that more follows may leave what it has taken where the device does not
//! look, until something is posted without that word. libfabric has no call that only rings. So
//! nothing is posted while it is not known what comes next: puts of a burst go into their rails'
//! queues, and [`Core::post_ready`] posts each queue to its end, all but the last with
//! [`Doorbell::Owe`]. The end of a burst is therefore nothing but a turn of the queues. It comes
//! with the first put without the hint, with every other operation and fence, with each progress
//! iteration (progress, quiet, and whatever waits), with the end of a region, and after [`BURST`]
//! puts.
//!
//! # Why nothing stays without a doorbell
//! A segment is posted with a doorbell owed only if the next in the same rail's queue is a write to
//! the same peer and the rail's depth has room for both. Neither may have immediate data: such a
//! write is always posted with its doorbell. Both are then posted in one go, unless the fabric has
//! no room for the second. Then that stays at the front of its queue, which every iteration
//! retries, and from there on it is posted with the doorbell, since [`Rail::unrung`] says that some
//! are owed. It can only go away unposted when the connection to its peer has failed, which has
//! taken those before it along.
//!
//! So a doorbell is rung as soon as the fabric takes one more write. It cannot refuse that for ever
//! for want of what the unrung ones hold: they are at most [`BURST`] and always leave a place of
//! the rail's depth free. With a depth of one no doorbell is ever owed.
//!
//! [`Rail::unrung`]: crate::state::rail::Rail::unrung

use crate::ids::RailId;
use crate::port::{Direction, Port};
#[cfg(doc)]
use crate::posting::Core;
use crate::posting::transmit::Transmit;
use crate::state::segment::Segment;
use crate::state::segment::work::Work;

const BURST: u32 = 16;

/// What becomes of the doorbell when a segment is posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Doorbell {
    /// It is rung.
    Ring,
    /// It is rung for a segment that is posted next.
    Owe,
}

/// The burst that is being submitted, if one is.
#[derive(Debug)]
pub(super) struct Burst {
    gains: bool,
    /// A put of one is being submitted: it goes into the queues.
    withholds: bool,
    /// Puts that may be in the queues only because others follow.
    withheld: u32,
}

impl Burst {
    pub(super) fn new(gains: bool) -> Self {
        Self { gains, withholds: false, withheld: 0 }
    }

    #[inline(always)]
    pub(super) fn withholds(&self) -> bool {
        self.withholds
    }

    #[cfg(test)]
    pub(super) fn set_withholds(&mut self, withholds: bool) {
        self.withholds = withholds;
    }

    /// Whether puts may be in the queues only because others follow.
    #[inline(always)]
    pub(super) fn has_withheld(&self) -> bool {
        self.withheld != 0
    }

    pub(super) fn end(&mut self) {
        self.withheld = 0;
    }
}

impl<P: Port> Transmit<P> {
    #[inline]
    pub(crate) fn gains_from_bursts(&self) -> bool {
        self.burst.gains
    }

    pub(crate) fn withhold(&mut self) {
        self.burst.withholds = true;
    }

    pub(crate) fn withheld(&mut self) -> bool {
        self.burst.withholds = false;
        self.burst.withheld += 1;
        self.burst.withheld >= BURST
    }

    /// Whether puts may be in the queues only because others follow.
    #[inline]
    pub(crate) fn has_withheld(&self) -> bool {
        self.burst.has_withheld()
    }

    /// Whether the doorbell may be owed for the segment at the front of a rail's queue, when
    /// `burst` have been posted without it in one go before.
    pub(super) fn doorbell(&self, rail: RailId, front: u32, burst: u32) -> Doorbell {
        let state = &self.rails[rail.index()];
        let segment = &self.segments[front];
        let Some(next) = segment.behind().filter(|_| self.burst.gains) else {
            return Doorbell::Ring;
        };
        let next = &self.segments[next];
        let is_write = |segment: &Segment| {
            matches!(segment.work(), Work::Transfer(_)) && segment.direction == Direction::Write
        };
        let follows = is_write(segment) && is_write(next) && next.pe == segment.pe;
        // If some are owed from before, the fabric had no room for what was to ring for them.
        let in_one_go = state.unrung == burst && burst + 1 < BURST;
        let has_room = state.in_flight() + 2 <= state.depth;
        if follows && in_one_go && has_room { Doorbell::Owe } else { Doorbell::Ring }
    }

    pub(super) fn rang(&mut self, rail: RailId, index: u32, doorbell: Doorbell) -> u32 {
        let state = &mut self.rails[rail.index()];
        match doorbell {
            Doorbell::Owe => state.unrung += 1,
            // What is no transfer may be rung for elsewhere.
            Doorbell::Ring if self.segments[index].work().is_rma() => state.unrung = 0,
            Doorbell::Ring => {}
        }
        state.unrung
    }
}
