//! Errors of bringing PEs together.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use engine::ids::MAX_PES;

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BootstrapError {
    #[error(
        "PE {me} of {n_pes}: PEs are numbered from 0, and there is at least one, and at most {MAX_PES}"
    )]
    Shape { me: u32, n_pes: u32 },
    #[error("bootstrap address {text}: {why}; HOST:PORT is accepted")]
    Address { text: String, why: String },
    #[error("PE 0 cannot listen for the others at {at}: {error}")]
    Listen { at: String, error: std::io::Error },
    #[error("PE {me} could not connect to PE 0 at {at} within {waited:?}: {error}")]
    Connect { me: u32, at: String, waited: Duration, error: std::io::Error },
    #[error("PE 0 has waited {waited:?} for the others at {at}: missing {missing}")]
    Missing { at: SocketAddr, waited: Duration, missing: String },
    #[error("PE {pe} has gone before all PEs had come: nothing listens where it did")]
    Gone { pe: u32 },
    #[error("PE 0 at {at} refused PE {me}: {why}")]
    Refused { at: SocketAddr, me: u32, why: String },
    #[error("what answers at {at} is no PE 0 of this library: {why}")]
    Protocol { at: SocketAddr, why: String },
    #[error("{call} with PE {pe}: {error}")]
    Lost { call: &'static str, pe: u32, error: std::io::Error },
    #[error("{call}: PE {pe} {why}; every PE makes the same calls in the same order")]
    Mismatch { call: &'static str, pe: u32, why: String },
    #[error("the allgather that was given failed with status {status}")]
    Callback { status: i32 },
}
