//! Identifiers. Each is a type of its own, so that a PE cannot be used as a rail.

use std::fmt;

/// A processing element: one process of the NVSHMEM job, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Pe(pub u32);

/// Most PEs of a job: messages name their sender with 16 bits.
pub const MAX_PES: u32 = 1 << 16;

impl Pe {
    /// The PE as an index into a table with one entry per PE.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Pe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PE {}", self.0)
    }
}

/// One rail of a lane: a domain with its endpoint, completion queue and address vector.
///
/// It indexes the rails of the lane it belongs to, in the order in which they were chosen at
/// start. A rail of this process and a rail of a peer are both named by a `RailId`, but the two
/// numbers are independent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RailId(pub u8);

impl RailId {
    /// The rail as an index into a table with one entry per rail.
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for RailId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rail {}", self.0)
    }
}

/// Names one segment between its posting and its completion. The lane chooses
/// it; the port hands it back unchanged.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WrId(pub u32);

impl WrId {
    /// The work-request id as an index into a table of segments.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which rails of the process a lane uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneKind {
    /// User threads: the host domain.
    Host,
    /// The proxy thread: one domain per NIC.
    Proxy,
}
