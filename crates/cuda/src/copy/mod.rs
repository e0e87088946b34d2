//! Asynchronous copies between host and device.

mod batch;
mod calls;
pub(crate) mod engine;
pub(crate) mod probe;
mod progress;
pub(crate) mod request;
pub(crate) mod resident;
mod resident_kernel;
mod rows;
mod writes;

pub(crate) use writes::MAX_WRITES;
