//! Errors of this layer, with the failed call, its subject, and CUDA's name and text.

use thiserror::Error;

use crate::driver::api::Status;
use engine::port::PortError;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The process uses no GPU, so all its memory is host memory.
    #[error("no CUDA driver in this process: `{path}` is not loaded")]
    NotInUse { path: String },
    #[error("cannot load the CUDA driver from `{path}`: {reason}")]
    Open { path: String, reason: String },
    #[error(
        "`{path}` is not a usable CUDA driver: it has no `{symbol}`; 11.4 is the oldest served"
    )]
    Symbol { path: String, symbol: &'static str },
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{call} for {subject}: {name} ({code}): {text}")]
pub struct CudaError {
    pub call: &'static str,
    /// Subject of the call: device, address, length.
    pub subject: String,
    /// The `CUresult`.
    pub code: u32,
    pub name: String,
    pub text: String,
}

impl From<CudaError> for PortError {
    fn from(error: CudaError) -> Self {
        let CudaError { call, subject, code, name, text } = error;
        // Only exhaustion of memory is told apart, by its `errno` value.
        let code = match code {
            code::OUT_OF_MEMORY => libc::ENOMEM,
            code => i32::try_from(code).unwrap_or(i32::MAX),
        };
        PortError { call, code, text: format!("{subject}: {name}: {text}") }
    }
}

#[cold]
pub(crate) fn refused(call: &'static str, text: String) -> PortError {
    PortError { call, code: libc::EINVAL, text }
}

/// Codes that are handled. All others are only passed on.
pub(crate) mod code {
    use super::Status;

    pub(crate) const SUCCESS: Status = 0;
    pub(crate) const INVALID_VALUE: Status = 1;
    pub(crate) const OUT_OF_MEMORY: Status = 2;
    pub(crate) const NOT_INITIALIZED: Status = 3;
    /// The driver has shut down, since the process ends.
    pub(crate) const DEINITIALIZED: Status = 4;
    pub(crate) const NOT_READY: Status = 600;
    pub(crate) const TIMEOUT: Status = 909;
    pub(crate) const NOT_SUPPORTED: Status = 801;
}
