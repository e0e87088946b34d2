//! Finds operations that do not end: a warning with the particulars, then reports, then an error.

use std::time::Duration;

use log::warn;

use super::error::EngineError;
use super::lane::what;
use super::port::{Direction, Port};
use super::rail::Rail;
use super::segment::{NIL, SegmentTable, Stage};
use super::stream::Stream;

/// Turns of the loop between two looks at the clock. Reading the clock costs tens of nanoseconds,
/// so this makes it less than one per turn.
const TURNS: u32 = 256;

/// Least time between two looks at all streams, in nanoseconds.
const PERIOD: u64 = 250_000_000;

/// Most time between two looks that counts as waiting, in nanoseconds. A user thread may start a
/// put and compute for an hour before its quiet: the fabric had no chance to complete it meanwhile.
/// Well above the time that [`TURNS`] turns take on an overloaded machine (10 ms each).
const MAX_GAP: u64 = 5_000_000_000;

/// When waits are reported and given up.
#[derive(Debug)]
pub struct Watchdog {
    warn_after: Option<u64>,
    fail_after: Option<u64>,
    turns: u32,
    /// When the streams were last looked at.
    looked: u64,
    /// Time counted as waiting, up to `looked`.
    counted: u64,
}

impl Watchdog {
    /// Reports an operation that has not moved for `warn_after`, and again each time as long; fails
    /// it after `fail_after`. None never does.
    pub fn new(warn_after: Option<Duration>, fail_after: Option<Duration>) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            warn_after: warn_after.map(nanoseconds),
            fail_after: fail_after.map(nanoseconds),
            turns: 0,
            looked: 0,
            counted: 0,
        }
    }

    /// Counts a turn; whether it is time to look at the clock.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        self.turns += 1;
        if self.turns < TURNS {
            return false;
        }
        self.turns = 0;
        true
    }

    /// Whether it is time to look at the streams.
    pub(super) fn starts(&mut self, now: u64) -> bool {
        let gap = now.saturating_sub(self.looked);
        let due = gap >= PERIOD && (self.warn_after.is_some() || self.fail_after.is_some());
        if due {
            self.looked = now;
            self.counted += gap.min(MAX_GAP);
        }
        due
    }

    /// Looks at one stream; gives the error if its time is up.
    pub(super) fn look<P: Port>(
        &self,
        stream: &mut Stream,
        segments: &SegmentTable,
        port: &P,
        rails: &[Rail],
    ) -> Option<EngineError> {
        for direction in [Direction::Write, Direction::Read] {
            let oldest = stream.order(direction).oldest();
            let seq = oldest.map_or(0, |index| segments[index].seq + 1);
            let watch = &mut stream.watch[direction as usize];
            if watch.seq != seq {
                watch.seq = seq;
                watch.since = self.counted;
                watch.warned = 0;
                continue;
            }
            let Some(index) = oldest else { continue };
            let waited = self.counted - watch.since;
            let failed = self.fail_after.is_some_and(|limit| waited >= limit);
            let warns = self
                .warn_after
                .is_some_and(|limit| waited / limit.max(1) > u64::from(watch.warned));
            if !failed && !warns {
                continue;
            }
            watch.warned += 1;
            let repeated = watch.warned > 1;
            let segment = &segments[index];
            let report = EngineError::Timeout {
                what: what(direction),
                pe: stream.pe,
                len: segment.transfer.len,
                rail: segment.rail,
                rail_name: port.rail_name(segment.rail).to_owned(),
                seconds: waited / 1_000_000_000,
                state: match segment.stage {
                    Stage::Posted => "posted",
                    Stage::Ready => "queued: the fabric does not take it",
                    Stage::Held => "held behind a fence",
                    Stage::Free => "free",
                },
                writes: count(stream, segments, Direction::Write),
                reads: count(stream, segments, Direction::Read),
            };
            if failed {
                return Some(report);
            }
            warn!(target: "TRANSPORT", "{report}");
            if repeated {
                dump(port, rails);
            }
        }
        None
    }
}

fn count(stream: &Stream, segments: &SegmentTable, direction: Direction) -> u32 {
    let mut at = stream.order(direction).oldest().unwrap_or(NIL);
    let mut count = 0;
    while at != NIL {
        count += 1;
        at = segments[at].newer;
    }
    count
}

fn dump<P: Port>(port: &P, rails: &[Rail]) {
    for (index, rail) in rails.iter().enumerate() {
        let id = super::ids::RailId(index as u8);
        let counters = rail.counters();
        warn!(
            target: "TRANSPORT",
            "{id} ({}): {} in flight of {}, {} queued, {} posted, {} completed, {} times no room",
            port.rail_name(id),
            rail.in_flight,
            rail.depth,
            rail.queue.len(),
            counters.posted,
            counters.completed,
            counters.again,
        );
    }
}
