//! Errors of this layer, each with what was tried, on what, and CUDA's own name and text.

use thiserror::Error;

use crate::driver::api::Status;
use engine::port::PortError;

/// Why there is no CUDA driver to use.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum LoadError {
    /// This process uses no CUDA, so none of its memory is on a GPU. The normal case without a GPU.
    #[error("no CUDA driver in this process: `{path}` is not loaded")]
    NotInUse {
        /// The name looked for.
        path: String,
    },
    /// The dynamic loader did not find it, or could not load it.
    #[error("cannot load the CUDA driver from `{path}`: {reason}")]
    Open {
        /// The name or path tried.
        path: String,
        /// What the dynamic loader said.
        reason: String,
    },
    /// The file is a shared library, but not a driver that is served.
    #[error(
        "`{path}` is not a usable CUDA driver: it has no `{symbol}`; 11.4 is the oldest served"
    )]
    Symbol {
        /// The name or path tried.
        path: String,
        /// The function that is missing.
        symbol: &'static str,
    },
}

/// A call to the driver that failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{call} for {subject}: {name} ({code}): {text}")]
pub struct CudaError {
    /// The function.
    pub call: &'static str,
    /// What it was called for: device, address, length.
    pub subject: String,
    /// The `CUresult`.
    pub code: u32,
    /// Its name, as the driver gives it.
    pub name: String,
    /// Its text, as the driver gives it.
    pub text: String,
}

impl From<CudaError> for PortError {
    fn from(error: CudaError) -> Self {
        let CudaError { call, subject, code, name, text } = error;
        // But for the one that is told apart.
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

/// Codes that mean something here. The rest is only passed on.
pub(crate) mod code {
    use super::Status;

    pub(crate) const SUCCESS: Status = 0;
    pub(crate) const INVALID_VALUE: Status = 1;
    pub(crate) const OUT_OF_MEMORY: Status = 2;
    pub(crate) const NOT_INITIALIZED: Status = 3;
    /// The process ends, or the driver was unloaded.
    pub(crate) const DEINITIALIZED: Status = 4;
    pub(crate) const NOT_READY: Status = 600;
    pub(crate) const TIMEOUT: Status = 909;
    pub(crate) const NOT_SUPPORTED: Status = 801;
}
