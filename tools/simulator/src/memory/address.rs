//! Names of places in memory. They are plain numbers: nothing is checked until they are used.

/// A place in the symmetric heap: the same on every PE, in each one's own heap.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
pub struct SymAddr(pub u64);

impl SymAddr {
    #[must_use]
    pub fn plus(self, bytes: u64) -> SymAddr {
        SymAddr(self.0 + bytes)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BufferId(pub(crate) u32);

impl BufferId {
    pub fn at(self, offset: u64) -> Place {
        Place { region: Region::Buffer(self), offset }
    }
}

/// A place in this PE's memory: in its heap or in one of its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    pub(crate) region: Region,
    pub(crate) offset: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Region {
    Heap,
    Buffer(BufferId),
}

impl Place {
    #[must_use]
    pub fn plus(self, bytes: u64) -> Place {
        Place { offset: self.offset + bytes, ..self }
    }
}

impl From<SymAddr> for Place {
    fn from(addr: SymAddr) -> Place {
        Place { region: Region::Heap, offset: addr.0 }
    }
}
