//! Requests that the peer's proxy thread carries out: atomics and signals.

use super::atomic::Atomic;
use super::handle::HandleBytes;
use super::ids::Pe;
use super::lane::Request;

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

/// Where a fetched word goes: the word's bytes at `addr`, and after them, 8 bytes further, the flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ResultPlace {
    /// Address of 16 bytes of this process, aligned to 8.
    pub addr: usize,
    /// What the flag is set to once the value is there.
    pub flag: u64,
}

/// A put whose signal becomes visible after its data.
#[derive(Clone, Copy, Debug)]
pub struct PutSignalRequest<'a> {
    /// The parts of the payload; none for a signal alone. All are writes to the same PE.
    pub parts: &'a [Request<'a>],
    /// The signal. It fetches nothing.
    pub signal: AtomicRequest<'a>,
}
