//! The device channel: rings that kernels put descriptors into, and what takes them out.
//!
//! ```text
//! layout      the shared memory is that of include/nvshmem_libfabric_ring.h
//! slot        slots and counters as atomics
//! descriptor  what a kernel asks for; encoding: the words of it
//! ring        the consumer's end of a ring
//! kernels     the compiled kernels that check and measure it
//! ```

pub mod descriptor;
pub mod encoding;
pub mod kernels;
mod layout;
pub mod ring;
pub mod slot;
mod sync;
