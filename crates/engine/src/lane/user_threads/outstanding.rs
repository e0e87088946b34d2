//! What user threads have handed over to the proxy lane and has not ended, by PE, and what of it
//! has failed.
//!
//! Who finds nothing outstanding for a PE sees all that the proxy thread has done for it, in memory
//! as well.

use std::sync::PoisonError;

use crate::ids::Pe;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// The counts, and by PE the first failure of an operation that nobody waits for on its own.
#[derive(Debug)]
pub(crate) struct Outstanding<E> {
    /// What was handed over and has not ended, fences among it.
    all: AtomicU32,
    /// Operations handed over and not ended, by PE.
    by_pe: Box<[AtomicU32]>,
    lost: Mutex<Vec<(Pe, E)>>,
    has_lost: AtomicBool,
}

impl<E: Clone> Outstanding<E> {
    pub(crate) fn new(n_pes: u32) -> Self {
        Self {
            all: AtomicU32::new(0),
            by_pe: (0..n_pes).map(|_| AtomicU32::new(0)).collect(),
            lost: Mutex::new(Vec::new()),
            has_lost: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.all.load(Ordering::Relaxed)
    }

    pub(crate) fn begin(&self, pe: Pe) {
        if let Some(count) = self.by_pe.get(pe.index()) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.begin_fence();
    }

    pub(crate) fn begin_fence(&self) {
        self.all.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_fence(&self) {
        self.all.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, pe: Pe, failed: Option<E>) {
        if let Some(failed) = failed {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            if lost.iter().all(|(of, _)| *of != pe) {
                lost.push((pe, failed));
            }
            // Before the count, whose release publishes it.
            self.has_lost.store(true, Ordering::Relaxed);
        }
        self.end_fence();
        if let Some(count) = self.by_pe.get(pe.index()) {
            count.fetch_sub(1, Ordering::Release);
        }
    }

    /// Whether every operation for the PE that this thread knows of has ended.
    pub(crate) fn is_quiet(&self, pe: Pe) -> bool {
        let count = self.by_pe.get(pe.index());
        count.is_none_or(|count| count.load(Ordering::Acquire) == 0)
    }

    pub(crate) fn failure(&self, pe: Pe) -> Option<E> {
        if !self.has_lost.load(Ordering::Relaxed) {
            return None;
        }
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.iter().find(|(of, _)| *of == pe).map(|(_, failed)| failed.clone())
    }
}
