//! Sign of life of the thread that drives a lane, for other threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Iterations of a lane: each counts twice, when it begins and when it is over.
///
/// Only the lane's thread changes it, so it needs no atomic addition. It orders nothing.
#[derive(Debug, Default)]
pub struct Pulse(AtomicU64);

impl Pulse {
    /// Counts the beginning or the end of an iteration.
    #[inline(always)]
    pub fn beat(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Returns the count; it is odd during an iteration.
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
