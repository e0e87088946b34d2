//! The watchdog: finds operations that do not end, and gives a warning with the particulars, then reports, then an
//! error.

use std::time::Duration;

use log::warn;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::{Direction, Port};
use crate::state::connection::Connections;
use crate::state::rail::Rail;
use crate::state::segment::table::SegmentTable;
use crate::state::segment::{Segment, Stage};

/// Most progress iterations between two looks at the clock. Reading the clock costs tens of nanoseconds,
/// so this makes it less than one per iteration. Where iterations take long it is read after fewer of them.
const TURNS: u32 = 256;

/// As so many iterations counts one that has given up the core: it may have it back as soon as microseconds, or as late as
/// tens of milliseconds later, however long the iterations before it took.
const GIVEN_UP: u32 = 16;

/// Least time between two looks at all connections, in nanoseconds.
const PERIOD: u64 = 250_000_000;

/// Most time between two looks that counts as waiting, in nanoseconds. A user thread may start a
/// put and compute for an hour before its quiet, and a process may be stopped: the fabric had no chance to complete it
/// meanwhile. Well above [`PERIOD`], in which the clock is read twice while the lane is run.
const MAX_GAP: u64 = 5_000_000_000;

/// Nor does it count for more than this part of the deadline, or one such gap would be all of a short one.
const GAPS: u64 = 2;

/// Times are kept in units of 2^28 ns, about a quarter of a second: 32 bits last 36 years.
const STAMP_SHIFT: u32 = 28;

/// Most connections that are reported at a time.
const REPORTS: u32 = 16;

/// Of these, how many are followed by what every rail is about.
const DUMPS: u32 = 4;

/// A wait that is to be reported.
pub(crate) struct Overdue {
    /// How long nothing has moved.
    pub(crate) seconds: u64,
    /// Whether it is to be given up, too.
    pub(crate) fails: bool,
}

/// When waits are reported and given up.
#[derive(Debug)]
pub struct Watchdog {
    warn_after: Option<u64>,
    fail_after: Option<u64>,
    /// Most time between two looks that counts.
    most: u64,
    /// Iterations until the clock is read.
    iterations: u32,
    /// After how many it is read at present: as many as take less than half of [`PERIOD`].
    every: u32,
    /// When it was read.
    read: u64,
    /// When the connections were last looked at.
    looked: u64,
    /// Time counted as waiting, up to `looked`.
    counted: u64,
    /// The same in units of 2^[`STAMP_SHIFT`] nanoseconds.
    stamp: u32,
    /// Whether some connection has been warned of and not been cleared.
    has_warned: bool,
    /// Looks so far, modulo 2^32.
    looks: u32,
    /// Whether a segment of any connection has ended since the last look, and when that was so last.
    has_moved: bool,
    moved: u32,
    /// The peers for which something was under way at the last look.
    busy: Vec<Pe>,
}

impl Watchdog {
    /// Reports an operation that has not moved for `warn_after`, and again each time as long; fails
    /// it after `fail_after`. None never does.
    pub fn new(warn_after: Option<Duration>, fail_after: Option<Duration>) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let fail_after = fail_after.map(nanoseconds);
        let share = fail_after.map_or(MAX_GAP, |limit| limit / GAPS);
        Self {
            warn_after: warn_after.map(nanoseconds),
            fail_after,
            most: share.clamp(PERIOD, MAX_GAP),
            iterations: 1,
            every: 1,
            read: 0,
            looked: 0,
            counted: 0,
            stamp: 0,
            has_warned: false,
            looks: 0,
            has_moved: false,
            moved: 0,
            busy: Vec::new(),
        }
    }

    /// A segment has ended otherwise than by a completion, of which its rail knows.
    #[inline(always)]
    pub(crate) fn has_moved(&mut self) {
        self.has_moved = true;
    }

    /// The next iteration is due.
    pub(crate) fn hurry(&mut self) {
        self.iterations = 1;
    }

    /// A time in the units of stamps, at least two of them: one may be over as soon as it has begun.
    pub(crate) fn stamps(time: Duration) -> u32 {
        let units = u64::try_from(time.as_nanos() >> STAMP_SHIFT).unwrap_or(u64::MAX);
        units.clamp(1, 1 << 24) as u32 + 1
    }

    /// Counts an iteration; whether it is time to look at the clock.
    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.iterations -= 1;
        if self.iterations != 0 {
            return false;
        }
        self.iterations = self.every;
        true
    }

    /// The iteration that was counted last has given up the core.
    #[inline]
    pub(crate) fn count_given_up(&mut self) {
        self.iterations = self.iterations.saturating_sub(GIVEN_UP - 1).max(1);
    }

    /// Takes in how long the iterations have taken since the clock was last read. Were it read too seldom, time that does not count
    /// ([`MAX_GAP`]) would pass for each bit of what does.
    fn pace(&mut self, now: u64) {
        let gap = now.saturating_sub(std::mem::replace(&mut self.read, now));
        let wanted = if gap < PERIOD / 4 {
            (self.every * 2).min(TURNS)
        } else if gap > PERIOD / 2 {
            // `every` is at most TURNS, so this does not overflow.
            (u64::from(self.every) * (PERIOD / 2) / gap).max(1) as u32
        } else {
            self.every
        };
        // Unless there is a hurry.
        if self.iterations == self.every {
            self.iterations = wanted;
        }
        self.every = wanted;
    }

    /// Whether it is time to look at the connections, and at the rails: also where no wait is ever reported or given up.
    pub(crate) fn starts(&mut self, now: u64) -> bool {
        self.pace(now);
        let gap = now.saturating_sub(self.looked);
        let due = gap >= PERIOD;
        if due {
            self.looked = now;
            self.counted += gap.min(self.most);
            self.stamp = (self.counted >> STAMP_SHIFT) as u32;
        }
        due
    }

    /// Whether something that last moved at `moved`, on the clock of stamps, has been still for too
    /// long: a warning is due beyond those given already, or its time is up.
    pub(crate) fn overdue(&self, moved: u32, warned: u32) -> Option<Overdue> {
        let still = u64::from(self.stamp - moved) << STAMP_SHIFT;
        let fails = self.fail_after.is_some_and(|limit| still >= limit);
        let warns = self.warn_after.is_some_and(|limit| still / limit.max(1) > u64::from(warned));
        (fails || warns).then_some(Overdue { seconds: still / 1_000_000_000, fails })
    }

    /// Whether the time of what waits since `since`, on the clock of stamps, is up: after so many seconds.
    pub(crate) fn gives_up(&self, since: u32) -> Option<u64> {
        let overdue = self.overdue(since, u32::MAX).filter(|overdue| overdue.fails);
        overdue.map(|Overdue { seconds, .. }| seconds)
    }

    /// The time that segments are stamped with.
    #[inline(always)]
    pub(crate) fn stamp(&self) -> u32 {
        self.stamp
    }

    /// Looks at all segments under way; gives the connections whose time is up, with the error.
    ///
    /// `staged` is when staging has last moved, `parking` the peers for which operations are pending. It walks through the segments in
    /// use and these, four times a second and only while the lane is run; connections for which nothing is under way cost nothing.
    pub(crate) fn look<P: Port>(
        &mut self,
        connections: &mut Connections,
        segments: &SegmentTable,
        port: &P,
        rails: &[Rail<P::Fast>],
        staged: u32,
        parking: impl Iterator<Item = Pe>,
    ) -> Vec<(Pe, EngineError)> {
        self.looks = self.looks.wrapping_add(1);
        let look = (self.looks, self.stamp);
        self.busy.clear();
        for pe in segments.in_use().map(|segment| segment.pe).chain(parking) {
            let Some(connection) = connections.find_mut(pe) else { continue };
            let (ended, waits) = (connection.ended(), !connection.is_quiet());
            if connection.watch.look(ended, waits, look) {
                self.busy.push(pe);
            }
        }
        if std::mem::take(&mut self.has_moved) {
            self.moved = self.stamp;
        }
        // What counts is the time without movement: of the segment's connection once the segment is
        // posted, of its rail while it waits there. Many segments over a slow channel each take long,
        // but something moves all the time.
        let still = |segment: &Segment| {
            let moved = match segment.stage {
                Stage::Ready => {
                    let rail = &rails[segment.rail.index()];
                    // It waits for its peer, whatever else the rail moves.
                    match connections.find(segment.pe).filter(|_| rail.blocked.has(segment.pe)) {
                        Some(connection) => connection.watch.since,
                        None => rail.moved,
                    }
                }
                Stage::Pooled => rails.iter().map(|rail| rail.moved).max().unwrap_or(0),
                Stage::Staged => {
                    connections.find(segment.pe).map_or(staged, |s| s.watch.since.max(staged))
                }
                _ => connections
                    .find(segment.pe)
                    .map_or(self.stamp, |connection| connection.watch.since),
            };
            u64::from(self.stamp - segment.born.max(moved)) << STAMP_SHIFT
        };
        let patience = self.warn_after.into_iter().chain(self.fail_after).min().unwrap_or(u64::MAX);
        let waits = |segment: &Segment| {
            use Stage::{AtomicPosted, Lost, Pooled, Posted, Ready, Sent, Staged, Windowed};
            matches!(
                segment.stage,
                Posted | Ready | Sent | Windowed | AtomicPosted | Staged | Pooled | Lost
            )
        };
        let stuck = |segment: &Segment| {
            let still = if waits(segment) { still(segment) } else { 0 };
            (still >= patience).then_some((still, *segment))
        };
        let mut oldest: Vec<(u64, Segment)> = segments.in_use().filter_map(stuck).collect();
        let moved = rails.iter().map(|rail| rail.moved).fold(self.moved.max(staged), u32::max);
        let mut failed = self.without_movement(connections, moved);
        if oldest.is_empty() {
            if std::mem::take(&mut self.has_warned) {
                connections.for_each(|connection| connection.watch.warned = 0);
            }
            return failed;
        }
        // One report per connection, of its oldest segment.
        oldest.sort_by_key(|(_, segment)| (segment.pe, segment.born));
        oldest.dedup_by_key(|(_, segment)| segment.pe);
        let mut said = 0;
        for (waited, segment) in oldest {
            let Some(connection) = connections.find_mut(segment.pe) else { continue };
            if connection.error.is_some() || failed.iter().any(|(pe, _)| *pe == segment.pe) {
                continue;
            }
            let fails = self.fail_after.is_some_and(|limit| waited >= limit);
            let warns = self
                .warn_after
                .is_some_and(|limit| waited / limit.max(1) > u64::from(connection.watch.warned));
            if !fails && !warns {
                continue;
            }
            connection.watch.warned += 1;
            self.has_warned = true;
            let report = EngineError::Timeout {
                what: segment.what(),
                pe: connection.pe,
                len: segment.transfer.len,
                rail: segment.rail,
                rail_name: port.rail_name(segment.rail).to_owned(),
                seconds: waited / 1_000_000_000,
                state: match segment.stage {
                    Stage::Posted | Stage::AtomicPosted => "posted",
                    Stage::Ready => "queued: the fabric does not take it",
                    Stage::Sent => "sent, not acknowledged",
                    Stage::Staged => "staged: waits for bounce memory, a copy or the peer",
                    Stage::Pooled => "waits for a rail",
                    Stage::Lost => "its path has failed: the peer has not closed its rail yet",
                    Stage::Windowed => "waits for acknowledgements of earlier ones",
                    Stage::Held | Stage::Chained | Stage::BehindPuts | Stage::Free => "not sent",
                },
                writes: connection.outstanding(Direction::Write),
                // What is pending counts as one.
                reads: connection.outstanding(Direction::Read)
                    - u32::from(connection.has_pending()),
            };
            if fails {
                failed.push((segment.pe, report));
                continue;
            }
            // Peers may have gone by the thousand.
            if said == REPORTS {
                continue;
            }
            said += 1;
            warn!(target: "TRANSPORT", "{report}");
            if connection.watch.warned > 1 && said <= DUMPS {
                dump(port, rails);
            }
            if said == REPORTS {
                warn!(target: "TRANSPORT", "and perhaps others: no more are reported this time");
            }
        }
        failed
    }
}

impl Watchdog {
    /// Connections that are not quiet, in a lane in which nothing has moved since `moved`. What waits for others, or is pending
    /// until there is room, has no time of its own: it leans on that of those that it waits for. Should they have none
    /// either, as what the fabric still has for a peer that was given up, nobody would ever be told. So such a connection is
    /// given up as well, after twice the time that others have.
    #[cold]
    fn without_movement(&self, connections: &Connections, moved: u32) -> Vec<(Pe, EngineError)> {
        let mut failed = Vec::new();
        let Some(limit) = self.fail_after else { return failed };
        let stamp = self.stamp;
        for connection in self.busy.iter().filter_map(|pe| connections.find(*pe)) {
            let waited = u64::from(stamp - connection.watch.since.max(moved)) << STAMP_SHIFT;
            let waits = !connection.is_quiet() && connection.error.is_none();
            if waits && waited >= limit.saturating_mul(2) {
                let error = EngineError::Stuck {
                    pe: connection.pe,
                    seconds: waited / 1_000_000_000,
                    writes: connection.outstanding(Direction::Write),
                    // What is pending counts as one.
                    reads: connection.outstanding(Direction::Read)
                        - u32::from(connection.has_pending()),
                };
                failed.push((connection.pe, error));
            }
        }
        failed
    }
}

fn dump<P: Port>(port: &P, rails: &[Rail<P::Fast>]) {
    for (index, rail) in rails.iter().enumerate() {
        let id = crate::ids::RailId(index as u8);
        let counters = rail.counters();
        warn!(
            target: "TRANSPORT",
            "{id} ({}): {} in flight of {}, {} queued, {} posted, {} completed, {} times no room",
            port.rail_name(id),
            rail.in_flight(),
            rail.depth,
            rail.queued(),
            counters.posted,
            counters.completed,
            counters.again,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::AtomicOp;
    use crate::posting::Core;
    use crate::posting::tests::{Bed, PLAIN, Setup, failed};

    /// Iterations until the clock is read, at which so much time has passed.
    fn iterations(watchdog: &mut Watchdog, now: &mut u64, iteration: u64) -> u64 {
        let mut iterations = 1;
        while !watchdog.is_due() {
            iterations += 1;
        }
        *now += iterations * iteration;
        watchdog.starts(*now);
        iterations
    }

    #[test]
    fn the_clock_is_read_once_in_so_many_iterations_or_at_once_in_a_hurry() {
        let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
        let read: Vec<u64> = (0..12).map(|_| iterations(&mut watchdog, &mut now, 1000)).collect();
        // After the first, and then ever less often.
        assert_eq!(read[..4], [1, 2, 4, 8]);
        assert_eq!(read[8..], [u64::from(TURNS); 4]);
        watchdog.hurry();
        assert!(watchdog.is_due() && !watchdog.is_due());
    }

    #[test]
    fn the_clock_is_read_twice_in_a_period_however_long_iterations_take() {
        for iteration in [1_000_000, 3_000_000, 20_000_000, 100_000_000, 124_000_000] {
            let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
            for _ in 0..20 {
                assert!(
                    iterations(&mut watchdog, &mut now, iteration) * iteration <= PERIOD / 2,
                    "{iteration} ns"
                );
            }
        }
        // Iterations that were short have become long: one gap, and no other.
        let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
        for _ in 0..20 {
            iterations(&mut watchdog, &mut now, 1000);
        }
        let mut slow = || iterations(&mut watchdog, &mut now, 20_000_000);
        assert_eq!((slow(), slow()), (u64::from(TURNS), 6));
        assert!((0..20).all(|_| slow() <= 6));
        // And short again.
        let short: Vec<u64> = (0..12).map(|_| iterations(&mut watchdog, &mut now, 1000)).collect();
        assert_eq!(short[11], u64::from(TURNS));
    }

    /// Who waits on a machine that is busy all of a sudden does not learn of it after [`TURNS`] waits.
    #[test]
    fn an_iteration_that_has_given_up_the_core_counts_as_many() {
        let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
        for _ in 0..20 {
            iterations(&mut watchdog, &mut now, 1000);
        }
        let mut count = 0;
        while !watchdog.is_due() {
            watchdog.count_given_up();
            count += 1;
        }
        assert_eq!(count, TURNS / GIVEN_UP);
    }

    #[test]
    fn connections_are_looked_at_four_times_a_second_whatever_the_limits() {
        let second = Some(Duration::from_secs(1));
        for (warn, fail) in [(None, None), (second, None), (None, second)] {
            let mut watchdog = Watchdog::new(warn, fail);
            assert!(!watchdog.starts(PERIOD - 1));
            assert!(watchdog.starts(PERIOD));
            assert!(!watchdog.starts(2 * PERIOD - 1));
            assert!(watchdog.starts(2 * PERIOD));
        }
    }

    #[test]
    fn a_process_that_was_stopped_has_not_waited_meanwhile() {
        for seconds in [2, 20, 120] {
            let limit = Duration::from_secs(seconds);
            let mut watchdog = Watchdog::new(None, Some(limit));
            let mut now = 0;
            let mut iterate = |watchdog: &mut Watchdog, gap| {
                now += gap;
                assert!(watchdog.starts(now));
                watchdog.overdue(0, 0).is_some()
            };
            assert!(!iterate(&mut watchdog, PERIOD));
            assert!(!iterate(&mut watchdog, 10 * limit.as_nanos() as u64), "{seconds} s");
            // Time that it is there counts as ever.
            let due = (0..).take_while(|_| !iterate(&mut watchdog, PERIOD)).count() as u64;
            assert!((2..=4 * seconds).contains(&due), "{due} looks more of {seconds} s");
        }
    }

    #[test]
    fn a_wait_is_reported_each_time_as_long_and_given_up_in_the_end() {
        // In units of stamps, so that they come out even.
        let units = |count: u64| Some(Duration::from_nanos(count << STAMP_SHIFT));
        let mut watchdog = Watchdog::new(units(4), units(20));
        let mut told = Vec::new();
        let mut warned = 0;
        for stamp in 0..=20 {
            watchdog.stamp = stamp;
            if let Some(overdue) = watchdog.overdue(0, warned) {
                assert_eq!(overdue.seconds, (u64::from(stamp) << STAMP_SHIFT) / 1_000_000_000);
                warned += 1;
                told.push((stamp, overdue.fails));
            }
        }
        assert_eq!(told, [(4, false), (8, false), (12, false), (16, false), (20, true)]);
        watchdog.stamp = 23;
        assert!(watchdog.overdue(4, 4).is_none(), "something has moved since");
        assert!(watchdog.overdue(3, 9).is_some_and(|overdue| overdue.fails));
    }

    /// In units of stamps.
    fn limit(units: u64) -> Watchdog {
        Watchdog::new(None, Some(Duration::from_nanos(units << STAMP_SHIFT)))
    }

    /// No peer has something pending.
    fn none() -> std::iter::Empty<Pe> {
        std::iter::empty()
    }

    /// Not even by a look at them. Those for which something is pending are.
    #[test]
    fn connections_for_which_nothing_is_under_way_are_not_touched() {
        let mut bed = Bed::new(Setup { n_pes: 12, ..PLAIN });
        (1..8).for_each(|pe| bed.put(pe));
        bed.pass_time();
        while bed.lane.iterate() {}
        bed.put(3);
        let Core { connections, segments, port, rails, .. } = &mut bed.lane.core;
        connections.for_each(|connection| connection.watch.since = 77);
        connections.find_mut(Pe(5)).unwrap().set_pending(true);
        let mut watchdog = limit(10);
        let parking = [Pe(5)].into_iter();
        assert!(watchdog.look(connections, segments, port, rails, 0, parking).is_empty());
        let touched = connections.iter().filter(|connection| connection.watch.since != 77);
        assert_eq!(touched.map(|connection| connection.pe.0).collect::<Vec<_>>(), [3, 5]);
        assert_eq!(watchdog.busy, [Pe(3), Pe(5)]);
    }

    /// Those of peers for which nothing is under way at a look are, too.
    #[test]
    fn acknowledgements_are_movement() {
        let mut bed = Bed::new(PLAIN);
        bed.atomic(1, AtomicOp::Inc);
        let channel = bed.lane.core.connections.find(Pe(1)).unwrap().channel.as_deref();
        let next = channel.unwrap().next;
        for (acknowledged, moved) in [(false, 0), (true, 7)] {
            if acknowledged {
                bed.lane.core.acknowledged(Pe(1), next);
            }
            let Core { connections, segments, port, rails, watchdog, .. } = &mut bed.lane.core;
            watchdog.stamp = 7;
            assert!(watchdog.look(connections, segments, port, rails, 0, none()).is_empty());
            assert_eq!(watchdog.moved, moved);
        }
    }

    /// What may move while something waits.
    #[derive(Clone, Copy, PartialEq)]
    enum Moves {
        ItsRail,
        OtherRail,
        Peer,
        Staging,
    }

    #[test]
    fn a_wait_lasts_since_what_it_waits_for_has_moved() {
        use Moves::{ItsRail, OtherRail, Peer, Staging};
        for (stage, counts) in [
            (Stage::Ready, &[ItsRail][..]),
            (Stage::Pooled, &[ItsRail, OtherRail]),
            (Stage::Staged, &[Peer, Staging]),
            (Stage::Posted, &[Peer]),
            (Stage::Sent, &[Peer]),
            (Stage::Lost, &[Peer]),
        ] {
            for moves in [ItsRail, OtherRail, Peer, Staging] {
                let mut bed = Bed::new(Setup { rails: 2, ..PLAIN });
                bed.put(1);
                let Core { connections, segments, port, rails, .. } = &mut bed.lane.core;
                let mut watchdog = limit(10);
                assert!(watchdog.look(connections, segments, port, rails, 0, none()).is_empty());
                let its = segments[0].rail.index();
                segments[0].stage = stage;
                let mut staged = 0;
                match moves {
                    ItsRail => rails[its].moved = 3,
                    OtherRail => rails[1 - its].moved = 3,
                    Peer => connections.find_mut(Pe(1)).unwrap().watch.since = 3,
                    Staging => staged = 3,
                }
                let mut ends = |stamp| {
                    watchdog.stamp = stamp;
                    let failed = watchdog.look(connections, segments, port, rails, staged, none());
                    let ends =
                        |failed: &_| matches!(failed, EngineError::Timeout { seconds: 2, .. });
                    assert!(failed.iter().all(|(pe, failed)| *pe == Pe(1) && ends(failed)));
                    failed.len()
                };
                let first = if counts.contains(&moves) { 13 } else { 10 };
                assert_eq!((ends(first - 1), ends(first)), (0, 1), "{stage:?}");
            }
        }
    }

    /// Of a peer that has failed nobody is told again, nor twice of one whose connection and segment both wait.
    #[test]
    fn a_peer_is_given_up_once() {
        for has_failed in [false, true] {
            let mut bed = Bed::new(PLAIN);
            bed.put(1);
            let Core { connections, segments, port, rails, .. } = &mut bed.lane.core;
            let mut watchdog = limit(10);
            assert!(watchdog.look(connections, segments, port, rails, 0, none()).is_empty());
            if has_failed {
                connections.find_mut(Pe(1)).unwrap().error = Some(Box::new(failed(1)));
            }
            for stamp in [10, 40] {
                watchdog.stamp = stamp;
                let failed = watchdog.look(connections, segments, port, rails, 0, none());
                assert_eq!(failed.len(), usize::from(!has_failed), "{failed:?}");
            }
        }
    }

    #[test]
    fn who_waits_for_others_in_a_lane_that_stands_still_has_twice_the_time() {
        let mut bed = Bed::new(PLAIN);
        [2, 3].into_iter().for_each(|pe| bed.put(pe));
        bed.lane.core.connection_to(Pe(1)).unwrap();
        let connections = &mut bed.lane.core.connections;
        connections.find_mut(Pe(2)).unwrap().set_pending(true);
        connections.find_mut(Pe(3)).unwrap().error = Some(Box::new(failed(3)));
        let mut watchdog = limit(10);
        watchdog.busy = vec![Pe(1), Pe(2), Pe(3)];
        watchdog.stamp = 19;
        assert_eq!(watchdog.without_movement(connections, 0), []);
        watchdog.stamp = 20;
        assert_eq!(watchdog.without_movement(connections, 1), []);
        let stuck = EngineError::Stuck { pe: Pe(2), seconds: 5, writes: 1, reads: 0 };
        assert_eq!(watchdog.without_movement(connections, 0), [(Pe(2), stuck)]);
    }
}
