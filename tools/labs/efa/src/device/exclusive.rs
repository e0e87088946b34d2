//! The check that threads enter a queue one at a time.

use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// Holds the thread that is in the queue, or zero.
#[derive(Default, Debug)]
pub(crate) struct Exclusive(AtomicU32);

impl Exclusive {
    /// Marks the queue as entered, or ends the process when another thread is in it.
    pub(crate) fn enter(&self, queue: &str, call: &str) {
        // SAFETY: it takes no argument.
        let me = unsafe { libc::gettid() } as u32;
        if let Err(other) = self.0.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed) {
            eprintln!(
                "efa-lab: thread {me} enters {queue} by {call} while thread {other} is in it: \
                 nothing serialised them"
            );
            process::abort()
        }
    }

    pub(crate) fn leave(&self) {
        self.0.store(0, Ordering::Release);
    }
}
