//! State of a lane: what it knows of segments, streams, rails and memory. Plain data with the rules that
//! keep it whole; nothing here posts, and nothing knows of a lane.

pub mod audit;
pub mod batch;
pub(in crate::engine) mod counts;
pub mod discrepancy;
pub(in crate::engine) mod fabric_atomics;
pub(in crate::engine) mod fair_queue;
pub(in crate::engine) mod messages;
pub(in crate::engine) mod operation;
pub(in crate::engine) mod pe_map;
pub(in crate::engine) mod rail;
pub mod regions;
pub(in crate::engine) mod segment;
pub(in crate::engine) mod strays;
pub(in crate::engine) mod stream;
pub(in crate::engine) mod watch;
