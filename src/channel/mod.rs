//! The device channel: rings that kernels put descriptors into, and their consumer.
//!
//! ```text
//! api           the Rust interface: a channel, its memory, its end
//! answer        answers of the proxy thread to user threads
//! proxy         the thread that executes descriptors
//! registration  the collective registration of symmetric memory
//! memory        memory shared with kernels
//! ring          a ring and the descriptors in it, as the C header describes them
//! kernels       the compiled kernels that test and measure the channel
//! ```

mod answer;
mod api;
#[cfg(test)]
mod device_header;
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
