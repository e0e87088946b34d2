//! The exit of a process that does not finalize its transport: its counters are told all the same.
//!
//! PyTorch ends so. Only the host's proxy thread may look at its lane, and until the process is
//! gone it takes turns. So an exit handler asks for the counters, and waits until that thread has
//! told them.

use std::sync::Once;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::job::asked::Question;
use engine::patience::Wait;
use ofi::fork;

/// How long an exit waits for a thread that may take no more iterations.
const PATIENCE: Duration = Duration::from_millis(200);

/// Jobs whose counters are in files, or to go there, and have not been told.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// To all of them; never ended.
static ASKED: Question = Question::new();

/// Has the exit of this process wait for one more job's counters.
pub(super) fn wait_for_one() {
    static REGISTERED: Once = Once::new();
    OPEN.fetch_add(1, Ordering::Relaxed);
    REGISTERED.call_once(|| {
        // SAFETY: the handler is in this library, which is never unloaded (build.rs links it with
        // `nodelete`). Where there is no room for another handler, counters go untold.
        let _ = unsafe { libc::atexit(ask) };
    });
}

/// One job's counters have been told.
pub(super) fn one_is_told() {
    // Its file is written before the process may end.
    OPEN.fetch_sub(1, Ordering::Release);
}

/// Whether the process is ending, and waits for counters.
pub(super) fn is_asked() -> bool {
    ASKED.is_open()
}

/// Runs in any thread, whose thread-local values may be gone.
extern "C" fn ask() {
    if fork::is_child() {
        return;
    }
    ASKED.ask();
    let mut wait = Wait::new();
    while OPEN.load(Ordering::Acquire) != 0 && wait.left_of(PATIENCE).is_some() {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::job::asked::tests::alone;

    #[test]
    fn an_exit_waits_for_counters_that_are_not_told_and_not_for_ever() {
        let _alone = alone();
        assert!(!is_asked());
        wait_for_one();
        let begun = Instant::now();
        ask();
        assert!(is_asked() && begun.elapsed() >= PATIENCE);
        one_is_told();
        assert_eq!(OPEN.load(Ordering::Acquire), 0, "the next one does not wait");
        ask();
        ASKED.end();
    }
}
