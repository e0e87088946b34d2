//! The kernels of `cuda/kernels`, compiled when the crate was, where there was a compiler for them.
//!
//! They test and measure the channel. Users compile their own kernels with the header
//! `cuda/nvshmem_libfabric_device.cuh`.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
