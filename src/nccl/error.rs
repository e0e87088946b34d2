//! Errors of an entry, and the status that NCCL is given for each.

use std::ffi::c_int;

use crate::nccl::abi::Status;
use thiserror::Error;

use crate::bootstrap::BootstrapError;
use crate::job::JobError;
use crate::job::guard::{self, EntryError};
use crate::settings::SettingsError;
use engine::error::EngineError;

#[derive(Debug, Error)]
pub(super) enum NcclError {
    #[error("{0}")]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    Job(#[from] JobError),
    #[error("connecting the ranks: {0}")]
    Bootstrap(#[from] BootstrapError),
    #[error("argument {argument} is NULL")]
    Null { argument: &'static str },
    #[error("init has not been called, or finalize has been")]
    NoPlugin,
    #[error("device {device} does not exist: there are {devices}")]
    NoDevice { device: c_int, devices: usize },
    #[error("listening for the other ranks: {0}")]
    Listen(std::io::Error),
    #[error("rank {rank} of {ranks} ranks")]
    Shape { rank: c_int, ranks: c_int },
    #[error("the handle of rank {rank} is none of this plugin's, of this version")]
    NoHandle { rank: usize },
    #[error("this listener has made a group already")]
    Used,
    #[error("a thread for progress: {0}")]
    Thread(std::io::Error),
    #[error("context {context} does not exist: the block has {contexts}")]
    NoContext { context: c_int, contexts: c_int },
    #[error("rank {rank} does not exist: the group has {ranks}")]
    NoRank { rank: u32, ranks: u32 },
    #[error("{what} {handle:#x} is not registered, or no longer")]
    NoMemory { what: &'static str, handle: usize },
    #[error("{bytes} bytes from offset {offset} on are not in {what}, which has {len}")]
    OutOfBounds { what: &'static str, offset: u64, bytes: u64, len: u64 },
    #[error("signal operation {operation} is unknown: add one (1) and add (2) are known")]
    NoOperation { operation: u32 },
    #[error("memory of kind {kind} is unknown: host (1) and CUDA (2) are known")]
    NoKind { kind: c_int },
    #[error("registering {len} bytes: rank {rank} {why}")]
    Peer { len: usize, rank: usize, why: String },
    #[error("the group has failed: {why}")]
    Failed { why: String },
}

impl From<EngineError> for NcclError {
    fn from(failed: EngineError) -> Self {
        Self::Job(failed.into())
    }
}

#[inline]
pub(super) fn guard(entry: &'static str, body: impl FnOnce() -> Result<(), NcclError>) -> Status {
    guard::guard(entry, body)
}

impl EntryError for NcclError {
    type Status = Status;
    const SUCCESS: Status = Status::SUCCESS;
    const INTERNAL: Status = Status::INTERNAL;

    fn status(&self) -> Status {
        match self {
            Self::Null { .. }
            | Self::NoDevice { .. }
            | Self::Shape { .. }
            | Self::NoHandle { .. }
            | Self::NoContext { .. }
            | Self::NoRank { .. }
            | Self::NoMemory { .. }
            | Self::OutOfBounds { .. }
            | Self::NoOperation { .. }
            | Self::NoKind { .. }
            | Self::Job(JobError::Engine(
                EngineError::NoSuchPe { .. } | EngineError::Handle(_) | EngineError::Refused { .. },
            )) => Status::INVALID_ARGUMENT,
            Self::NoPlugin | Self::Used => Status::INVALID_USAGE,
            Self::Peer { .. } | Self::Failed { .. } => Status::REMOTE,
            _ => Status::SYSTEM,
        }
    }
}
