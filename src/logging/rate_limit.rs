//! Keeps a message that repeats from filling the log.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Admits one message per period and counts the others.
///
/// ```
/// use std::time::Duration;
/// use nvshmem_transport_libfabric::logging::RateLimit;
///
/// static REFUSED: RateLimit = RateLimit::every(Duration::from_secs(10));
///
/// if let Some(unsaid) = REFUSED.admit() {
///     log::warn!("the fabric refused a segment ({unsaid} more since the last such line)");
/// }
/// ```
///
/// # Threads
/// Any. A call is an atomic load and an atomic add as a rule, and never waits.
#[derive(Debug)]
pub struct RateLimit {
    /// Nanoseconds between two messages.
    period: u64,
    /// From when on the next message is admitted, on the caller's clock. Only grows, in steps of
    /// a compare-exchange: of the threads that see it passed, one wins and speaks.
    next: AtomicU64,
    /// Messages held back since the last that was admitted. It counts and orders nothing, so all
    /// accesses are relaxed.
    unsaid: AtomicU64,
}

impl RateLimit {
    /// One message per `period`. The first is admitted at once.
    pub const fn every(period: Duration) -> Self {
        // Saturates after 584 years.
        let nanoseconds = period.as_nanos();
        let period = if nanoseconds > u64::MAX as u128 { u64::MAX } else { nanoseconds as u64 };
        Self { period, next: AtomicU64::new(0), unsaid: AtomicU64::new(0) }
    }

    /// Whether a message may be logged now. If so, how many were held back since the last one.
    pub fn admit(&self) -> Option<u64> {
        static START: OnceLock<Instant> = OnceLock::new();
        let elapsed = START.get_or_init(Instant::now).elapsed();
        self.admit_at(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX))
    }

    /// [`RateLimit::admit`] on the caller's own clock, in nanoseconds. Use one of the two for one
    /// limit, not both.
    pub fn admit_at(&self, now: u64) -> Option<u64> {
        let next = self.next.load(Ordering::Relaxed);
        let admitted = now >= next
            && self
                .next
                .compare_exchange(
                    next,
                    now.saturating_add(self.period),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                )
                .is_ok();
        if admitted {
            Some(self.unsaid.swap(0, Ordering::Relaxed))
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
    fn one_message_per_period_and_the_rest_is_counted() {
        let limit = RateLimit::every(Duration::from_nanos(100));
        assert_eq!(limit.admit_at(5), Some(0));
        assert_eq!(limit.admit_at(6), None);
        assert_eq!(limit.admit_at(104), None);
        assert_eq!(limit.admit_at(105), Some(2));
        assert_eq!(limit.admit_at(1000), Some(0));
    }

    #[test]
    fn the_first_message_is_admitted_whatever_the_period() {
        let limit = RateLimit::every(Duration::MAX);
        assert_eq!(limit.admit(), Some(0));
        assert_eq!(limit.admit(), None);
    }

    #[test]
    fn nothing_is_lost_or_said_twice_among_threads() {
        const THREADS: u64 = 4;
        const CALLS: u64 = 10_000;
        let limit = RateLimit::every(Duration::from_nanos(50));
        let clock = AtomicU64::new(0);
        let (admitted, counted) = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut admitted, mut counted) = (0, 0);
                        for _ in 0..CALLS {
                            let now = clock.fetch_add(1, Ordering::Relaxed);
                            if let Some(unsaid) = limit.admit_at(now) {
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
        assert!(admitted <= THREADS * CALLS / 50 + 1, "{admitted} admitted");
    }
}
