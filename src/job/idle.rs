//! Idling of a thread that drives a lane: it spins, then yields its core, and finally sleeps.
//!
//! Peers' messages wait for its iterations: it sleeps for a small part of the time that it has been
//! idle, and never while a caller waits.

use std::thread;
use std::time::{Duration, Instant};

const SPINS: u32 = 4096;
const SPINS_SHARED: u32 = 8;

/// Idle time after which the thread sleeps.
const AWAKE: Duration = Duration::from_millis(3);

/// Part of the idle time that a sleep takes, and the longest sleep: a process may have a hundred
/// threads that are idle for hours.
const PART: u32 = 64;
const LONGEST: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IdleStep {
    Spin,
    Yield,
    Sleep(Duration),
}

#[derive(Debug)]
pub(crate) struct Idle {
    spins: u32,
    sleep: Option<Duration>,
    iterations: u32,
    since: Option<Instant>,
}

impl Idle {
    /// `sleep`: duration of the shortest sleep; None to never sleep.
    pub(crate) fn new(has_core: bool, sleep: Option<Duration>) -> Self {
        let spins = if has_core { SPINS } else { SPINS_SHARED };
        Self { spins, sleep, iterations: 0, since: None }
    }

    #[inline(always)]
    pub(crate) fn busy(&mut self) {
        self.iterations = 0;
    }

    #[inline]
    pub(crate) fn iterate(&mut self, waits: bool) {
        match self.rest(waits) {
            IdleStep::Spin => std::hint::spin_loop(),
            IdleStep::Yield => thread::yield_now(),
            IdleStep::Sleep(sleep) => thread::sleep(sleep),
        }
    }

    #[inline]
    fn rest(&mut self, waits: bool) -> IdleStep {
        self.iterations = self.iterations.saturating_add(1);
        if self.iterations < self.spins {
            return IdleStep::Spin;
        }
        if self.iterations == self.spins {
            self.since = Some(Instant::now());
        }
        let Some(sleep) = self.sleep.filter(|_| !waits) else { return IdleStep::Yield };
        match self.since.map_or(Duration::ZERO, |since| since.elapsed()) {
            idle if idle <= AWAKE => IdleStep::Yield,
            idle => IdleStep::Sleep((idle / PART).clamp(sleep, LONGEST)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_thread_spins_yields_then_sleeps() {
        const NAP: Duration = Duration::from_millis(5);
        let later = Duration::from_secs(3600);
        for (has_core, spins) in [(true, SPINS), (false, SPINS_SHARED)] {
            for sleep in [None, Some(NAP)] {
                let mut idle = Idle::new(has_core, sleep);
                for _ in 0..2 {
                    for _ in 1..spins {
                        assert_eq!(idle.rest(false), IdleStep::Spin);
                    }
                    assert_eq!(idle.rest(false), IdleStep::Yield, "it has just begun to");
                    let began = idle.since.expect("the time is known");
                    idle.since = Some(began + later);
                    assert_eq!(idle.rest(false), IdleStep::Yield);
                    idle.since = began.checked_sub(2 * AWAKE);
                    assert_eq!(idle.rest(true), IdleStep::Yield, "something is awaited");
                    assert_eq!(idle.rest(false), sleep.map_or(IdleStep::Yield, IdleStep::Sleep));
                    idle.since = began.checked_sub(PART * LONGEST);
                    let longest = sleep.map_or(IdleStep::Yield, |_| IdleStep::Sleep(LONGEST));
                    assert_eq!(idle.rest(false), longest);
                    idle.busy();
                }
                // And does so.
                let began = Instant::now();
                (0..spins).for_each(|_| idle.iterate(false));
                idle.since = began.checked_sub(2 * AWAKE);
                idle.sleep = sleep.map(|_| AWAKE);
                let began = Instant::now();
                idle.iterate(false);
                assert!(sleep.is_none() || began.elapsed() >= AWAKE);
            }
        }
    }
}
