//! Another process of a job: whether it is there, and a stop.

use std::fs;
use std::path::Path;
use std::thread;

/// The other process of a job, stopped until this is dropped.
#[derive(Debug)]
pub struct Stopped(i32);

impl Stopped {
    pub fn new(pid: i32) -> Self {
        // SAFETY: it was started for this job, as this process was.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        while !threads().all(|thread| state_of(&thread.path()) == Some('T')) {
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
    matches!(state_of(Path::new(&format!("/proc/{pid}"))), None | Some('Z' | 'X'))
}

fn state_of(task: &Path) -> Option<char> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    // Behind the name, which is in parentheses and may have any letters.
    stat.rsplit(')').next()?.trim_start().chars().next()
}
