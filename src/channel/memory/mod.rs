//! Memory that a channel shares with kernels.
//!
//! Words that producers change often are in device memory if the producers are kernels; the rest of
//! the channel's own memory is on the host. Symmetric memory is where the user asks for it.

pub(crate) mod host_memory;
pub(crate) mod mirrored_memory;
pub(crate) mod published_memory;
pub(crate) mod shared;
pub(crate) mod symmetric_memory;

use std::fmt::Debug;

use crate::channel::error::ChannelError;
use crate::channel::ring::PublishedIn;
use cuda::Direction;

/// A zeroed block of memory that producers and the CPU share.
pub(crate) trait SharedBlock: Debug + Send + Sync {
    /// The address for producers.
    fn addr(&self) -> usize;

    /// The address for the CPU, of the block or of its copy.
    fn here(&self) -> usize {
        self.addr()
    }

    /// Copies these bytes between the block and the CPU's copy, if it has one.
    fn copy(&self, _: Direction, _offset: usize, _len: usize) -> Result<(), ChannelError> {
        Ok(())
    }

    /// How the CPU's writes reach it.
    fn published_in(&self) -> PublishedIn {
        PublishedIn::Host
    }
}
