//! Requests to a copy engine, and its errors.

use std::sync::Arc;

use thiserror::Error;

use crate::driver::error::{CudaError, refused};
use crate::memory::pinned_memory::PinnedMemory;
use crate::memory::pointer::Kind;
use crate::memory::range::DeviceRange;
use ::engine::atomic::Width;
use ::engine::port::PortError;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    ToDevice,
    FromDevice,
}

/// A copy between a range of a device and page-locked memory.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    pub direction: Direction,
    pub range: &'a DeviceRange,
    /// Address of the first byte in `range`.
    pub addr: usize,
    pub memory: &'a Arc<PinnedMemory>,
    /// Offset of the first byte in `memory`.
    pub offset: usize,
    /// Bytes; at least one.
    pub len: usize,
}

/// Widths of words that stream memory operations store.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WordStores {
    pub(crate) four: bool,
    pub(crate) eight: bool,
}

impl WordStores {
    #[inline]
    pub(crate) fn has(self, range: &DeviceRange, width: Width) -> bool {
        let offered = match width {
            Width::Two => false,
            Width::Four => self.four,
            Width::Eight => self.eight,
        };
        // The driver refuses managed memory and memory of pools.
        offered && range.kind() == Kind::Device
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum StreamOp<'a> {
    /// An ordered copy follows all earlier operations, another one those before the last run of
    /// copies.
    Copy { transfer: Transfer<'a>, is_ordered: bool },
    /// A stream memory operation, after all earlier operations; of a word of 4 or 8 bytes.
    Store { range: &'a DeviceRange, addr: usize, width: Width, value: u64 },
}

/// Reason why nothing was started.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
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
    /// The driver refused it, or the engine has failed before.
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
