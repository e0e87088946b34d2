//! What can go wrong in the engine, in words a user can act on.

use thiserror::Error;

use super::ids::{Pe, RailId};
use super::port::PortError;

/// An error of the engine.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A PE outside the job.
    #[error("{pe} does not exist: this job has {n_pes} PEs")]
    NoSuchPe {
        /// The PE asked for.
        pe: Pe,
        /// Number of PEs in the job.
        n_pes: u32,
    },
    /// The fabric refused or failed a segment.
    #[error("{what} to {pe} on {rail} ({rail_name}): {error}")]
    Fabric {
        /// What was being done.
        what: &'static str,
        /// The peer.
        pe: Pe,
        /// The rail.
        rail: RailId,
        /// The rail's name.
        rail_name: String,
        /// What the fabric said.
        error: PortError,
    },
}
