//! A process of a job: what it prints, line by line, and its end.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::pipe::{Pipe, Stream};

/// How long the pipes of an ended process are read for a rest: a grandchild may hold them open.
const DRAIN: Duration = Duration::from_millis(500);

/// A process that was started. It ends when this is dropped.
pub struct Process {
    child: Child,
    pipes: Vec<Pipe>,
    exit: Option<(ExitStatus, Instant)>,
}

impl Process {
    /// Starts a command. An error names the program.
    ///
    /// # Errors
    /// As the system answers.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let child = command.spawn().map_err(|error| {
            let program = Path::new(command.get_program());
            let told = format!("{} cannot be started: {error}", program.display());
            io::Error::new(error.kind(), told)
        })?;
        Ok(Self::from(child))
    }

    /// Its number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes to its standard input, where that is a pipe, and closes it.
    pub fn say(&mut self, input: &str) {
        if let Some(mut stdin) = self.child.stdin.take() {
            // A program that does not read it to its end has its reasons.
            let _ = stdin.write_all(input.as_bytes());
        }
    }

    /// Whether it may print more, into pipes.
    pub fn may_print(&self) -> bool {
        !self.pipes.is_empty()
    }

    /// What is to be waited for before a look at its pipes.
    pub fn pollfds(&self) -> impl Iterator<Item = libc::pollfd> {
        self.pipes.iter().map(Pipe::pollfd)
    }

    /// Takes the lines that it has printed, without waiting for any.
    pub fn read(&mut self, mut line: impl FnMut(Stream, String)) {
        let late = self.exit.is_some_and(|(_, when)| when.elapsed() > DRAIN);
        self.pipes.retain_mut(|pipe| pipe.read(&mut line) && !late);
    }

    /// How and when it has ended, if it has.
    pub fn exit(&mut self) -> Option<(ExitStatus, Instant)> {
        if self.exit.is_none() {
            let status = self.child.try_wait().ok().flatten();
            self.exit = status.map(|status| (status, Instant::now()));
        }
        self.exit
    }

    /// Whether its end has not been seen.
    pub fn is_running(&self) -> bool {
        self.exit.is_none()
    }

    /// Kills it. Its end is still to be seen.
    pub fn kill(&mut self) {
        // It fails only for a process that has just ended.
        let _ = self.child.kill();
    }
}

impl From<Child> for Process {
    /// Takes the pipes that it still has.
    fn from(mut child: Child) -> Self {
        let out = child.stdout.take().map(|pipe| Pipe::new(Stream::Out, pipe));
        let err = child.stderr.take().map(|pipe| Pipe::new(Stream::Err, pipe));
        Self { child, pipes: out.into_iter().chain(err).collect(), exit: None }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.exit().is_none() {
            self.kill();
            let _ = self.child.wait();
        }
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process").field("id", &self.id()).field("exit", &self.exit).finish()
    }
}

/// Has a command's process killed when the thread that starts it ends, however that comes about.
pub fn dies_with_launcher(command: &mut Command) {
    // SAFETY: between fork and exec only `prctl` runs, which is a plain system call: nothing there
    // allocates or takes a lock.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Whether a process may read another's memory, as the emulated NICs of efa do; the reason if not.
/// Where it may not, it may not read its own either.
///
/// # Errors
/// It may not.
pub fn reaches_other_processes() -> Result<(), String> {
    let (from, mut to) = (1_u8, 0_u8);
    let part = |at: *mut u8| libc::iovec { iov_base: at.cast(), iov_len: 1 };
    let (local, remote) = (part(&raw mut to), part((&raw const from).cast_mut()));
    // SAFETY: the call copies one byte of this process to another, both of them ours.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match read {
        1 => Ok(()),
        _ => Err(format!(
            "no process here may reach another's memory: {}",
            std::io::Error::last_os_error()
        )),
    }
}
