//! Copies between host and device that run beside the CPU.
//!
//! Starting a copy and looking for its end never wait: kernels that spin may depend on the thread that
//! calls.

pub(crate) mod engine;
mod queue;
pub(crate) use queue::MOST_WRITES;
pub(crate) mod request;
