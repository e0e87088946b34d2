//! Stream sockets between the launcher and its PEs: named by a path on one host, by an address across hosts.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

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
}

/// The same expression for whichever socket it is.
macro_rules! either {
    ($self:expr, $socket:ident => $do:expr) => {
        match $self {
            Self::Path($socket) => $do,
            Self::Address($socket) => $do,
        }
    };
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
        either!(&listener, socket => socket.set_nonblocking(true))?;
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
        either!(self, socket => socket.as_raw_fd())
    }
}

impl Connection {
    /// Connects to a listener by its name. Reads and writes wait at most so long.
    pub(crate) fn to(name: &str, read: Duration, write: Duration) -> io::Result<Self> {
        let connection = match name.parse::<SocketAddr>() {
            Ok(address) => Self::Address(TcpStream::connect(address)?),
            Err(_) => Self::Path(UnixStream::connect(name)?),
        };
        either!(&connection, socket => {
            socket.set_read_timeout(Some(read))?;
            socket.set_write_timeout(Some(write))?;
        });
        connection.sends_at_once()?;
        Ok(connection)
    }

    fn set_nonblocking(&self) -> io::Result<()> {
        either!(self, socket => socket.set_nonblocking(true))?;
        self.sends_at_once()
    }

    /// A collective is one small message each way.
    fn sends_at_once(&self) -> io::Result<()> {
        match self {
            Self::Path(_) => Ok(()),
            Self::Address(socket) => socket.set_nodelay(true),
        }
    }
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        either!(self, socket => socket.as_raw_fd())
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, socket => socket.read(buffer))
    }
}

impl Write for Connection {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        either!(self, socket => socket.write(buffer))
    }

    fn flush(&mut self) -> io::Result<()> {
        either!(self, socket => socket.flush())
    }
}
