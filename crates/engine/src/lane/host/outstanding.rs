//! What user threads have handed over to the proxy lane and has not ended, by PE, and the first
//! failure of each PE's.

use std::sync::PoisonError;

use crate::ids::Pe;
use crate::sync::{AtomicU32, Mutex, Ordering};

/// Counts of items by PE. A thread that finds none outstanding for a PE sees what the proxy thread
/// has done for it, in memory as well.
#[derive(Debug)]
pub(crate) struct Outstanding<E> {
    by_pe: Box<[AtomicU32]>,
    /// Their sum, for the proxy thread, which most of the time has nothing to look for.
    all: AtomicU32,
    /// The first failure of an item that nobody waits for alone, by PE.
    lost: Mutex<Vec<(Pe, E)>>,
}

impl<E: Clone> Outstanding<E> {
    pub(crate) fn new(n_pes: u32) -> Self {
        let by_pe = (0..n_pes).map(|_| AtomicU32::new(0)).collect();
        Self { by_pe, all: AtomicU32::new(0), lost: Mutex::new(Vec::new()) }
    }

    /// Whether no item that this thread knows of is outstanding.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.load(Ordering::Relaxed) == 0
    }

    pub(crate) fn begin(&self, pe: Pe) {
        self.all.fetch_add(1, Ordering::Relaxed);
        if let Some(count) = self.by_pe.get(pe.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends an item. `lost`: a failure that nobody waits for.
    pub(crate) fn end(&self, pe: Pe, lost: Option<E>) {
        if let Some(failed) = lost {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            if lost.iter().all(|(of, _)| *of != pe) {
                lost.push((pe, failed));
            }
        }
        if let Some(count) = self.by_pe.get(pe.index()) {
            // Publishes what was done, and the failure.
            count.fetch_sub(1, Ordering::Release);
        }
        self.all.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether every item for the PE that this thread knows of has ended.
    pub(crate) fn is_quiet(&self, pe: Pe) -> bool {
        let count = self.by_pe.get(pe.index());
        count.is_none_or(|count| count.load(Ordering::Acquire) == 0)
    }

    pub(crate) fn failure(&self, pe: Pe) -> Option<E> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.iter().find(|(of, _)| *of == pe).map(|(_, failed)| failed.clone())
    }
}
