//! The watchdog: finds operations that do not end, and gives a warning with the particulars, then
//! reports, then an error.

use std::cmp::Reverse;
use std::time::Duration;

use log::warn;

use crate::error::EngineError;
use crate::ids::Pe;
use crate::port::{Direction, Port};
use crate::posting::peers::Peers;
use crate::posting::transmit::Transmit;
use crate::state::connection::Connection;
use crate::state::segment::{Segment, Stage};

/// Most progress iterations between two looks at the clock. Reading the clock costs tens of
/// nanoseconds, so this makes it less than one per iteration. Where iterations take long it is read
/// after fewer of them.
const ITERATIONS: u32 = 256;

/// As so many iterations counts one that has given up the core: it may have it back as soon as
/// microseconds, or as late as tens of milliseconds later, however long the iterations before it
/// took.
const GIVEN_UP: u32 = 16;

const PERIOD: u64 = 250_000_000;

/// Most time between two looks that counts as waiting, in nanoseconds. A user thread may start a
/// put and compute for an hour before its quiet, and a process may be stopped: the fabric had no
/// chance to complete it meanwhile. Well above [`PERIOD`], in which the clock is read twice while
/// the lane is turned.
const MAX_GAP: u64 = 5_000_000_000;

const GAPS: u64 = 2;

/// Times are kept in units of 2^28 ns, about a quarter of a second: 32 bits last 36 years.
const STAMP_SHIFT: u32 = 28;

const REPORTS: u32 = 16;

const DUMPS: u32 = 4;

/// A wait that is to be reported.
pub(crate) struct Overdue {
    pub(crate) seconds: u64,
    pub(crate) fails: bool,
}

/// When waits are reported and given up.
#[derive(Debug)]
pub struct Watchdog {
    warn_after: Option<u64>,
    fail_after: Option<u64>,
    most: u64,
    /// Iterations until the clock is read.
    iterations: u32,
    /// After how many it is read at present: as many as take less than half of [`PERIOD`].
    every: u32,
    read: u64,
    looked: u64,
    /// Time counted as waiting, up to `looked`.
    counted: u64,
    /// The same in units of 2^[`STAMP_SHIFT`] nanoseconds.
    stamp: u32,
    /// Whether some connection has been warned of and not been cleared.
    has_warned: bool,
    /// Looks so far, modulo 2^32.
    looks: u32,
    /// Whether a segment of any connection has ended since the last look, and when that was so
    /// last.
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

    #[inline(always)]
    pub(crate) fn has_moved(&mut self) {
        self.has_moved = true;
    }

    pub(crate) fn hurry(&mut self) {
        self.iterations = 1;
    }

    pub(crate) fn stamps(time: Duration) -> u32 {
        let units = u64::try_from(time.as_nanos() >> STAMP_SHIFT).unwrap_or(u64::MAX);
        units.clamp(1, 1 << 24) as u32 + 1
    }

    #[inline]
    pub(crate) fn is_due(&mut self) -> bool {
        self.iterations -= 1;
        if self.iterations != 0 {
            return false;
        }
        self.iterations = self.every;
        true
    }

    #[inline]
    pub(crate) fn count_yielded(&mut self) {
        self.iterations = self.iterations.saturating_sub(GIVEN_UP - 1).max(1);
    }

    /// Takes in how long the iterations have taken since the clock was last read. Were it read too
    /// seldom, time that does not count ([`MAX_GAP`]) would pass for each bit of what does.
    fn pace(&mut self, now: u64) {
        let gap = now.saturating_sub(std::mem::replace(&mut self.read, now));
        let wanted = if gap < PERIOD / 4 {
            (self.every * 2).min(ITERATIONS)
        } else if gap > PERIOD / 2 {
            // `every` is at most ITERATIONS, so this does not overflow.
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

    pub(crate) fn gives_up(&self, since: u32) -> Option<u64> {
        let overdue = self.overdue(since, u32::MAX).filter(|overdue| overdue.fails);
        overdue.map(|Overdue { seconds, .. }| seconds)
    }

    #[inline(always)]
    pub(crate) fn stamp(&self) -> u32 {
        self.stamp
    }

    /// Looks at all segments under way; gives the connections whose time is up, with the error.
    ///
    /// `staged` is when staging has last moved, `pending` the peers for which operations are
    /// pending. It walks through the segments in use and these, four times a second and only while
    /// the lane is turned; connections for which nothing is under way cost nothing.
    pub(crate) fn look<P: Port>(
        &mut self,
        peers: &mut Peers,
        transmit: &Transmit<P>,
        staged: u32,
        pending: impl Iterator<Item = Pe>,
    ) -> Vec<(Pe, EngineError)> {
        self.look_at_connections(peers, transmit, pending);
        let patience = self.warn_after.into_iter().chain(self.fail_after).min().unwrap_or(u64::MAX);
        let stuck = |segment: Segment| {
            let still = self.still(&segment, peers, transmit, staged);
            (still >= patience).then_some((still, segment))
        };
        let under_way = transmit.in_use().copied().chain(peers.without_segment());
        let mut oldest: Vec<(u64, Segment)> = under_way.filter_map(stuck).collect();
        let moved =
            transmit.rails().iter().map(|rail| rail.moved).fold(self.moved.max(staged), u32::max);
        let mut failed = self.without_movement(peers, moved);
        if oldest.is_empty() {
            if std::mem::take(&mut self.has_warned) {
                peers.for_each(|connection| connection.watch.warned = 0);
            }
            return failed;
        }
        // One report per connection, of the segment that has waited longest.
        oldest.sort_by_key(|(waited, segment)| (segment.pe, Reverse(*waited), segment.born));
        oldest.dedup_by_key(|(_, segment)| segment.pe);
        let mut said = 0;
        for (waited, segment) in oldest {
            let Some(connection) = peers.find_mut(segment.pe) else { continue };
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
            let report = timeout(waited, &segment, connection, transmit);
            if fails {
                failed.push((segment.pe, report));
            } else {
                say(&report, connection.watch.warned > 1, &mut said, transmit);
            }
        }
        failed
    }

    fn look_at_connections<P: Port>(
        &mut self,
        peers: &mut Peers,
        transmit: &Transmit<P>,
        pending: impl Iterator<Item = Pe>,
    ) {
        self.looks = self.looks.wrapping_add(1);
        let look = (self.looks, self.stamp);
        self.busy.clear();
        let messages: Vec<Pe> = peers.without_segment().map(|segment| segment.pe).collect();
        let segments = transmit.in_use().map(|segment| segment.pe);
        for pe in segments.chain(messages).chain(pending) {
            let Some(connection) = peers.find_mut(pe) else { continue };
            let (ended, waits) = (connection.ended(), !connection.is_quiet());
            if connection.watch.look(ended, waits, look) {
                self.busy.push(pe);
            }
        }
        if std::mem::take(&mut self.has_moved) {
            self.moved = self.stamp;
        }
    }

    /// How long a segment has waited without movement, in nanoseconds: of its connection once it is
    /// posted, of its rail while it waits there. Many segments over a slow channel each take long,
    /// but something moves all the time.
    fn still<P: Port>(
        &self,
        segment: &Segment,
        peers: &Peers,
        transmit: &Transmit<P>,
        staged: u32,
    ) -> u64 {
        let connection = peers.find(segment.pe);
        let moved = match segment.stage {
            Stage::Ready => {
                let rail = transmit.rail(segment.rail);
                // It waits for its peer, whatever else the rail moves.
                match connection.filter(|_| rail.blocked.has(segment.pe)) {
                    Some(connection) => connection.watch.since,
                    None => rail.moved,
                }
            }
            Stage::Pooled => transmit.rails().iter().map(|rail| rail.moved).max().unwrap_or(0),
            Stage::Staged => connection.map_or(staged, |s| s.watch.since.max(staged)),
            Stage::Posted | Stage::Sent | Stage::Windowed | Stage::Lost => {
                connection.map_or(self.stamp, |connection| connection.watch.since)
            }
            // It leans on what it waits for.
            Stage::Free | Stage::Held | Stage::Chained | Stage::BehindPuts => return 0,
        };
        u64::from(self.stamp - segment.born.max(moved)) << STAMP_SHIFT
    }
}

fn timeout<P: Port>(
    waited: u64,
    segment: &Segment,
    connection: &Connection,
    transmit: &Transmit<P>,
) -> EngineError {
    EngineError::Timeout {
        what: segment.what(),
        pe: connection.pe,
        len: segment.len(),
        rail: segment.rail,
        rail_name: transmit.port().rail_name(segment.rail).to_owned(),
        seconds: waited / 1_000_000_000,
        state: match segment.stage {
            Stage::Posted => "posted",
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
        reads: connection.outstanding(Direction::Read) - u32::from(connection.has_pending()),
    }
}

fn say<P: Port>(report: &EngineError, again: bool, said: &mut u32, transmit: &Transmit<P>) {
    if *said == REPORTS {
        return;
    }
    *said += 1;
    warn!(target: "TRANSPORT", "{report}");
    if again && *said <= DUMPS {
        dump(transmit);
    }
    if *said == REPORTS {
        warn!(target: "TRANSPORT", "and perhaps others: no more are reported this time");
    }
}

impl Watchdog {
    /// Connections that are not quiet, in a lane in which nothing has moved since `moved`. What
    /// waits for others, or is pending until there is room, has no time of its own: it leans on
    /// that of those that it waits for. Should they have none either, as what the fabric still has
    /// for a peer that was declared failed, nobody would ever be told. So such a connection is
    /// given up as well, after twice the time that others have.
    #[cold]
    fn without_movement(&self, peers: &Peers, moved: u32) -> Vec<(Pe, EngineError)> {
        let mut failed = Vec::new();
        let Some(limit) = self.fail_after else { return failed };
        let stamp = self.stamp;
        for connection in self.busy.iter().filter_map(|pe| peers.find(*pe)) {
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

fn dump<P: Port>(transmit: &Transmit<P>) {
    for id in transmit.rail_ids() {
        let rail = transmit.rail(id);
        let counters = rail.counters();
        warn!(
            target: "TRANSPORT",
            "{id} ({}): {} in flight of {}, {} queued, {} posted, {} completed, {} times no room",
            transmit.port().rail_name(id),
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
mod tests;
