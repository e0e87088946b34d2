//! Errors of this layer, each with what was tried, on what, and CUDA's own name and text.

use thiserror::Error;

use crate::cuda::driver::api::Status;
use crate::cuda::driver::context::Ordinal;
use crate::cuda::memory::pointer::Kind;
use crate::cuda::words::way::WordError;
use crate::engine::port::PortError;

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

/// Why a range of memory cannot be used, or only by the CPU.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The driver could not tell.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// No range at all.
    #[error("the range of {len} bytes at {addr:#x} is empty or leaves the address space")]
    Bounds {
        /// Where it starts.
        addr: usize,
        /// Its length.
        len: usize,
    },
    /// Two kinds of memory in one range.
    #[error("the range at {addr:#x} is {first} up to {at:#x} and {then} from there")]
    Mixed {
        /// Where the range starts.
        addr: usize,
        /// What it starts with.
        first: Kind,
        /// Where that ends.
        at: usize,
        /// What follows.
        then: Kind,
    },
    /// Memory of two devices in one range.
    #[error("the range at {addr:#x} is on device {first} up to {at:#x} and on {then} from there")]
    Devices {
        /// Where the range starts.
        addr: usize,
        /// The first device.
        first: Ordinal,
        /// Where its memory ends.
        at: usize,
        /// The device that follows.
        then: Ordinal,
    },
}

impl From<CudaError> for PortError {
    /// With CUDA's number where libfabric's would be; the text has its name.
    fn from(error: CudaError) -> Self {
        let CudaError { call, subject, code, name, text } = error;
        let code = i32::try_from(code).unwrap_or(i32::MAX);
        PortError { call, code, text: format!("{subject}: {name}: {text}") }
    }
}

impl From<RangeError> for PortError {
    fn from(error: RangeError) -> Self {
        match error {
            RangeError::Cuda(error) => error.into(),
            other => refused("examining memory", other.to_string()),
        }
    }
}

impl From<WordError> for PortError {
    fn from(error: WordError) -> Self {
        match error {
            WordError::Cuda(error) => error.into(),
            other => refused("reaching a word", other.to_string()),
        }
    }
}

/// An error found here, with no call to the driver that failed.
#[cold]
pub(in crate::cuda) fn refused(call: &'static str, text: String) -> PortError {
    PortError { call, code: libc::EINVAL, text }
}

/// Codes that mean something here. The rest is only passed on.
pub(in crate::cuda) mod code {
    use super::Status;

    pub(in crate::cuda) const SUCCESS: Status = 0;
    pub(in crate::cuda) const INVALID_VALUE: Status = 1;
    pub(in crate::cuda) const NOT_INITIALIZED: Status = 3;
    pub(in crate::cuda) const NOT_READY: Status = 600;
    pub(in crate::cuda) const TIMEOUT: Status = 909;
    pub(in crate::cuda) const NOT_SUPPORTED: Status = 801;
}
