//! Bytes that PEs exchange: messages, memory handles and connection records.

pub mod cookie;
pub(crate) mod decode;
pub(crate) mod encode;
pub mod handle;
pub mod handshake;
pub mod immediate;
pub mod message;
pub mod probe;
pub mod seal;
pub mod staging;
