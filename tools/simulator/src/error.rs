//! Errors of a PE, as text for people: what was tried and what came back.

/// What a scenario returns on failure; anything that is an error converts to it.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

/// An error of a text, as `format!` makes it.
macro_rules! error {
    ($($text:tt)*) => { $crate::error::Error(format!($($text)*)) };
}
pub(crate) use error;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Turns a status into a result. `call` is asked for the call's name only on failure.
#[inline]
pub(crate) fn check(status: i32, call: impl FnOnce() -> String) -> Result<()> {
    if status == nvshmem_abi::c::NVT_STATUS_SUCCESS {
        return Ok(());
    }
    Err(error!("{} returned status {status}", call()))
}

pub(crate) fn explain(error: &libloading::Error) -> String {
    let source = std::error::Error::source(error);
    source.map_or_else(|| error.to_string(), ToString::to_string)
}
