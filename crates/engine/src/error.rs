//! Errors of the engine. Each text names the cause and what a user can do.

use thiserror::Error;

use crate::ids::{Pe, RailId};
use crate::port::PortError;
use crate::wire::handle::HandleError;

/// An error of the engine.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A PE outside the job.
    #[error("{pe} does not exist: this job has {n_pes} PEs")]
    NoSuchPe {
        /// The PE asked for.
        pe: Pe,
        /// Number of PEs in the job.
        n_pes: u32,
    },
    /// A memory handle or an address that cannot be used.
    #[error("{0}")]
    Handle(#[from] HandleError),
    /// A handle or an address that cannot be used, with the operation it was for.
    #[error("{what} of {len} bytes, {pe}, {side} address {addr:#x}: {fault}")]
    Refused {
        /// Operation: put, get or atomic.
        what: &'static str,
        /// The peer.
        pe: Pe,
        /// Side at fault: local or remote.
        side: &'static str,
        /// The address on that side.
        addr: u64,
        /// Bytes asked for.
        len: usize,
        /// Reason.
        fault: HandleError,
    },
    /// Memory that could not be registered.
    #[error("registering {len} bytes at {addr:#x}: {why}")]
    Register {
        /// First byte.
        addr: usize,
        /// Length in bytes.
        len: usize,
        /// Reason.
        why: String,
        /// Whether memory was exhausted.
        no_memory: bool,
    },
    /// Memory that a failed operation may still touch.
    #[error(
        "{len} bytes at {addr:#x} cannot be released yet: a {what} that has failed is still with the fabric, {pe}, \
         and may touch them when that PE goes on; try again later, or free them after the end of the transport, \
         which closes its endpoints"
    )]
    InUse {
        /// First byte.
        addr: usize,
        /// Length in bytes.
        len: usize,
        /// Operation: put or get.
        what: &'static str,
        /// The peer.
        pe: Pe,
    },
    /// Memory whose registration the fabric does not end.
    #[error(
        "{len} bytes at {addr:#x} stay registered: {error}. The fabric may still reach them, so they must not be freed \
         before the process ends, unless another try to release them works"
    )]
    Unclosed {
        /// First byte.
        addr: usize,
        /// Length in bytes.
        len: usize,
        /// Error of the fabric.
        error: PortError,
    },
    /// A peer sent a request that cannot be executed.
    #[error("{pe} sent a request that cannot be executed: {why}")]
    BadMessage {
        /// The peer.
        pe: Pe,
        /// Reason.
        why: String,
    },
    /// The fabric refused or failed a segment.
    #[error("{what} of {len} bytes, {pe}, on {rail} ({rail_name}): {error}")]
    Segment {
        /// put or get.
        what: &'static str,
        /// The peer.
        pe: Pe,
        /// Bytes of the segment.
        len: usize,
        /// The rail.
        rail: RailId,
        /// The rail's name.
        rail_name: String,
        /// Error of the fabric.
        error: PortError,
    },
    /// Memory that the fabric does not reach could not be copied.
    #[error("{what} of {len} bytes, {pe}: staging the local side failed: {error}")]
    Staging {
        /// put or get.
        what: &'static str,
        /// The peer.
        pe: Pe,
        /// Bytes of the fragment.
        len: usize,
        /// Error of the copy.
        error: PortError,
    },
    /// A word that was fetched could not be stored.
    #[error("the word that was fetched from {pe} cannot be stored at {addr:#x}: {error}")]
    Fetched {
        /// The peer.
        pe: Pe,
        /// Destination of the word.
        addr: usize,
        /// Error of the store.
        error: PortError,
    },
    /// The peer refused to execute a message.
    #[error("{what} of {len} bytes, {pe}: the peer cannot do its part: {why}")]
    PeerRefused {
        /// put, get or atomic.
        what: &'static str,
        /// The peer.
        pe: Pe,
        /// Bytes of the fragment; 0 where that is not known.
        len: usize,
        /// The peer's reason.
        why: String,
    },
    /// The proxy thread does not execute what a user thread has handed over to it.
    #[error(
        "an operation handed over by a user thread, {pe}, waits for the proxy thread for \
         {seconds} s: is NVSHMEM's proxy running?"
    )]
    ProxyStalled {
        /// The peer.
        pe: Pe,
        /// Seconds waited.
        seconds: u64,
    },
    /// The program has ended while an operation was waiting for room.
    #[error("the program has not waited for an operation that found no room")]
    Abandoned,
    /// A rail failed as a whole.
    #[error("{rail} ({rail_name}): {error}")]
    Rail {
        /// The rail.
        rail: RailId,
        /// The rail's name.
        rail_name: String,
        /// Error of the fabric.
        error: PortError,
    },
    /// The data of a signal that has arrived did not follow within the deadline.
    #[error(
        "a signal from {pe} has waited for its data for {seconds} s ({arrived} of its {segments} \
         segments are here; {waiting} signals of that PE wait): the data may be lost, or the PE dead"
    )]
    DataMissing {
        /// The sender.
        pe: Pe,
        /// Segments of the oldest such signal that have arrived.
        arrived: u32,
        /// Segments that it has.
        segments: u32,
        /// Signals of the sender that wait for data.
        waiting: u32,
        /// Seconds since one of their segments last arrived.
        seconds: u64,
    },
    /// The process of a peer has ended.
    #[error("the process of {pe} has ended")]
    PeerEnded {
        /// The peer.
        pe: Pe,
    },
    /// Something did not complete within the deadline.
    #[error(
        "{what} of {len} bytes, {pe}, on {rail} ({rail_name}) has not completed for {seconds} s \
         ({state}; in all {writes} writes to that PE and {reads} reads from it are under way): the peer may be \
         dead or not making progress"
    )]
    Timeout {
        /// Name of the oldest operation in flight, or else of the first that is queued.
        what: &'static str,
        /// The peer.
        pe: Pe,
        /// Bytes of its segment or message, all of a queued operation, 0 for staged ones.
        len: usize,
        /// The rail that it was posted on; for queued ones, the peer's next.
        rail: RailId,
        /// The rail's name.
        rail_name: String,
        /// Seconds since anything of the peer ended, or of any if it waits for what peers share.
        seconds: u64,
        /// State of the oldest work.
        state: &'static str,
        /// Writes to the peer that are not delivered, and messages that are not acknowledged.
        writes: u32,
        /// Reads from the peer that have not landed, and requests for staged memory of its.
        reads: u32,
    },
}

impl From<Box<EngineError>> for EngineError {
    fn from(failed: Box<EngineError>) -> Self {
        *failed
    }
}

impl EngineError {
    /// Returns true if the memory cannot be released yet, but may be later.
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::InUse { .. })
    }
}
