//! A process of a job: what it prints, and its end.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const DRAIN: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Exited(i32),
    /// By a signal that was not the launcher's.
    Signalled(i32),
    /// Killed by the launcher, when its time was over.
    Killed,
}

impl End {
    pub fn is_success(self) -> bool {
        self == End::Exited(0)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited(status) => write!(f, "ended with status {status}"),
            End::Signalled(signal) => write!(f, "ended by signal {signal}"),
            End::Killed => write!(f, "was killed when its time was over"),
        }
    }
}

/// What a process prints to one of its streams, if that is a pipe.
#[derive(Debug)]
pub(crate) struct Output {
    /// None once it is closed.
    pipe: Option<File>,
    bytes: Vec<u8>,
}

impl Output {
    fn new(pipe: Option<impl Into<OwnedFd>>) -> Self {
        Self { pipe: pipe.map(|pipe| pipe.into().into()), bytes: Vec::new() }
    }

    fn pollfd(&self) -> Option<libc::pollfd> {
        let fd = self.pipe.as_ref()?.as_raw_fd();
        Some(libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    fn read(&mut self) {
        let mut buffer = [0; 16 << 10];
        // Bounded, so that a process that prints without end does not keep the launcher here.
        for _ in 0..64 {
            let ready = self.pollfd().is_some_and(|fd| poll(&mut [fd], Duration::ZERO));
            let Some(pipe) = self.pipe.as_mut().filter(|_| ready) else { break };
            match pipe.read(&mut buffer) {
                Ok(n) if n > 0 => self.bytes.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                _ => self.pipe = None,
            }
        }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Has the system keep what processes of this one end with. A parent that ignores SIGCHLD passes
/// that on, and then no wait for a process ever comes to an end. For a program's beginning.
pub fn keep_ends_of_processes() {
    // SAFETY: the default action runs no code of this process.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// A process that was started. It ends when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pub(crate) out: Output,
    pub(crate) err: Output,
    pub(crate) exit: Option<(End, Instant)>,
    is_killed: bool,
}

impl Process {
    /// Starts a command. Its process is killed when the thread that starts it ends, however that
    /// comes about.
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        // SAFETY: between fork and exec only `prctl` runs, which is a plain system call: nothing
        // there allocates or takes a lock.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| {
            let program = Path::new(command.get_program()).display();
            io::Error::new(error.kind(), format!("{program} cannot be started: {error}"))
        })?;
        let (out, err) = (Output::new(child.stdout.take()), Output::new(child.stderr.take()));
        Ok(Self { child, out, err, exit: None, is_killed: false })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn end(&self) -> Option<End> {
        let is_read = self.out.pipe.is_none() && self.err.pipe.is_none();
        self.exit.filter(|_| is_read).map(|(end, _)| end)
    }

    pub fn take_lines(&mut self) -> Vec<String> {
        let ends = self.out.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines: Vec<u8> = self.out.bytes.drain(..ends).collect();
        String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect()
    }

    pub(crate) fn stdin(&mut self) -> Option<impl io::Write + use<>> {
        self.child.stdin.take()
    }

    pub(crate) fn pollfds(&self) -> impl Iterator<Item = libc::pollfd> {
        [&self.out, &self.err].into_iter().filter_map(Output::pollfd)
    }

    pub(crate) fn look(&mut self) {
        let late = self.exit.is_some_and(|(_, when)| when.elapsed() > DRAIN);
        for output in [&mut self.out, &mut self.err] {
            output.read();
            output.pipe.take_if(|_| late);
        }
        if self.exit.is_none() {
            let status = self.child.try_wait().ok().flatten();
            let end = status.map(|status| match (status.code(), status.signal()) {
                _ if self.is_killed => End::Killed,
                (Some(code), _) => End::Exited(code),
                (None, signal) => End::Signalled(signal.unwrap_or(0)),
            });
            self.exit = end.map(|end| (end, Instant::now()));
        }
    }

    pub(crate) fn kill(&mut self) {
        if self.exit.is_none() {
            self.is_killed = true;
            // It fails only for a process that has just ended.
            let _ = self.child.kill();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Waits until there is something to read. Returns whether there is; an interruption counts as not.
pub(crate) fn poll(fds: &mut [libc::pollfd], limit: Duration) -> bool {
    let limit = limit.as_millis() as i32;
    // SAFETY: the pointer and the length are those of one slice, which lives through the call.
    unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, limit) > 0 }
}
