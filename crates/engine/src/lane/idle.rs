//! The spin limit: when a waiting loop gives up its core.

/// Empty iterations of a waiting loop before it gives up its core each time round.
///
/// Polling a completion queue in shared memory takes tens of nanoseconds, so this is below a
/// microsecond there; where polling is a system call it is a few. Beyond that the core is better
/// used by the peer or its progress thread, which may be waiting for it.
const SPINS: u32 = 8;

/// Counts iterations that found nothing; whether there have been enough to give up the core.
#[inline]
pub fn is_idle(idle: &mut u32, busy: bool) -> bool {
    *idle = if busy { 0 } else { idle.saturating_add(1) };
    *idle >= SPINS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_iterations_in_a_row_find_nothing() {
        let mut idle = 0;
        for _ in 0..3 {
            assert!(!is_idle(&mut idle, true));
            assert_eq!((1..=10).filter(|_| is_idle(&mut idle, false)).count(), 3);
        }
        idle = u32::MAX;
        assert!(is_idle(&mut idle, false));
    }
}
