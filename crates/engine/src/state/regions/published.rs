//! A value that any thread may change, with a number by which who has a copy finds out, in one
//! load, that it has changed.

use std::fmt;
use std::sync::PoisonError;

use crate::sync::{AtomicU64, Mutex, Ordering};

/// The value, and its number.
pub(crate) struct Published<T> {
    /// Rises with each change of `value`, after the change.
    number: AtomicU64,
    value: Mutex<T>,
}

impl<T> Published<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { number: AtomicU64::new(0), value: Mutex::new(value) }
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut value);
        // Under the lock, which is what orders them: who sees the new number also finds the change.
        self.number.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a value of this number is the newest, as far as this thread can know: of a change
    /// that it was told of, by whoever made it, it knows.
    #[inline(always)]
    pub(crate) fn is_at(&self, number: u64) -> bool {
        self.number.load(Ordering::Relaxed) == number
    }

    pub(crate) fn read(&self, read: impl FnOnce(&T)) -> u64 {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        read(&value);
        // Under the lock: what was read holds exactly the changes up to this number.
        self.number.load(Ordering::Relaxed)
    }
}

impl<T: Default> Default for Published<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: fmt::Debug> fmt::Debug for Published<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("value", &self.value).finish_non_exhaustive()
    }
}
