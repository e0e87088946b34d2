//! The device channel: rings that kernels put descriptors into, and what takes them out.
//!
//! ```text
//! api           the Rust interface: a channel, its memory, its end
//! answer        what the proxy thread answers to user threads
//! proxy         the thread that carries descriptors out, and what it needs for that
//! registration  what PEs agree on when they register memory together
//! memory        what is shared with kernels, and where it is
//! ring          a ring and the descriptors in it, as the C header describes them
//! kernels       the compiled kernels that check and measure all this
//! ```

mod answer;
mod api;
mod error;
pub mod kernels;
mod memory;
mod options;
mod proxy;
mod regions;
mod registration;
pub mod ring;

pub use api::Channel;
pub use channel_sys as sys;
pub use error::ChannelError;
pub use memory::symmetric_memory::MemoryLocation;
pub use options::Options;
#[doc(hidden)]
pub use proxy::thread::ProxyView;
