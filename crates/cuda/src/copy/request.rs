//! What a copy engine is asked for, and why it refuses.

use std::sync::Arc;

use thiserror::Error;

use crate::driver::error::{CudaError, refused};
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::memory::range::DeviceRange;
use ::engine::atomic::Width;
use ::engine::port::PortError;

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the host to the device.
    ToDevice,
    /// From the device to the host.
    FromDevice,
}

/// A copy between a range of a device and page-locked memory.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Which way.
    pub direction: Direction,
    /// The memory that the driver reaches.
    pub range: &'a DeviceRange,
    /// The first address in it.
    pub addr: usize,
    /// The host's side.
    pub memory: &'a Arc<PinnedMemory>,
    /// Where in that, in bytes.
    pub offset: usize,
    /// How many bytes; one at least.
    pub len: usize,
}

/// A word of 4 or 8 bytes in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word<'a> {
    pub(crate) range: &'a DeviceRange,
    pub(crate) addr: usize,
    pub(crate) width: Width,
}

/// Which words an operation of a stream stores.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WordStores {
    pub(crate) four: bool,
    pub(crate) eight: bool,
}

impl WordStores {
    /// Whether those of a width in memory of a range.
    #[inline]
    pub(crate) fn has(self, range: &DeviceRange, width: Width) -> bool {
        let offered = match width {
            Width::Two => false,
            Width::Four => self.four,
            Width::Eight => self.eight,
        };
        // The driver refuses them for managed memory and for a pool's.
        offered && range.kind() == Kind::Device
    }
}

/// One step of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    Copy {
        transfer: Transfer<'a>,
        /// Whether all earlier steps come first; else it is unordered with the copies before it.
        is_ordered: bool,
    },
    /// A store by an operation of the stream, behind all steps before it.
    Store { word: Word<'a>, value: u64 },
}

/// Why something could not be started. Nothing was.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the texts of errors say it")]
pub enum CopyError {
    /// Poll, and try again.
    #[error("as many copies are under way as the engine takes")]
    Full,
    #[error(
        "{len} bytes at {addr:#x} are not in the range, not in page-locked memory, or not aligned"
    )]
    Bounds { addr: usize, len: usize },
    #[error("memory of {memory} cannot be copied by an engine of {engine}")]
    Context { memory: String, engine: String },
    /// The driver refused it, or something before it has failed and the engine with it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

impl From<CopyError> for PortError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Cuda(error) => error.into(),
            other => refused("copying", other.to_string()),
        }
    }
}
