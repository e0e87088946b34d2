//! Frames: what PEs send one another over their sockets.
//!
//! A connection begins with a greeting of fixed length each way, so that whatever else connects to
//! the port, or answers there, is told apart by its first bytes, and with a proof each way that the
//! job is the same. Then come frames: a kind, a number that rises with each collective, a length,
//! and as many bytes. Numbers are little endian.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hmac::{Hmac, Mac as _};
use sha2::Sha256;

use engine::thread_wait::{STEP, Wait};

/// The first bytes of every greeting, with the protocol's version at the end.
pub const MAGIC: [u8; 8] = *b"nvlfboo\x02";

/// Bytes of a greeting: the magic, the PE, the number of PEs, the nonce.
pub const GREETING: usize = 32;

pub const PROOF: usize = 32;

const LONGEST: u32 = 1 << 30;

/// Most bytes of memory allocated before they have been received.
const AHEAD: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    pub me: u32,
    pub n_pes: u32,
    /// A random number of this connection, so that a proof is valid for no other.
    pub nonce: [u8; 16],
}

impl Greeting {
    pub fn new(me: u32, n_pes: u32) -> io::Result<Self> {
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(io::Error::from)?;
        Ok(Self { me, n_pes, nonce })
    }

    pub fn encode(&self) -> [u8; GREETING] {
        let mut bytes = [0; GREETING];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.me.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.n_pes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.nonce);
        bytes
    }

    pub fn decode(bytes: &[u8; GREETING]) -> Result<Self, String> {
        if bytes[..7] != MAGIC[..7] {
            let shown: String =
                bytes[..8].iter().map(|byte| byte.escape_ascii().to_string()).collect();
            return Err(format!("it begins with \"{shown}\""));
        }
        if bytes[7] != MAGIC[7] {
            let (theirs, ours) = (bytes[7], MAGIC[7]);
            return Err(format!(
                "it speaks version {theirs} of the bootstrap's protocol, not {ours}"
            ));
        }
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&bytes[16..]);
        Ok(Self { me: word(8), n_pes: word(12), nonce })
    }
}

/// A connection's two greetings and the job's number, which only PEs of the job can combine.
#[derive(Debug)]
pub struct Handshake {
    /// Those of PE 0 and of the other PE.
    pub greetings: [Greeting; 2],
    /// The job's number, which never crosses the network.
    pub job: u64,
}

impl Handshake {
    /// The message authentication code, keyed by the job's number, of either side.
    fn code(&self, of_center: bool) -> Hmac<Sha256> {
        // A block of the hash, to which shorter keys are padded anyway.
        let mut key = [0; 64];
        key[..8].copy_from_slice(&self.job.to_le_bytes());
        let mut code = Hmac::<Sha256>::new(&key.into());
        code.update(&[u8::from(of_center)]);
        self.greetings.iter().for_each(|greeting| code.update(&greeting.encode()));
        code
    }

    pub fn proof(&self, of_center: bool) -> [u8; PROOF] {
        self.code(of_center).finalize().into_bytes().into()
    }

    /// Compares a proof of PE 0, or of the other PE, in constant time.
    pub fn is_proven(&self, of_center: bool, proof: &[u8; PROOF]) -> bool {
        self.code(of_center).verify_slice(proof).is_ok()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Welcome = 1,
    /// The PE is refused; the bytes say why.
    Refusal = 2,
    /// A contribution to an allgather, or all of them.
    Gather = 3,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Self> {
        [Self::Welcome, Self::Refusal, Self::Gather].into_iter().find(|kind| *kind as u8 == byte)
    }
}

#[derive(Debug)]
pub struct Frame {
    pub kind: Kind,
    /// Number of its collective.
    pub number: u32,
    pub bytes: Vec<u8>,
}

/// A deadline. Time in which this process was stopped does not count: see [`Wait`].
#[derive(Debug)]
pub struct Deadline {
    patience: Duration,
    wait: Mutex<Wait>,
}

impl Deadline {
    pub fn within(patience: Duration) -> Self {
        Self { patience, wait: Mutex::new(Wait::new()) }
    }

    pub fn left(&self) -> Option<Duration> {
        self.wait().left_of(self.patience)
    }

    /// The timeout of the next blocking call: the time left, up to a bound.
    fn next(&self) -> io::Result<Duration> {
        let late = || io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
        self.left().map(|left| left.min(STEP / 2)).ok_or_else(late)
    }

    /// Accounts for a blocking call that may have taken `call` by itself.
    pub fn after(&self, call: Duration) {
        self.wait().waited_in(call);
    }

    pub fn waited(&self) -> Duration {
        Duration::from_millis(self.wait().waited().as_millis() as u64)
    }

    fn wait(&self) -> MutexGuard<'_, Wait> {
        self.wait.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub trait FrameSource: Read {
    /// Sets the longest time of the next read.
    fn wait_at_most(&self, time: Duration) -> io::Result<()>;
}

impl FrameSource for TcpStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// Bytes received already.
impl FrameSource for &[u8] {
    fn wait_at_most(&self, _time: Duration) -> io::Result<()> {
        Ok(())
    }
}

pub fn read_exact(
    stream: &mut impl FrameSource,
    mut into: &mut [u8],
    deadline: &Deadline,
) -> io::Result<()> {
    while !into.is_empty() {
        stream.wait_at_most(deadline.next()?)?;
        match stream.read(into) {
            Ok(0) => {
                let kind = io::ErrorKind::UnexpectedEof;
                return Err(io::Error::new(kind, "the connection was closed"));
            }
            Ok(count) => into = &mut into[count..],
            Err(error) if !is_temporary(&error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

pub fn write_all(stream: &mut TcpStream, mut bytes: &[u8], deadline: &Deadline) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(deadline.next()?))?;
        match stream.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if !is_temporary(&error) => return Err(error),
            Err(_) => {}
        }
    }
    Ok(())
}

/// Returns true for a timeout of the socket, which is either of two errors.
fn is_temporary(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock | TimedOut)
}

pub fn send(
    stream: &mut TcpStream,
    kind: Kind,
    number: u32,
    bytes: &[u8],
    deadline: &Deadline,
) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).ok().filter(|len| *len <= LONGEST);
    let len = len.ok_or_else(|| io::Error::other(format!("{} bytes at once", bytes.len())))?;
    let mut frame = Vec::with_capacity(9 + bytes.len());
    frame.push(kind as u8);
    frame.extend_from_slice(&number.to_le_bytes());
    frame.extend_from_slice(&len.to_le_bytes());
    frame.extend_from_slice(bytes);
    write_all(stream, &frame, deadline)
}

pub fn receive(stream: &mut impl FrameSource, deadline: &Deadline) -> io::Result<Frame> {
    let mut head = [0; 9];
    read_exact(stream, &mut head, deadline)?;
    let [kind, n0, n1, n2, n3, l0, l1, l2, l3] = head;
    let len = u32::from_le_bytes([l0, l1, l2, l3]);
    let kind = Kind::from_byte(kind).filter(|_| len <= LONGEST);
    let kind = kind.ok_or_else(|| io::Error::other("what came is no frame of the bootstrap"))?;
    let mut bytes = Vec::new();
    while bytes.len() < len as usize {
        let had = bytes.len();
        bytes.resize((len as usize).min(had + AHEAD.max(had)), 0);
        read_exact(stream, &mut bytes[had..], deadline)?;
    }
    Ok(Frame { kind, number: u32::from_le_bytes([n0, n1, n2, n3]), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_greetings_are_named() {
        let greeting = Greeting::new(3, 70_000).unwrap();
        let mut bytes = greeting.encode();
        assert_eq!(Greeting::decode(&bytes), Ok(greeting));
        bytes[7] = 9;
        assert!(Greeting::decode(&bytes).unwrap_err().contains("version 9"));
        let http = *b"GET / HTTP/1.1\r\nHost: examples\r\n";
        assert!(Greeting::decode(&http).unwrap_err().contains("GET / HT"));
    }

    #[test]
    fn proof_fits_one_meeting_and_side() {
        let greetings = [Greeting::new(0, 4).unwrap(), Greeting::new(3, 4).unwrap()];
        let handshake = Handshake { greetings, job: 7 };
        for side in [false, true] {
            let proof = handshake.proof(side);
            assert!(handshake.is_proven(side, &proof));
            assert!(!handshake.is_proven(!side, &proof), "it can be sent back");
            assert!(!Handshake { greetings, job: 8 }.is_proven(side, &proof));
            for other in [Greeting::new(3, 4).unwrap(), Greeting { me: 2, ..greetings[1] }] {
                let greetings = [greetings[0], other];
                assert!(!Handshake { greetings, job: 7 }.is_proven(side, &proof));
            }
            let greetings = [Greeting::new(0, 4).unwrap(), greetings[1]];
            assert!(!Handshake { greetings, job: 7 }.is_proven(side, &proof), "it can be replayed");
        }
    }
}
