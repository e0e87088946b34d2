//! The launch of a job: its PEs are started, their collectives done, and what became of them
//! reported.

mod collective;
pub(crate) mod job;
pub(crate) mod report;

pub use job::{Remote, Told};
