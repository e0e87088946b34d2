//! The proxy thread of a channel: the only one that takes from the rings and uses the proxy lane.

pub(crate) mod consumer;
pub(crate) mod dispatch;
pub(crate) mod region_table;
pub(crate) mod thread;
