//! A rail as the lane sees it: its queue, what is in flight, and its counters.

use crate::port::{Posted, RailLimits};
use crate::rails::counters::RailCounters;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::Discrepancy;
use crate::state::fair_queue::FairQueue;
#[cfg(any(test, feature = "audit"))]
use crate::state::segment::Stage;
use crate::state::segment::queue::Queue;
use crate::state::segment::table::SegmentTable;

const QUEUED: i32 = 1 << 30;

const PAUSED: i32 = 1 << 29;

/// Most segments in flight on a rail that asks for more: no table has room for so many, so the
/// bound is none in practice. Less than half of [`PAUSED`], so that a rail is never clear while
/// that is taken off.
const DEEPEST: u32 = 1 << 28;

/// State of one rail of a lane. `S` is the port's fast path to post on it.
#[derive(Debug)]
pub(crate) struct Rail<S> {
    pub(crate) fast: S,
    /// Segments that may be posted right away, if above zero: what the segments in flight leave of
    /// the depth without its reserve, less [`QUEUED`] while others wait before them, less
    /// [`PAUSED`].
    room: i32,
    /// Nothing is posted: the rail is about to be closed and opened again.
    paused: bool,
    pub(crate) depth: u32,
    /// Of these, what is kept for peers that have little under way: see [`Core::is_within_quota`].
    ///
    /// [`Core::is_within_quota`]: crate::posting::Core::is_within_quota
    reserve: u32,
    /// Largest segment in bytes.
    pub(crate) max_segment: usize,
    has_bulk: bool,
    /// Segments ready to be posted, oldest first. Bounded by the segment table.
    queue: Queue,
    /// Segments that wait by themselves, by peer; see [`crate::posting::transmit::blocked`].
    pub(crate) blocked: FairQueue<u32>,
    /// Segments posted since the doorbell was last rung; see
    /// [`crate::posting::transmit::doorbell`].
    pub(crate) unrung: u32,
    pub(crate) moved: u32,
    /// Kept without what follows from the rest; see [`Rail::counters`].
    pub(crate) counters: RailCounters,
}

impl<S> Rail<S> {
    pub(crate) fn new(limits: &RailLimits, fast: S) -> Self {
        let depth = limits.depth.clamp(1, DEEPEST);
        let reserve = if depth == 1 { 0 } else { depth.div_ceil(8) };
        Self {
            fast,
            room: (depth - reserve) as i32,
            paused: false,
            depth,
            reserve,
            max_segment: limits.max_segment.max(1),
            has_bulk: limits.bulk > 0,
            queue: Queue::EMPTY,
            blocked: FairQueue::default(),
            unrung: 0,
            moved: 0,
            counters: RailCounters::default(),
        }
    }

    #[inline(always)]
    pub(crate) fn is_open(&self) -> bool {
        self.room > 0
    }

    #[inline(always)]
    pub(crate) fn is_clear(&self) -> bool {
        self.room > -PAUSED / 2
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.paused || self.in_flight() >= self.depth
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    pub(crate) fn pause(&mut self) {
        if !std::mem::replace(&mut self.paused, true) {
            self.room -= PAUSED;
        }
    }

    pub(crate) fn resume(&mut self) {
        if std::mem::take(&mut self.paused) {
            self.room += PAUSED;
        }
    }

    pub(crate) fn reopen(&mut self, fast: S) {
        let lost = self.in_flight();
        self.completed(lost);
        self.fast = fast;
        self.unrung = 0;
        self.resume();
    }

    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        // What is taken off while others wait, or while the rail is closed, is in the upper bits.
        const UPPER: u32 = PAUSED.leading_zeros() + 1;
        const { assert!(QUEUED % PAUSED == 0 && DEEPEST as i32 <= PAUSED / 2) }
        let room = self.room << UPPER >> UPPER;
        ((self.depth - self.reserve) as i32 - room) as u32
    }

    pub(crate) fn push(&mut self, segments: &mut SegmentTable, index: u32) {
        if self.queue.is_empty() {
            self.room -= QUEUED;
        }
        self.queue.push(segments, index);
    }

    pub(crate) fn pop(&mut self, segments: &SegmentTable) -> Option<u32> {
        let index = self.queue.pop(segments)?;
        if self.queue.is_empty() {
            self.room += QUEUED;
        }
        Some(index)
    }

    /// The fabric has taken a segment of `len` bytes.
    #[inline(always)]
    pub(crate) fn taken(&mut self, len: usize) {
        self.room -= 1;
        self.counters.bytes += len as u64;
    }

    /// Whether bytes in bulk may be for another thread.
    pub(crate) fn has_bulk(&self) -> bool {
        self.has_bulk
    }

    /// So many bytes are another thread's, if it has taken them.
    pub(crate) fn handed_over(&mut self, posted: Posted, len: usize) {
        if posted == Posted::Yes {
            self.counters.bulk_bytes += len as u64;
        }
    }

    pub(crate) fn not_taken(&mut self, len: usize) {
        self.room += 1;
        self.counters.bytes -= len as u64;
    }

    #[inline]
    pub(crate) fn completed(&mut self, count: u32) {
        // The number in flight falls only here, so its peaks are seen here.
        self.counters.max_in_flight = self.counters.max_in_flight.max(self.in_flight());
        self.room += count as i32;
        self.counters.completed += u64::from(count);
    }

    pub(crate) fn queued(&self) -> u32 {
        self.queue.len()
    }

    #[inline(always)]
    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    pub(crate) fn front(&self) -> Option<u32> {
        self.queue.front()
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self, segments: &SegmentTable) -> Result<u32, Discrepancy> {
        self.queue.audit(segments, Stage::Ready)
    }

    pub(crate) fn counters(&self) -> RailCounters {
        let in_flight = self.in_flight();
        RailCounters {
            posted: self.counters.completed + u64::from(in_flight),
            max_in_flight: self.counters.max_in_flight.max(in_flight),
            ..self.counters
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Pe;
    use crate::port::Context;
    use crate::port::packet::MAX_MESSAGE;

    fn rail(depth: u32) -> Rail<()> {
        let limits = RailLimits {
            max_segment: 1,
            depth,
            needs_desc: false,
            immediate_data: false,
            longest_message: MAX_MESSAGE,
            bulk: 0,
        };
        Rail::new(&limits, ())
    }

    #[test]
    fn what_waits_or_a_pause_closes_a_rail_and_is_not_in_flight() {
        let mut segments = SegmentTable::new(4, |_| Context(0));
        let mut rail = rail(16);
        for in_flight in 0..14 {
            assert!(rail.is_open() && rail.is_clear() && !rail.is_full());
            assert_eq!(rail.in_flight(), in_flight);
            rail.taken(8);
        }
        assert!(!rail.is_open() && rail.is_clear() && !rail.is_full(), "the reserve is left");
        rail.taken(8);
        rail.taken(8);
        assert!(rail.is_full() && rail.is_clear());
        for paused in [false, true, true] {
            if paused {
                rail.pause();
            }
            assert_eq!((rail.is_paused(), rail.in_flight()), (paused, 16));
            assert_eq!(rail.is_clear(), !paused);
            let waiting: Vec<u32> = (0..2).map(|_| segments.take().unwrap().0).collect();
            for index in &waiting {
                rail.push(&mut segments, *index);
                assert!(!rail.is_clear() && !rail.is_open());
                assert_eq!(rail.in_flight(), 16);
            }
            assert_eq!((rail.queued(), rail.front()), (2, Some(waiting[0])));
            for index in &waiting {
                assert_eq!(rail.pop(&segments), Some(*index));
                segments[*index].stage = crate::state::segment::Stage::Ready;
                segments.give(crate::ids::WrId(*index));
            }
            assert_eq!((rail.in_flight(), rail.is_clear()), (16, !paused));
        }
        rail.completed(16);
        assert!(!rail.is_open() && rail.is_full(), "paused, however empty");
        rail.resume();
        rail.resume();
        assert!(rail.is_open() && !rail.is_full() && !rail.is_paused());
        assert_eq!(rail.in_flight(), 0);
    }

    #[test]
    fn counters_tell_what_was_posted_and_the_most_at_a_time() {
        let mut rail = rail(16);
        for len in [3, 5, 7] {
            rail.taken(len);
        }
        rail.not_taken(7);
        let counted = rail.counters();
        assert_eq!((counted.posted, counted.bytes, counted.max_in_flight), (2, 8, 2));
        rail.completed(2);
        rail.taken(1);
        let counted = rail.counters();
        assert_eq!((counted.posted, counted.completed, counted.max_in_flight), (3, 2, 2));
        rail.pause();
        rail.reopen(());
        let counted = rail.counters();
        assert_eq!((counted.posted, counted.completed, rail.in_flight()), (3, 3, 0));
        assert!(rail.is_open() && !rail.has_blocked());
        rail.blocked.push(Pe(1), 0);
        assert!(rail.has_blocked());
    }

    #[test]
    fn a_rail_of_any_depth_takes_one_and_none_while_it_is_closed() {
        for depth in [0, 1, 2, 1 << 20, u32::MAX] {
            let mut segments = SegmentTable::new(1, |_| Context(0));
            let mut rail = rail(depth);
            assert!(rail.is_open(), "{depth}");
            rail.pause();
            assert!(!rail.is_open() && !rail.is_clear(), "{depth}");
            rail.resume();
            let index = segments.take().unwrap().0;
            rail.push(&mut segments, index);
            assert!(!rail.is_open() && !rail.is_clear(), "{depth}");
        }
    }
}
