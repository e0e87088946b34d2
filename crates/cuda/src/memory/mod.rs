//! Memory as CUDA knows it: kinds of memory, and memory of our own.

pub(crate) mod device_memory;
pub(crate) mod dma_buf;
pub(crate) mod heap;
pub(crate) mod pinned_memory;
pub(crate) mod pointer;
pub(crate) mod range;
pub(crate) mod shared_memory;
