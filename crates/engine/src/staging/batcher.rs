//! Batcher: collects short operations, so that they go to the device together.
//!
//! A kernel queues operations faster than a device copies, but starting a copy takes the proxy
//! thread longer than accepting ten operations. While operations arrive back to back, the lane
//! therefore skips iterations.

/// Maximum number of operations of a batch.
const MAX_OPERATIONS: u32 = 32;

/// Nanoseconds without an operation after which a batch is started: kernels queue one in about
/// half of that.
const PAUSE: u64 = 1_000;

/// Nanoseconds without an operation after which arrivals no longer count as back to back.
const IDLE: u64 = 5_000;

#[derive(Debug, Default)]
pub(super) struct Batcher {
    /// Operations in the batch, and those since the last query.
    operations: u32,
    fresh: u32,
    /// Time of the query that saw the last operation.
    latest: u64,
    /// Whether operations arrive, or the last one came less than [`IDLE`] ago.
    is_active: bool,
}

impl Batcher {
    pub(super) fn add_operation(&mut self) {
        self.fresh += 1;
        self.is_active = true;
    }

    /// Returns true if the next iteration should wait for more operations. The clock is read only
    /// while or shortly after operations arrive.
    #[inline]
    pub(super) fn keep_collecting(&mut self, now: impl FnOnce() -> u64) -> bool {
        if !self.is_active {
            return false;
        }
        let (now, fresh) = (now(), std::mem::take(&mut self.fresh));
        let pause = now.saturating_sub(self.latest);
        if fresh > 0 {
            self.latest = now;
            // One that comes alone is started at once.
            if pause < IDLE {
                self.operations += fresh;
            }
        } else if pause >= IDLE {
            self.is_active = false;
        }
        let is_open = (1..MAX_OPERATIONS).contains(&self.operations);
        if is_open && (fresh > 0 || pause < PAUSE) {
            return true;
        }
        // The iteration runs now, and starts what was collected.
        self.operations = 0;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_operations_do_not_wait() {
        let mut batcher = Batcher::default();
        for number in 1..10 {
            batcher.add_operation();
            for later in [0, 1, IDLE - 1] {
                assert!(!batcher.keep_collecting(|| number * IDLE + later));
            }
        }
        assert!(!batcher.keep_collecting(|| 11 * IDLE));
        assert!(!batcher.keep_collecting(|| panic!("idle, it needs no clock")));
    }

    #[test]
    fn batch_ends_when_full_or_paused() {
        let mut batcher = Batcher::default();
        batcher.add_operation();
        assert!(!batcher.keep_collecting(|| IDLE), "the first is alone");
        for _ in 0..3 {
            for _ in 1..MAX_OPERATIONS {
                batcher.add_operation();
                assert!(batcher.keep_collecting(|| IDLE + 1));
            }
            batcher.add_operation();
            assert!(!batcher.keep_collecting(|| IDLE + 1), "full");
        }
        let last = 2 * IDLE;
        batcher.add_operation();
        assert!(batcher.keep_collecting(|| last) && batcher.keep_collecting(|| last + PAUSE - 1));
        assert!(!batcher.keep_collecting(|| last + PAUSE), "paused");
    }
}
