//! Counters of a process that exits without finalizing its transport, as PyTorch does.
//!
//! Only the proxy thread may access its lane, which NVSHMEM progresses until the process has ended.
//! So an exit handler sets a flag for that thread and waits until the counters are written.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use engine::thread_wait::Wait;
use ofi::fork;

/// Time limit of an exit for a proxy thread that may have stopped.
const PATIENCE: Duration = Duration::from_millis(200);

static UNWRITTEN: AtomicUsize = AtomicUsize::new(0);
/// Set by the exit handler, never cleared.
static EXITING: AtomicBool = AtomicBool::new(false);

pub(super) fn wait_for_one() {
    static REGISTERED: Once = Once::new();
    UNWRITTEN.fetch_add(1, Ordering::Relaxed);
    REGISTERED.call_once(|| {
        // SAFETY: the handler is in this library, which is never unloaded (build.rs links it with
        // `nodelete`). If the table of handlers is full, the file is not written at exit.
        let _ = unsafe { libc::atexit(wait) };
    });
}

pub(super) fn one_is_written() {
    // Release: the process may end as soon as the handler sees this.
    UNWRITTEN.fetch_sub(1, Ordering::Release);
}

#[inline(always)]
pub(crate) fn is_waiting() -> bool {
    EXITING.load(Ordering::Relaxed)
}

/// Runs in any thread, after its thread-local values may have been destroyed.
extern "C" fn wait() {
    if fork::is_child() {
        return;
    }
    EXITING.store(true, Ordering::Relaxed);
    let mut wait = Wait::new();
    while UNWRITTEN.load(Ordering::Acquire) != 0 && wait.left_of(PATIENCE).is_some() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn exit_waits_for_files_briefly() {
        assert!(!is_waiting());
        wait_for_one();
        let begun = Instant::now();
        wait();
        assert!(is_waiting() && begun.elapsed() >= PATIENCE);
        one_is_written();
        assert_eq!(UNWRITTEN.load(Ordering::Acquire), 0, "the next exit does not wait");
        EXITING.store(false, Ordering::Relaxed);
    }
}
