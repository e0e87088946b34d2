//! What takes part in a job: the rails are opened, the PEs made known to one another, memory of any kind is
//! registered, and the counters told at the end or meanwhile.
//!
//! Its two users are NVSHMEM's interface and the device channel. They differ in where operations come from,
//! and in the [`Collectives`] that bring the PEs together.

pub(crate) mod asked;
mod atomics;
mod collectives;
mod connect;
mod connected;
mod consistency;
pub mod counters;
pub mod direct;
mod error;
mod exit;
pub(crate) mod heartbeat;
mod memory;
pub(crate) mod nics;
pub mod recording;
mod spread;

pub(crate) use collectives::{Collectives, Shape};
pub(crate) use connect::connect;
pub(crate) use connected::{Connected, Job};
pub(crate) use error::JobError;
pub(crate) use memory::Origin;
