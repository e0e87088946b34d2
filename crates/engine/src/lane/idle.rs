//! The spin limit: when a waiting loop gives up its core.

/// Empty iterations of a waiting loop before it gives up its core each time round.
///
/// Polling a completion queue in shared memory takes tens of nanoseconds, so this is below a
/// microsecond there; where polling is a system call it is a few. Beyond that the core is better
/// used by the peer or its progress thread, which may be waiting for it.
const SPINS: u32 = 8;

/// Counts iterations that found nothing. Returns whether there were enough to give up the core.
#[inline]
pub fn is_idle(idle: &mut u32, busy: bool) -> bool {
    *idle = if busy { 0 } else { idle.saturating_add(1) };
    *idle >= SPINS
}
