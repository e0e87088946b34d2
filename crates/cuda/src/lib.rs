//! CUDA's driver, found at run time: kinds of memory, and copies to and from a device.
//!
//! # Cost for a process without CUDA
//! A look-up in the dynamic loader's list for each registration. Nothing is loaded, `cuInit` is
//! never called, and no context is created: [`Driver::of_process`] takes the driver that the
//! program has loaded, as every program with memory on a device has. A primary context is retained
//! when memory of its device was seen.
//!
//! # Blocking
//! Allocating and freeing page-locked and device memory may wait for all work on the device, also
//! for spinning kernels. So bounce memory and engines are created when memory is first registered,
//! and dropped at the end. Copies, words and polling never wait.
//!
//! # Threads
//! Any thread may call the driver, with the memory's context bound; each call here binds it and
//! restores the previous binding. One thread at a time uses a [`CopyEngine`], [`Words`] or the
//! stager; any thread may use the rest, at once.

mod copy;
mod driver;
mod memory;
mod staging;
mod words;

/// NVSHMEM's log subsystem for memory.
pub(crate) const MEM: &str = "MEM";

pub use copy::engine::CopyEngine;
pub use copy::request::{CopyError, Direction, Transfer};
pub use driver::context::{Bound, Context, Ordinal};
pub use driver::device::{Attributes, Device, WritesOrdering, flush_writes};
pub use driver::error::{CudaError, LoadError};
pub use driver::library::{DEFAULT_LIBRARY, Driver, DriverVersion};
pub use driver::module::{Kernel, Module};
pub use driver::stream::Stream;
pub use memory::device_memory::DeviceMemory;
pub use memory::dma_buf::DmaBuf;
pub use memory::heap::DeviceHeap;
pub use memory::pinned_memory::PinnedMemory;
pub use memory::pointer::{Kind, Pointer};
pub use memory::range::{DeviceRange, Memory, Pieces, RangeError};
pub use memory::shared_memory::{SharedMemory, SharingError};
pub use staging::registry::{StagedRegion, Staging, StagingError, StagingOptions};
pub use staging::same_host::{PeerShare, SECRET_BYTES, SharedLayout, Shares};
pub use staging::serving_context::StagingContext;
pub use staging::waiting_kernel::WaitingKernel;
pub use words::access::{Words, WordsOptions};
pub use words::gdrcopy::{GDRCOPY_LIBRARY, Gdrcopy, GdrcopyError};
pub use words::mapping::drain_writes;
pub use words::word_range::{Mapper, WordRange};
