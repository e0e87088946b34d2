//! Requests of a lane's callers: puts, gets, atomics and puts with signal.

use crate::atomic::Atomic;
use crate::error::EngineError;
use crate::ids::{Pe, RailId};
use crate::port::Direction;
use crate::wire::handle::{HandleBytes, HandleError, HandleView};

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
    pub local: LocalSide,
    /// Bytes to move; 0 does nothing.
    pub len: usize,
}

impl Request<'_> {
    pub(crate) fn what(&self) -> &'static str {
        match self.direction {
            Direction::Write => "put",
            Direction::Read => "get",
        }
    }
}

/// What the fast path has left of a put or a get.
#[derive(Debug)]
#[must_use = "the operation has not been started"]
pub enum Rest<'a> {
    /// The operation, which is not of the common kind, or wrong. Nothing has happened.
    Untried(Request<'a>),
    /// Its segment is in its place, and the fabric has not taken it: to see why.
    NotTaken,
}

/// A put or a get that owns what its request borrows.
#[derive(Clone, Debug)]
pub(crate) struct OwnedRequest {
    direction: Direction,
    pe: Pe,
    remote_handle: HandleBytes,
    remote_addr: u64,
    local: LocalSide,
    len: usize,
}

impl OwnedRequest {
    pub(crate) fn of(request: &Request<'_>) -> Self {
        let Request { direction, pe, remote_handle, remote_addr, local, len } = *request;
        Self { direction, pe, remote_handle: *remote_handle, remote_addr, local, len }
    }

    pub(crate) fn request(&self) -> Request<'_> {
        let Self { direction, pe, ref remote_handle, remote_addr, local, len } = *self;
        Request { direction, pe, remote_handle, remote_addr, local, len }
    }

    pub(crate) fn memory(&self) -> Option<Touched> {
        let LocalSide::Memory(addr) = self.local else { return None };
        let what = self.request().what();
        Some(Touched { what, pe: self.pe, memory: (addr, self.len) })
    }
}

/// Local memory, an address and a length, that an operation with a PE touches or is going to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touched {
    pub(crate) what: &'static str,
    pub(crate) pe: Pe,
    pub(crate) memory: (usize, usize),
}

#[cold]
pub(crate) fn refused(
    request: &Request<'_>,
    side: &'static str,
    fault: HandleError,
) -> EngineError {
    let addr = match (side, request.local) {
        ("local", LocalSide::Memory(addr)) => addr as u64,
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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LocalSide {
    /// The address of memory that stays valid until the operation completes. The lane finds out by
    /// itself whether it is registered.
    Memory(usize),
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
    #[inline]
    pub(crate) fn word(&self) -> Result<(HandleView<'a>, u64), EngineError> {
        let width = self.atomic.width.bytes();
        let refused = |fault| self.refused(fault);
        let remote = HandleView::check_of(self.pe, self.remote_handle).map_err(refused)?;
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
    pub(crate) fn refused(&self, fault: HandleError) -> EngineError {
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

/// An atomic operation that owns what its request borrows.
#[derive(Clone, Debug)]
pub(crate) struct OwnedAtomic {
    pe: Pe,
    remote_handle: HandleBytes,
    remote_addr: u64,
    atomic: Atomic,
    result: Option<ResultPlace>,
}

impl OwnedAtomic {
    pub(crate) fn of(request: &AtomicRequest<'_>) -> Self {
        let AtomicRequest { pe, remote_handle, remote_addr, atomic, result } = *request;
        Self { pe, remote_handle: *remote_handle, remote_addr, atomic, result }
    }

    pub(crate) fn memory(&self) -> Option<Touched> {
        let result = self.result.filter(|_| self.atomic.op.fetches())?;
        let memory = result.memory(self.atomic.width.bytes());
        Some(Touched { what: "fetching atomic", pe: self.pe, memory })
    }

    pub(crate) fn request(&self) -> AtomicRequest<'_> {
        let Self { pe, ref remote_handle, remote_addr, atomic, result } = *self;
        AtomicRequest { pe, remote_handle, remote_addr, atomic, result }
    }
}

/// Where a fetched word goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultPlace {
    /// Its address in this process. With a flag, that of 16 bytes aligned to 8: the word takes 8 of
    /// them whatever its width, and the flag the others. Without, just the word's bytes are stored.
    pub addr: usize,
    /// What the flag is set to once the value is there.
    pub flag: Option<u64>,
}

impl ResultPlace {
    /// Where it is, for a word of so many bytes.
    pub(crate) fn memory(self, width: usize) -> (usize, usize) {
        (self.addr, if self.flag.is_some() { 16 } else { width })
    }
}

/// A put whose signal becomes visible after its data.
#[derive(Clone, Copy, Debug)]
pub struct PutSignalRequest<'a> {
    /// The parts of the payload; none for a signal alone. All are writes to the same PE.
    pub parts: &'a [Request<'a>],
    /// The signal. It fetches nothing.
    pub signal: AtomicRequest<'a>,
}

/// The parts of a put with signal, borrowed or owned.
pub(crate) trait Parts {
    /// How many there are.
    fn count(&self) -> usize;
    /// One of them.
    fn part(&self, at: usize) -> Request<'_>;

    /// All of them.
    fn parts(&self) -> impl Iterator<Item = Request<'_>> {
        (0..self.count()).map(|at| self.part(at))
    }

    /// Bytes of all of them.
    fn bytes(&self) -> usize {
        // More than there are addresses are in no region, and refused as that.
        self.parts().fold(0, |sum, part| sum.saturating_add(part.len))
    }
}

impl Parts for [Request<'_>] {
    fn count(&self) -> usize {
        self.len()
    }

    fn part(&self, at: usize) -> Request<'_> {
        self[at]
    }
}

impl Parts for [OwnedRequest] {
    fn count(&self) -> usize {
        self.len()
    }

    fn part(&self, at: usize) -> Request<'_> {
        self[at].request()
    }
}
