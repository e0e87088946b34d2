//! A lock in shared memory, which outlives a process that dies with it.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Holds the number of the process that has it, or zero.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct SharedLock(AtomicU32);

impl SharedLock {
    /// Runs `work` with the lock held. What it guards is left as it is where a holder died, which
    /// writes little and in one go; a job that loses a process expects no more.
    pub(crate) fn with<R>(&self, work: impl FnOnce() -> R) -> R {
        let mine = process::id();
        let mut tries = 0_u32;
        while let Err(holder) =
            self.0.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed)
        {
            tries += 1;
            if tries % 256 == 0 && !lives(holder) {
                // Whoever sees it first frees it; then all try again.
                let _ = self.0.compare_exchange(holder, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
            std::thread::yield_now();
        }
        let result = work();
        self.0.store(0, Ordering::Release);
        result
    }
}

fn lives(process: u32) -> bool {
    // SAFETY: signal 0 asks only.
    process == 0 || unsafe { libc::kill(process as libc::pid_t, 0) } == 0
}
