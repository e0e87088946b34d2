//! Memory as CUDA knows it: what an address is, and memory of our own.
//!
//! Whoever allocates or frees here may wait for everything on the device, so neither is done while
//! operations are under way.

pub(crate) mod device_memory;
pub(crate) mod dma_buf;
pub(crate) mod heap;
pub(crate) mod pinned;
pub(crate) mod pointer;
pub(crate) mod range;
pub(crate) mod shared_memory;
