//! Identifiers. Each is a type of its own, so that a PE cannot be used as a rail.

use std::fmt;

/// A processing element: one process of the NVSHMEM job, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pe(pub u32);

/// Maximum number of PEs of a job: messages name their sender in 16 bits.
pub const MAX_PES: u32 = 1 << 16;

impl Pe {
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

/// A rail of a lane: its index in the order chosen at start. Rails of this process and of peers are
/// numbered independently.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RailId(pub u8);

impl RailId {
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

/// Work-request id of a segment, chosen by the lane and returned unchanged by the port.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WrId(pub u32);

impl WrId {
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Kind of lane, which decides the rails that it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaneKind {
    /// User threads: the host domain.
    Host,
    /// The proxy thread: one domain per NIC.
    Proxy,
}
