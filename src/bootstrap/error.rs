//! Errors of bringing PEs together.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;

use engine::ids::MAX_PES;

/// An error of a bootstrap.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A PE number or a number of PEs that cannot be.
    #[error(
        "PE {me} of {n_pes}: PEs are numbered from 0, and there is at least one, and at most {MAX_PES}"
    )]
    Shape {
        /// The PE.
        me: u32,
        /// How many.
        n_pes: u32,
    },
    /// An address that is none.
    #[error("bootstrap address {text}: {why}; HOST:PORT is accepted")]
    Address {
        /// What was given.
        text: String,
        /// The resolver's reason.
        why: String,
    },
    /// PE 0 cannot listen.
    #[error("PE 0 cannot listen for the others at {at}: {error}")]
    Listen {
        /// Where.
        at: String,
        /// The system's reason.
        error: std::io::Error,
    },
    /// PE 0 did not answer in time.
    #[error("PE {me} could not connect to PE 0 at {at} within {waited:?}: {error}")]
    Connect {
        /// This PE.
        me: u32,
        /// Where PE 0 was expected.
        at: String,
        /// How long it was tried.
        waited: Duration,
        /// The last reason.
        error: std::io::Error,
    },
    /// Some PEs did not come in time.
    #[error("PE 0 has waited {waited:?} for the others at {at}: missing {missing}")]
    Missing {
        /// Where PE 0 listens.
        at: SocketAddr,
        /// How long it has waited.
        waited: Duration,
        /// Those that did not come.
        missing: String,
    },
    /// A PE has ended before all have come.
    #[error("PE {pe} has gone before all PEs had come: nothing listens where it did")]
    Gone {
        /// The PE.
        pe: u32,
    },
    /// PE 0 does not want this PE.
    #[error("PE 0 at {at} refused PE {me}: {why}")]
    Refused {
        /// Where PE 0 is.
        at: SocketAddr,
        /// This PE.
        me: u32,
        /// PE 0's reason.
        why: String,
    },
    /// What answers is no PE of this version, or of no such job.
    #[error("what answers at {at} is no PE 0 of this library: {why}")]
    Protocol {
        /// Where.
        at: SocketAddr,
        /// What is wrong.
        why: String,
    },
    /// A PE has gone, or is too late.
    #[error("{call} with PE {pe}: {error}")]
    Lost {
        /// What was done.
        call: &'static str,
        /// The PE.
        pe: u32,
        /// The system's reason.
        error: std::io::Error,
    },
    /// PEs do different things.
    #[error("{call}: PE {pe} {why}; every PE makes the same calls in the same order")]
    Mismatch {
        /// What was done.
        call: &'static str,
        /// The PE.
        pe: u32,
        /// What it does instead.
        why: String,
    },
    /// The user's allgather failed.
    #[error("the allgather that was given failed with status {status}")]
    Callback {
        /// What it returned.
        status: i32,
    },
}
