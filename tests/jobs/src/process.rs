//! Another process of a job: whether it is there, and a stop.

use std::fs;
use std::thread;

/// The other process of a job, stopped until this is dropped.
#[derive(Debug)]
pub struct Stopped(i32);

impl Stopped {
    pub fn new(pid: i32) -> Self {
        // SAFETY: it was started for this job, as this process was.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        while state_of(pid) != Some('T') {
            assert!(!is_gone(pid), "it has ended");
            thread::yield_now();
        }
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0, libc::SIGCONT) };
    }
}

pub fn is_gone(pid: i32) -> bool {
    matches!(state_of(pid), None | Some('Z' | 'X'))
}

fn state_of(pid: i32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which is in parentheses and may have any letters.
    stat.rsplit(')').next()?.trim_start().chars().next()
}
