//! Puts and gets of device memory that the fabric does not reach: beside the same operations on host
//! memory, and beside copies of the driver alone.
//!
//! All sides run on the proxy thread of the same two processes, through the plugin, over the same
//! connections: the heap's last chunk is host memory that the fabric reaches, and the one before is on
//! the device. Rounds of the sides alternate.

pub(crate) mod case;
mod command;
pub(crate) mod launch;
mod places;
pub(crate) mod scenario;
mod source;
mod target;
