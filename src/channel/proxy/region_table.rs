//! The proxy thread's table of a channel's regions, by the index that descriptors carry.

use channel_sys as c;

use crate::channel::ring::descriptor::RegionAddr;
use engine::ids::Pe;
use engine::wire::handle::HandleBytes;

/// Entries of the table. An index has eight bits, so it needs no check.
const MAX_REGIONS: usize = 256;

#[derive(Clone, Debug)]
pub(crate) struct PeerRegion {
    pub(crate) base: u64,
    pub(crate) handle: HandleBytes,
}

/// A region of this PE, and those of the peers under the same index.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) base: usize,
    pub(crate) len: u64,
    /// By PE; empty for local memory.
    pub(crate) peers: Box<[PeerRegion]>,
}

/// An address that a region does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AddressFault {
    /// `NLF_ERROR_*`.
    pub(crate) code: u32,
    /// The address on this PE, or the offset if there is no such region.
    pub(crate) addr: u64,
}

#[derive(Debug)]
pub(crate) struct Regions {
    regions: Box<[Option<Box<Region>>; MAX_REGIONS]>,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self { regions: Box::new([const { None }; MAX_REGIONS]) }
    }

    pub(crate) fn set(&mut self, index: u8, region: Option<Box<Region>>) {
        self.regions[usize::from(index)] = region;
    }

    #[inline(always)]
    fn around(&self, at: RegionAddr, bytes: u64) -> Result<&Region, AddressFault> {
        match self.regions.get(at.region().index()) {
            // An offset is below 2 to the 40, a length below 2 to the 32.
            Some(Some(region)) if at.offset() + bytes <= region.len => Ok(region),
            _ => Err(self.outside(at)),
        }
    }

    #[cold]
    fn outside(&self, at: RegionAddr) -> AddressFault {
        let base = match self.regions.get(at.region().index()) {
            Some(Some(region)) => region.base as u64,
            _ => 0,
        };
        AddressFault { code: c::NLF_ERROR_ADDRESS, addr: base + at.offset() }
    }

    #[inline(always)]
    pub(crate) fn local(&self, at: RegionAddr, bytes: u64) -> Result<usize, AddressFault> {
        let region = self.around(at, bytes)?;
        Ok(region.base + at.offset() as usize)
    }

    #[inline(always)]
    pub(crate) fn remote(
        &self,
        at: RegionAddr,
        bytes: u64,
        pe: Pe,
    ) -> Result<(u64, &HandleBytes), AddressFault> {
        let region = self.around(at, bytes)?;
        match region.peers.get(pe.index()) {
            Some(peer) => Ok((peer.base + at.offset(), &peer.handle)),
            None => Err(no_peer(region, at)),
        }
    }

    pub(crate) fn peer(&self, index: u8, pe: Pe) -> Option<&PeerRegion> {
        self.regions[usize::from(index)].as_ref()?.peers.get(pe.index())
    }

    /// [`Regions::remote`] of an aligned word.
    #[inline(always)]
    pub(crate) fn word(
        &self,
        at: RegionAddr,
        width: usize,
        pe: Pe,
    ) -> Result<(u64, &HandleBytes), AddressFault> {
        let (addr, handle) = self.remote(at, width as u64, pe)?;
        if addr % width as u64 == 0 {
            Ok((addr, handle))
        } else {
            let addr = self.outside(at).addr;
            Err(AddressFault { code: c::NLF_ERROR_ALIGNMENT, addr })
        }
    }
}

/// The fault of a region without that PE: local memory has no peers.
#[cold]
fn no_peer(region: &Region, at: RegionAddr) -> AddressFault {
    let code = if region.peers.is_empty() { c::NLF_ERROR_ADDRESS } else { c::NLF_ERROR_PE };
    AddressFault { code, addr: region.base as u64 + at.offset() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::device_header::region_addr;

    fn refused<T>(result: Result<T, AddressFault>) -> AddressFault {
        result.err().unwrap()
    }

    #[test]
    fn access_stays_within_its_region() {
        let handle = [0; 512];
        let at = |base| PeerRegion { base, handle };
        let peers = [at(0x9000), at(0x5004)].into();
        let mut regions = Regions::new();
        let region = Region { base: 0x1000, len: 100, peers };
        regions.set(3, Some(Box::new(region)));
        let local = Region { base: 0x2000, len: 8, peers: [].into() };
        regions.set(254, Some(Box::new(local)));

        assert_eq!(regions.local(region_addr(3, 40), 60).unwrap(), 0x1028);
        assert_eq!(regions.remote(region_addr(3, 40), 60, Pe(1)).unwrap().0, 0x502c);
        assert_eq!(regions.local(region_addr(254, 0), 8).unwrap(), 0x2000);
        let outside = |addr| AddressFault { code: c::NLF_ERROR_ADDRESS, addr };
        assert_eq!(refused(regions.remote(region_addr(3, 40), 61, Pe(1))), outside(0x1028));
        assert_eq!(refused(regions.remote(region_addr(3, c::NLF_MAX_OFFSET), 1, Pe(0))).code, 2);
        assert_eq!(refused(regions.remote(region_addr(4, 0), 1, Pe(0))), outside(0));
        assert_eq!(refused(regions.remote(region_addr(254, 4), 4, Pe(0))), outside(0x2004));
        let lacks = AddressFault { code: c::NLF_ERROR_PE, addr: 0x1010 };
        assert_eq!(refused(regions.remote(region_addr(3, 16), 8, Pe(2))), lacks);
        assert!(regions.word(region_addr(3, 4), 8, Pe(1)).is_ok(), "aligned where it is");
        assert_eq!(refused(regions.word(region_addr(3, 8), 8, Pe(1))).code, c::NLF_ERROR_ALIGNMENT);
        regions.set(3, None);
        assert_eq!(refused(regions.remote(region_addr(3, 0), 1, Pe(0))), outside(0));
    }
}
