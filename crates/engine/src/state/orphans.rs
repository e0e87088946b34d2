//! Orphans: operations to peers that were declared failed, which the fabric may still execute, by
//! the memory of this process that they touch.
//!
//! Nobody waits for them any more, so their program may want to give that memory back. It stays
//! registered until they have ended. The lanes that have them say what they touch, and any thread
//! asks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::ids::{LaneKind, Pe, WrId};

/// One of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Orphan {
    pub(crate) lane: LaneKind,
    pub(crate) wr_id: WrId,
    pub(crate) what: &'static str,
    pub(crate) pe: Pe,
    pub(crate) addr: usize,
    pub(crate) len: usize,
}

/// Those of all lanes of a process.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    all: Mutex<Vec<Orphan>>,
    /// Somebody wants to give back memory that one of them touches.
    wanted: AtomicBool,
}

impl Orphans {
    pub(crate) fn enter(&self, orphan: Orphan) {
        self.lock().push(orphan);
    }

    pub(crate) fn leave(&self, lane: LaneKind, wr_id: WrId) -> bool {
        let mut all = self.lock();
        let at = all.iter().position(|orphan| (orphan.lane, orphan.wr_id) == (lane, wr_id));
        at.map(|at| all.swap_remove(at)).is_some()
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn of(&self, lane: LaneKind) -> Vec<WrId> {
        self.lock().iter().filter(|orphan| orphan.lane == lane).map(|orphan| orphan.wr_id).collect()
    }

    /// One that touches these bytes. If there is one, it is noted that they are wanted back.
    pub(crate) fn over(&self, addr: usize, len: usize) -> Option<Orphan> {
        let touches = |orphan: &&Orphan| overlap((orphan.addr, orphan.len), (addr, len));
        let found = self.lock().iter().find(touches).copied();
        if found.is_some() {
            // Nothing is published by it.
            self.wanted.store(true, Ordering::Relaxed);
        }
        found
    }

    pub(crate) fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Orphan>> {
        // Each change of it is one call.
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether two ranges, each an address and a length, have bytes in common.
pub(crate) fn overlap(one: (usize, usize), other: (usize, usize)) -> bool {
    one.0 < other.0.saturating_add(other.1) && other.0 < one.0.saturating_add(one.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_free_when_what_touches_it_has_ended() {
        let orphans = Orphans::default();
        let orphan = |lane, wr_id| Orphan {
            lane,
            wr_id: WrId(wr_id),
            what: "get",
            pe: Pe(1),
            addr: 100,
            len: 10,
        };
        orphans.enter(orphan(LaneKind::Host, 3));
        orphans.enter(orphan(LaneKind::Proxy, 3));
        for (addr, len) in [(0, 100), (110, 10), (200, usize::MAX)] {
            assert_eq!(orphans.over(addr, len), None, "{len} bytes at {addr}");
        }
        assert!(!orphans.take_wanted());
        for (addr, len) in [(0, 101), (109, 1), (0, usize::MAX), (104, 2)] {
            assert!(orphans.over(addr, len).is_some(), "{len} bytes at {addr}");
        }
        assert!(orphans.take_wanted() && !orphans.take_wanted());
        assert!(orphans.leave(LaneKind::Host, WrId(3)));
        assert!(!orphans.leave(LaneKind::Host, WrId(3)));
        assert_eq!(orphans.over(100, 10), Some(orphan(LaneKind::Proxy, 3)));
        assert!(orphans.leave(LaneKind::Proxy, WrId(3)));
        assert_eq!(orphans.over(100, 10), None);
    }
}
