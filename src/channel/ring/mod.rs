//! A ring between producers and the proxy thread, and the descriptors in it.
//!
//! `include/nvshmem_libfabric_ring.h` is the contract: who writes which word, and when.

mod consumer_end;
pub mod descriptor;
pub mod encoding;
mod layout;
pub mod region_entry;
pub mod slot;
mod sync;

pub use consumer_end::{PublishedIn, Ring, RingMemory, RingSizeError, State, slots_log2};
