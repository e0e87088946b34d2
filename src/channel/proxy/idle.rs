//! Idling of the proxy thread while there is nothing to do: it spins for a moment, gives up its
//! core, and in the end sleeps.
//!
//! Peers' messages wait for its iterations, so it never sleeps for long, and not while anything of
//! its own is under way. Where the fabric moves peers' data in its iterations alone, it does not
//! sleep at all.

use std::thread;
use std::time::{Duration, Instant};

/// Iterations without a find before the core is offered to others; few where others need it.
const SPINS: u32 = 4096;
const SPINS_SHARED: u32 = 8;

/// Idle for so long, it sleeps.
const AWAKE: Duration = Duration::from_millis(3);

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

    /// Something was found to do.
    #[inline(always)]
    pub(crate) fn busy(&mut self) {
        self.iterations = 0;
    }

    /// Nothing was. `waits`: something is under way whose end is awaited.
    #[inline]
    pub(crate) fn iterate(&mut self, waits: bool) {
        self.iterations = self.iterations.saturating_add(1);
        if self.iterations < self.spins {
            std::hint::spin_loop();
            return;
        }
        if self.iterations == self.spins {
            self.since = Some(Instant::now());
        }
        let long = || self.since.is_some_and(|since| since.elapsed() > AWAKE);
        match self.sleep {
            Some(sleep) if !waits && long() => thread::sleep(sleep),
            _ => thread::yield_now(),
        }
    }
}
