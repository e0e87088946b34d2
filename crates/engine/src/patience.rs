//! Patience: how long something was waited for, as far as this process was there to see it.
//!
//! A process that is stopped (by a debugger, a scheduler, a laptop's lid) does not wait meanwhile,
//! and what it waits for had no chance to be seen. On the wall clock its deadlines are over the
//! moment it goes on. So who waits looks often, and what lies between two looks counts for no more
//! than [`STEP`].

use std::time::{Duration, Instant};

/// Most time between two looks that counts. A machine so busy that looks are further apart lets
/// waits last longer, and ends none too early.
pub const STEP: Duration = Duration::from_millis(250);

/// A wait. It has to be looked at more often than each [`STEP`].
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    looked: Instant,
    counted: Duration,
}

impl Wait {
    /// One that begins now.
    pub fn new() -> Self {
        Self { looked: Instant::now(), counted: Duration::ZERO }
    }

    /// How long it has lasted.
    pub fn waited(&mut self) -> Duration {
        self.count(Instant::now(), STEP)
    }

    /// The same, after a call that may have waited for so long by itself.
    pub fn waited_in(&mut self, call: Duration) -> Duration {
        self.count(Instant::now(), call.max(STEP))
    }

    /// What is left of a patience. None when it is over.
    pub fn left_of(&mut self, patience: Duration) -> Option<Duration> {
        patience.checked_sub(self.waited()).filter(|left| !left.is_zero())
    }

    fn count(&mut self, now: Instant, most: Duration) -> Duration {
        self.counted += now.saturating_duration_since(self.looked).min(most);
        self.looked = now;
        self.counted
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_seen_counts_for_one_step() {
        let mut wait = Wait::new();
        let start = wait.looked;
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
    fn a_call_that_waits_by_itself_counts_for_as_long_as_it_may() {
        let long_ago = || Instant::now().checked_sub(Duration::from_secs(10)).unwrap();
        let wait = || Wait { looked: long_ago(), counted: Duration::ZERO };
        assert_eq!(wait().waited(), STEP);
        assert_eq!(wait().waited_in(Duration::from_secs(2)), Duration::from_secs(2));
        assert_eq!(wait().waited_in(Duration::ZERO), STEP);
    }

    #[test]
    fn patience_is_over_when_all_of_it_was_waited() {
        let mut wait = Wait::new();
        assert!(wait.left_of(Duration::from_secs(3600)).is_some());
        assert_eq!(wait.left_of(Duration::ZERO), None);
        let counted = wait.counted;
        assert_eq!(wait.left_of(counted), None);
    }
}
