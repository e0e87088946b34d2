//! Watchdog: warns of peers whose work makes no progress, with details, then fails them.

use std::time::Duration;

use log::warn;

use crate::channel::Channel;
use crate::core::Core;
use crate::error::EngineError;
use crate::group::Class;
use crate::ids::Pe;
use crate::op::QueueEntry;
use crate::peers::Peer;
use crate::port::Port;

/// Maximum iterations between two reads of the clock, each of which takes tens of ns.
const ITERATIONS: u32 = 256;

/// Weight of an iteration that yielded the core, which may have lasted tens of milliseconds.
const YIELD_WEIGHT: u32 = 16;

/// Time between two checks of all peers, in nanoseconds.
const PERIOD: u64 = 250_000_000;

/// Maximum nanoseconds between two checks that count as waiting. While a user thread computes for
/// an hour before its quiet, or a process is stopped, the fabric cannot complete anything.
const MAX_GAP: u64 = 5_000_000_000;

/// A gap counts at most as the deadline divided by this.
const GAPS: u64 = 2;

/// Times are kept in units of 2^28 ns, about a quarter of a second, so 32 bits last 36 years.
const TIME_SHIFT: u32 = 28;

/// Maximum number of peers reported per check, and of these reports with the state of all rails.
const REPORTS: u32 = 16;
const DUMPS: u32 = 4;

/// Deadlines of a lane's waits.
#[derive(Debug, Default)]
pub struct Watchdog {
    warn_after: Option<u64>,
    fail_after: Option<u64>,
    max_gap: u64,
    /// Iterations left until the clock is read, and the interval between reads.
    iterations: u32,
    every: u32,
    /// Times of the last read of the clock and of the last check of peers, in nanoseconds.
    clock_read: u64,
    checked: u64,
    /// Time that counts as waiting in nanoseconds, and in units of [`TIME_SHIFT`].
    waited: u64,
    time: u32,
    checks: u32,
    /// Time when work of any peer last ended.
    last_progress: u32,
    /// PEs whose processes have ended, and when this was noticed.
    ended: Vec<(Pe, u32)>,
}

#[derive(Debug)]
struct OldestWork {
    what: &'static str,
    len: usize,
    rail: crate::ids::RailId,
    state: &'static str,
    born: u32,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Overdue {
    pub(crate) seconds: u64,
    /// Whether the deadline has passed, so that the peer fails.
    pub(crate) fails: bool,
}

impl Watchdog {
    /// Creates a watchdog that reports a peer whose work has not moved for `warn_after`, again
    /// after each further `warn_after`, and fails it after `fail_after`. `None` disables either.
    pub fn new(warn_after: Option<Duration>, fail_after: Option<Duration>) -> Self {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let fail_after = fail_after.map(nanoseconds);
        let share = fail_after.map_or(MAX_GAP, |limit| limit / GAPS);
        Self {
            warn_after: warn_after.map(nanoseconds),
            fail_after,
            // At least a period, or no time would count; at most a part of the deadline.
            max_gap: share.clamp(PERIOD, MAX_GAP),
            iterations: 1,
            every: 1,
            ..Self::default()
        }
    }

    pub(crate) fn add_ended(&mut self, pe: Pe) {
        // Not failed at once: its last messages may still be on their way.
        self.ended.push((pe, self.time));
    }

    /// Takes the PEs whose processes ended a whole deadline ago.
    pub(crate) fn take_ended(&mut self) -> Vec<Pe> {
        // `u32::MAX` warnings: only the deadline counts.
        let is_over =
            |since: u32| self.overdue(since, &mut { u32::MAX }).is_some_and(|late| late.fails);
        let ended = self.ended.iter().filter(|(_, since)| is_over(*since));
        let ended: Vec<Pe> = ended.map(|(pe, _)| *pe).collect();
        self.ended.retain(|(pe, _)| !ended.contains(pe));
        ended
    }

    /// Returns the current time in the watchdog's units.
    #[inline(always)]
    pub(crate) fn time(&self) -> u32 {
        self.time
    }

    /// Counts an iteration. Returns true if the clock is to be read.
    #[inline(always)]
    pub(crate) fn is_due(&mut self) -> bool {
        self.iterations -= 1;
        if self.iterations != 0 {
            return false;
        }
        self.iterations = self.every;
        true
    }

    /// Counts an iteration that has yielded the core.
    #[inline]
    pub(crate) fn count_yielded(&mut self) {
        self.iterations = self.iterations.saturating_sub(YIELD_WEIGHT - 1).max(1);
    }

    /// Advances to the time `now`, in nanoseconds. Returns true if peers are to be checked.
    pub(crate) fn tick(&mut self, now: u64) -> bool {
        let gap = now.saturating_sub(std::mem::replace(&mut self.clock_read, now));
        // Reads are kept below half a period apart: of a longer gap only a part counts as waiting.
        if gap < PERIOD / 4 {
            self.every = (self.every * 2).min(ITERATIONS);
        } else if gap > PERIOD / 2 {
            self.every = (u64::from(self.every) * (PERIOD / 2) / gap).max(1) as u32;
        }
        self.iterations = self.every;
        let gap = now.saturating_sub(self.checked);
        if gap < PERIOD {
            return false;
        }
        self.checked = now;
        // A process that was stopped has not waited.
        self.waited += gap.min(self.max_gap);
        self.time = (self.waited >> TIME_SHIFT) as u32;
        true
    }

    /// Returns the report due for work without progress since `since`, after `warned` warnings.
    pub(crate) fn overdue(&self, since: u32, warned: &mut u32) -> Option<Overdue> {
        self.overdue_after(1, since, warned)
    }

    /// As [`Watchdog::overdue`], for work that fails after so many deadlines.
    fn overdue_after(&self, deadlines: u64, since: u32, warned: &mut u32) -> Option<Overdue> {
        let still = u64::from(self.time.saturating_sub(since)) << TIME_SHIFT;
        let fails = self.fail_after.is_some_and(|limit| still >= limit.saturating_mul(deadlines));
        let due = self.warn_after.map_or(0, |limit| (still / limit.max(1)) as u32);
        // The wait may have begun anew after some of the warnings.
        *warned = due.min(*warned);
        (fails || due > *warned).then_some(Overdue { seconds: still / 1_000_000_000, fails })
    }
}

impl<P: Port> Core<P> {
    /// Checks all peers with unfinished work, and counted signals that wait for data; fails those
    /// whose deadline has passed. `staged` is the time of staging's last progress.
    pub(crate) fn check_peers(&mut self, staged: u32) {
        self.watchdog.checks = self.watchdog.checks.wrapping_add(1);
        let (number, time) = (self.watchdog.checks, self.watchdog.time);
        let mut last_progress = self.watchdog.last_progress.max(staged);
        let mut busy = Vec::new();
        // A control message that could not leave is tried again here.
        let has_control = |peer: &Peer| peer.channel.as_deref().is_some_and(Channel::has_control);
        let unsent: Vec<Pe> =
            self.peers.iter().filter(|peer| has_control(peer)).map(|peer| peer.pe).collect();
        unsent.into_iter().for_each(|pe| self.enter_control(pe));
        let is_busy = |peer: &Peer| {
            // No order group counts the peer's staged puts, and replies to its gets.
            let copies_in = peer.channel.as_deref().is_some_and(|channel| channel.reads > 0);
            let is_uncounted = peer.in_flight > 0 || peer.replies_owed > 0 || copies_in;
            is_uncounted && peer.error.is_none() || !peer.is_quiet()
        };
        for peer in self.peers.iter_mut().filter(|peer| is_busy(peer)) {
            let ended = peer.ended();
            let (own, watch) = (ended.wrapping_sub(peer.served.into()), &mut peer.watch);
            // What peers put here moves while this PE's own work may be stuck.
            if own != watch.own {
                (watch.own, last_progress) = (own, time);
            }
            // A peer that was idle at the last check starts a new wait.
            if ended != watch.ended || watch.checked.wrapping_add(1) != number {
                (watch.ended, watch.since, watch.warned) = (ended, time, 0);
            }
            watch.checked = number;
            busy.push(peer.pe);
        }
        self.watchdog.last_progress = last_progress;
        let mut reported = 0;
        // After the loop: whether one peer is stuck depends on whether any other has moved.
        for pe in busy {
            self.check_peer(pe, staged, &mut reported);
        }
        self.check_counted_signals();
    }

    fn check_peer(&mut self, pe: Pe, staged: u32, reported: &mut u32) {
        let time = self.watchdog.time;
        let peer = self.peers.get_mut(pe);
        let unfinished = peer.channel.as_deref().is_some_and(|channel| channel.unfinished > 0);
        let unanswered = peer.gets_requested != peer.gets_answered;
        if peer.in_flight == 0 && !unfinished && !unanswered && !peer.is_refused {
            // Work that waits for resources of other peers, or for a copy, is overdue only while
            // the whole lane is stuck, and has two deadlines: those peers' come first.
            let watch = &mut peer.watch;
            watch.starved = time;
            let since = watch.since.max(self.watchdog.last_progress).max(staged);
            let overdue = self.watchdog.overdue_after(2, since, &mut watch.warned);
            let Some(overdue) = overdue else { return };
            let report = self.timeout(pe, &self.oldest(pe), overdue.seconds);
            return self.report(pe, report, overdue.fails, reported);
        }
        let watch = &mut peer.watch;
        let since = watch.since.max(watch.starved);
        if self.watchdog.overdue(since, &mut watch.warned).is_none() {
            return;
        }
        // Searched only now: it walks the tables of segments and messages.
        let oldest = self.oldest(pe);
        // A peer may complete nothing for long because nothing was posted.
        let since = since.max(oldest.born);
        let warned = &mut self.peers.get_mut(pe).watch.warned;
        let Some(overdue) = self.watchdog.overdue(since, warned) else { return };
        let report = self.timeout(pe, &oldest, overdue.seconds);
        self.report(pe, report, overdue.fails, reported);
    }

    fn report(&mut self, pe: Pe, report: EngineError, fails: bool, reported: &mut u32) {
        if fails {
            return self.fail_peer(pe, report);
        }
        let watch = &mut self.peers.get_mut(pe).watch;
        watch.warned += 1;
        let again = watch.warned > 1;
        *reported += 1;
        if *reported > REPORTS {
            return;
        }
        warn!(target: "TRANSPORT", "{}: {report}", self.me);
        if again && *reported <= DUMPS {
            self.dump();
        }
        if *reported == REPORTS {
            warn!(target: "TRANSPORT", "and perhaps others: no more are reported this time");
        }
    }

    /// Returns the oldest work of a peer in flight, or else the first in its queue.
    fn oldest(&self, pe: Pe) -> OldestWork {
        let posted = self.segments.of_peer(pe).map(|(_, segment)| segment);
        let posted = posted.min_by_key(|segment| segment.born).map(|first| {
            let (what, len, state) = (first.what(), first.len, "posted");
            OldestWork { what, len, rail: first.account.rail(), state, born: first.born }
        });
        let sent = self.messages.sent().map(|(_, slot)| slot).filter(|s| s.account.pe() == pe);
        let sent = sent.min_by_key(|slot| slot.seq).map(|first| {
            let (len, state) = (first.frame.len + first.tail.len, "sent, not acknowledged");
            let (what, rail, born) = (first.what(), first.account.rail(), first.born);
            OldestWork { what, len, rail, state, born }
        });
        if let Some(first) = posted.into_iter().chain(sent).min_by_key(|work| work.born) {
            return first;
        }
        let peer = self.peers.get(pe);
        if peer.gets_requested != peer.gets_answered {
            let (what, rail, state) = ("get", peer.path.rail, "asked for, not answered");
            return OldestWork { what, len: 0, rail, state, born: 0 };
        }
        let first = peer.queue.iter().find_map(|queued| match queued {
            QueueEntry::Op(op, _) => Some(op),
            QueueEntry::Fence | QueueEntry::OwnWords | QueueEntry::Quiet(_) => None,
        });
        // Counted work, waiting signals and staged transfers, is older than anything queued. A
        // chained put counts while it is queued itself.
        let counted = peer.order.unfinished(Class::Write) + peer.order.unfinished(Class::Read);
        let signals = peer.waiting_signals.len() as u32;
        let queued = u32::from(first.is_some_and(|op| op.is_chained()));
        let (what, len) = match first {
            _ if peer.replies_owed > 0 => ("answer to a get", 0),
            _ if counted > signals + queued => ("staged transfer", 0),
            _ if signals > 0 => ("signal", 8),
            Some(op) => (op.what(), op.len),
            None => ("staged transfer", 0),
        };
        let rail = peer.path.rail;
        let state = match (peer.is_refused, what) {
            (true, _) => "queued: the fabric does not take it",
            (_, "staged transfer" | "answer to a get") => {
                "being copied, or waiting for a bounce buffer"
            }
            _ => "queued: others hold what it waits for",
        };
        OldestWork { what, len, rail, state, born: 0 }
    }

    fn timeout(&self, pe: Pe, oldest: &OldestWork, seconds: u64) -> EngineError {
        let peer = self.peers.get(pe);
        let OldestWork { what, len, rail, state, .. } = *oldest;
        let writes = peer.order.unfinished(Class::Write) + peer.order.unfinished(Class::Message);
        let reads = peer.order.unfinished(Class::Read);
        let rail_name = self.port.rail_name(rail).to_owned();
        EngineError::Timeout { what, pe, len, rail, rail_name, seconds, state, writes, reads }
    }

    /// Checks peers whose counted signals wait for their data.
    fn check_counted_signals(&mut self) {
        let mut overdue = Vec::new();
        for peer in self.peers.iter_mut() {
            let counts =
                peer.channel.as_deref_mut().and_then(|channel| channel.counts.as_deref_mut());
            let Some(counts) = counts.filter(|_| peer.error.is_none()) else { continue };
            let Some((arrived, segments)) = counts.first_waiting() else { continue };
            let Some(late) = self.watchdog.overdue(counts.last_arrival, &mut counts.warned) else {
                continue;
            };
            counts.warned += 1;
            let failed = EngineError::DataMissing {
                pe: peer.pe,
                arrived,
                segments,
                waiting: counts.waiting(),
                seconds: late.seconds,
            };
            // Not yet: failing a peer changes the peers that are iterated.
            overdue.push((peer.pe, failed, late.fails));
        }
        for (pe, failed, fails) in overdue {
            if fails {
                self.fail_peer(pe, failed);
            } else {
                warn!(target: "TRANSPORT", "{}: {failed}", self.me);
            }
        }
    }

    fn dump(&self) {
        for id in self.rails.ids() {
            let rail = &self.rails[id];
            let counters = rail.counters();
            warn!(
                target: "TRANSPORT",
                "{id} ({}): {} in flight of {}, {} queued in all, {} posted, {} completed, {} times no room",
                self.port.rail_name(id),
                rail.in_flight(),
                rail.limits.depth,
                self.queued,
                counters.posted,
                counters.completed,
                counters.again,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn iterations(watchdog: &mut Watchdog, now: &mut u64, iteration: u64) -> u64 {
        let mut iterations = 1;
        while !watchdog.is_due() {
            iterations += 1;
        }
        *now += iterations * iteration;
        watchdog.tick(*now);
        iterations
    }

    /// After the first iteration and then ever less often, but twice per period.
    #[test]
    fn clock_is_read_twice_per_period() {
        let new = || (Watchdog::new(None, None), 0);
        let (mut watchdog, mut now) = new();
        let read: Vec<u64> = (0..12).map(|_| iterations(&mut watchdog, &mut now, 1000)).collect();
        assert_eq!((&read[..4], &read[8..]), (&[1, 2, 4, 8][..], &[u64::from(ITERATIONS); 4][..]));
        // Iterations that were short have become long: one gap, and no other.
        let mut slow = || iterations(&mut watchdog, &mut now, 20_000_000);
        assert_eq!((slow(), slow()), (u64::from(ITERATIONS), 6));
        assert!((0..20).all(|_| slow() <= 6));
        // And short again.
        let last = (0..12).map(|_| iterations(&mut watchdog, &mut now, 1000)).last();
        assert_eq!(last, Some(u64::from(ITERATIONS)));
        for iteration in [1_000_000, 3_000_000, 20_000_000, 100_000_000, 124_000_000] {
            let (mut watchdog, mut now) = new();
            let mut gaps = (0..20).map(|_| iterations(&mut watchdog, &mut now, iteration));
            assert!(gaps.all(|gap| gap * iteration <= PERIOD / 2), "{iteration} ns");
        }
    }

    #[test]
    fn yielded_iterations_count_as_many() {
        let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
        for _ in 0..20 {
            iterations(&mut watchdog, &mut now, 1000);
        }
        let mut count = 0;
        while !watchdog.is_due() {
            watchdog.count_yielded();
            count += 1;
        }
        assert_eq!(count, ITERATIONS / YIELD_WEIGHT);
    }

    #[test]
    fn peers_are_checked_each_period() {
        let second = Some(Duration::from_secs(1));
        for (warn, fail) in [(None, None), (second, None), (None, second)] {
            let mut watchdog = Watchdog::new(warn, fail);
            assert!(!watchdog.tick(PERIOD - 1));
            assert!(watchdog.tick(PERIOD));
            assert!(!watchdog.tick(2 * PERIOD - 1));
            assert!(watchdog.tick(2 * PERIOD));
        }
    }

    #[test]
    fn new_wait_is_warned_in_time() {
        let mut watchdog = Watchdog::new(Some(Duration::from_secs(1)), None);
        let (mut now, mut warned) = (0, 0);
        for seconds in [9, 3] {
            let since = watchdog.time();
            // Times are rounded down, so one check more.
            for _ in 0..=4 * seconds {
                now += PERIOD;
                watchdog.tick(now);
                warned += u32::from(watchdog.overdue(since, &mut warned).is_some());
            }
            assert_eq!(warned, seconds, "each second");
        }
    }

    #[test]
    fn stopped_process_has_not_waited() {
        for seconds in [2, 20, 120] {
            let limit = Duration::from_secs(seconds);
            let mut watchdog = Watchdog::new(None, Some(limit));
            let mut now = 0;
            let mut iterate = |watchdog: &mut Watchdog, gap| {
                now += gap;
                assert!(watchdog.tick(now));
                watchdog.overdue(0, &mut 0).is_some()
            };
            assert!(!iterate(&mut watchdog, PERIOD));
            assert!(!iterate(&mut watchdog, 10 * limit.as_nanos() as u64), "{seconds} s");
            // Time that it is there counts as ever.
            let due = (0..).take_while(|_| !iterate(&mut watchdog, PERIOD)).count() as u64;
            assert!((2..=4 * seconds).contains(&due), "{due} checks more of {seconds} s");
        }
    }
}
