//! The kernels of `cuda/kernels`, compiled when the crate was, where there was a compiler for them.
//!
//! They check and measure the channel. A user's kernels are the user's, compiled with the header
//! `cuda/nvshmem_libfabric_device.cuh`; nothing of these is needed for them.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
