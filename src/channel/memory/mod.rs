//! Memory that a channel shares with kernels.
//!
//! What producers change fast is near them, on the device where there is one; all else of the
//! channel's own is host memory. Symmetric memory is where the user wants it.

pub(crate) mod host_memory;
pub(crate) mod mirrored_memory;
pub(crate) mod published_memory;
pub(crate) mod shared;
pub(crate) mod symmetric_memory;

use std::fmt::Debug;

use crate::channel::error::ChannelError;
use crate::channel::ring::PublishedIn;
use cuda::Direction;

/// Memory that producers and the CPU share, zeroed when it is made.
pub(crate) trait Piece: Debug + Send + Sync {
    /// The first byte, for producers.
    fn addr(&self) -> usize;

    /// The first byte of what the CPU reads and writes.
    fn here(&self) -> usize {
        self.addr()
    }

    /// Copies these bytes to the other side, where the CPU has a copy of its own.
    ///
    /// # Errors
    /// As the device answers.
    fn copy(&self, _: Direction, _offset: usize, _len: usize) -> Result<(), ChannelError> {
        Ok(())
    }

    /// How the CPU's writes get there.
    fn published_in(&self) -> PublishedIn {
        PublishedIn::Host
    }
}
