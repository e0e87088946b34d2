//! Memory of this process, as the engine reads and changes it itself.

use crate::atomic::Atomic;
use crate::port::PortError;

/// Loads, stores and atomics of this process' own memory, for what messages carry.
pub trait LocalMemory {
    /// Executes an atomic operation on a word of this process' memory and returns the word
    /// before. Atomic among all calls of this function in the process.
    ///
    /// `addr` is aligned to the operation's width and inside a registered region.
    ///
    /// # Errors
    /// The word cannot be reached.
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError>;

    /// Copies bytes out of this process' memory.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError>;

    /// Stores bytes into this process' memory, inside a registered region.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError>;

    /// Stores `flag` as 8 bytes at `addr`, aligned to 8, so that whoever sees it also sees what was
    /// stored before.
    ///
    /// # Errors
    /// The memory cannot be reached.
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError>;
}
