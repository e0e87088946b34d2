//! The proxy thread of a channel: descriptors out of the rings, operations into the engine, and back what is
//! done.
//!
//! Only this thread takes from the rings and uses the proxy lane.

pub(in crate::channel) mod affinity;
pub(in crate::channel) mod consumer;
pub(in crate::channel) mod dispatch;
pub(in crate::channel) mod idle;
pub(in crate::channel) mod region_table;
pub(in crate::channel) mod thread;
