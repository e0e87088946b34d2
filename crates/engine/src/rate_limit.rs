//! Rate limit for log messages that may repeat.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Admits a number of messages per period and counts the others.
///
/// ```
/// use std::time::Duration;
/// use engine::rate_limit::RateLimit;
///
/// static REFUSED: RateLimit = RateLimit::new(4, Duration::from_secs(10));
///
/// if let Some(unsaid) = REFUSED.admit() {
///     log::warn!("the fabric refused a segment{unsaid}");
/// }
/// ```
///
/// # Threads
/// Any. A call is a few atomic accesses and never blocks. Threads that meet at the end of a period
/// may have a few messages counted in the period before.
#[derive(Debug)]
pub struct RateLimit {
    max: u64,
    /// Length of a period in nanoseconds.
    period: u64,
    /// End of the current period on the caller's clock.
    end: AtomicU64,
    /// Messages of the current period, admitted or not.
    logged: AtomicU64,
    /// Messages suppressed since the last one that was admitted.
    suppressed: AtomicU64,
}

/// Number of messages suppressed since the last admitted one; displays as a suffix of the next.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Suppressed(u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (1 such line before it is left out)"),
            count => write!(f, " ({count} such lines before it are left out)"),
        }
    }
}

impl RateLimit {
    pub const fn new(max: u64, period: Duration) -> Self {
        // Saturates after 584 years.
        let nanoseconds = period.as_nanos();
        let period = if nanoseconds > u64::MAX as u128 { u64::MAX } else { nanoseconds as u64 };
        let (end, logged, suppressed) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        Self { max, period, end, logged, suppressed }
    }

    /// Returns the number of suppressed messages if a message may be logged now.
    pub fn admit(&self) -> Option<Suppressed> {
        static START: OnceLock<Instant> = OnceLock::new();
        let elapsed = START.get_or_init(Instant::now).elapsed();
        self.admit_at(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// [`RateLimit::admit`] on the caller's own clock, in ns. A limit must keep to one clock.
    pub fn admit_at(&self, now: u64) -> Option<Suppressed> {
        let end = self.end.load(Ordering::Relaxed);
        let next = now.saturating_add(self.period);
        // Of the threads that see the end passed, one wins the exchange and starts the next period.
        // Counters order no other memory, so relaxed accesses suffice.
        if now >= end
            && self.end.compare_exchange(end, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.logged.store(0, Ordering::Relaxed);
        }
        if self.logged.fetch_add(1, Ordering::Relaxed) < self.max {
            Some(Suppressed(self.suppressed.swap(0, Ordering::Relaxed)))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_beyond_limit_are_counted() {
        let limit = RateLimit::new(2, Duration::from_nanos(100));
        let admitted = |now| limit.admit_at(now).map(|Suppressed(count)| count);
        assert_eq!([5, 6, 7, 104].map(admitted), [Some(0), Some(0), None, None]);
        assert_eq!([105, 106, 107].map(admitted), [Some(2), Some(0), None]);
        assert_eq!(admitted(1000), Some(1));
    }

    #[test]
    fn first_message_is_always_admitted() {
        let limit = RateLimit::new(1, Duration::MAX);
        assert_eq!(limit.admit().map(|suppressed| suppressed.to_string()), Some(String::new()));
        assert_eq!(limit.admit(), None);
        assert_eq!(Suppressed(2).to_string(), " (2 such lines before it are left out)");
    }

    #[test]
    fn threads_lose_and_repeat_nothing() {
        const THREADS: u64 = 4;
        const CALLS: u64 = 10_000;
        let limit = RateLimit::new(1, Duration::from_nanos(50));
        let clock = AtomicU64::new(0);
        let (admitted, counted) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..CALLS {
                        let now = clock.fetch_add(1, Ordering::Relaxed);
                        if let Some(Suppressed(suppressed)) = limit.admit_at(now) {
                            admitted.fetch_add(1, Ordering::Relaxed);
                            counted.fetch_add(suppressed, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let (admitted, counted) = (admitted.into_inner(), counted.into_inner());
        let rest = limit.suppressed.load(Ordering::Relaxed);
        assert_eq!(admitted + counted + rest, THREADS * CALLS);
        // Each period begins once, and threads that meet there may be counted to the one before.
        assert!(admitted <= 2 * (THREADS * CALLS / 50 + 1), "{admitted} admitted");
    }
}
