//! The data path of a lane: rails, the port that posts to them and polls them, and their messages.
//!
//! One thread at a time uses it. Once open it neither allocates nor waits: if the provider has no
//! capacity, an operation is refused, and the engine retries it.

pub(crate) mod bulk;
pub(crate) mod host_memory;
mod message_buffers;
mod messages;
pub(crate) mod port;
pub(crate) mod rail;
