//! The device channel: rings that kernels put descriptors into, and what takes them out.
//!
//! ```text
//! context     the Rust interface: a channel, its memory, its end
//! proxy       the thread that does the work; taker: from rings to the engine, and back what is done
//! dispatch    one descriptor; table: the regions that it names
//! bootstrap   brings PEs together, over TCP or by the user's allgather
//! shared      the memory that kernels are given; near, memory: where it is
//! layout      the shared memory is that of include/nvshmem_libfabric_ring.h
//! slot        slots and counters as atomics
//! descriptor  what a kernel asks for; encoding: the words of it
//! ring        the consumer's end of a ring
//! kernels     the compiled kernels that check and measure it
//! ```

mod affinity;
pub mod bootstrap;
mod collectives;
mod context;
pub mod descriptor;
mod dispatch;
pub mod encoding;
mod error;
mod idle;
pub mod kernels;
mod layout;
#[doc(hidden)]
pub mod measure;
mod memory;
mod near;
mod offer;
mod options;
mod proxy;
pub mod ring;
mod shared;
pub mod slot;
mod sync;
mod table;
mod taker;

pub use channel_sys as sys;
pub use context::Channel;
pub use error::ChannelError;
pub use options::Options;
