//! Heartbeat of a proxy thread: another thread checks that it still iterates.
//!
//! The waits' watchdog ([`engine::Watchdog`]) runs in iterations. A thread stuck in a call of the
//! provider or of CUDA's driver makes none, and would never report it.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use log::{debug, warn};

use crate::logging;
use crate::settings::Settings;
use engine::lane::Pulse;
use engine::thread_wait::Wait;
use ofi::{fork, posix_signals};

const STEP: Duration = Duration::from_secs(1);
const SHORTEST: Duration = Duration::from_millis(5);

const RARELY: Duration = Duration::from_secs(30);

/// Report of a proxy thread that does not iterate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stall {
    pub(crate) seconds: u64,
    /// Whether it has begun an iteration and not returned.
    inside: bool,
    pub(crate) fails: bool,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, inside, .. } = self;
        let nobody = if *inside { "" } else { ", or nobody runs it" };
        write!(f, "the proxy thread has not made an iteration for {seconds} s: ")?;
        write!(
            f,
            "a call of the provider's or of CUDA's driver does not come back{nobody}; nothing that this process sends or \
             receives moves meanwhile (a stack of the thread tells where it is)"
        )
    }
}

#[derive(Debug)]
struct StallDetector {
    warn_after: Option<Duration>,
    fail_after: Option<Duration>,
    last: u64,
    checked: Duration,
    still: Duration,
    /// Stall after which the next warning is due: doubles each time, so that there are few.
    next: Duration,
    failed: bool,
}

impl StallDetector {
    fn new(warn_after: Option<Duration>, fail_after: Option<Duration>) -> Self {
        let next = warn_after.unwrap_or(Duration::MAX);
        let (checked, still) = (Duration::ZERO, Duration::ZERO);
        Self { warn_after, fail_after, last: 0, checked, still, next, failed: false }
    }

    fn check(&mut self, count: u64, now: Duration) -> Option<Stall> {
        let since = now - std::mem::replace(&mut self.checked, now);
        // NVSHMEM starts the thread at the end of its init, which waits for all PEs: before, nobody
        // has anything outstanding here, and the other PEs may need any time.
        if count != self.last || count == 0 {
            let new = Self::new(self.warn_after, self.fail_after);
            *self = Self { last: count, checked: now, ..new };
            return None;
        }
        self.still += since;
        let fails = !self.failed && self.fail_after.is_some_and(|limit| self.still >= limit);
        let warns = self.still >= self.next;
        if warns {
            self.next = self.next.saturating_mul(2);
        }
        self.failed |= fails;
        let seconds = self.still.as_secs();
        (warns || fails).then_some(Stall { seconds, inside: count % 2 == 1, fails })
    }
}

#[derive(Debug, Default)]
struct Sockets {
    next: Duration,
}

impl Sockets {
    fn check(&mut self, now: Duration) {
        if now >= self.next {
            fork::close_on_exec();
            self.next = (2 * now).min(now + RARELY);
        }
    }
}

/// The checking thread. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    over: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    /// Starts checking a pulse: logs stalls after `warn_after`, tells `failed` after `fail_after`.
    pub(crate) fn of(
        pulse: Arc<Pulse>,
        &Settings { warn_after, fail_after, .. }: &Settings,
        failed: impl Fn(&Stall) + Send + 'static,
    ) -> Self {
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let ends = Arc::clone(&over);
        let step = step([warn_after, fail_after]);
        let run = move || {
            let mut detector = StallDetector::new(warn_after, fail_after);
            let mut wait = Wait::new();
            let mut sockets = Sockets::default();
            while !is_over(&ends, step) {
                let now = wait.waited_in(2 * step);
                sockets.check(now);
                if let Some(stall) = detector.check(pulse.count(), now) {
                    warn!(target: logging::PROXY, "{stall}");
                    if stall.fails {
                        failed(&stall);
                    }
                }
            }
        };
        let thread = posix_signals::spawn("nvshmem-watch", run);
        if let Err(error) = &thread {
            debug!(target: logging::PROXY, "nobody looks whether the proxy thread runs: {error}");
        }
        Self { over, thread: thread.ok() }
    }
}

fn step(limits: [Option<Duration>; 2]) -> Duration {
    limits.into_iter().flatten().fold(STEP, |step, limit| step.min(limit / 8)).max(SHORTEST)
}

/// Waits for the end, for at most `most`. Returns whether it has come.
fn is_over((over, told): &(Mutex<bool>, Condvar), most: Duration) -> bool {
    let over = over.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = told.wait_timeout_while(over, most, |over| !*over);
    *waited.unwrap_or_else(PoisonError::into_inner).0
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if fork::is_child() {
            // The thread is the parent's.
            return std::mem::forget(thread);
        }
        *self.over.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.over.1.notify_all();
        // The thread waits for nothing else.
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_thread_is_reported_rarely() {
        let seconds = Duration::from_secs;
        let mut detector = StallDetector::new(Some(seconds(3)), Some(seconds(20)));
        let mut now = 0;
        let mut look = |count| {
            now += 1;
            detector.check(count, seconds(now))
        };
        for _ in 0..100 {
            assert_eq!(look(0), None, "it has not begun");
        }
        assert_eq!(look(7), None);
        let mut told = Vec::new();
        for _ in 0..100 {
            if let Some(stall) = look(7) {
                assert!(stall.to_string().contains(&format!("{} s", stall.seconds)));
                told.push((stall.seconds, stall.inside, stall.fails));
            }
        }
        let expected = [
            (3, false),
            (6, false),
            (12, false),
            (20, true),
            (24, false),
            (48, false),
            (96, false),
        ];
        assert_eq!(told, expected.map(|(seconds, fails)| (seconds, true, fails)));
        assert_eq!(look(8), None, "it goes on");
        assert_eq!((0..2).filter_map(|_| look(8)).count(), 0);
        let stall = look(8).unwrap();
        assert_eq!(stall, Stall { seconds: 3, inside: false, fails: false });
        assert!(stall.to_string().contains("nobody runs it"));
    }

    #[test]
    fn socket_scans_become_rarer() {
        let mut sockets = Sockets::default();
        let millis = |looked: [u64; 2]| looked.map(Duration::from_millis);
        for looked in [[0, 0], [5, 10], [9, 10], [10, 20], [29_000, 58_000], [58_000, 88_000]] {
            let [now, next] = millis(looked);
            sockets.check(now);
            assert_eq!(sockets.next, next, "after {now:?}");
        }
    }

    #[test]
    fn look_interval_follows_shortest_limit() {
        let millis = |limit| Some(Duration::from_millis(limit));
        for (limits, expected) in [
            ([None, None], STEP),
            ([millis(100_000), None], STEP),
            ([millis(4000), millis(1600)], Duration::from_millis(200)),
            ([None, millis(800)], Duration::from_millis(100)),
            ([millis(1), millis(800)], SHORTEST),
        ] {
            assert_eq!(step(limits), expected, "{limits:?}");
        }
    }

    #[test]
    fn heartbeat_thread_ends_with_owner() {
        let pulse = Arc::new(Pulse::default());
        pulse.beat();
        let (said, hear) = std::sync::mpsc::channel();
        let fail_after = Some(Duration::from_millis(1));
        let settings = Settings { warn_after: None, fail_after, ..Settings::default() };
        let heartbeat = Heartbeat::of(Arc::clone(&pulse), &settings, move |stall| {
            let _ = said.send(*stall);
        });
        let stall = hear.recv_timeout(Duration::from_secs(60)).unwrap();
        assert!(stall.inside && stall.fails);
        drop(heartbeat);
        assert_eq!(Arc::strong_count(&pulse), 1, "the thread has ended");
    }
}
