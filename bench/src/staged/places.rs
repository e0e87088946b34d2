//! The heap: a chunk on the device, and one of host memory behind it where the driver has such.

use nvshmem_sim::{BoxError, Host, SymAddr};

use super::case::{Case, Side};
use crate::area::Areas;

/// Bytes of a chunk: two areas, and the signal with room to spare. A power of two.
pub(crate) const CHUNK_BYTES: u64 = 4 * Case::LARGEST;

const _: () = assert!(CHUNK_BYTES.is_power_of_two());

/// What a side works on: the same places on every PE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) areas: Areas,
    /// The word that puts with signal set.
    pub(crate) signal: SymAddr,
}

impl Memory {
    fn alloc(host: &Host<'_>) -> Result<Self, BoxError> {
        // All of a chunk, so that the next one is another's.
        let from = host.alloc(CHUNK_BYTES, CHUNK_BYTES)?;
        let areas = Areas { from, to: from.plus(Case::LARGEST) };
        Ok(Self { areas, signal: from.plus(2 * Case::LARGEST) })
    }
}

/// The memory of both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    device: Memory,
    host: Option<Memory>,
}

impl Places {
    /// Collective. `with_host`: the heap has a second chunk, of host memory.
    pub(crate) fn alloc(host: &Host<'_>, with_host: bool) -> Result<Self, BoxError> {
        let device = Memory::alloc(host)?;
        let host = with_host.then(|| Memory::alloc(host)).transpose()?;
        Ok(Self { device, host })
    }

    /// That of a side that has symmetric memory.
    ///
    /// # Errors
    /// It has none in this job.
    pub(crate) fn of(&self, side: Side) -> Result<Memory, String> {
        match side {
            Side::Staged => Ok(self.device),
            Side::Host => self.host.ok_or_else(|| String::from("the heap has no host memory")),
            Side::CopyOut | Side::CopyIn => Err(format!("{} has no symmetric memory", side.name())),
        }
    }
}
