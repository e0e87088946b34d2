//! Bytes that PEs exchange: messages, memory handles, and what they tell one another when they
//! connect.

pub mod cookie;
pub mod format;
pub mod handle;
pub mod handshake;
pub mod marks;
pub mod message;
pub mod rails;
pub mod seal;
pub mod staged;
pub mod window;
