//! Collectives: what brings the PEs of a job together before they can communicate.

use crate::job::error::JobError;
use engine::ids::Pe;

/// This PE's place in its job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) n_pes: u32,
    pub(crate) me: Pe,
    pub(crate) here: u32,
}

/// Collective calls, by all PEs in the same order, each from one thread.
pub(crate) trait Collectives {
    /// This PE's place.
    ///
    /// # Errors
    /// It is none that a PE can have.
    fn shape(&self) -> Result<Shape, JobError>;

    /// Gives every PE's contribution, in PE order. All PEs contribute equally many bytes.
    ///
    /// # Errors
    /// The reason, in words that name what brings the PEs together.
    fn allgather(&self, mine: &[u8]) -> Result<Vec<u8>, JobError>;
}
