//! The C structures and constants of the device channel, as bindgen made them of
//! `include/nvshmem_libfabric_ring.h`, which documents them. Kernels have the same header. `make
//! bindings` makes them anew.
//!
//! Sizes and offsets are asserted here by bindgen, and in the header for C and C++.
#![allow(
    non_camel_case_types,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc
)]

include!("generated.rs");
