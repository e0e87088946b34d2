//! Asynchronous copies between host and device.

mod batch;
mod calls;
pub(crate) mod engine;
pub(crate) mod probe;
mod progress;
pub(crate) mod request;
mod rows;
mod writes;

pub(crate) use writes::MAX_WRITES;
