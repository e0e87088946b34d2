//! Bytes that PEs exchange: messages, memory handles and connection records.

pub mod cookie;
pub mod handle;
pub mod handshake;
pub mod marks;
pub mod message;
pub mod seal;
