//! Errors of a PE, as text for people: what was tried and what came back.

use std::fmt;

/// What a scenario returns on failure; anything that is an error converts to it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A failure in a PE.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A collective of the bootstrap failed: a PE is gone, or did not come in time.
    #[error("bootstrap: {0}")]
    Bootstrap(String),
    /// The plugin could not be loaded, or left out what the host needs.
    #[error("plugin: {0}")]
    Plugin(String),
    /// The plugin's function returned a status other than success.
    #[error("{call} returned {status}{context}")]
    Status {
        /// The function, with the PE it was called for.
        call: String,
        /// What it returned.
        status: Status,
        /// What else is known, or empty.
        context: String,
    },
    /// Something did not happen in time.
    #[error("{0}")]
    Timeout(String),
    /// The proxy thread has ended because of an error.
    #[error("the proxy thread has failed: {0}")]
    Proxy(String),
    /// The scenario asked for what cannot be done.
    #[error("{0}")]
    Usage(String),
    /// CUDA's driver or its device failed: the call, and what it answered.
    #[error("device: {0}")]
    Device(String),
    /// Memory does not hold what it should.
    #[error("{0}")]
    Mismatch(#[from] crate::memory::pattern::Mismatch),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A status that the plugin returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Status(pub i32);

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.0)
    }
}

/// Turns a status into a result. `call` is asked for the call's name only on failure.
#[inline]
pub(crate) fn check(status: i32, call: impl FnOnce() -> String) -> Result<()> {
    if status == nvshmem_abi::c::NVT_STATUS_SUCCESS {
        return Ok(());
    }
    Err(Error::Status { call: call(), status: Status(status), context: String::new() })
}

pub(crate) fn explain(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}
