//! State of a lane: what it knows of segments, connections, rails and memory. Plain data with the
//! rules that keep it whole; nothing here posts, and nothing knows of a lane.

#[cfg(any(test, feature = "audit"))]
pub mod audit;
pub mod batch;
pub(crate) mod connection;
pub(crate) mod counts;
#[cfg(any(test, feature = "audit"))]
pub mod discrepancy;
pub(crate) mod fair_queue;
pub(crate) mod messages;
pub(crate) mod operation;
pub(crate) mod orphans;
pub(crate) mod pe_map;
pub(crate) mod rail;
pub mod regions;
pub(crate) mod segment;
pub(crate) mod watch;
