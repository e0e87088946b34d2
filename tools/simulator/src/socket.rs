//! Connections between the launcher and its PEs: sockets, named by a path on one host and by an
//! address across hosts; or the standard streams of a PE that a shell of another host has become.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::time::Duration;

use launcher::{poll, pollfd};

/// The name of the standard streams, as a PE's way to the launcher.
pub(crate) const STREAMS: &str = "-";

/// Where PEs connect to.
#[derive(Debug)]
pub(crate) enum Listener {
    Path(UnixListener),
    Address(TcpListener),
}

/// One PE's connection, at either end.
#[derive(Debug)]
pub(crate) enum Connection {
    Path(UnixStream),
    Address(TcpStream),
    Streams(Streams),
}

/// A stream for each direction.
#[derive(Debug)]
pub(crate) struct Streams {
    input: File,
    output: File,
    /// How long a read waits; none where it does not block.
    patience: Option<Duration>,
}

impl Listener {
    /// Listens at a path, or at an address, which other hosts reach as well. Gives the name for
    /// [`Connection::to`].
    pub(crate) fn bind(path: &Path, address: Option<IpAddr>) -> io::Result<(Self, String)> {
        let (listener, name) = match address {
            None => (Self::Path(UnixListener::bind(path)?), path.to_string_lossy().into_owned()),
            Some(address) => {
                let listener = TcpListener::bind((address, 0))?;
                let name = listener.local_addr()?.to_string();
                (Self::Address(listener), name)
            }
        };
        match &listener {
            Self::Path(socket) => socket.set_nonblocking(true),
            Self::Address(socket) => socket.set_nonblocking(true),
        }?;
        Ok((listener, name))
    }

    /// The next connection, which does not block.
    pub(crate) fn accept(&self) -> io::Result<Connection> {
        let connection = match self {
            Self::Path(listener) => Connection::Path(listener.accept()?.0),
            Self::Address(listener) => Connection::Address(listener.accept()?.0),
        };
        connection.set_nonblocking()?;
        Ok(connection)
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        match self {
            Self::Path(socket) => socket.as_raw_fd(),
            Self::Address(socket) => socket.as_raw_fd(),
        }
    }
}

/// The same expression for whichever connection it is.
macro_rules! either {
    ($self:expr, $stream:ident => $do:expr) => {
        match $self {
            Self::Path($stream) => $do,
            Self::Address($stream) => $do,
            Self::Streams($stream) => $do,
        }
    };
}

impl Connection {
    /// Connects to a listener by its name. Reads and writes wait at most so long.
    pub(crate) fn to(name: &str, read: Duration, write: Duration) -> io::Result<Self> {
        let connection = if name == STREAMS {
            Self::Streams(Streams::of_process(read)?)
        } else if let Ok(address) = name.parse::<SocketAddr>() {
            let socket = TcpStream::connect(address)?;
            socket.set_read_timeout(Some(read))?;
            socket.set_write_timeout(Some(write))?;
            Self::Address(socket)
        } else {
            let socket = UnixStream::connect(name)?;
            socket.set_read_timeout(Some(read))?;
            socket.set_write_timeout(Some(write))?;
            Self::Path(socket)
        };
        connection.sends_at_once()?;
        Ok(connection)
    }

    /// The launcher's end of a PE's standard streams.
    pub(crate) fn with(input: ChildStdin, output: ChildStdout) -> io::Result<Self> {
        let (output, input) = (OwnedFd::from(output).into(), OwnedFd::from(input).into());
        let streams = Streams { input: output, output: input, patience: None };
        streams.set_nonblocking()?;
        Ok(Self::Streams(streams))
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Path(socket) => socket.set_nonblocking(true),
            Self::Address(socket) => socket.set_nonblocking(true),
            Self::Streams(streams) => streams.set_nonblocking(),
        }?;
        self.sends_at_once()
    }

    /// A collective is one small message each way.
    fn sends_at_once(&self) -> io::Result<()> {
        match self {
            Self::Path(_) | Self::Streams(_) => Ok(()),
            Self::Address(socket) => socket.set_nodelay(true),
        }
    }

    /// What is to be waited for: something to read, and room for what is written.
    pub(crate) fn pollfds(&self, writes: bool) -> impl Iterator<Item = libc::pollfd> + use<> {
        let (read, write) = match self {
            Self::Streams(streams) => (streams.input.as_raw_fd(), streams.output.as_raw_fd()),
            Self::Path(socket) => (socket.as_raw_fd(), socket.as_raw_fd()),
            Self::Address(socket) => (socket.as_raw_fd(), socket.as_raw_fd()),
        };
        let write = writes.then(|| pollfd(write, libc::POLLOUT));
        [pollfd(read, libc::POLLIN)].into_iter().chain(write)
    }
}

impl Streams {
    /// Those of this process, which has others afterwards: what it prints goes to the standard
    /// error stream.
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

    /// Waits until nobody is at the other end of a process's input.
    pub(crate) fn await_end(input: &File) {
        // What is sent stays for others to read.
        let mut fd = [pollfd(input.as_raw_fd(), libc::POLLRDHUP)];
        while !poll(&mut fd, None) {}
    }

    /// The input, to be watched.
    pub(crate) fn input(&self) -> io::Result<File> {
        self.input.try_clone()
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        for file in [&self.input, &self.output] {
            // SAFETY: the calls take an open descriptor and flags, and touch no memory.
            let set = unsafe {
                let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
                libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)
            };
            if set < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

impl Read for Streams {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(patience) = self.patience {
            if !poll(&mut [pollfd(self.input.as_raw_fd(), libc::POLLIN)], Some(patience)) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
        }
        self.input.read(buffer)
    }
}

impl Write for Streams {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.output.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => stream.read(buffer))
    }
}

impl Write for Connection {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        either!(self, stream => stream.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        either!(self, stream => stream.flush())
    }
}
