//! The device channel: rings that kernels put descriptors into, and their consumer.

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
