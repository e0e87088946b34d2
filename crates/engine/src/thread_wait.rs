//! Waiting time that excludes the time in which this process was stopped.
//!
//! While a process is stopped (by a debugger, a scheduler, a laptop's lid), it cannot see the event
//! that it waits for, and by the wall clock its deadlines would expire as it resumes. A waiter
//! therefore checks often, and each interval between two checks counts for at most [`STEP`].

use std::time::{Duration, Instant};

/// Maximum time between two checks that counts. If a busy machine checks less often, waits last
/// longer than asked for and never end too early.
pub const STEP: Duration = Duration::from_millis(250);

/// A wait in progress; to be checked more often than once per [`STEP`].
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    last_check: Instant,
    counted: Duration,
}

impl Wait {
    #[expect(clippy::new_without_default, reason = "it begins to wait")]
    pub fn new() -> Self {
        Self { last_check: Instant::now(), counted: Duration::ZERO }
    }

    pub fn waited(&mut self) -> Duration {
        self.count(Instant::now(), STEP)
    }

    /// Returns the time waited so far, after a call that may itself have waited for up to `call`.
    pub fn waited_in(&mut self, call: Duration) -> Duration {
        self.count(Instant::now(), call.max(STEP))
    }

    /// Returns the rest of `patience`, or None when it is over.
    pub fn left_of(&mut self, patience: Duration) -> Option<Duration> {
        patience.checked_sub(self.waited()).filter(|left| !left.is_zero())
    }

    fn count(&mut self, now: Instant, limit: Duration) -> Duration {
        // A longer interval means that the process was stopped.
        self.counted += now.saturating_duration_since(self.last_check).min(limit);
        self.last_check = now;
        self.counted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unseen_time_counts_one_step() {
        let mut wait = Wait::new();
        let start = wait.last_check;
        let at = |millis| start + Duration::from_millis(millis);
        assert_eq!(wait.count(at(100), STEP), Duration::from_millis(100));
        assert_eq!(wait.count(at(100), STEP), Duration::from_millis(100));
        assert_eq!(wait.count(at(350), STEP), Duration::from_millis(350));
        let stopped = Duration::from_secs(3600);
        assert_eq!(wait.count(at(350) + stopped, STEP), Duration::from_millis(350) + STEP);
        assert_eq!(
            wait.count(at(1350), STEP),
            Duration::from_millis(350) + STEP,
            "a clock that goes back"
        );
    }

    #[test]
    fn blocking_call_counts_up_to_limit() {
        let long_ago = || Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let wait = || Wait { last_check: long_ago(), counted: Duration::ZERO };
        assert_eq!(wait().waited(), STEP);
        assert_eq!(wait().waited_in(Duration::from_secs(2)), Duration::from_secs(2));
        assert_eq!(wait().waited_in(Duration::ZERO), STEP);
    }

    #[test]
    fn patience_ends_when_used_up() {
        let mut wait = Wait::new();
        assert!(wait.left_of(Duration::from_secs(3600)).is_some());
        assert_eq!(wait.left_of(Duration::ZERO), None);
        let counted = wait.counted;
        assert_eq!(wait.left_of(counted), None);
    }
}
