//! Errors of the engine. Each text names the cause and what a user can do.

use thiserror::Error;

use crate::ids::{Pe, RailId};
use crate::port::PortError;
use crate::wire::handle::HandleError;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("{pe} does not exist: this job has {n_pes} PEs")]
    NoSuchPe { pe: Pe, n_pes: u32 },
    #[error("{0}")]
    Handle(#[from] HandleError),
    #[error("{what} of {len} bytes, {pe}, {side} address {addr:#x}: {fault}")]
    Refused {
        what: &'static str,
        pe: Pe,
        side: &'static str,
        addr: u64,
        len: usize,
        fault: HandleError,
    },
    #[error("registering {len} bytes at {addr:#x}: {why}")]
    Register { addr: usize, len: usize, why: String, no_memory: bool },
    /// Memory that a failed operation may still touch.
    #[error(
        "{len} bytes at {addr:#x} cannot be released yet: a {what} that has failed is still with the fabric, {pe}, \
         and may touch them when that PE goes on; try again later, or free them after the end of the transport, \
         which closes its endpoints"
    )]
    InUse { addr: usize, len: usize, what: &'static str, pe: Pe },
    #[error(
        "{len} bytes at {addr:#x} stay registered: {error}. The fabric may still reach them, so they must not be freed \
         before the process ends, unless another try to release them works"
    )]
    Unclosed { addr: usize, len: usize, error: PortError },
    #[error("{pe} sent a request that cannot be executed: {why}")]
    BadMessage { pe: Pe, why: String },
    #[error("{what} of {len} bytes, {pe}, on {rail} ({rail_name}): {error}")]
    Segment {
        what: &'static str,
        pe: Pe,
        len: usize,
        rail: RailId,
        rail_name: String,
        error: PortError,
    },
    #[error("{what} of {len} bytes, {pe}: staging the local side failed: {error}")]
    Staging { what: &'static str, pe: Pe, len: usize, error: PortError },
    #[error("the word that was fetched from {pe} cannot be stored at {addr:#x}: {error}")]
    Fetched { pe: Pe, addr: usize, error: PortError },
    /// The length is the fragment's; 0 where that is not known.
    #[error("{what} of {len} bytes, {pe}: the peer cannot do its part: {why}")]
    PeerRefused { what: &'static str, pe: Pe, len: usize, why: String },
    #[error(
        "an operation handed over by a user thread, {pe}, waits for the proxy thread for \
         {seconds} s: is NVSHMEM's proxy running?"
    )]
    ProxyStalled { pe: Pe, seconds: u64 },
    #[error("the program has not waited for an operation that found no room")]
    Abandoned,
    #[error("{rail} ({rail_name}): {error}")]
    Rail { rail: RailId, rail_name: String, error: PortError },
    /// Of the oldest such signal; seconds since one of their segments last arrived.
    #[error(
        "a signal from {pe} has waited for its data for {seconds} s ({arrived} of its {segments} \
         segments are here; {waiting} signals of that PE wait): the data may be lost, or the PE dead"
    )]
    DataMissing { pe: Pe, arrived: u32, segments: u32, waiting: u32, seconds: u64 },
    #[error("the process of {pe} has ended")]
    PeerEnded { pe: Pe },
    #[error(
        "{what} of {len} bytes, {pe}, on {rail} ({rail_name}) has not completed for {seconds} s \
         ({state}; in all {writes} writes to that PE and {reads} reads from it are under way): the peer may be \
         dead or not making progress"
    )]
    Timeout {
        what: &'static str,
        pe: Pe,
        len: usize,
        rail: RailId,
        rail_name: String,
        seconds: u64,
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
