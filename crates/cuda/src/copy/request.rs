//! Copies: what a copy engine is asked for, and what it answers.

use std::sync::Arc;

use thiserror::Error;

use crate::driver::error::CudaError;
use crate::memory::pinned::{BounceBuffer, PinnedMemory};
use crate::memory::range::DeviceRange;
use ::engine::atomic::Width;

/// Something that an engine was given to do. Numbered in the order of starting, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the bounce buffer to the device.
    ToDevice,
    /// From the device to the bounce buffer.
    FromDevice,
}

/// A copy between a range of a device and a page-locked bounce buffer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Which way.
    pub direction: Direction,
    /// The memory that the driver reaches.
    pub range: &'a DeviceRange,
    /// The first address in it.
    pub addr: usize,
    /// The host's side.
    pub bounce: &'a BounceBuffer,
    /// Where in the bounce buffer, in bytes.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
}

/// A copy between a range of a device and any part of page-locked memory.
#[derive(Clone, Copy, Debug)]
pub struct PinnedTransfer<'a> {
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
    /// How many bytes.
    pub len: usize,
}

/// A word in device memory, aligned to its width.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    /// The memory that the driver reaches.
    pub range: &'a DeviceRange,
    /// Its address in it.
    pub addr: usize,
    /// Its width.
    pub width: Width,
}

/// Why something could not be started. Nothing was.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// As much is under way as the engine takes. Poll, and try again.
    #[error("as many copies are under way as the engine takes")]
    Full,
    /// The range, the bounce buffer or the word does not have these bytes.
    #[error(
        "{len} bytes at {addr:#x} are not in the range, not in the bounce buffer, or not aligned"
    )]
    Bounds {
        /// The address in the range.
        addr: usize,
        /// How many bytes.
        len: usize,
    },
    /// The memory belongs to another context than the engine.
    #[error("memory of {memory} cannot be copied by an engine of {engine}")]
    Context {
        /// The memory's.
        memory: String,
        /// The engine's.
        engine: String,
    },
    /// The driver refused it, or something before it has failed and the engine with it.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Something that is done, or has failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Completed {
    /// What.
    pub ticket: Ticket,
    /// For a load, the word. For anything else, 0. After an error the bytes at the destination are
    /// undefined, and the memory on both sides is no longer used.
    pub result: Result<u64, CudaError>,
}
