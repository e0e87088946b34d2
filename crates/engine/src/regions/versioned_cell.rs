//! A value that any thread may change; the owner of a copy compares its version in one load.

use std::sync::PoisonError;

use crate::sync::{AtomicU64, Mutex, Ordering};

#[derive(Debug, Default)]
pub(crate) struct VersionedCell<T> {
    /// Incremented with each change of `value`, after it and under its lock.
    version: AtomicU64,
    value: Mutex<T>,
}

impl<T> VersionedCell<T> {
    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut value);
        // The lock orders the change before its version.
        self.version.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns true if this version is the newest that this thread can know of: it knows of a
    /// change once the thread that made it has told it.
    #[inline(always)]
    pub(crate) fn is_version(&self, version: u64) -> bool {
        // Relaxed: whatever told this thread of a change, such as a handle, also orders it.
        self.version.load(Ordering::Relaxed) == version
    }

    /// Passes the value to `read` and returns its version.
    pub(crate) fn read(&self, read: impl FnOnce(&T)) -> u64 {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        read(&value);
        // Under the lock, so the value read holds exactly the changes up to this version.
        self.version.load(Ordering::Relaxed)
    }
}
