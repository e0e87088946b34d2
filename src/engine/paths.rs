//! How a lane reaches its peers: for each peer and local rail, the remote rail and its address.

use super::ids::{Pe, RailId};
use super::port::PeerAddr;

/// The far end of a local rail towards one peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// The address of the remote rail, in the local rail's address table.
    pub to: PeerAddr,
    /// The remote rail; it selects the key in the peer's memory handle.
    pub remote: RailId,
}

/// The paths of a lane: one per peer and local rail.
#[derive(Debug)]
pub struct PathTable {
    paths: Box<[Path]>,
    rails: usize,
}

impl PathTable {
    /// `paths` holds, for each PE in turn, one path per local rail.
    ///
    /// # Panics
    /// If `paths` is not a multiple of `rails`, or `rails` is 0.
    pub fn new(paths: Vec<Path>, rails: usize) -> Self {
        assert!(rails > 0 && paths.len() % rails == 0, "one path per PE and rail");
        Self { paths: paths.into_boxed_slice(), rails }
    }

    /// PEs in the table.
    pub fn n_pes(&self) -> u32 {
        (self.paths.len() / self.rails) as u32
    }

    /// The path of a local rail to a PE, if both exist.
    #[inline(always)]
    pub(super) fn find(&self, pe: Pe, rail: RailId) -> Option<Path> {
        self.paths.get(pe.index() * self.rails + rail.index()).copied()
    }

    /// The path of a local rail to a PE that is in the job.
    #[inline]
    pub(super) fn get(&self, pe: Pe, rail: RailId) -> Path {
        self.paths[pe.index() * self.rails + rail.index()]
    }
}
