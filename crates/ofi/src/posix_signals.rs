//! Blocks the program's signals on threads of ours and of the providers.
//!
//! The kernel delivers a signal to any thread of the process that does not block it. A program's
//! handler expects one of its own threads: in the middle of a provider's call it could deadlock.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr;
use std::thread::{Builder, JoinHandle};

use libc::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};

/// Blocks all signals but synchronous ones on this thread, and on threads that it starts, until
/// dropped.
#[expect(missing_debug_implementations, reason = "a guard: there is nothing to show")]
pub struct Blocked {
    before: libc::sigset_t,
    /// The mask belongs to the thread, so this value stays on it.
    _here: PhantomData<*const ()>,
}

impl Blocked {
    pub fn here() -> Self {
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        let own = [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS];
        // SAFETY: pointers to sets, the first of which is filled before it is read. The last call
        // fails only for a wrong first argument, so the second set is written.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            for signal in own {
                libc::sigdelset(all.as_mut_ptr(), signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Self { before, _here: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a set written by `here`.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// Starts a thread that blocks the program's signals.
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let _blocked = Blocked::here();
    Builder::new().name(String::from(name)).spawn(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_blocked(signal: i32) -> bool {
        let mut now = MaybeUninit::uninit();
        // SAFETY: a set to write to, which the call does.
        unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), now.as_mut_ptr());
            libc::sigismember(now.as_ptr(), signal) == 1
        }
    }

    #[test]
    fn own_threads_block_signals() {
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGALRM, libc::SIGUSR1, libc::SIGCHLD];
        let blocked = move || signals.map(is_blocked);
        let faults = || is_blocked(libc::SIGSEGV) || is_blocked(libc::SIGBUS);
        let before = blocked();
        let there = spawn("test", move || (blocked(), faults())).unwrap().join().unwrap();
        assert_eq!(there, ([true; 5], false));
        assert_eq!(blocked(), before);
    }
}
