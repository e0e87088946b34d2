//! Access of the engine to the memory of its own process.

use crate::atomic::Atomic;
use crate::port::PortError;

/// Loads, stores and atomics on this process' own memory, on behalf of messages.
pub trait LocalMemory {
    /// Executes an atomic operation on a word of this process' memory and returns the old value.
    /// Atomic among all calls of this function in the process.
    ///
    /// `addr` is aligned to the operation's width and inside a registered region.
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError>;

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError>;

    /// Stores bytes into this process' memory, inside a registered region.
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError>;

    /// Stores `flag` as 8 bytes at `addr`, aligned to 8. Whoever sees the flag also sees earlier
    /// stores.
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError>;
}
