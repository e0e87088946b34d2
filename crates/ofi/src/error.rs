//! Errors of this layer, with the failed call and libfabric's own text.

use std::any::Any;
use std::fmt;

use libfabric_sys::{FI_EAGAIN, Library, LoadError};
use thiserror::Error;

use crate::provider::{Profile, Provider};
use engine::port::{PortError, Posted};

/// An offer of libfabric that was not taken, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub provider: String,
    /// The device; none when the whole provider was refused.
    pub device: Option<String>,
    pub reason: String,
}

impl Refusal {
    pub(crate) fn new(profile: &Profile, device: Option<String>, reason: String) -> Self {
        Self { provider: profile.name.to_owned(), device, reason }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.device {
            Some(device) => write!(f, "{}, {device}: {}", self.provider, self.reason),
            None => write!(f, "{}: {}", self.provider, self.reason),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum OfiError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("no usable libfabric device for provider `{asked}`{}", lines(.refusals))]
    NoDevice { asked: Provider, refusals: Vec<Refusal> },
    #[error(
        "NVSHMEM_LIBFABRIC_DEVICES: `{entry}` is no device of provider {provider}: {reason}; \
         it has: {available}"
    )]
    UnknownDevice { entry: String, provider: String, reason: String, available: String },
    #[error("no rail could be opened:{}", lines(.failures))]
    NoRail { failures: Vec<String> },
    #[error(
        "NVSHMEM_LIBFABRIC_DEVICES names what cannot be opened; without it in the list, or without the list, the job goes \
         on with the others:{}",
        lines(.failures)
    )]
    NamedDevice { failures: Vec<String> },
    #[error("{object}: {error}")]
    Call { object: String, error: PortError },
}

/// Returns the text of a panic that was caught.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

fn lines(reasons: &[impl fmt::Display]) -> String {
    reasons.iter().map(|reason| format!("\n  {reason}")).collect()
}

#[cold]
pub(crate) fn port_error(library: &Library, call: &'static str, code: i64) -> PortError {
    let code = i32::try_from(code.unsigned_abs()).unwrap_or(i32::MAX);
    PortError { call, code, text: library.strerror(code) }
}

pub(crate) fn check(library: &Library, call: &'static str, code: i32) -> Result<(), PortError> {
    if code < 0 { Err(port_error(library, call, code.into())) } else { Ok(()) }
}

#[cold]
pub(crate) fn refused(call: &'static str, text: String) -> PortError {
    PortError { call, code: libfabric_sys::FI_EINVAL, text }
}

/// Names the rail of an error.
#[cold]
pub(crate) fn on_rail(name: &str, mut error: PortError) -> PortError {
    error.text = format!("rail {name}: {}", error.text);
    error
}

/// Adds a probable remedy to an error, unless it is empty.
pub(crate) fn with_help(mut error: PortError, help: &str) -> PortError {
    if !help.is_empty() {
        error.text = format!("{} ({help})", error.text);
    }
    error
}

/// Returns the outcome of a post: taken, refused for now, or for good.
#[inline]
pub(crate) fn posted(
    library: &Library,
    call: &'static str,
    code: isize,
) -> Result<Posted, PortError> {
    if code == 0 {
        Ok(Posted::Yes)
    } else if code == -(FI_EAGAIN as isize) {
        Ok(Posted::Again)
    } else {
        Err(port_error(library, call, code as i64))
    }
}
