//! Jobs of a test program: this program once for each PE, as processes of their own.
//!
//! ```text
//! job      what is run: a scenario on a fabric, by so many PEs
//! meeting  how the PEs of a job find one another beside what is tested
//! process  another process of the job: whether it is there, and a stop
//! memory   memory of a PE: of the host, or of a device that the CPU cannot touch
//! ```

#![allow(missing_docs, reason = "names say what is not said here")]
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
