//! Questions to proxy threads: how many are open in this process is one number, which these threads
//! look at once an iteration.
//!
//! Only the proxy thread may look at its lane. Who wants to know what is in it asks, and is
//! answered in the next iteration.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Questions that have not been answered.
static OPEN: AtomicUsize = AtomicUsize::new(0);

/// Whether there is a question, to any job of this process.
#[inline(always)]
pub(crate) fn is_any() -> bool {
    OPEN.load(Ordering::Relaxed) != 0
}

/// A question that may be put again and again.
#[derive(Debug, Default)]
pub(super) struct Question(AtomicBool);

impl Question {
    pub(super) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Puts it, unless it is open.
    pub(super) fn ask(&self) {
        if !self.0.swap(true, Ordering::Relaxed) {
            OPEN.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Ends it. Whether it was open.
    pub(super) fn end(&self) -> bool {
        let was_open = self.0.swap(false, Ordering::Relaxed);
        if was_open {
            OPEN.fetch_sub(1, Ordering::Relaxed);
        }
        was_open
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use super::*;

    /// Held by each test in which something is asked.
    pub(crate) fn alone() -> MutexGuard<'static, ()> {
        static ALONE: Mutex<()> = Mutex::new(());
        ALONE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[test]
    fn what_is_asked_is_open_until_it_is_ended_or_dropped() {
        let _alone = alone();
        let question = Question::new();
        assert!(!question.is_open() && !is_any());
        question.ask();
        question.ask();
        assert!(question.is_open() && is_any());
        question.end();
        question.end();
        assert!(!question.is_open() && !is_any());
        question.ask();
        drop(question);
        assert!(!is_any());
    }
}
