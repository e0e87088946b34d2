//! CUDA's driver, found at run time: what an address is, and how bytes get to and from a device.
//!
//! ```text
//! driver    the library, its version, its functions; absent is the normal case without a GPU
//! context   which context memory belongs to; binding it on the thread that calls
//! pointer   what an address is; range: where the allocations under a range end
//! pinned    page-locked chunks; stream, copy: copies that run beside the CPU
//! words     single words in device memory, for signals and atomics
//! device    attributes; dma_buf: memory as a file descriptor
//! module    kernels, loaded and launched; device_memory: what they work on
//! staging   what is staged; stager: the engine's port for copies and words of it
//! hazards   what would keep those copies from running, for the log
//! ```
//!
//! # What a process without CUDA pays
//! A look into the dynamic loader's list for each registration. Nothing is loaded, `cuInit` is never
//! called, and no context is made: [`Driver::of_process`] takes the driver that the program has
//! loaded, and a program that has memory on a device has loaded it. A primary context is retained
//! when memory of its device was seen.
//!
//! # What may block
//! Allocating and freeing page-locked and device memory may wait for everything on the device,
//! kernels that spin among it. So pools and engines are made when memory is registered first, and
//! dropped at the end. Copies, words and polling never wait.
//!
//! # Threads
//! The driver may be called from any thread, with the memory's context bound; each call here binds
//! it and restores what was bound. [`CopyEngine`], [`PinnedPool`] and [`Words`] belong to one thread
//! at a time, as the stager does, the rest to all.

mod api;
mod context;
mod copy;
mod device;
mod device_memory;
mod dma_buf;
mod driver;
mod error;
mod flight;
mod gdrcopy;
mod hazards;
mod mapping;
mod module;
mod pinned;
mod pointer;
mod range;
mod range_cache;
mod ring;
mod scratch;
mod stager;
mod staging;
mod stream;
mod stream_words;
mod way;
mod word_range;
mod words;

pub use context::{Bound, Context, Ordinal};
pub use copy::{
    Completed, CopyEngine, Direction, PinnedTransfer, StartError, Ticket, Transfer, Word,
};
pub use device::{Attributes, Device, WritesOrdering, flush_writes};
pub use device_memory::DeviceMemory;
pub use dma_buf::DmaBuf;
pub use driver::{DEFAULT_LIBRARY, Driver, DriverVersion};
pub use error::{CudaError, LoadError, RangeError};
pub use gdrcopy::{GDRCOPY_LIBRARY, Gdrcopy, GdrcopyError};
pub use module::{Kernel, Module};
pub use pinned::{Chunk, PinnedMemory, PinnedPool};
pub use pointer::{Kind, Pointer};
pub use range::{DeviceRange, Memory, Pieces};
pub use scratch::Scratch;
pub use staging::{StagedRegion, Staging, StagingError, StagingOptions};
pub use stream::Stream;
pub use way::{Cost, Way, WordError, WordsOptions};
pub use word_range::{Mapper, WordRange};
pub use words::{WordAccess, Words};
