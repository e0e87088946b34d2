//! Bootstraps: the out-of-band exchange among the PEs of a channel or a group, over TCP or the
//! user's own allgather. It carries addresses of endpoints, handles of registered memory, barriers.

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

/// Collectives among PEs. One thread at a time, and every PE makes the same calls in the same
/// order.
pub trait Bootstrap: Send {
    /// Number of PEs; at least 1.
    fn n_pes(&self) -> u32;

    /// This PE, below [`Bootstrap::n_pes`].
    fn me(&self) -> u32;

    /// Gives every PE's contribution, in PE order. All contribute equally many bytes.
    ///
    /// # Errors
    /// Missing PEs, or a fault. No call may follow an error.
    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<u8>, BootstrapError>;

    fn barrier(&mut self) -> Result<(), BootstrapError> {
        self.allgather(&[0]).map(|_| ())
    }
}
