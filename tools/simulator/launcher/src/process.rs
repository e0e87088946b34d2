//! A process of a job: what it prints, line by line, and its end.

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
pub enum Stream {
    Out,
    Err,
}

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

#[derive(Debug)]
struct Pipe {
    stream: Stream,
    source: File,
    partial: Vec<u8>,
}

impl Pipe {
    fn pollfd(&self) -> libc::pollfd {
        libc::pollfd { fd: self.source.as_raw_fd(), events: libc::POLLIN, revents: 0 }
    }

    fn read(&mut self, output: &mut Vec<(Stream, String)>) -> bool {
        let mut buffer = [0; 16 << 10];
        let mut open = true;
        // Bounded, so that a process that prints without end does not keep the launcher here.
        for _ in 0..64 {
            // The pipe blocks, so ask first.
            if !open || !poll(&mut [self.pollfd()], Duration::ZERO) {
                break;
            }
            match self.source.read(&mut buffer) {
                Ok(0) => open = false,
                Ok(n) => self.partial.extend_from_slice(&buffer[..n]),
                Err(error) => open = error.kind() == io::ErrorKind::Interrupted,
            }
        }
        let ends = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let whole = if open { ends } else { self.partial.len() };
        let rest = self.partial.split_off(whole);
        let lines = String::from_utf8_lossy(&self.partial);
        output.extend(lines.split_terminator('\n').map(|line| (self.stream, line.to_owned())));
        self.partial = rest;
        open
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
    pipes: Vec<Pipe>,
    pub(crate) output: Vec<(Stream, String)>,
    /// Lines that [`Process::new_lines`] has given.
    given: usize,
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
        let pipe =
            |stream, source: OwnedFd| Pipe { stream, source: source.into(), partial: Vec::new() };
        let out = child.stdout.take().map(|source| pipe(Stream::Out, source.into()));
        let err = child.stderr.take().map(|source| pipe(Stream::Err, source.into()));
        let pipes = out.into_iter().chain(err).collect();
        Ok(Self { child, pipes, output: Vec::new(), given: 0, exit: None, is_killed: false })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How the process has ended, once all that it has printed was read.
    pub fn end(&self) -> Option<End> {
        self.exit.filter(|_| self.pipes.is_empty()).map(|(end, _)| end)
    }

    /// Lines of its standard output that have come since this was called last.
    pub fn new_lines(&mut self) -> Vec<String> {
        let new = self.output[self.given..].iter().filter(|(stream, _)| *stream == Stream::Out);
        let new = new.map(|(_, line)| line.clone()).collect();
        self.given = self.output.len();
        new
    }

    pub(crate) fn stdin(&mut self) -> Option<impl io::Write + use<>> {
        self.child.stdin.take()
    }

    pub(crate) fn pollfds(&self) -> impl Iterator<Item = libc::pollfd> {
        self.pipes.iter().map(Pipe::pollfd)
    }

    pub(crate) fn look(&mut self) {
        let late = self.exit.is_some_and(|(_, when)| when.elapsed() > DRAIN);
        self.pipes.retain_mut(|pipe| pipe.read(&mut self.output) && !late);
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

    /// Kills it, unless it has ended. Its end is still to be seen.
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
