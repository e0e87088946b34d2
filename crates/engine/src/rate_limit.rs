//! Keeps a message that repeats from filling the log.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Admits so many messages per period and counts the others.
///
/// ```
/// use std::time::Duration;
/// use engine::rate_limit::RateLimit;
///
/// static REFUSED: RateLimit = RateLimit::most(4, Duration::from_secs(10));
///
/// if let Some(unsaid) = REFUSED.admit() {
///     log::warn!("the fabric refused a segment{unsaid}");
/// }
/// ```
///
/// # Threads
/// Any. A call is a few atomic accesses, and never waits. Of threads that meet at the end of a
/// period a few may have their messages counted to the one before.
#[derive(Debug)]
pub struct RateLimit {
    most: u64,
    period: u64,
    /// When the present period ends, on the caller's clock. Only grows, in steps of a
    /// compare-exchange: of the threads that see it passed, one wins and begins the next.
    end: AtomicU64,
    /// Messages admitted in this period, or that would have been.
    said: AtomicU64,
    /// Messages held back since the last that was admitted. It counts and orders nothing, so all
    /// accesses are relaxed.
    unsaid: AtomicU64,
}

/// How many messages were held back since the last one that was not, for its end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Unsaid(u64);

impl fmt::Display for Unsaid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (1 such line before it is left out)"),
            count => write!(f, " ({count} such lines before it are left out)"),
        }
    }
}

impl RateLimit {
    /// So many messages per `period`. The first ones are admitted at once.
    pub const fn most(most: u64, period: Duration) -> Self {
        // Saturates after 584 years.
        let nanoseconds = period.as_nanos();
        let period = if nanoseconds > u64::MAX as u128 { u64::MAX } else { nanoseconds as u64 };
        let (end, said, unsaid) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { most, period, end, said, unsaid }
    }

    /// Whether a message may be logged now. If so, how many were held back since the last one.
    pub fn admit(&self) -> Option<Unsaid> {
        static START: OnceLock<Instant> = OnceLock::new();
        let elapsed = START.get_or_init(Instant::now).elapsed();
        self.admit_at(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// [`RateLimit::admit`] on the caller's own clock, in nanoseconds. Use one of the two for one
    /// limit, not both.
    pub fn admit_at(&self, now: u64) -> Option<Unsaid> {
        let end = self.end.load(Ordering::Relaxed);
        let next = now.saturating_add(self.period);
        if now >= end
            && self.end.compare_exchange(end, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.said.store(0, Ordering::Relaxed);
        }
        if self.said.fetch_add(1, Ordering::Relaxed) < self.most {
            Some(Unsaid(self.unsaid.swap(0, Ordering::Relaxed)))
        } else {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_messages_per_period_and_the_rest_is_counted() {
        let limit = RateLimit::most(2, Duration::from_nanos(100));
        let admitted = |now| limit.admit_at(now).map(|Unsaid(count)| count);
        assert_eq!([5, 6, 7, 104].map(admitted), [Some(0), Some(0), None, None]);
        assert_eq!([105, 106, 107].map(admitted), [Some(2), Some(0), None]);
        assert_eq!(admitted(1000), Some(1));
    }

    #[test]
    fn the_first_message_is_admitted_whatever_the_period() {
        let limit = RateLimit::most(1, Duration::MAX);
        assert_eq!(limit.admit().map(|unsaid| unsaid.to_string()), Some(String::new()));
        assert_eq!(limit.admit(), None);
        assert_eq!(Unsaid(2).to_string(), " (2 such lines before it are left out)");
    }

    #[test]
    fn nothing_is_lost_or_said_twice_among_threads() {
        const THREADS: u64 = 4;
        const CALLS: u64 = 10_000;
        let limit = RateLimit::most(1, Duration::from_nanos(50));
        let clock = AtomicU64::new(0);
        let (admitted, counted) = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut admitted, mut counted) = (0, 0);
                        for _ in 0..CALLS {
                            let now = clock.fetch_add(1, Ordering::Relaxed);
                            if let Some(Unsaid(unsaid)) = limit.admit_at(now) {
                                admitted += 1;
                                counted += unsaid;
                            }
                        }
                        (admitted, counted)
                    })
                })
                .collect();
            workers
                .into_iter()
                .map(|worker| worker.join().unwrap())
                .fold((0, 0), |(admitted, counted), (more, held)| (admitted + more, counted + held))
        });
        let rest = limit.unsaid.load(Ordering::Relaxed);
        assert_eq!(admitted + counted + rest, THREADS * CALLS);
        // Each period begins once, and threads that meet there may be counted to the one before.
        assert!(admitted <= 2 * (THREADS * CALLS / 50 + 1), "{admitted} admitted");
    }
}
