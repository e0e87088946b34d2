//! The rail laboratory: several hosts with several rails on one machine.
//!
//! Hosts are network namespaces, rails are virtual Ethernet shaped to a rate, and the PEs on them
//! are real processes that load the plugin. So bandwidth over several rails, slow rails and rails
//! that fail are what they are between machines, at rates that two cores can carry. It takes root
//! (or `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`) and iproute2; [`possible`] says what is not there.
//!
//! What is done on them is data: an [`Experiment`] is a file of `tests/lab`.

mod error;
mod experiment;
mod figure;
mod namespace;
mod network;
mod rate;
mod raw;
mod run;
mod workload;

pub use error::LabError;
pub use experiment::{Event, Experiment, Figure, Measure, Run, StreamOp, Workload};
pub use namespace::Namespace;
pub use network::{Carried, Change, End, Link, Network};
pub use rate::Rate;
pub use raw::tcp;
pub use run::{Ran, Subject, load};
pub use workload::pe;
pub use workload::storm::{Step, Storm, Stormed};
pub use workload::tally::{FIRST, WRONG};

/// The name of [`pe()`] among the scenarios of [`nvshmem_sim::pe_entry`].
pub const SCENARIO: &str = "lab";

/// Whether a lab can be made here; found by making one.
///
/// # Errors
/// Why not.
pub fn possible() -> Result<(), String> {
    let made = Network::new(3, &["100mbit".parse()?]);
    made.map(drop).map_err(|error| format!("there can be no lab here: {error}"))
}
