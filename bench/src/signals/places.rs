//! Where things are in the heap: the same on every PE.

use nvshmem_sim::{Host, Result, SymAddr};

use super::case::LARGEST;
use crate::area::Areas;

/// Most peers of PE 0.
const PEERS: u64 = 7;

/// Bytes of the areas that windows read and write: the largest window is 16 of the largest puts.
const AREA_BYTES: u64 = 16 * LARGEST;

/// Bytes of the heap, in one chunk, so that no operation is cut.
pub(crate) const HEAP_BYTES: u64 = 4 << 20;

const _: () = assert!(2 * AREA_BYTES + PEERS * LARGEST + (16 << 10) <= HEAP_BYTES);

/// Bytes of a word with room around it: no two share what a processor fetches at once.
const WORD: u64 = 128;

/// The places.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// What operations read and write.
    pub(crate) areas: Areas,
    /// Receive buffers of the raw side, one of [`LARGEST`] bytes for each peer.
    pub(crate) mail: SymAddr,
    words: SymAddr,
}

impl Places {
    /// Allocates them.
    pub(crate) fn alloc(host: &Host<'_>) -> Result<Self> {
        Ok(Self {
            areas: Areas { from: host.alloc(AREA_BYTES, 4096)?, to: host.alloc(AREA_BYTES, 4096)? },
            mail: host.alloc(PEERS * LARGEST, 4096)?,
            words: host.alloc((PEERS + 3) * WORD, 4096)?,
        })
    }

    /// The slot into which a PE's message of a ping-pong is put: at PE 0 one for each peer, at the
    /// peers the first.
    pub(crate) fn slot_from(self, pe: u32) -> SymAddr {
        self.areas.to.plus(u64::from(pe.saturating_sub(1)) * LARGEST)
    }

    /// The signal that follows it.
    pub(crate) fn signal_from(self, pe: u32) -> SymAddr {
        self.words.plus(u64::from(pe.saturating_sub(1)) * WORD)
    }

    /// Counts the signals of windows.
    pub(crate) fn counter(self) -> SymAddr {
        self.words.plus(PEERS * WORD)
    }

    /// What is fetched and added to.
    pub(crate) fn fetched(self) -> SymAddr {
        self.words.plus((PEERS + 1) * WORD)
    }

    /// Where PE 0 gets the old value, and the flag after it.
    pub(crate) fn result(self) -> SymAddr {
        self.words.plus((PEERS + 2) * WORD)
    }
}
