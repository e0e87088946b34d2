//! Bootstraps: what brings the PEs of a channel or a group together, over TCP between machines or
//! by the user's own allgather.
//!
//! It carries little, and seldom: addresses when PEs connect, handles when memory is registered,
//! barriers.

mod callback;
mod error;
#[doc(hidden)]
pub mod frame;
pub(crate) mod gathering;
mod guesses;
pub(crate) mod registration;
mod star;
mod tcp;

pub use callback::Callback;
pub use error::BootstrapError;
pub use tcp::{TcpBootstrap, TcpOptions};

/// Collectives among PEs.
///
/// # Threads
/// One at a time, and every PE makes the same calls in the same order.
pub trait Bootstrap: Send {
    /// Number of PEs; at least 1.
    fn n_pes(&self) -> u32;

    /// This PE, below that.
    fn me(&self) -> u32;

    /// Gives every PE's contribution, in PE order. All contribute equally many bytes.
    ///
    /// # Errors
    /// PEs that are missing, or a fault. The bootstrap is of no use after an error.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<u8>, BootstrapError>;

    /// Returns when every PE has called it.
    ///
    /// # Errors
    /// As [`Bootstrap::allgather`].
    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.allgather(&[0]).map(|_| ())
    }
}
