//! The helper: a thread that makes progress while NCCL's does not.
//!
//! Peers' puts and signals need the progress of their target on most providers, and NCCL makes some
//! only while a device communicator or a host call has its thread run. The helper looks every
//! [`LOOK`] whether NCCL has made progress since. While it has, that is all; else it makes progress
//! itself until NCCL does so again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::shared::Shared;
use crate::job::counters::exit;
use crate::nccl::error::NcclError;
use ofi::posix_signals;

/// Between two looks whether NCCL makes progress; what a peer waits for at most when it has
/// stopped.
const LOOK: Duration = Duration::from_millis(1);

/// Iterations without a find before the core is offered to others; few where others need it.
const SPINS: u32 = 4096;
const SPINS_SHARED: u32 = 8;

/// Idle for so long, it sleeps between iterations.
const AWAKE: Duration = Duration::from_millis(3);

/// Between two iterations then.
const SLEEP: Duration = Duration::from_micros(200);

/// Its thread ends with it.
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
            // Its panic has been told by the panic's own message.
            let _ = thread.join();
        }
    }
}

/// Waits for a look, and makes progress for as long as NCCL does not.
fn turn(group: &Shared, ends: &AtomicBool) {
    let before = group.progress_made();
    thread::sleep(LOOK);
    if exit::is_waiting() {
        group.tell_counters();
    }
    let spins = if group.has_core { SPINS } else { SPINS_SHARED };
    let mut idle = 0_u32;
    let mut since = Instant::now();
    while group.progress_made() == before && !ends.load(Ordering::Relaxed) {
        if group.help() {
            idle = 0;
            continue;
        }
        idle = idle.saturating_add(1);
        if idle < spins {
            std::hint::spin_loop();
            continue;
        }
        if idle == spins {
            since = Instant::now();
        }
        // Who has started something looks for its end, and makes progress by that.
        if since.elapsed() > AWAKE && (group.is_automatic || !group.has_open()) {
            if exit::is_waiting() {
                group.tell_counters();
            }
            thread::sleep(SLEEP);
        } else {
            thread::yield_now();
        }
    }
}
