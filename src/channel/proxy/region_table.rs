//! The proxy thread's table of a channel's regions, by the index that descriptors carry.

use channel_sys as c;

use crate::channel::ring::descriptor::Place;
use engine::ids::Pe;
use engine::wire::handle::HandleBytes;

/// Places in the table. An index has eight bits, so it needs no check.
const PLACES: usize = 256;

/// Registration of one peer under a region's index.
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
    /// By PE; none of a region that only this PE has.
    pub(crate) peers: Box<[PeerRegion]>,
}

/// Fault of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Misplaced {
    /// `NLF_ERROR_*`.
    pub(crate) code: u32,
    /// The address here that the producer meant, or the offset where no region tells.
    pub(crate) addr: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Regions {
    places: Box<[Option<Box<Region>>; PLACES]>,
}

impl Regions {
    pub(crate) fn new() -> Self {
        Self { places: Box::new([const { None }; PLACES]) }
    }

    pub(crate) fn set(&mut self, index: u8, region: Option<Box<Region>>) {
        self.places[usize::from(index)] = region;
    }

    /// The region around so many bytes, if there is one.
    #[inline(always)]
    fn around(&self, place: Place, bytes: u64) -> Result<&Region, Misplaced> {
        match self.places.get(place.region().index()) {
            // An offset is below 2 to the 40, a length below 2 to the 32.
            Some(Some(region)) if place.offset() + bytes <= region.len => Ok(region),
            _ => Err(self.outside(place)),
        }
    }

    #[cold]
    fn outside(&self, place: Place) -> Misplaced {
        let base = match self.places.get(place.region().index()) {
            Some(Some(region)) => region.base as u64,
            _ => 0,
        };
        Misplaced { code: c::NLF_ERROR_ADDRESS, addr: base + place.offset() }
    }

    #[inline(always)]
    pub(crate) fn local(&self, place: Place, bytes: u64) -> Result<usize, Misplaced> {
        let region = self.around(place, bytes)?;
        Ok(region.base + place.offset() as usize)
    }

    #[inline(always)]
    pub(crate) fn remote(
        &self,
        place: Place,
        bytes: u64,
        pe: Pe,
    ) -> Result<(u64, &HandleBytes), Misplaced> {
        let region = self.around(place, bytes)?;
        match region.peers.get(pe.index()) {
            Some(peer) => Ok((peer.base + place.offset(), &peer.handle)),
            None => Err(no_peer(region, place)),
        }
    }

    pub(crate) fn peer(&self, index: u8, pe: Pe) -> Option<&PeerRegion> {
        self.places[usize::from(index)].as_ref()?.peers.get(pe.index())
    }

    /// A word of a peer, as [`Regions::remote`]. It is aligned there.
    #[inline(always)]
    pub(crate) fn word(
        &self,
        place: Place,
        width: usize,
        pe: Pe,
    ) -> Result<(u64, &HandleBytes), Misplaced> {
        let (addr, handle) = self.remote(place, width as u64, pe)?;
        if addr % width as u64 == 0 {
            Ok((addr, handle))
        } else {
            let addr = self.outside(place).addr;
            Err(Misplaced { code: c::NLF_ERROR_ALIGNMENT, addr })
        }
    }
}

/// A region that only this PE has has no peers; another one lacks the PE.
#[cold]
fn no_peer(region: &Region, place: Place) -> Misplaced {
    let code = if region.peers.is_empty() { c::NLF_ERROR_ADDRESS } else { c::NLF_ERROR_PE };
    Misplaced { code, addr: region.base as u64 + place.offset() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::ring::descriptor::RegionDirectory;

    fn refused<T>(result: Result<T, Misplaced>) -> Misplaced {
        result.err().unwrap()
    }

    fn place(region: u8, offset: u64) -> Place {
        Place::new(RegionDirectory::new(region).unwrap(), offset).unwrap()
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

        assert_eq!(regions.local(place(3, 40), 60).unwrap(), 0x1028);
        assert_eq!(regions.remote(place(3, 40), 60, Pe(1)).unwrap().0, 0x502c);
        assert_eq!(regions.local(place(254, 0), 8).unwrap(), 0x2000);
        let outside = |addr| Misplaced { code: c::NLF_ERROR_ADDRESS, addr };
        assert_eq!(refused(regions.remote(place(3, 40), 61, Pe(1))), outside(0x1028));
        assert_eq!(refused(regions.remote(place(3, c::NLF_MAX_OFFSET), 1, Pe(0))).code, 2);
        assert_eq!(refused(regions.remote(place(4, 0), 1, Pe(0))), outside(0));
        assert_eq!(refused(regions.remote(place(254, 4), 4, Pe(0))), outside(0x2004));
        let lacks = Misplaced { code: c::NLF_ERROR_PE, addr: 0x1010 };
        assert_eq!(refused(regions.remote(place(3, 16), 8, Pe(2))), lacks);
        assert!(regions.word(place(3, 4), 8, Pe(1)).is_ok(), "aligned where it is");
        assert_eq!(refused(regions.word(place(3, 8), 8, Pe(1))).code, c::NLF_ERROR_ALIGNMENT);
        regions.set(3, None);
        assert_eq!(refused(regions.remote(place(3, 0), 1, Pe(0))), outside(0));
    }
}
