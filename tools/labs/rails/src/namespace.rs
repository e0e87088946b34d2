//! A network namespace: the network of one of the lab's hosts.
//!
//! It has no name, only a descriptor that this process holds. So the kernel removes it, with every
//! interface in it, when this process and the PEs inside have ended, however they ended: nothing is
//! left to be swept up.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nvshmem_sim::Surroundings;

use crate::error::LabError;

/// A network of its own, empty but for `lo` when new.
#[derive(Debug)]
pub struct Namespace {
    /// What `/proc/thread-self/ns/net` led to in a thread that had just got a new network.
    file: File,
}

impl Namespace {
    /// Makes a namespace.
    ///
    /// # Errors
    /// The kernel's: it takes `CAP_SYS_ADMIN`.
    pub fn new() -> Result<Namespace, LabError> {
        let made = on_own_thread(|| {
            // SAFETY: it changes the network of the calling thread alone, which ends right after.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            File::open("/proc/thread-self/ns/net")
        });
        let file = made.map_err(|e| LabError::new("a network namespace", e))?;
        Ok(Namespace { file })
    }

    /// Runs a function on a thread that is inside. Sockets it opens belong to this network, and
    /// `/proc/thread-self/net` shows it.
    ///
    /// # Errors
    /// The thread could not enter, or the function's.
    pub fn inside<R: Send>(
        &self,
        f: impl FnOnce() -> Result<R, LabError> + Send,
    ) -> Result<R, LabError> {
        let fd = self.file.as_raw_fd();
        on_own_thread(|| {
            enter(fd).map_err(|e| LabError::new("entering a network namespace", e))?;
            f()
        })
    }

    /// A path that leads to it as long as this process holds it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Has `ip` execute commands inside, one a line; the first that fails ends it.
    ///
    /// # Errors
    /// There is no `ip`, or what it said.
    pub fn ip(&self, lines: &[String]) -> Result<(), LabError> {
        self.batch("ip", lines)
    }

    /// As [`Namespace::ip`], for `tc`.
    ///
    /// # Errors
    /// See [`Namespace::ip`].
    pub fn tc(&self, lines: &[String]) -> Result<(), LabError> {
        self.batch("tc", lines)
    }

    /// What `ip`, `tc` or another program answers.
    ///
    /// # Errors
    /// See [`Namespace::ip`].
    pub fn ask(&self, program: &str, arguments: &[&str]) -> Result<String, LabError> {
        self.call(program, arguments, "")
    }

    fn batch(&self, program: &str, lines: &[String]) -> Result<(), LabError> {
        let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
        self.call(program, &["-batch", "-"], &text).map(drop)
    }

    fn call(&self, program: &str, arguments: &[&str], input: &str) -> Result<String, LabError> {
        let failed = |e| LabError::new(format!("`{program}` of iproute2"), e);
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.take_in(&mut command);
        let mut child = command.spawn().map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // It reads all of it before it ends, or says why not.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(failed)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        let tried =
            format!("{program} {} {}", arguments.join(" "), input.trim().replace('\n', "; "));
        Err(LabError::new(tried, io::Error::other(said)))
    }
}

impl Surroundings for Namespace {
    fn take_in(&self, command: &mut Command) {
        let fd = self.file.as_raw_fd();
        // SAFETY: between fork and exec only setns is called, which is async-signal-safe; the
        // descriptor is open in the child, as exec has not closed it yet, and the caller keeps it
        // open in this process until the child is there.
        unsafe { command.pre_exec(move || enter(fd)) };
    }
}

/// Moves the calling thread into the namespace that a descriptor leads to.
fn enter(namespace: RawFd) -> io::Result<()> {
    // SAFETY: a call that takes an open descriptor and a flag, and touches no memory.
    match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs a function on a thread whose namespaces are nobody else's concern.
fn on_own_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|scope| match scope.spawn(f).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}
