//! A rail as the lane sees it: its queue, what is in flight, and its counters.

use std::collections::VecDeque;

use crate::engine::ids::Pe;
use crate::engine::port::RailLimits;
use crate::engine::rails::counters::RailCounters;
use crate::engine::state::segment::queue::Queue;
use crate::engine::state::segment::table::SegmentTable;

/// Taken off a rail's room while segments wait in its queue. Above any depth.
const QUEUED: i32 = 1 << 30;

/// Likewise, while the rail is closed for a moment. Below any depth with [`QUEUED`] taken off.
const PAUSED: i32 = 1 << 29;

/// State of one rail of a lane. `S` is the port's fast path to post on it.
#[derive(Debug)]
pub(in crate::engine) struct Rail<S> {
    /// The port's fast path.
    pub(in crate::engine) fast: S,
    /// Segments that may be posted right away, if above zero: what the segments in flight leave of
    /// the depth without its reserve, less [`QUEUED`] while others wait before them, less [`PAUSED`].
    room: i32,
    /// Nothing is posted: the rail is about to be closed and opened again.
    paused: bool,
    /// Most segments in flight.
    pub(in crate::engine) depth: u32,
    /// Of these, what is kept for peers that have little under way: see [`Core::has_share`].
    ///
    /// [`Core::has_share`]: crate::engine::posting::Core::has_share
    reserve: u32,
    /// Largest segment in bytes.
    pub(in crate::engine) max_segment: usize,
    /// Segments ready to be posted, oldest first. Bounded by the segment table.
    queue: Queue,
    /// Peers whose segments wait by themselves, in their streams; see [`crate::engine::posting::blocked`].
    pub(in crate::engine) blocked: VecDeque<Pe>,
    /// Whether messages follow writes to the same peer.
    pub(in crate::engine) orders_messages: bool,
    /// Segments posted since the doorbell was last rung; see [`crate::engine::posting::doorbell`].
    pub(in crate::engine) unrung: u32,
    /// When the last segment completed, on the watchdog's clock.
    pub(in crate::engine) moved: u32,
    /// Kept without what follows from the rest; see [`Rail::counters`].
    pub(in crate::engine) counters: RailCounters,
}

impl<S> Rail<S> {
    pub(in crate::engine) fn new(limits: &RailLimits, fast: S) -> Self {
        // No table has room for so many segments, so the bound is none in practice.
        let depth = limits.depth.clamp(1, PAUSED as u32 - 1);
        let reserve = if depth == 1 { 0 } else { depth.div_ceil(8) };
        Self {
            fast,
            room: (depth - reserve) as i32,
            paused: false,
            depth,
            reserve,
            max_segment: limits.max_segment.max(1),
            queue: Queue::EMPTY,
            blocked: VecDeque::new(),
            orders_messages: limits.orders_messages,
            unrung: 0,
            moved: 0,
            counters: RailCounters::default(),
        }
    }

    /// Whether a segment may be posted right away: nothing waits before it, and there is room.
    #[inline(always)]
    pub(in crate::engine) fn is_open(&self) -> bool {
        self.room > 0
    }

    /// Whether a message may be sent right away: nothing waits before it, however full the rail is.
    #[inline(always)]
    pub(in crate::engine) fn is_clear(&self) -> bool {
        self.room > -PAUSED / 2
    }

    /// Whether the fabric has as many segments as it may.
    #[inline]
    pub(in crate::engine) fn is_full(&self) -> bool {
        self.paused || self.in_flight() >= self.depth
    }

    /// Whether nothing may be posted for the time being.
    pub(in crate::engine) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Nothing is posted from here on.
    pub(in crate::engine) fn pause(&mut self) {
        if !std::mem::replace(&mut self.paused, true) {
            self.room -= PAUSED;
        }
    }

    /// Segments are posted again.
    pub(in crate::engine) fn resume(&mut self) {
        if std::mem::take(&mut self.paused) {
            self.room += PAUSED;
        }
    }

    /// It was closed and opened again: nothing is in flight.
    pub(in crate::engine) fn reopen(&mut self, fast: S) {
        let lost = self.in_flight();
        self.completed(lost);
        self.fast = fast;
        self.unrung = 0;
        self.resume();
    }

    /// Segments posted and not completed.
    #[inline]
    pub(in crate::engine) fn in_flight(&self) -> u32 {
        let queued = if self.queue.is_empty() { 0 } else { QUEUED };
        let paused = if self.paused { PAUSED } else { 0 };
        ((self.depth - self.reserve) as i32 - (self.room + queued + paused)) as u32
    }

    /// Puts a segment at the end of the queue.
    pub(in crate::engine) fn push(&mut self, segments: &mut SegmentTable, index: u32) {
        if self.queue.is_empty() {
            self.room -= QUEUED;
        }
        self.queue.push(segments, index);
    }

    /// Takes the segment at the front of the queue.
    pub(in crate::engine) fn pop(&mut self, segments: &SegmentTable) -> Option<u32> {
        let index = self.queue.pop(segments)?;
        if self.queue.is_empty() {
            self.room += QUEUED;
        }
        Some(index)
    }

    /// The fabric has taken a segment of `len` bytes.
    #[inline(always)]
    pub(in crate::engine) fn taken(&mut self, len: usize) {
        self.room -= 1;
        self.counters.bytes += len as u64;
    }

    /// A segment counted as taken was not.
    pub(in crate::engine) fn not_taken(&mut self, len: usize) {
        self.room += 1;
        self.counters.bytes -= len as u64;
    }

    /// So many segments have completed.
    #[inline]
    pub(in crate::engine) fn completed(&mut self, count: u32) {
        // The number in flight falls only here, so its peaks are seen here.
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.in_flight());
        self.room += count as i32;
        self.counters.completed += u64::from(count);
    }

    /// Segments that wait for room.
    pub(in crate::engine) fn queued(&self) -> u32 {
        self.queue.len()
    }

    /// Whether something waits for a peer alone.
    #[inline(always)]
    pub(in crate::engine) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// The segment that leaves next, of those that wait.
    pub(in crate::engine) fn front(&self) -> Option<u32> {
        self.queue.front()
    }

    /// The counters as they are now.
    pub(in crate::engine) fn counters(&self) -> RailCounters {
        let in_flight = self.in_flight();
        RailCounters {
            posted: self.counters.completed + u64::from(in_flight),
            max_in_flight: self.counters.max_in_flight.max(in_flight),
            ..self.counters
        }
    }
}
