//! Batcher: collects short operations, so that they go to the device together.
//!
//! A kernel queues operations faster than a device copies, but starting a copy takes the proxy
//! thread longer than accepting ten operations. While operations arrive back to back, the lane
//! therefore skips iterations.

/// Maximum number of operations of a batch.
const MAX_OPERATIONS: u32 = 32;

/// Queries without an operation after which arrivals no longer count as back to back.
const IDLE_QUERIES: u32 = 4;

#[derive(Debug)]
pub(super) struct Batcher {
    /// Operations in the batch, and those since the last query.
    operations: u32,
    fresh: u32,
    /// Queries since the last operation.
    idle_queries: u32,
}

impl Default for Batcher {
    fn default() -> Self {
        Self { operations: 0, fresh: 0, idle_queries: IDLE_QUERIES }
    }
}

impl Batcher {
    pub(super) fn add_operation(&mut self) {
        if self.idle_queries < IDLE_QUERIES {
            self.operations += 1;
            self.fresh += 1;
        }
        self.idle_queries = 0;
    }

    /// Returns true if the next iteration should wait for more operations.
    #[inline]
    pub(super) fn keep_collecting(&mut self) -> bool {
        if self.idle_queries >= IDLE_QUERIES {
            return false;
        }
        if std::mem::take(&mut self.fresh) != 0 && self.operations < MAX_OPERATIONS {
            return true;
        }
        // The iteration runs now, and starts what was collected.
        self.operations = 0;
        self.idle_queries += 1;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_operations_do_not_wait() {
        let mut batcher = Batcher::default();
        for _ in 0..10 {
            batcher.add_operation();
            (0..IDLE_QUERIES).for_each(|_| assert!(!batcher.keep_collecting()));
        }
    }

    #[test]
    fn batch_ends_when_full_or_idle() {
        let mut batcher = Batcher::default();
        batcher.add_operation();
        for _ in 0..3 {
            for _ in 1..MAX_OPERATIONS {
                batcher.add_operation();
                assert!(batcher.keep_collecting());
            }
            batcher.add_operation();
            assert!(!batcher.keep_collecting());
        }
        (0..2).for_each(|_| batcher.add_operation());
        assert!(batcher.keep_collecting() && !batcher.keep_collecting());
    }
}
