//! Copies between host and device that run beside the CPU.
//!
//! Starting a list and looking for its end never wait: spinning kernels may depend on the caller.

mod calls;
pub(crate) mod engine;
mod list;
pub(crate) mod probe;
mod progress;
pub(crate) mod request;
mod rows;
mod writes;

pub(crate) use writes::MAX_WRITES;
