//! What a stranger sends over a connection: the frames of libfabric's tcp and ofi_rxm, whole and
//! wrong.
//!
//! A connection begins with a hello: 32 bytes, and those that the provider puts behind it. Then
//! come messages, each behind a head of 16 bytes or more: version, operation, flags, kind of
//! answer, places of memory, length of the head, and length of all.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub(super) const MESSAGE: u8 = 0;
pub(super) const READ: u8 = 2;
pub(super) const WRITE: u8 = 4;

/// A flag of tcp: immediate data is behind the head.
pub(super) const WITH_DATA: u16 = 1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Protocol {
    Tcp,
    Rxm,
}

/// A message of tcp with so many places of memory: what is behind the first 16 bytes and belongs to
/// the head, and the data.
pub(super) fn head(operation: u8, flags: u16, places: u8, more: &[u8], data: &[u8]) -> Vec<u8> {
    let head = 16 + more.len() as u8;
    let mut bytes = vec![3, operation];
    bytes.extend(flags.to_le_bytes());
    bytes.extend([0, places, head, 0]);
    bytes.extend((u64::from(head) + data.len() as u64).to_le_bytes());
    [&bytes, more, data].concat()
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
        let mut hello = [0; 32];
        hello[0] = 3;
        hello[2..4].copy_from_slice(&(said.len() as u16).to_be_bytes());
        hello[24] = 1;
        [&hello[..], &said].concat()
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

pub(super) struct Connection {
    protocol: Protocol,
    pub(super) stream: TcpStream,
    number: u32,
}

impl Connection {
    pub(super) fn message(&self, bytes: &[u8]) -> Vec<u8> {
        head(MESSAGE, 0, 0, &[], &self.wrapped(bytes))
    }

    pub(super) fn wrapped(&self, bytes: &[u8]) -> Vec<u8> {
        match self.protocol {
            Protocol::Tcp => bytes.to_vec(),
            Protocol::Rxm => {
                let mut head = vec![0; 64];
                // Versions of its control head and of its operations, the connection, and the
                // length.
                head[..2].copy_from_slice(&[4, 3]);
                head[8..12].copy_from_slice(&self.number.to_le_bytes());
                head[32] = 3;
                head[40..48].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
                [&head, bytes].concat()
            }
        }
    }
}

pub(super) fn open(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, Duration::from_secs(20))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.set_write_timeout(Some(Duration::from_secs(20)))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
