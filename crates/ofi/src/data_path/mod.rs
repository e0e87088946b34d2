//! The data path of a lane: rails, the port that posts to them and polls them, and their messages.
//!
//! All of it belongs to one thread at a time, allocates nothing once it is open, and waits for
//! nothing: what the provider has no room for is refused, and the engine comes again.

pub(crate) mod bulk;
pub(crate) mod host_memory;
mod message_buffers;
mod messages;
pub(crate) mod port;
pub(crate) mod rail;
