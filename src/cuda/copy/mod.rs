//! Copies between host and device that run beside the CPU, and staging, which is made of them.
//!
//! Starting a copy and looking for its end never wait: kernels that spin may depend on the thread that
//! calls.

pub(in crate::cuda) mod engine;
pub(in crate::cuda) mod flight;
pub(in crate::cuda) mod queue;
pub(in crate::cuda) mod stager;
pub(in crate::cuda) mod staging;
