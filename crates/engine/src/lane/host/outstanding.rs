//! Operations handed over to the proxy lane, counted by PE, with the first failure of each PE.

use std::sync::PoisonError;

use crate::ids::Pe;
use crate::sync::{AtomicU32, Mutex, Ordering};

/// Counts of items by PE. A thread that reads 0 also sees what the proxy thread did for the PE.
#[derive(Debug)]
pub(crate) struct Outstanding<E> {
    by_pe: Box<[AtomicU32]>,
    /// Their sum: the proxy thread reads it in each iteration, mostly to find nothing.
    all: AtomicU32,
    /// First failure by PE of an item that no thread waits for.
    lost: Mutex<Vec<(Pe, E)>>,
}

impl<E: Clone> Outstanding<E> {
    pub(crate) fn new(n_pes: u32) -> Self {
        let by_pe = (0..n_pes).map(|_| AtomicU32::new(0)).collect();
        Self { by_pe, all: AtomicU32::new(0), lost: Mutex::new(Vec::new()) }
    }

    /// Returns true if no item that this thread knows of is outstanding.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        // A hint: an item that is missed now is seen in a later iteration.
        self.all.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn begin(&self, pe: Pe) {
        self.all.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.by_pe.get(pe.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends an item; `lost` is a failure that no thread waits for.
    pub(crate) fn end(&self, pe: Pe, lost: Option<E>) {
        if let Some(failed) = lost {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            // One for each PE, so that a failed PE cannot make the list grow.
            if lost.iter().all(|(of, _)| *of != pe) {
                lost.push((pe, failed));
            }
        }
        if let Some(count) = self.by_pe.get(pe.index()) {
            // Publishes what was executed, and the failure, to the `Acquire` in `is_quiet`.
            count.fetch_sub(1, Ordering::Release);
        }
        self.all.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns true if every item for the PE that this thread knows of has ended.
    pub(crate) fn is_quiet(&self, pe: Pe) -> bool {
        let count = self.by_pe.get(pe.index());
        count.is_none_or(|count| count.load(Ordering::Acquire) == 0)
    }

    pub(crate) fn failure(&self, pe: Pe) -> Option<E> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.iter().find(|(of, _)| *of == pe).map(|(_, failed)| failed.clone())
    }
}
