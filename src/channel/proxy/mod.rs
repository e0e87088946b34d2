//! The proxy thread of a channel: from rings to the engine's operations, and back what is done.
//!
//! Only this thread takes from the rings and uses the proxy lane.

pub(crate) mod consumer;
pub(crate) mod dispatch;
pub(crate) mod region_table;
pub(crate) mod thread;
