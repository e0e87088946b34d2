//! The helper: a thread that makes progress while NCCL's does not.
//!
//! Peers' puts and signals need their target's progress on most providers, and NCCL's thread runs
//! for some only in a device communicator or a host call. Every [`CHECK_INTERVAL`] the helper
//! checks that NCCL has made progress since; if not, it does so itself until NCCL does again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::shared::{Helped, Shared};
use crate::job::counters::exit;
use crate::job::idle::Idle;
use crate::nccl::error::NcclError;
use ofi::posix_signals;

const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Shortest sleep of an idle helper; it grows with the idle time, see [`Idle`].
const SLEEP: Duration = Duration::from_micros(200);

/// The helper thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Helper {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Helper {
    pub(super) fn start(group: Arc<Shared>) -> Result<Self, NcclError> {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = posix_signals::spawn("nlf-rma", move || {
            while !seen.load(Ordering::Relaxed) {
                turn(&group, &seen);
            }
        });
        Ok(Self { ends, thread: Some(thread.map_err(NcclError::Thread)?) })
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has printed its own message.
            let _ = thread.join();
        }
    }
}

/// Waits for the next check, and makes progress for as long as no other thread does.
fn turn(group: &Shared, ends: &AtomicBool) {
    let before = group.progress_made();
    thread::sleep(CHECK_INTERVAL);
    let mut idle = Idle::new(group.has_core, Some(SLEEP));
    loop {
        // Also while NCCL makes progress: its calls do not report them.
        if exit::is_waiting() {
            group.tell_counters();
        }
        if group.progress_made() != before || ends.load(Ordering::Relaxed) {
            return;
        }
        match group.help() {
            Helped::Moved => idle.busy(),
            Helped::Nothing { waits } => idle.iterate(waits),
            // The thread that has the lane makes progress.
            Helped::Taken => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::tests::{connect, settings};

    #[test]
    fn taken_lane_is_left_alone() {
        connect(1, &settings(1, &[]), None, |pe| {
            let shared = Shared::new(pe.job.unwrap(), 1, true);
            let taken = shared.lock();
            turn(&shared, &AtomicBool::new(false));
            drop(taken);
        });
    }
}
