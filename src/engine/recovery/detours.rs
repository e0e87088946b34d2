//! Detours: the PEs to which user threads' operations go by the proxy lane, which has all rails and looks after them.
//!
//! The host lane has one rail, to which nobody sends anything, so it hears of nothing that happens to rails. The
//! proxy lane tells it here.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::ids::Pe;

/// One flag for each PE. Once set it stays.
#[derive(Debug)]
pub struct Detours(Box<[AtomicBool]>);

impl Detours {
    /// None yet, in a job of so many PEs.
    pub fn new(n_pes: u32) -> Self {
        Self((0..n_pes).map(|_| AtomicBool::new(false)).collect())
    }

    /// From now on there is one for this PE. Any thread may say so.
    pub fn set(&self, pe: Pe) {
        if let Some(flag) = self.0.get(pe.index()) {
            // Nothing is published by it: a thread that does not see it yet goes the way that it went before.
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// Whether there is one.
    #[inline]
    pub fn has(&self, pe: Pe) -> bool {
        self.0.get(pe.index()).is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detour_is_for_one_pe_and_stays() {
        let detours = Detours::new(2);
        detours.set(Pe(1));
        detours.set(Pe(7));
        assert!(!detours.has(Pe(0)) && detours.has(Pe(1)) && detours.has(Pe(1)));
        assert!(!detours.has(Pe(7)), "no PE of this job");
    }
}
