//! Copies between host and device that run beside the CPU.
//!
//! Starting a copy and looking for its end never wait: kernels that spin may depend on the thread
//! that calls.

mod batch;
mod calls;
pub(crate) mod engine;
pub(crate) mod probe;
mod progress;
mod queue;
mod rows;
pub(crate) use batch::MOST_WRITES;
pub(crate) mod request;
