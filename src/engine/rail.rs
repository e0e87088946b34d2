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
    /// Whether messages follow writes to the same peer.
    pub(super) orders_messages: bool,
    pub(super) counters: RailCounters,
}

impl Rail {
    pub(super) fn new(limits: &RailLimits) -> Self {
        Self {
            queue: Queue::EMPTY,
            in_flight: 0,
            depth: limits.depth.max(1),
            max_segment: limits.max_segment.max(1),
            orders_messages: limits.orders_messages,
            counters: RailCounters::default(),
        }
    }

    /// The fabric has taken a segment of `len` bytes.
    #[inline]
    pub(super) fn taken(&mut self, len: usize) {
        self.in_flight += 1;
        self.counters.posted += 1;
        self.counters.bytes += len as u64;
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.in_flight);
    }
}
