//! Requests of a lane's callers: puts, gets, atomics and puts with signal.

use crate::atomic::Atomic;
use crate::error::EngineError;
use crate::ids::{Pe, RailId};
use crate::port::Direction;
use crate::wire::handle::{HandleBytes, HandleError, HandleView};
use crate::wire::message::RegionAddr;

/// A put or a get.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Write for a put, read for a get.
    pub direction: Direction,
    pub pe: Pe,
    /// The peer's handle for the region of the remote bytes.
    pub remote_handle: &'a HandleBytes,
    /// Address of the remote bytes in the peer.
    pub remote_addr: u64,
    pub local: LocalSide,
    /// Bytes to move; 0 does nothing.
    pub len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalSide {
    /// Address of memory that stays valid, and for a put unchanged, until the operation completes.
    /// It need not be registered where the fabric does not want it to be.
    Memory(usize),
    /// A value of at most 8 bytes (little endian), copied at once. Puts only.
    Value(u64),
}

/// An atomic operation on a word of a peer.
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest<'a> {
    pub pe: Pe,
    /// The peer's handle for the region of the word.
    pub remote_handle: &'a HandleBytes,
    /// Address of the word in the peer.
    pub remote_addr: u64,
    pub atomic: Atomic,
    /// Destination of the word before, for operations that fetch.
    pub result: Option<FetchTarget>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchTarget {
    /// Local address. With a flag, 16 bytes aligned to 8: the word takes the first 8 whatever its
    /// width, and the flag the others. Without, only the word's bytes are stored.
    pub addr: usize,
    /// Value that the flag takes once the word is stored.
    pub flag: Option<u64>,
}

/// A put whose signal becomes visible after its data.
#[derive(Clone, Copy, Debug)]
pub struct PutSignalRequest<'a> {
    /// Parts of the payload, all writes to the signal's PE; none for a signal alone.
    pub parts: &'a [Request<'a>],
    /// The signal. It fetches nothing.
    pub signal: AtomicRequest<'a>,
}

impl Request<'_> {
    /// Returns the operation's name for messages to users.
    pub(crate) fn what(&self) -> &'static str {
        match self.direction {
            Direction::Write => "put",
            Direction::Read => "get",
        }
    }

    #[cold]
    pub(crate) fn refuse(&self, side: &'static str, fault: HandleError) -> EngineError {
        let addr = match (side, self.local) {
            ("local", LocalSide::Memory(addr)) => addr as u64,
            _ => self.remote_addr,
        };
        let Self { pe, len, .. } = *self;
        EngineError::Refused { what: self.what(), pe, side, addr, len, fault }
    }

    /// Checks the remote side. Returns the handle and the offset of the first byte.
    pub(crate) fn remote(&self) -> Result<(HandleView<'_>, u64), EngineError> {
        let refuse = |fault| self.refuse("remote", fault);
        let remote = HandleView::check_of(self.pe, self.remote_handle).map_err(refuse)?;
        let offset = remote.locate(self.remote_addr, self.len as u64).map_err(refuse)?;
        Ok((remote, offset))
    }
}

impl AtomicRequest<'_> {
    /// Checks the word's handle, bounds and alignment. Returns its address for messages.
    pub(crate) fn word(&self) -> Result<RegionAddr, EngineError> {
        let width = self.atomic.width.bytes();
        let refuse = |fault| self.refuse(fault);
        let remote = HandleView::check_of(self.pe, self.remote_handle).map_err(refuse)?;
        let offset = remote.locate(self.remote_addr, width as u64).map_err(refuse)?;
        if self.remote_addr % width as u64 != 0 {
            let addr = self.remote_addr;
            return Err(refuse(HandleError::Misaligned { addr, width }));
        }
        // A handle for local use has neither keys nor a region that peers may name.
        if !remote.takes_messages() {
            return Err(refuse(HandleError::NoKey { rail: RailId(0), rails: 0 }));
        }
        Ok(RegionAddr { region: remote.region(), offset })
    }

    #[cold]
    fn refuse(&self, fault: HandleError) -> EngineError {
        EngineError::Refused {
            what: "atomic",
            pe: self.pe,
            side: "remote",
            addr: self.remote_addr,
            len: self.atomic.width.bytes(),
            fault,
        }
    }
}

impl FetchTarget {
    /// Returns address and length of the local memory for a word of `width` bytes.
    pub(crate) fn memory(self, width: usize) -> (usize, usize) {
        (self.addr, if self.flag.is_some() { 16 } else { width })
    }
}

/// What came of an operation on the fast path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// It is under way.
    Done,
    /// Something blocks the fast path, and nothing has changed.
    Blocked,
    /// The fabric has not taken it: its counts are to be undone.
    Refused,
}
