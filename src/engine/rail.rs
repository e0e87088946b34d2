//! A rail as the lane sees it: its queue, what is in flight, and its counters.

use super::counters::RailCounters;
use super::port::RailLimits;
use super::segment::Queue;

/// State of one rail of a lane.
#[derive(Debug)]
pub(super) struct Rail {
    /// Segments ready to be posted, oldest first. Bounded by the segment table.
    pub(super) queue: Queue,
    /// Segments posted and not completed; never above `depth`.
    pub(super) in_flight: u32,
    /// Most segments in flight.
    pub(super) depth: u32,
    /// Largest segment in bytes.
    pub(super) max_segment: usize,
    /// Kept without what follows from the rest; see [`Rail::counters`].
    pub(super) counters: RailCounters,
}

impl Rail {
    pub(super) fn new(limits: &RailLimits) -> Self {
        Self {
            queue: Queue::EMPTY,
            in_flight: 0,
            depth: limits.depth.max(1),
            max_segment: limits.max_segment.max(1),
            counters: RailCounters::default(),
        }
    }

    /// Whether a segment may be posted right away: nothing waits before it, and there is room.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.queue.is_empty() && self.in_flight < self.depth
    }

    /// The fabric has taken a segment of `len` bytes.
    #[inline]
    pub(super) fn taken(&mut self, len: usize) {
        self.in_flight += 1;
        self.counters.bytes += len as u64;
    }

    /// So many segments have completed.
    #[inline]
    pub(super) fn completed(&mut self, count: u32) {
        // The number in flight falls only here, so its peaks are seen here.
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.in_flight);
        self.in_flight -= count;
        self.counters.completed += u64::from(count);
    }

    /// The counters as they are now.
    pub(super) fn counters(&self) -> RailCounters {
        let in_flight = self.in_flight;
        RailCounters {
            posted: self.counters.completed + u64::from(in_flight),
            max_in_flight: self.counters.max_in_flight.max(in_flight),
            ..self.counters
        }
    }
}
