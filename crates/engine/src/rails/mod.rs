//! Rails and paths, as a lane counts on them: which leads where, which is next, and what each has
//! done.
//!
//! A *path* is a local rail towards a peer's rail. Nothing here knows of segments.

pub mod balance;
pub mod counters;
pub mod pairing;
pub mod paths;
mod spread;
