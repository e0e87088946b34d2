//! The connection between a PE and the launcher: messages as lines of JSON, over the PE's standard
//! streams. So it is the same for a PE of this host and for one that a shell of another host has
//! become, the launcher listens nowhere, and a PE whose launcher has gone finds its input closed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use launcher::{poll, pollfd};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

const BEGINS: &str = "nvshmem-sim: begins";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum FromPe {
    /// It has joined a collective of that name: an allgather of these bytes, or a barrier: of none.
    Join(String, Vec<u8>),
    Value(String, String),
    Finished,
    Failed(String),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum ToPe {
    /// The collective is complete: what all PEs have brought.
    Gathered(Vec<u8>),
    /// The job has failed; why.
    Abort(String),
}

#[derive(Debug)]
pub(crate) struct Link {
    input: File,
    output: File,
    received: Vec<u8>,
    begun: bool,
}

impl Link {
    pub(crate) fn pair() -> io::Result<(Link, OwnedFd)> {
        let (ours, theirs) = UnixStream::pair()?;
        // A PE that is stopped does not keep the launcher.
        ours.set_write_timeout(Some(Duration::from_secs(1)))?;
        let (input, output) = (OwnedFd::from(ours.try_clone()?).into(), OwnedFd::from(ours).into());
        Ok((Link { input, output, received: Vec::new(), begun: false }, theirs.into()))
    }

    pub(crate) fn of_process() -> io::Result<Link> {
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let nothing = File::open("/dev/null")?;
        for (from, to) in
            [(nothing.as_raw_fd(), libc::STDIN_FILENO), (libc::STDERR_FILENO, libc::STDOUT_FILENO)]
        {
            // SAFETY: both are open descriptors of this process, and what stood at the second has
            // been copied.
            if unsafe { libc::dup2(from, to) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        writeln!(output, "{BEGINS}")?;
        Ok(Link { input, output, received: Vec::new(), begun: true })
    }

    pub(crate) fn pollfd(&self) -> libc::pollfd {
        pollfd(self.input.as_raw_fd(), libc::POLLIN)
    }

    pub(crate) fn input(&self) -> io::Result<File> {
        self.input.try_clone()
    }

    pub(crate) fn tell_shell(&mut self, script: &str) -> io::Result<()> {
        self.output.write_all(script.as_bytes())
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let mut line = serde_json::to_vec(message)?;
        line.push(b'\n');
        self.output.write_all(&line)
    }

    pub(crate) fn receive<M: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> io::Result<Option<M>> {
        loop {
            while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let rest = self.received.split_off(end + 1);
                let line = std::mem::replace(&mut self.received, rest);
                if self.begun {
                    return Ok(Some(serde_json::from_slice(&line)?));
                }
                self.begun = line[..end].ends_with(BEGINS.as_bytes());
            }
            if !poll(&mut [self.pollfd()], Some(patience)) {
                return Ok(None);
            }
            let mut buffer = [0; 64 << 10];
            match self.input.read(&mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

pub(crate) fn await_end(input: &File) {
    // What is sent stays for others to read.
    let mut fd = [pollfd(input.as_raw_fd(), libc::POLLRDHUP)];
    while !poll(&mut fd, None) {}
}
