//! Requests of a lane's callers: puts, gets, atomics and puts with signal.

use crate::engine::atomic::Atomic;
use crate::engine::error::EngineError;
use crate::engine::ids::{Pe, RailId};
use crate::engine::port::Direction;
use crate::engine::wire::handle::{HandleBytes, HandleError, HandleView};

/// A put or a get.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Write for put, read for get.
    pub direction: Direction,
    /// The peer.
    pub pe: Pe,
    /// The peer's handle for the region that holds the remote bytes.
    pub remote_handle: &'a HandleBytes,
    /// Where the remote bytes are, in the peer's address space.
    pub remote_addr: u64,
    /// The local side.
    pub local: LocalSide<'a>,
    /// Bytes to move; 0 does nothing.
    pub len: usize,
}

impl Request<'_> {
    /// The words for it in messages to the user.
    pub(in crate::engine) fn what(&self) -> &'static str {
        match self.direction {
            Direction::Write => "put",
            Direction::Read => "get",
        }
    }
}

/// What is wrong with a side of a request, `remote` or `local`.
#[cold]
pub(in crate::engine) fn refused(
    request: &Request<'_>,
    side: &'static str,
    fault: HandleError,
) -> EngineError {
    let addr = match (side, request.local) {
        ("local", LocalSide::Memory { addr, .. }) => addr as u64,
        _ => request.remote_addr,
    };
    EngineError::Refused {
        what: request.what(),
        pe: request.pe,
        side,
        addr,
        len: request.len,
        fault,
    }
}

/// The local side of a put or a get.
#[derive(Clone, Copy, Debug)]
pub enum LocalSide<'a> {
    /// Memory that stays valid until the operation completes, with its handle if it has one.
    Memory {
        /// Virtual address.
        addr: usize,
        /// This process' handle for the region around it.
        handle: Option<&'a HandleBytes>,
    },
    /// A value of at most 8 bytes (little endian), copied at once. Puts only.
    Value(u64),
}

/// An atomic operation on a word at a peer.
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest<'a> {
    /// The peer.
    pub pe: Pe,
    /// The peer's handle for the region that holds the word.
    pub remote_handle: &'a HandleBytes,
    /// The word, in the peer's address space.
    pub remote_addr: u64,
    /// What to do.
    pub atomic: Atomic,
    /// For operations that fetch: where the word before goes.
    pub result: Option<ResultPlace>,
}

impl<'a> AtomicRequest<'a> {
    /// The handle and the word's offset in its region, with every check.
    #[inline]
    pub(in crate::engine) fn word(&self) -> Result<(HandleView<'a>, u64), EngineError> {
        let width = self.atomic.width.bytes();
        let refused = |fault| self.refused(fault);
        let remote = HandleView::check(self.remote_handle).map_err(refused)?;
        let offset = remote.locate(self.remote_addr, width as u64).map_err(refused)?;
        if self.remote_addr % width as u64 != 0 {
            let addr = self.remote_addr;
            return Err(refused(HandleError::Misaligned { addr, width }));
        }
        if !remote.takes_messages() {
            return Err(refused(HandleError::NoKey { rail: RailId(0), rails: 0 }));
        }
        Ok((remote, offset))
    }

    #[cold]
    pub(in crate::engine) fn refused(&self, fault: HandleError) -> EngineError {
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

/// Where a fetched word goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultPlace {
    /// Its address in this process. With a flag, that of 16 bytes aligned to 8: the word takes 8 of them
    /// whatever its width, and the flag the others. Without, just the word's bytes are stored.
    pub addr: usize,
    /// What the flag is set to once the value is there.
    pub flag: Option<u64>,
}

/// A put whose signal becomes visible after its data.
#[derive(Clone, Copy, Debug)]
pub struct PutSignalRequest<'a> {
    /// The parts of the payload; none for a signal alone. All are writes to the same PE.
    pub parts: &'a [Request<'a>],
    /// The signal. It fetches nothing.
    pub signal: AtomicRequest<'a>,
}
