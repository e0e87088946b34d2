//! The kernels of `cuda/kernels`, compiled when the crate was, where there was a compiler for them.
//!
//! They test and measure the channel. Users' kernels include `nvshmem_libfabric_device.cuh`.

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
