//! The launch of a job: its processes are started, their collectives done, and what became of them
//! reported.

mod coordinator;
pub(crate) mod launcher;
mod leftovers;
mod link;
pub(crate) mod remote;
pub(crate) mod report;
