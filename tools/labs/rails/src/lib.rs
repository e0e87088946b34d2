//! The rail laboratory: several hosts with several rails on one machine.
//!
//! Hosts are network namespaces, rails are virtual Ethernet shaped to a rate, and the PEs on them
//! are real processes that load the plugin. So bandwidth over several rails, slow rails and rails
//! that fail are what they are between machines, at rates that two cores can carry. It takes root
//! (or `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`) and iproute2; [`missing`] says what is not there.
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

/// Why no lab can be made here, if so; found by making one.
pub fn missing() -> Option<String> {
    let rate = "100mbit".parse().map_err(|why: String| LabError::text("a rate", why));
    rate.and_then(|rate| Network::new(3, &[rate])).err().map(|error| error.to_string())
}
