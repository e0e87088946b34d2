//! Idling of a thread that makes a lane's progress: while there is nothing to do it spins for a
//! moment, gives up its core, and in the end sleeps.
//!
//! Peers' messages wait for its iterations, so it never sleeps for long, and not while the end of
//! something is awaited.

use std::thread;
use std::time::{Duration, Instant};

const SPINS: u32 = 4096;
const SPINS_SHARED: u32 = 8;

/// Idle for so long, it sleeps.
const AWAKE: Duration = Duration::from_millis(3);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    Spin,
    Yield,
    Sleep(Duration),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Idle {
    spins: u32,
    sleep: Option<Duration>,
    iterations: u32,
    since: Option<Instant>,
}

impl Idle {
    /// `has_core`: the thread has a core of its own. `sleep`: how long it sleeps at a time, if at
    /// all.
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
            Rest::Spin => std::hint::spin_loop(),
            Rest::Yield => thread::yield_now(),
            Rest::Sleep(sleep) => thread::sleep(sleep),
        }
    }

    #[inline]
    fn rest(&mut self, waits: bool) -> Rest {
        self.iterations = self.iterations.saturating_add(1);
        if self.iterations < self.spins {
            return Rest::Spin;
        }
        if self.iterations == self.spins {
            self.since = Some(Instant::now());
        }
        let long = || self.since.is_some_and(|since| since.elapsed() > AWAKE);
        match self.sleep {
            Some(sleep) if !waits && long() => Rest::Sleep(sleep),
            _ => Rest::Yield,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_thread_spins_yields_then_sleeps() {
        const NAP: Duration = Duration::from_micros(50);
        let later = Duration::from_secs(3600);
        for (has_core, spins) in [(true, SPINS), (false, SPINS_SHARED)] {
            for sleep in [None, Some(NAP)] {
                let mut idle = Idle::new(has_core, sleep);
                for _ in 0..2 {
                    for _ in 1..spins {
                        assert_eq!(idle.rest(false), Rest::Spin);
                    }
                    assert_eq!(idle.rest(false), Rest::Yield, "it has just begun to");
                    let began = idle.since.expect("the time is known");
                    idle.since = Some(began + later);
                    assert_eq!(idle.rest(false), Rest::Yield);
                    idle.since = began.checked_sub(2 * AWAKE);
                    assert_eq!(idle.rest(true), Rest::Yield, "something is awaited");
                    assert_eq!(idle.rest(false), sleep.map_or(Rest::Yield, Rest::Sleep));
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
