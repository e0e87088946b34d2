//! How many proofs of strangers are looked at: few enough that nobody finds a job's number by
//! trying, whoever chose it.

use std::time::{Duration, Instant};

/// Wrong proofs that cost nothing: PEs of other jobs that were given the same port.
pub(super) const FREE: u32 = 64;

/// What each one beyond costs. Nobody is listened to for as long, so PEs of the job come later, if
/// somebody is trying.
pub(super) const EACH: Duration = Duration::from_millis(100);

/// Wrong proofs so far.
#[derive(Debug, Default)]
pub(super) struct Guesses {
    wrong: u32,
    /// Nobody is listened to before.
    not_before: Option<Instant>,
}

impl Guesses {
    pub(super) fn wrong(&mut self, now: Instant) {
        self.wrong = self.wrong.saturating_add(1);
        if self.wrong > FREE {
            let from = self.not_before.map_or(now, |until| until.max(now));
            self.not_before = Some(from + EACH);
        }
    }

    pub(super) fn pause(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_beyond_the_free_ones_cost_time_each() {
        let start = Instant::now();
        let mut guesses = Guesses::default();
        for _ in 0..FREE {
            guesses.wrong(start);
            assert!(!guesses.pause(start));
        }
        // They come side by side, and are paid for one by one.
        for _ in 0..3 {
            guesses.wrong(start);
        }
        assert!(guesses.pause(start) && guesses.pause(start + 3 * EACH - Duration::from_nanos(1)));
        assert!(!guesses.pause(start + 3 * EACH));
        let later = start + 100 * EACH;
        guesses.wrong(later);
        assert!(guesses.pause(later) && !guesses.pause(later + EACH));
        guesses.wrong = u32::MAX;
        guesses.wrong(later);
        assert!(guesses.pause(later + EACH), "it does not begin anew");
    }
}
