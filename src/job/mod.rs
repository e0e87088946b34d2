//! What takes part in a job: the rails are opened, the PEs made known to one another, memory of any
//! kind is registered, and the counters told at the end.
//!
//! Its two users are NVSHMEM's interface and the device channel. They differ in where operations
//! come from, and in the [`Collectives`] that bring the PEs together.

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
