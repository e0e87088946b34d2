//! The proxy thread of a channel: descriptors out of the rings, operations into the engine, and
//! back what is done.
//!
//! Only this thread takes from the rings and uses the proxy lane.

pub(crate) mod consumer;
pub(crate) mod dispatch;
pub(crate) mod region_table;
pub(crate) mod thread;
