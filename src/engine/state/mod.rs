//! State of a lane: segments, streams, links, rails, paths, regions, counters.

pub mod batch;
pub mod counters;
pub(in crate::engine) mod counts;
pub(in crate::engine) mod link;
pub(in crate::engine) mod operation;
pub mod pairing;
pub mod paths;
pub(in crate::engine) mod rail;
pub mod regions;
pub(in crate::engine) mod segment;
pub(in crate::engine) mod stream;
