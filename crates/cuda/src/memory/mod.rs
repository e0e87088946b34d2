//! Memory as CUDA knows it: what an address is, and memory of our own.
//!
//! Allocating or freeing may wait for all of the device: not while operations are under way.

pub(crate) mod device_memory;
pub(crate) mod dma_buf;
pub(crate) mod heap;
pub(crate) mod pinned_memory;
pub(crate) mod pointer;
pub(crate) mod range;
pub(crate) mod shared_memory;
