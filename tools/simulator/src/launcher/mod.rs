//! The launcher: starts the processes of a job, does their collectives, and reports what became of them.

mod coordinator;
pub(crate) mod launch;
mod leftovers;
mod link;
mod pipe;
pub(crate) mod remote;
pub(crate) mod report;
