//! A value that any thread may change, with a number by which the owner of a copy learns, in one
//! load, that it has changed.

use std::sync::PoisonError;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// The value, and the number of its changes.
#[derive(Debug, Default)]
pub(crate) struct VersionedCell<T> {
    /// Rises with each change of `value`, after the change and under its lock.
    number: AtomicU64,
    value: Mutex<T>,
}

impl<T> VersionedCell<T> {
    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut value);
        // The lock orders the change before the number.
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the value of this number is the newest, as far as this thread can know: it knows of
    /// a change if whoever made it has told it.
    #[inline(always)]
    pub(crate) fn is_version(&self, number: u64) -> bool {
        self.number.load(Ordering::Relaxed) == number
    }

    /// Returns the number of the value that was read.
    pub(crate) fn read(&self, read: impl FnOnce(&T)) -> u64 {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        read(&value);
        // Under the lock: what was read holds exactly the changes up to this number.
        self.number.load(Ordering::Relaxed)
    }
}
