//! What a stranger sends over a connection: the frames of libfabric's tcp and ofi_rxm, whole and
//! wrong.
//!
//! A connection begins with a hello: 32 bytes, and those that the provider puts behind it. Then
//! come messages, each behind a head of 16 bytes or more: version, operation, flags, kind of
//! answer, places of memory, length of the head, and length of all.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Operations of tcp.
pub(super) const MESSAGE: u8 = 0;
pub(super) const TAGGED: u8 = 1;
pub(super) const READ: u8 = 2;
pub(super) const READ_ANSWER: u8 = 3;
pub(super) const WRITE: u8 = 4;
pub(super) const CLEAR_TO_SEND: u8 = 6;
pub(super) const DATA: u8 = 7;

/// Flags of tcp: immediate data is behind the head, and an answer is wanted when all is there.
pub(super) const WITH_DATA: u16 = 1;
pub(super) const ANSWERED: u16 = 4;

/// Says of a message that it is the answer.
pub(super) const ANSWER: u8 = 2;

/// Which protocol lies over tcp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    Tcp,
    Rxm,
}

/// A message of tcp, to be changed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) operation: u8,
    pub(super) flags: u16,
    pub(super) answer: u8,
    pub(super) places: u8,
    /// Of the whole message; none as it is.
    pub(super) size: Option<u64>,
    /// Of what precedes the data; none as it is.
    pub(super) head: Option<u8>,
}

impl Head {
    pub(super) const fn of(operation: u8) -> Self {
        Self { operation, flags: 0, answer: 0, places: 0, size: None, head: None }
    }

    /// The message: what is behind the first 16 bytes and belongs to the head, and the data.
    pub(super) fn bytes(self, more: &[u8], data: &[u8]) -> Vec<u8> {
        let head = 16 + more.len() as u8;
        let size = u64::from(head) + data.len() as u64;
        let mut bytes = vec![3, self.operation];
        bytes.extend(self.flags.to_le_bytes());
        bytes.extend([self.answer, self.places, self.head.unwrap_or(head), 0]);
        bytes.extend(self.size.unwrap_or(size).to_le_bytes());
        [&bytes, more, data].concat()
    }
}

impl Protocol {
    pub(super) fn hello(self, port: u16, process: u32, eager: u32) -> Vec<u8> {
        let said = match self {
            Self::Tcp => [&[1, 0][..], &port.to_be_bytes(), &process.to_be_bytes()].concat(),
            Self::Rxm => {
                // Little endian is its 2.
                let mut said = vec![1, 2, 4, 3];
                said.extend(port.to_le_bytes());
                said.extend([2, 0]);
                said.extend(eager.to_le_bytes());
                said.extend(1024_u32.to_le_bytes());
                said.extend((u64::from(process) << 32 | 7).to_le_bytes());
                said
            }
        };
        hello_of(3, &said)
    }

    pub(super) fn connect(self, to: SocketAddr, port: u16, process: u32) -> io::Result<Connection> {
        // What rxm compares, in the versions that there are.
        let eager: &[u32] = match self {
            Self::Tcp => &[0],
            Self::Rxm => &[16 << 10, (16 << 10) - 64],
        };
        let mut last = io::Error::other("no hello");
        for eager in eager {
            let mut stream = open(to)?;
            stream.write_all(&self.hello(port, process, *eager))?;
            let mut answer = [0; 32];
            match stream.read_exact(&mut answer) {
                Ok(()) if answer[1] == 1 => {
                    let mut more = vec![0; usize::from(u16::from_be_bytes([answer[2], answer[3]]))];
                    stream.read_exact(&mut more)?;
                    // What rxm wants to find in every message.
                    let number = more.first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
                    return Ok(Connection { protocol: self, stream, number });
                }
                Ok(()) => last = io::Error::other(format!("refused: {answer:?}")),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// A connection that the other end has accepted.
pub(super) struct Connection {
    protocol: Protocol,
    pub(super) stream: TcpStream,
    pub(super) number: u32,
}

impl Connection {
    pub(super) fn message(&self, bytes: &[u8]) -> Vec<u8> {
        Head::of(MESSAGE).bytes(&[], &self.wrapped(bytes))
    }

    pub(super) fn wrapped(&self, bytes: &[u8]) -> Vec<u8> {
        self.wrapped_as(3, self.number, bytes)
    }

    pub(super) fn wrapped_as(&self, kind: u8, number: u32, bytes: &[u8]) -> Vec<u8> {
        match self.protocol {
            Protocol::Tcp => bytes.to_vec(),
            Protocol::Rxm => {
                let mut head = vec![0; 64];
                // Versions of its control head and of its operations, the connection, and the
                // length.
                head[..2].copy_from_slice(&[4, kind]);
                head[8..12].copy_from_slice(&number.to_le_bytes());
                head[32] = 3;
                head[40..48].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
                [&head, bytes].concat()
            }
        }
    }
}

/// A hello of this version with these bytes behind it.
pub(super) fn hello_of(version: u8, said: &[u8]) -> Vec<u8> {
    let mut hello = vec![0; 32];
    hello[0] = version;
    hello[2..4].copy_from_slice(&(said.len() as u16).to_be_bytes());
    hello[24] = 1;
    [&hello, said].concat()
}

pub(super) fn open(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(20))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
