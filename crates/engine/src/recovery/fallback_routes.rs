//! Fallback routes: the PEs to which user threads' operations go by the proxy lane, which has all
//! rails and monitors them.
//!
//! The host lane has one rail, to which nobody sends anything, so it hears of nothing that happens
//! to rails. The proxy lane tells it here. It asks each PE before the first time.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ids::Pe;

/// A bit for each PE.
type Bits = Box<[AtomicU64]>;

/// The PEs with a fallback route. Once there is one it stays.
#[derive(Debug)]
pub struct FallbackRoutes {
    taken: Bits,
    /// PEs whose rails are where they were at first, as far as they have said. Others have a
    /// fallback route until then. None where rails do not move.
    settled: Option<Bits>,
}

fn bits(n_pes: u32) -> Bits {
    (0..n_pes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

fn place(pe: Pe) -> (usize, u64) {
    (pe.index() / 64, 1 << (pe.index() % 64))
}

fn set(bits: &Bits, pe: Pe) {
    let (at, bit) = place(pe);
    if let Some(word) = bits.get(at) {
        // Nothing is published by it: a thread that does not see it yet goes the way that it went
        // before.
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

#[inline]
fn has(bits: &Bits, pe: Pe) -> bool {
    let (at, bit) = place(pe);
    bits.get(at).is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
}

impl FallbackRoutes {
    /// None yet, in a job of so many PEs.
    pub fn new(n_pes: u32) -> Self {
        Self { taken: bits(n_pes), settled: None }
    }

    /// The same, where rails may be opened again, of which only those are told who talk: the first
    /// operations for each PE make a fallback route, until it has said that its rails are where
    /// they were.
    pub fn until_settled(n_pes: u32) -> Self {
        Self { settled: Some(bits(n_pes)), ..Self::new(n_pes) }
    }

    /// From now on there is one for this PE. Any thread may say so.
    pub fn set(&self, pe: Pe) {
        set(&self.taken, pe);
    }

    pub(crate) fn settle(&self, pe: Pe) {
        if let Some(settled) = &self.settled {
            set(settled, pe);
        }
    }

    pub(crate) fn is_unsettled(&self, pe: Pe) -> bool {
        self.settled.as_ref().is_some_and(|settled| !has(settled, pe))
    }

    /// Whether there is one.
    #[inline]
    pub fn has(&self, pe: Pe) -> bool {
        has(&self.taken, pe) || self.is_unsettled(pe)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fallback_route_is_for_one_pe_and_stays() {
        let fallback_routes = FallbackRoutes::new(66);
        for pe in [1, 65, 200] {
            fallback_routes.set(Pe(pe));
        }
        let has: Vec<u32> = (0..300).filter(|pe| fallback_routes.has(Pe(*pe))).collect();
        assert_eq!(has, [1, 65], "and 200 is no PE of this job");
    }

    #[test]
    fn the_first_way_is_a_fallback_route_where_rails_move() {
        let fallback_routes = FallbackRoutes::until_settled(66);
        assert!(fallback_routes.has(Pe(65)));
        fallback_routes.settle(Pe(65));
        assert!(!fallback_routes.has(Pe(65)) && fallback_routes.has(Pe(64)));
        fallback_routes.set(Pe(65));
        assert!(fallback_routes.has(Pe(65)), "one of its rails has moved");
    }
}
