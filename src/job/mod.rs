//! A PE's part in a job: opens rails, connects PEs, registers memory, reports counters at the end.
//!
//! NVSHMEM's interface, the device channel and NCCL's interface use it. They differ in the source
//! of operations, and in the [`Collectives`] that connect the PEs.

pub(crate) mod connect;
mod connected;
pub(crate) mod counters;
mod error;
pub(crate) mod guard;
pub(crate) mod heartbeat;
pub(crate) mod idle;
pub mod memory;
mod pe;
#[cfg(test)]
pub(crate) mod tests;
mod yielding;

pub(crate) use connect::collectives::{Collectives, Shape};
pub(crate) use connected::Connected;
pub(crate) use error::JobError;
pub(crate) use memory::origins::Origin;
pub(crate) use memory::words_options;
pub(crate) use pe::Job;
