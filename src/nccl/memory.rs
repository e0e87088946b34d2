//! Memory that a group has registered.
//!
//! NCCL is given numbers for handles, not pointers: a handle that was released, or never given out,
//! is told from others.

use std::ffi::c_void;

use super::error::NcclError;
use crate::bootstrap::Bootstrap;
use crate::bootstrap::registration::{Part, Unregistered, exchange};
use engine::wire::handle::{HANDLE_BYTES, HandleBytes};

/// Bits of a handle that say where it is kept. The others say how often that place was used, so
/// that those that were released are known. 48 bits in all: NCCL keeps 63 of them.
const INDEX_BITS: u32 = 24;

/// One region, on all ranks.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) base: usize,
    pub(super) len: usize,
    pub(super) handle: HandleBytes,
    peers: Box<[Part]>,
}

impl Region {
    /// The address of bytes of this rank's part.
    #[inline]
    pub(super) fn local(
        &self,
        what: &'static str,
        offset: u64,
        bytes: u64,
    ) -> Result<usize, NcclError> {
        let len = self.len as u64;
        if offset > len || bytes > len - offset {
            return Err(NcclError::out_of_bounds(what, offset, bytes, len));
        }
        Ok(self.base + offset as usize)
    }

    /// The address of bytes of another rank's part, and its handle.
    #[inline]
    pub(super) fn remote(
        &self,
        what: &'static str,
        rank: u32,
        offset: u64,
        bytes: u64,
    ) -> Result<(u64, &HandleBytes), NcclError> {
        let Some(peer) = self.peers.get(rank as usize) else {
            return Err(NcclError::no_rank(rank, self.peers.len()));
        };
        if offset > peer.len || bytes > peer.len - offset {
            return Err(NcclError::out_of_bounds(what, offset, bytes, peer.len));
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
    let peers = exchange(bootstrap, rails, mine, &[]).map_err(|failed| match failed {
        Unregistered::Bootstrap(failed) => failed.into(),
        Unregistered::Peer { pe: rank, why } => NcclError::Peer { len, rank, why },
    })?;
    let handle = *registered.as_ref().unwrap_or(&[0; HANDLE_BYTES]);
    Ok(Region { base, len, handle, peers: peers.into() })
}

/// The regions of a group, by handle.
#[derive(Debug, Default)]
pub(super) struct Regions {
    places: Vec<Place>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Place {
    uses: u32,
    region: Option<Box<Region>>,
}

impl Regions {
    pub(super) fn add(&mut self, region: Region) -> *mut c_void {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        // Never 0, and 24 bits of it: as many uses later a handle is one again.
        place.uses = (place.uses + 1) & ((1 << 24) - 1);
        place.uses = place.uses.max(1);
        place.region = Some(Box::new(region));
        let handle = u64::from(place.uses) << INDEX_BITS | u64::from(index);
        std::ptr::without_provenance_mut(handle as usize)
    }

    #[inline]
    fn place(&self, handle: *mut c_void) -> Option<usize> {
        let handle = handle.addr() as u64;
        let index = (handle & ((1 << INDEX_BITS) - 1)) as usize;
        let place = self.places.get(index)?;
        (u64::from(place.uses) == handle >> INDEX_BITS).then_some(index)
    }

    #[inline]
    pub(super) fn get(
        &self,
        what: &'static str,
        handle: *mut c_void,
    ) -> Result<&Region, NcclError> {
        let region = self.place(handle).and_then(|index| self.places[index].region.as_deref());
        region.ok_or_else(|| NcclError::no_memory(what, handle))
    }

    pub(super) fn remove(&mut self, handle: *mut c_void) -> Result<Box<Region>, NcclError> {
        let gone = || NcclError::no_memory("memory", handle);
        let index = self.place(handle).ok_or_else(gone)?;
        let region = self.places[index].region.take().ok_or_else(gone)?;
        self.free.push(index as u32);
        Ok(region)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region of 64 bytes here, and at two ranks of 32 and 96.
    fn region(base: usize) -> Region {
        let handle = [1; HANDLE_BYTES];
        let part = |len| Part { base: base as u64, len, handle, note: Vec::new() };
        Region { base, len: 64, handle, peers: [32, 96].map(part).into() }
    }

    #[test]
    fn handles_are_valid_until_release() {
        let mut regions = Regions::default();
        let handles = [100, 200, 300].map(|base| regions.add(region(base)));
        assert!(handles.iter().all(|handle| !handle.is_null()));
        assert_eq!(regions.remove(handles[1]).unwrap().base, 200);
        assert!(regions.get("it", handles[1]).is_err() && regions.remove(handles[1]).is_err());
        let again = regions.add(region(400));
        assert_ne!(again, handles[1], "its place is used again");
        let base = |handle| regions.get("it", handle).map(|region| region.base).ok();
        let all = [handles[0], handles[1], handles[2], again].map(base);
        assert_eq!(all, [Some(100), None, Some(300), Some(400)]);
        assert!(regions.get("it", std::ptr::null_mut()).is_err());
    }

    #[test]
    fn access_outside_region_is_refused() {
        let region = region(0x1000);
        assert_eq!(region.local("it", 60, 4).unwrap(), 0x103c);
        assert!(region.local("it", 60, 5).is_err() && region.local("it", u64::MAX, 2).is_err());
        for (rank, len) in [(0, 32), (1, 96)] {
            assert_eq!(region.remote("it", rank, len - 8, 8).unwrap().0, 0x1000 + len - 8);
            assert!(region.remote("it", rank, len - 8, 9).is_err(), "{len} bytes");
        }
        assert!(region.remote("it", 2, 0, 1).is_err());
    }
}
