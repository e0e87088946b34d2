//! Connections between the launcher and its PEs: a socket that is named by a path; or the standard
//! streams of a PE that a shell of another host has become.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use launcher::{poll, pollfd};

/// The name of the standard streams, as a PE's way to the launcher.
pub(crate) const STREAMS: &str = "-";

/// One PE's connection, at either end: a stream for each direction, which may be the same.
#[derive(Debug)]
pub(crate) struct Connection {
    input: File,
    output: File,
    /// How long a read waits; none where it does not block.
    patience: Option<Duration>,
}

impl Connection {
    /// Connects to the launcher by the name of its socket. Reads and writes wait at most so long.
    pub(crate) fn to(name: &str, read: Duration, write: Duration) -> io::Result<Self> {
        if name == STREAMS {
            return Self::of_process(read);
        }
        let socket = UnixStream::connect(name)?;
        socket.set_write_timeout(Some(write))?;
        let (input, output) = (OwnedFd::from(socket.try_clone()?).into(), OwnedFd::from(socket));
        Ok(Self { input, output: output.into(), patience: Some(read) })
    }

    /// The launcher's end of a PE's socket, which does not block.
    pub(crate) fn accepted(socket: UnixStream) -> io::Result<Self> {
        Self::with(socket.try_clone()?, socket)
    }

    /// The launcher's end of what a PE reads and of what it writes, neither of which blocks.
    pub(crate) fn with(
        input_of_pe: impl Into<OwnedFd>,
        output_of_pe: impl Into<OwnedFd>,
    ) -> io::Result<Self> {
        let (input, output) = (output_of_pe.into().into(), input_of_pe.into().into());
        for file in [&input, &output] {
            let file: &File = file;
            // SAFETY: the calls take an open descriptor and flags, and touch no memory.
            let set = unsafe {
                let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
                libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
            };
            if set < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(Self { input, output, patience: None })
    }

    /// The standard streams of this process, which has others afterwards: what it prints goes to
    /// the standard error stream.
    fn of_process(patience: Duration) -> io::Result<Self> {
        let input = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
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
        Ok(Self { input, output, patience: Some(patience) })
    }

    /// What is to be waited for: something to read, and room for what is written.
    pub(crate) fn pollfds(&self, writes: bool) -> impl Iterator<Item = libc::pollfd> + use<> {
        let write = writes.then(|| pollfd(self.output.as_raw_fd(), libc::POLLOUT));
        [pollfd(self.input.as_raw_fd(), libc::POLLIN)].into_iter().chain(write)
    }

    /// The input, to be watched.
    pub(crate) fn input(&self) -> io::Result<File> {
        self.input.try_clone()
    }
}

/// Waits until nobody is at the other end of a process's input.
pub(crate) fn await_end(input: &File) {
    // What is sent stays for others to read.
    let mut fd = [pollfd(input.as_raw_fd(), libc::POLLRDHUP)];
    while !poll(&mut fd, None) {}
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(patience) = self.patience {
            if !poll(&mut [pollfd(self.input.as_raw_fd(), libc::POLLIN)], Some(patience)) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        self.input.read(buffer)
    }
}

impl Write for Connection {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.output.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
