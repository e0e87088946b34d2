//! Handles that C holds: numbers that lead to objects shared with the worker threads.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::state::status::{INVALID_HANDLE, Status};

/// Locks, whatever a panicking thread has left.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn fresh() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1000);
    NEXT.fetch_add(0x10, Relaxed)
}

#[derive(Debug)]
pub(crate) struct Table<T>(Mutex<Option<HashMap<usize, Arc<T>>>>);

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    pub(crate) fn insert(&self, object: Arc<T>) -> usize {
        let handle = fresh();
        lock(&self.0).get_or_insert_default().insert(handle, object);
        handle
    }

    pub(crate) fn get(&self, handle: usize) -> Result<Arc<T>, Status> {
        let table = lock(&self.0);
        table.as_ref().and_then(|table| table.get(&handle)).cloned().ok_or(INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: usize) -> Result<Arc<T>, Status> {
        let mut table = lock(&self.0);
        table.as_mut().and_then(|table| table.remove(&handle)).ok_or(INVALID_HANDLE)
    }
}
