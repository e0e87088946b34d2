//! Spin limit of waiting loops.

/// Empty iterations of a waiting loop before it yields its core each time round: less than
/// a microsecond where polling reads shared memory, a few where it is a system call. After that the
/// core is better used by the peer or its progress thread, which the loop may be waiting for.
const SPINS: u32 = 8;

/// Counts iterations that found nothing to do. Returns true if the loop should yield its core.
#[inline]
pub fn is_idle(idle: &mut u32, busy: bool) -> bool {
    *idle = if busy { 0 } else { idle.saturating_add(1) };
    *idle >= SPINS
}
