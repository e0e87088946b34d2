//! Memory as CUDA knows it: what an address is, and memory of our own.
//!
//! Whoever allocates or frees here may wait for everything on the device, so neither is done while
//! operations are under way.

pub(in crate::cuda) mod device_memory;
pub(in crate::cuda) mod dma_buf;
pub(in crate::cuda) mod pinned;
pub(in crate::cuda) mod pointer;
pub(in crate::cuda) mod range;
pub(in crate::cuda) mod scratch;
