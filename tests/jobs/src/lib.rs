//! Jobs of a test program: this program once for each PE, as processes of their own.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod job;
mod meeting;
pub mod memory;
mod process;

pub use job::{FAILED, Job, Place, Scenario, is_pe, pe_entry, seed_that_runs, seeds_of_process};
pub use meeting::{Meeting, bootstrap};
pub use nvshmem_sim::Outcome;
pub use process::{Stopped, is_gone};
pub use test_support::fabric::Fabric;
