//! Rails: their limits, load and counters, the paths to peers, and which rail is next.

pub mod counters;
pub(crate) mod load;
pub mod pairing;
pub mod paths;

/// The first engine's name for [`Spread`]'s module, until its callers have switched.
pub mod balance {
    pub use super::Spread;
}

use crate::ids::RailId;
use crate::port::RailLimits;
use crate::rails::counters::RailCounters;
use crate::rails::load::Load;

/// How operations are spread over rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Operations of at least so many bytes choose rails by load. Shorter ones take them in turn.
    pub balanced_from: usize,
    /// Operations of at least so many bytes, and longer than `segment`, are cut into segments.
    pub striped_from: usize,
    /// Length of these segments in bytes.
    pub segment: usize,
}

impl Spread {
    /// Whole operations, over all rails in turn.
    pub const ROUND_ROBIN: Spread =
        Spread { balanced_from: usize::MAX, striped_from: usize::MAX, segment: usize::MAX };

    /// Default of [`Spread::balanced_from`]. For shorter operations the choice costs more than it
    /// gains.
    pub const BALANCED_FROM: usize = 8 << 10;
}

/// A rail of a lane.
#[derive(Debug)]
pub(crate) struct Rail {
    pub(crate) limits: RailLimits,
    /// Segments posted and not completed.
    pub(crate) in_flight: u32,
    pub(crate) counters: RailCounters,
    pub(crate) load: Load,
}

impl Rail {
    pub(crate) fn new(limits: &RailLimits) -> Self {
        let limits = RailLimits {
            depth: limits.depth.max(1),
            max_segment: limits.max_segment.max(1),
            ..*limits
        };
        Self { limits, in_flight: 0, counters: RailCounters::default(), load: Load::default() }
    }

    /// Whether another segment may be posted.
    #[inline(always)]
    pub(crate) fn has_room(&self) -> bool {
        self.in_flight < self.limits.depth
    }

    /// Counts a segment that the fabric has taken.
    #[inline(always)]
    pub(crate) fn begin(&mut self, bytes: usize) {
        self.in_flight += 1;
        self.counters.posted += 1;
        self.counters.bytes += bytes as u64;
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.in_flight);
    }

    /// Counts a segment that has completed.
    #[inline(always)]
    pub(crate) fn end(&mut self) {
        self.in_flight -= 1;
        self.counters.completed += 1;
    }
}

/// All rails of a lane, by number.
pub(crate) fn rail_ids(rails: &[Rail]) -> impl Iterator<Item = RailId> + use<> {
    (0..rails.len() as u8).map(RailId)
}
