//! The baton: of several lanes on threads of their own, exactly one runs at a time, whoever holds it.
//! It goes on when its holder relaxes, to the one that the seed picks. So blocking calls of
//! the lanes can be tested against one another, and a run can still be repeated.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Baton {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Which runner may run; none before the start.
    holder: Option<usize>,
    /// Runners that have not ended, by number.
    running: Vec<usize>,
    random: u64,
}

impl Baton {
    /// Starts a race of so many runners. Each calls [`Baton::enter`] first.
    pub(super) fn start(&self, runners: usize, seed: u64) {
        let mut state = self.lock();
        state.running = (0..runners).collect();
        state.random = seed | 1;
        state.pick();
        self.moved.notify_all();
    }

    /// Waits for a runner's first turn.
    pub(super) fn enter(&self, runner: usize) {
        self.wait(self.lock(), runner);
    }

    /// Lets somebody else run, and waits for the next turn. Nothing outside a race.
    pub(super) fn pass(&self) {
        let mut state = self.lock();
        let Some(me) = state.holder else { return };
        state.pick();
        self.moved.notify_all();
        self.wait(state, me);
    }

    /// A runner has ended; the others go on.
    pub(super) fn leave(&self, runner: usize) {
        let mut state = self.lock();
        state.running.retain(|other| *other != runner);
        state.pick();
        self.moved.notify_all();
    }

    fn wait(&self, mut state: MutexGuard<'_, State>, runner: usize) {
        while state.holder != Some(runner) {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pick(&mut self) {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let n = self.running.len() as u64;
        self.holder = if n == 0 { None } else { Some(self.running[(self.random % n) as usize]) };
    }
}
