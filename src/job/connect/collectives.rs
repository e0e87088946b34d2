//! Collectives by which the PEs of a job connect.

use crate::job::error::JobError;
use engine::ids::Pe;

/// This PE's place in its job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) n_pes: u32,
    pub(crate) me: Pe,
    /// The most PEs that may be on this host, this one included.
    pub(crate) here: u32,
}

/// Collective calls, by all PEs in the same order, each from one thread.
pub(crate) trait Collectives {
    /// Returns this PE's place.
    ///
    /// # Errors
    /// An impossible place.
    fn shape(&self) -> Result<Shape, JobError>;

    /// Returns every PE's contribution, in PE order. All PEs contribute equally many bytes.
    ///
    /// # Errors
    /// The reason, which names the means of connecting.
    fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, JobError>;
}
