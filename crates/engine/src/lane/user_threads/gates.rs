//! Gates: an operation of a user thread that begins while another thread's quiet waits for the same
//! PE waits for that.
//!
//! A quiet is over when nothing is under way to its PE. While other threads go on, there may never
//! be such a moment. So what begins after a quiet stays behind it, but for what stayed behind an
//! earlier one: that is no more than there are threads. Each moment at which nothing is under way
//! lets all go that waited before it, quiets and operations.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::Pe;
use crate::sync::{AtomicU32, Ordering};

/// The gates of a lane.
#[derive(Debug, Default)]
pub(super) struct Gates {
    /// Quiets that wait: while there is none, nobody looks further.
    waiting: AtomicU32,
    gates: Mutex<HashMap<Pe, Gate>>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Gate {
    /// Quiets that wait.
    quiets: u32,
    /// Moments so far at which nothing was under way: in the lane, and of what was handed over.
    moments: [u64; 2],
}

/// What a quiet waits for, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    Lane,
    HandedOver,
}

/// A quiet that waits. Dropping it ends that.
#[derive(Debug)]
pub(super) struct Quiet<'a> {
    gates: &'a Gates,
    pe: Pe,
    before: [u64; 2],
}

impl Gates {
    pub(super) fn shut(&self, pe: Pe) -> Quiet<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut gates = self.lock();
        let gate = gates.entry(pe).or_default();
        gate.quiets += 1;
        Quiet { gates: self, pe, before: gate.moments }
    }

    #[inline]
    pub(super) fn before(&self, pe: Pe) -> Option<u64> {
        // A quiet that is not seen here has not waited for what was before this.
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.lock().get(&pe).filter(|gate| gate.quiets != 0).map(|gate| gate.moments[1])
    }

    pub(super) fn is_open(&self, pe: Pe, before: u64) -> bool {
        self.lock().get(&pe).is_none_or(|gate| gate.quiets == 0 || gate.moments[1] != before)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Pe, Gate>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Quiet<'_> {
    pub(super) fn is_over(&self, part: Part, now: bool) -> bool {
        let mut gates = self.gates.lock();
        let gate = gates.entry(self.pe).or_default();
        let moments = &mut gate.moments[part as usize];
        *moments += u64::from(now);
        *moments != self.before[part as usize]
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.gates.lock().get_mut(&self.pe) {
            gate.quiets -= 1;
        }
        self.gates.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_begins_behind_a_quiet_waits_for_one_moment() {
        let gates = Gates::default();
        assert_eq!(gates.before(Pe(1)), None);
        let first = gates.shut(Pe(1));
        assert_eq!(gates.before(Pe(2)), None, "it is another PE's");
        let before = gates.before(Pe(1)).unwrap();
        assert!(!gates.is_open(Pe(1), before));
        assert!(!first.is_over(Part::Lane, false) && first.is_over(Part::Lane, true));
        assert!(!gates.is_open(Pe(1), before), "not all of it is over");
        let second = gates.shut(Pe(1));
        assert!(!second.is_over(Part::Lane, false), "that was before it");
        assert!(first.is_over(Part::HandedOver, true));
        assert!(gates.is_open(Pe(1), before), "though another quiet waits");
        let later = gates.before(Pe(1)).unwrap();
        drop(first);
        assert!(!gates.is_open(Pe(1), later));
        drop(second);
        assert!(gates.is_open(Pe(1), later) && gates.before(Pe(1)).is_none());
    }
}
