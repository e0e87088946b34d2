//! The signal at which counters are written: a handler that counts how often it came, and does
//! nothing else.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::settings::CountersSignal;

/// How often it came.
static CAME: AtomicU32 = AtomicU32::new(0);

pub(super) fn came() -> u32 {
    CAME.load(Ordering::Relaxed)
}

extern "C" fn count(_signal: libc::c_int) {
    CAME.fetch_add(1, Ordering::Relaxed);
}

/// Has the signal counted from here on.
///
/// # Errors
/// The program has a handler of its own for it, or the system's answer.
pub(super) fn listen(to: CountersSignal) -> io::Result<()> {
    let signal = match to {
        CountersSignal::Usr1 => libc::SIGUSR1,
        CountersSignal::Usr2 => libc::SIGUSR2,
        CountersSignal::None => return Ok(()),
    };
    let handler = count as extern "C" fn(libc::c_int) as libc::sighandler_t;
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a structure to write to, for which zero is a value.
    if unsafe { libc::sigaction(signal, ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed at first, so all bytes are there.
    let before = unsafe { before.assume_init() }.sa_sigaction;
    if before == handler {
        return Ok(());
    }
    if before != libc::SIG_DFL {
        return Err(io::Error::other("the program has a handler of its own for it, or ignores it"));
    }
    // SAFETY: zero is a value of all its fields.
    let mut action = unsafe { MaybeUninit::<libc::sigaction>::zeroed().assume_init() };
    action.sa_sigaction = handler;
    // Calls of the program that wait go on.
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler changes one atomic number, which handlers may. It is in this library,
    // which is never unloaded (build.rs links it with `nodelete`).
    match unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
