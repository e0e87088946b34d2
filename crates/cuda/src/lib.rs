//! CUDA's driver, found at run time: what an address is, and how bytes get to and from a device.
//!
//! ```text
//! driver   the library, its functions, contexts, devices, streams and kernels; mostly absent
//! memory   what an address is, where allocations end, memory of ours, memory as a file descriptor
//! copy     copies that run beside the CPU
//! words    single words in device memory, for signals and atomics
//! staging  memory that the fabric does not reach, by copies and words: the engine's port for both
//! ```
//!
//! # What a process without CUDA pays
//! A look into the dynamic loader's list for each registration. Nothing is loaded, `cuInit` is
//! never called, and no context is made: [`Driver::of_process`] takes the driver that the program
//! has loaded, and a program that has memory on a device has loaded it. A primary context is
//! retained when memory of its device was seen.
//!
//! # What may block
//! Allocating and freeing page-locked and device memory may wait for everything on the device,
//! kernels that spin among it. So bounce memory and engines are made when memory is registered
//! first, and dropped at the end. Copies, words and polling never wait.
//!
//! # Threads
//! The driver may be called from any thread, with the memory's context bound; each call here binds
//! it and restores what was bound. [`CopyEngine`] and [`Words`] belong to one thread at a
//! time, as the stager does, the rest to all.

mod copy;
mod driver;
mod memory;
mod staging;
mod words;

/// The log's subsystem of memory, as NVSHMEM names it.
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
pub use words::access::{Words, WordsOptions};
pub use words::gdrcopy::{GDRCOPY_LIBRARY, Gdrcopy, GdrcopyError};
pub use words::mapping::drain_writes;
pub use words::word_range::{Mapper, WordRange};
