//! The process: the text of its last panic, and its end.

use std::any::Any;
use std::io::Write;
use std::sync::{Mutex, PoisonError};

/// The last panic of this process, with the place where it happened.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

/// Keeps the text of every panic from now on.
pub(crate) fn note_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(|l| format!(" at {l}")).unwrap_or_default();
        let text = format!("{}{place}", payload_text(info.payload()));
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        default(info);
    }));
}

pub(crate) fn payload_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_string())
}

/// Ends the process without running destructors: a PE that has failed may hold a plugin that is
/// stuck, and NVSHMEM's host does not tidy up then either.
pub(crate) fn exit_now(status: i32) -> ! {
    // Nothing can be done about output that cannot be written.
    let _ = std::io::stdout().flush();
    // SAFETY: _exit has no precondition.
    unsafe { libc::_exit(status) }
}

/// The text of the last panic.
pub(crate) fn last_panic() -> Option<String> {
    PANIC.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// A launcher that is killed takes its PEs along.
pub(crate) fn die_with_launcher() {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
