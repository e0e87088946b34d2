//! Windows: operations that are posted one after the other and then waited for together.

use std::fmt;

use nvshmem_sim::{BoxError, Host, SymAddr};

use super::slots::Slots;

/// Direction of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// To the peer.
    Put,
    /// From the peer.
    Get,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Put => "put",
            Direction::Get => "get",
        })
    }
}

/// A window: each operation has slots of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) direction: Direction,
    /// Read by them: of PE 0 for puts, of the peer for gets.
    pub(crate) from: Slots,
    /// Written by them.
    pub(crate) to: Slots,
}

/// Where a PE's operations read and write: the same places on every PE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Areas {
    /// Read by operations.
    pub(crate) from: SymAddr,
    /// Written by operations.
    pub(crate) to: SymAddr,
}

impl Areas {
    /// Allocates two areas of so many bytes.
    pub(crate) fn alloc(host: &Host<'_>, bytes: u64) -> Result<Self, BoxError> {
        Ok(Self { from: host.alloc(bytes, 4096)?, to: host.alloc(bytes, 4096)? })
    }

    /// A window of so many operations of so many bytes each.
    pub(crate) fn window(self, direction: Direction, bytes: u64, count: u64) -> Window {
        let slots = |at| Slots { at, bytes, count };
        Window { direction, from: slots(self.from), to: slots(self.to) }
    }
}
