//! The baton: of several lanes on threads of their own, exactly one runs at a time, whoever holds
//! it. It goes on when its holder relaxes, to the one that the seed picks. So blocking calls of the
//! lanes can be tested against one another, and a run can still be repeated.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Thread;

use crate::prelude::*;

const NOBODY: usize = usize::MAX;

#[derive(Debug)]
pub(super) struct Baton {
    /// Which runner may run. Changed under the lock, and read without.
    holder: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Runners that have not ended, by number.
    running: Vec<usize>,
    /// The threads of all runners that have entered, by number: only the one that goes on is woken
    /// up.
    threads: Vec<Option<Thread>>,
    random: u64,
}

impl Default for Baton {
    fn default() -> Self {
        Self { holder: AtomicUsize::new(NOBODY), state: Mutex::default() }
    }
}

impl Baton {
    pub(super) fn start(&self, runners: usize, seed: u64) {
        let mut state = self.lock();
        state.running = (0..runners).collect();
        state.threads = vec![None; runners];
        state.random = seed | 1;
        self.hand_on(&mut state);
    }

    pub(super) fn enter(&self, runner: usize) {
        self.lock().threads[runner] = Some(std::thread::current());
        self.wait(runner);
    }

    pub(super) fn pass(&self) {
        let me = self.holder.load(Ordering::Acquire);
        if me != NOBODY {
            self.hand_on(&mut self.lock());
            self.wait(me);
        }
    }

    pub(super) fn leave(&self, runner: usize) {
        let mut state = self.lock();
        state.running.retain(|other| *other != runner);
        self.hand_on(&mut state);
    }

    fn hand_on(&self, state: &mut State) {
        let next = state.pick();
        self.holder.store(next.unwrap_or(NOBODY), Ordering::Release);
        if let Some(thread) = next.and_then(|next| state.threads[next].as_ref()) {
            thread.unpark();
        }
    }

    fn wait(&self, runner: usize) {
        while self.holder.load(Ordering::Acquire) != runner {
            std::thread::park();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn pick(&mut self) -> Option<usize> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let n = self.running.len() as u64;
        (n != 0).then(|| self.running[(self.random % n) as usize])
    }
}
