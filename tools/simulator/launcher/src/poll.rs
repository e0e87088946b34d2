//! Waiting for several descriptors.

use std::os::fd::RawFd;
use std::time::Duration;

/// A descriptor, and what is waited for.
pub fn pollfd(fd: RawFd, events: libc::c_short) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}

/// Waits until one of the descriptors is ready, for ever if there is no limit. Whether any is; an
/// interruption counts as not.
pub fn poll(fds: &mut [libc::pollfd], limit: Option<Duration>) -> bool {
    let limit = limit.map_or(-1, |limit| limit.as_millis() as i32);
    // SAFETY: the pointer and the length are those of one slice, which lives through the call.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit) > 0 }
}
