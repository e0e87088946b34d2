//! Rails: their limits, load and counters, and the paths to peers.

pub mod counters;
pub(crate) mod load;
pub mod pairing;
pub mod paths;

use std::ops::{Deref, Index, IndexMut};

use crate::ids::RailId;
use crate::port::{DataPath, RailLimits};
use crate::rails::counters::RailCounters;
use crate::rails::load::Load;
use crate::wire::handle::MAX_RAILS;

/// Distribution of operations over rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spread {
    /// Operations of at least this many bytes choose rails by load. Shorter ones take them in turn.
    pub balanced_from: usize,
    /// Operations of at least this many bytes are cut, so that every rail has several segments.
    pub striped_from: usize,
    /// Maximum length of these segments in bytes.
    pub segment: usize,
}

impl Spread {
    /// Whole operations over all rails in turn.
    pub const ROUND_ROBIN: Spread =
        Spread { balanced_from: usize::MAX, striped_from: usize::MAX, segment: usize::MAX };

    /// Default of [`Spread::balanced_from`]; for shorter operations the choice costs too much.
    pub const BALANCED_FROM: usize = 8 << 10;
}

/// The rails of a lane, by [`RailId`].
#[derive(Debug)]
pub(crate) struct Rails<F> {
    /// As many as there can be, so that the fast path checks no index. No path leads over those
    /// that the port lacks.
    all: [Rail<F>; MAX_RAILS],
    count: usize,
}

impl<F: Copy> Rails<F> {
    pub(crate) fn new(port: &impl DataPath<Fast = F>, spread: &Spread) -> Self {
        let limits = port.limits();
        let balanced_from = if port.has_fast_path() { spread.balanced_from } else { 0 };
        let rail = |index: usize| {
            // There is at least one.
            let index = index.min(limits.len() - 1);
            let fast = port.fast(RailId(index as u8));
            Rail::new(&limits[index], limits.len(), balanced_from.saturating_sub(1), fast)
        };
        Self { all: std::array::from_fn(rail), count: limits.len() }
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = RailId> + use<F> {
        (0..self.count as u8).map(RailId)
    }
}

impl<F> Index<RailId> for Rails<F> {
    type Output = Rail<F>;

    #[inline(always)]
    fn index(&self, rail: RailId) -> &Rail<F> {
        &self.all[rail.index() % MAX_RAILS]
    }
}

impl<F> IndexMut<RailId> for Rails<F> {
    #[inline(always)]
    fn index_mut(&mut self, rail: RailId) -> &mut Rail<F> {
        &mut self.all[rail.index() % MAX_RAILS]
    }
}

impl<F> Deref for Rails<F> {
    type Target = [Rail<F>];

    fn deref(&self) -> &[Rail<F>] {
        &self.all[..self.count]
    }
}

#[derive(Debug)]
pub(crate) struct Rail<F> {
    pub(crate) fast: F,
    /// Longest segment in bytes for which the fast path takes rails in turn; 0 without a fast path.
    pub(crate) max_round_robin: usize,
    /// Free capacity of the rail in segments, times [`PEER_SHARE`] and the number of rails. A peer
    /// posts on the rail while it has fewer segments in flight.
    pub(crate) quota: u32,
    /// Part of the quota that one segment takes.
    unit: u32,
    pub(crate) limits: RailLimits,
    pub(crate) load: Load,
    pub(crate) counters: RailCounters,
}

/// A peer may have this many times as many segments in flight as rails have capacity for on
/// average: a silent peer takes eight ninths of a rail, and each further one as much of the rest.
const PEER_SHARE: u32 = 8;

impl<F> Rail<F> {
    pub(crate) fn new(limits: &RailLimits, rails: usize, longest: usize, fast: F) -> Self {
        let (depth, max_segment) = (limits.depth.max(1), limits.max_segment.max(1));
        let limits = RailLimits { depth, max_segment, ..*limits };
        let unit = PEER_SHARE * rails as u32;
        Self {
            fast,
            max_round_robin: max_segment.min(longest),
            quota: depth * unit,
            unit,
            limits,
            load: Load::default(),
            counters: RailCounters::default(),
        }
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.limits.depth - self.quota / self.unit
    }

    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        self.quota != self.limits.depth * self.unit
    }

    /// Counts a segment of `bytes` that is being posted, for which there is capacity.
    #[inline(always)]
    pub(crate) fn begin(&mut self, bytes: usize) {
        self.quota -= self.unit;
        self.counters.bytes += bytes as u64;
    }

    /// Undoes [`Rail::begin`], since the fabric has not taken the segment.
    pub(crate) fn undo(&mut self, bytes: usize) {
        self.quota += self.unit;
        self.counters.bytes -= bytes as u64;
    }

    #[inline(always)]
    pub(crate) fn end(&mut self, count: u32) {
        // The count only falls here, so each maximum is seen just before.
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.in_flight());
        self.quota += self.unit * count;
        self.counters.completed += u64::from(count);
    }

    /// Returns the counters, with those that follow from other state.
    pub(crate) fn counters(&self) -> RailCounters {
        let in_flight = self.in_flight();
        RailCounters {
            posted: self.counters.completed + u64::from(in_flight),
            max_in_flight: self.counters.max_in_flight.max(in_flight),
            rate: self.load.bytes_per_second(),
            ..self.counters
        }
    }
}
