//! Handles are numbers, not pointers, so one that was released or never given out is detected.

use std::ffi::c_void;

use super::error::NcclError;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::registration::{Contribution, exchange};
use engine::wire::handle::{HANDLE_BYTES, HandleBytes};

/// Bits of a handle for the index of its entry. The others count the entry's uses, so that released
/// handles are detected. 48 bits in all: NCCL keeps 63 bits of a handle.
const INDEX_BITS: u32 = 24;

#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: usize,
    pub(super) len: usize,
    pub(super) handle: HandleBytes,
    peers: Box<[Contribution]>,
}

impl Region {
    #[inline]
    pub(super) fn local(
        &self,
        what: &'static str,
        offset: u64,
        bytes: u64,
    ) -> Result<usize, NcclError> {
        let len = self.len as u64;
        if offset > len || bytes > len - offset {
            return Err(NcclError::OutOfBounds { what, offset, bytes, len });
        }
        Ok(self.base + offset as usize)
    }

    #[inline]
    pub(super) fn remote(
        &self,
        what: &'static str,
        rank: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<(u64, &HandleBytes), NcclError> {
        let Some(peer) = self.peers.get(rank as usize) else {
            return Err(NcclError::NoRank { rank, ranks: self.peers.len() as u32 });
        };
        if offset > peer.len || bytes > peer.len - offset {
            let len = peer.len;
            return Err(NcclError::OutOfBounds { what, offset, bytes, len });
        }
        Ok((peer.base + offset, &peer.handle))
    }
}

/// Registers memory at all ranks, with no more than `rails` rails each. Collective.
pub(super) fn agree(
    bootstrap: &mut dyn Bootstrap,
    rails: usize,
    (base, len): (usize, usize),
    registered: &Result<HandleBytes, NcclError>,
) -> Result<Region, NcclError> {
    let mine = registered.as_ref().map_err(ToString::to_string);
    let refused = |rank: usize, why: String| NcclError::Peer { len, rank, why };
    let peers = exchange(bootstrap, rails, mine, &[], refused)?;
    let handle = *registered.as_ref().unwrap_or(&[0; HANDLE_BYTES]);
    Ok(Region { base, len, handle, peers: peers.into() })
}

#[derive(Debug, Default)]
pub(super) struct Regions {
    entries: Vec<HandleEntry>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct HandleEntry {
    uses: u32,
    region: Option<Box<Region>>,
}

impl Regions {
    pub(super) fn add(&mut self, region: Region) -> *mut c_void {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(HandleEntry::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        // 24 bits, never 0: a handle repeats after as many uses.
        entry.uses = (entry.uses + 1) & ((1 << 24) - 1);
        entry.uses = entry.uses.max(1);
        entry.region = Some(Box::new(region));
        let handle = u64::from(entry.uses) << INDEX_BITS | u64::from(index);
        std::ptr::without_provenance_mut(handle as usize)
    }

    #[inline]
    fn index_of(&self, handle: *mut c_void) -> Option<usize> {
        let handle = handle.addr() as u64;
        let index = (handle & ((1 << INDEX_BITS) - 1)) as usize;
        let entry = self.entries.get(index)?;
        (u64::from(entry.uses) == handle >> INDEX_BITS).then_some(index)
    }

    #[inline]
    pub(super) fn get(
        &self,
        what: &'static str,
        handle: *mut c_void,
    ) -> Result<&Region, NcclError> {
        let region = self.index_of(handle).and_then(|index| self.entries[index].region.as_deref());
        region.ok_or_else(|| NcclError::NoMemory { what, handle: handle.addr() })
    }

    pub(super) fn remove(&mut self, handle: *mut c_void) -> Result<Box<Region>, NcclError> {
        let gone = || NcclError::NoMemory { what: "memory", handle: handle.addr() };
        let index = self.index_of(handle).ok_or_else(gone)?;
        let region = self.entries[index].region.take().ok_or_else(gone)?;
        self.free.push(index as u32);
        Ok(region)
    }
}
