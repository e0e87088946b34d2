//! Detours: the PEs to which user threads' operations go by the proxy lane, which has all rails and looks after them.
//!
//! The host lane has one rail, to which nobody sends anything, so it hears of nothing that happens to rails. The
//! proxy lane tells it here.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::engine::ids::Pe;

/// A bit for each PE. Once set it stays.
#[derive(Debug)]
pub struct Detours(Box<[AtomicU64]>);

/// Where a PE's bit is: the word, and the bit in it.
fn place(pe: Pe) -> (usize, u64) {
    (pe.index() / 64, 1 << (pe.index() % 64))
}

impl Detours {
    /// None yet, in a job of so many PEs.
    pub fn new(n_pes: u32) -> Self {
        Self((0..n_pes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect())
    }

    /// From now on there is one for this PE. Any thread may say so.
    pub fn set(&self, pe: Pe) {
        let (at, bit) = place(pe);
        if let Some(word) = self.0.get(at) {
            // Nothing is published by it: a thread that does not see it yet goes the way that it went before.
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether there is one.
    #[inline]
    pub fn has(&self, pe: Pe) -> bool {
        let (at, bit) = place(pe);
        self.0.get(at).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_detour_is_for_one_pe_and_stays() {
        let detours = Detours::new(66);
        for pe in [1, 65, 200] {
            detours.set(Pe(pe));
        }
        let has: Vec<u32> = (0..300).filter(|pe| detours.has(Pe(*pe))).collect();
        assert_eq!(has, [1, 65], "and 200 is no PE of this job");
    }
}
