//! Errors of an entry, and the host's status for each.

use std::ffi::c_int;

use nvshmem_abi::{UnsupportedApi, c};
use thiserror::Error;

use crate::job::JobError;
use crate::job::guard::{self, EntryError};
use crate::settings::SettingsError;
use engine::error::EngineError;

#[derive(Debug, Error)]
#[non_exhaustive]
pub(crate) enum AbiError {
    #[error("{0}")]
    Api(#[from] UnsupportedApi),
    #[error("{0}")]
    Settings(#[from] SettingsError),
    #[error("{0}")]
    Job(#[from] JobError),
    #[error("argument {argument} is NULL")]
    Null { argument: &'static str },
    #[error("PE {pe} does not exist")]
    BadPe { pe: c_int },
    #[error("operation code {code} is unknown: PUT (1), P (2), GET (4) and G (5) are known")]
    BadOp { code: c_int },
    #[error("atomic operation code {code} is unknown")]
    BadAtomic { code: c_int },
    #[error("region role {role} is unknown: HOST (0) and PROXY (1) are known")]
    BadRole { role: c_int },
    #[error("put_signal with {remote} remote parts, {local} local ones and {bytes} lengths")]
    Vectors { remote: usize, local: usize, bytes: usize },
    #[error("{op} with elements of {bytes} bytes: {accepted}")]
    ElementSize { op: &'static str, bytes: c_int, accepted: &'static str },
    #[error("{op} of {nelems} elements of {bytes} bytes is larger than the address space")]
    TooLarge { op: &'static str, nelems: u64, bytes: c_int },
    #[error("{op} with strides {src} and {dest}: NVSHMEM's remote transports move contiguous data")]
    Strides { op: &'static str, src: i64, dest: i64 },
    #[error("this is not a transport of this library")]
    UnknownTransport,
    #[error("{what} is not supported by this version of the transport")]
    NotSupported { what: &'static str },
}

impl From<Box<EngineError>> for AbiError {
    #[cold]
    #[inline(never)]
    fn from(failed: Box<EngineError>) -> Self {
        Self::Job((*failed).into())
    }
}

impl From<EngineError> for AbiError {
    fn from(failed: EngineError) -> Self {
        Self::Job(failed.into())
    }
}

#[inline]
pub(crate) fn guard(entry: &'static str, body: impl FnOnce() -> Result<(), AbiError>) -> c_int {
    guard::guard(entry, body)
}

impl EntryError for AbiError {
    type Status = c_int;
    const SUCCESS: c_int = c::NVT_STATUS_SUCCESS;
    const INTERNAL: c_int = c::NVT_STATUS_INTERNAL;

    fn status(&self) -> c_int {
        match self {
            Self::Api(_)
            | Self::Settings(_)
            | Self::Null { .. }
            | Self::BadPe { .. }
            | Self::BadOp { .. }
            | Self::BadAtomic { .. }
            | Self::BadRole { .. }
            | Self::Vectors { .. }
            | Self::ElementSize { .. }
            | Self::TooLarge { .. }
            | Self::UnknownTransport
            | Self::Job(JobError::Engine(
                EngineError::NoSuchPe { .. } | EngineError::Handle(_) | EngineError::Refused { .. },
            )) => c::NVT_STATUS_INVALID_VALUE,
            Self::Job(JobError::Engine(EngineError::Register { no_memory: true, .. })) => {
                c::NVT_STATUS_OUT_OF_MEMORY
            }
            Self::Strides { .. } | Self::NotSupported { .. } => c::NVT_STATUS_NOT_SUPPORTED,
            _ => c::NVT_STATUS_INTERNAL,
        }
    }
}
