//! A rail as the lane sees it: its queue, what is in flight, and its counters.

use super::counters::RailCounters;
use super::port::RailLimits;
use super::segment::{Queue, SegmentTable};

/// State of one rail of a lane.
#[derive(Debug)]
pub(super) struct Rail {
    /// Segments ready to be posted, oldest first. Bounded by the segment table.
    queue: Queue,
    /// Segments posted and not completed; never above `depth`.
    pub(super) in_flight: u32,
    /// Most segments in flight.
    pub(super) depth: u32,
    /// Segments that may be posted right away: what is left of the depth, and none while others
    /// wait before them. Follows from the fields above.
    room: u32,
    /// Largest segment in bytes.
    pub(super) max_segment: usize,
    /// Whether messages follow writes to the same peer.
    pub(super) orders_messages: bool,
    /// When the last segment completed, on the watchdog's clock.
    pub(super) moved: u32,
    /// Kept without what follows from the rest; see [`Rail::counters`].
    pub(super) counters: RailCounters,
}

impl Rail {
    pub(super) fn new(limits: &RailLimits) -> Self {
        Self {
            queue: Queue::EMPTY,
            in_flight: 0,
            depth: limits.depth.max(1),
            room: limits.depth.max(1),
            max_segment: limits.max_segment.max(1),
            orders_messages: limits.orders_messages,
            moved: 0,
            counters: RailCounters::default(),
        }
    }

    /// Whether a segment may be posted right away: nothing waits before it, and there is room.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.room != 0
    }

    /// Puts a segment at the end of the queue.
    pub(super) fn push(&mut self, segments: &mut SegmentTable, index: u32) {
        self.queue.push(segments, index);
        self.update();
    }

    /// Takes the segment at the front of the queue.
    pub(super) fn pop(&mut self, segments: &SegmentTable) -> Option<u32> {
        let index = self.queue.pop(segments);
        self.update();
        index
    }

    #[inline]
    fn update(&mut self) {
        self.room = if self.queue.is_empty() { self.depth - self.in_flight } else { 0 };
    }

    /// The fabric has taken a segment of `len` bytes.
    #[inline]
    pub(super) fn taken(&mut self, len: usize) {
        self.in_flight += 1;
        self.room = self.room.saturating_sub(1);
        self.counters.bytes += len as u64;
    }

    /// So many segments have completed.
    #[inline]
    pub(super) fn completed(&mut self, count: u32) {
        // The number in flight falls only here, so its peaks are seen here.
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.in_flight);
        self.in_flight -= count;
        self.update();
        self.counters.completed += u64::from(count);
    }

    /// Segments that wait for room.
    pub(super) fn queued(&self) -> u32 {
        self.queue.len()
    }

    /// The segment that leaves next, of those that wait.
    pub(super) fn front(&self) -> Option<u32> {
        self.queue.front()
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
