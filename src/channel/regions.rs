//! The registered regions of this PE, by the index that all PEs agree on.

use channel_sys as c;

use crate::channel::error::ChannelError;
use crate::channel::memory::SharedBlock;
use crate::channel::registration::{Free, lowest};
use engine::wire::handle::HandleBytes;

/// A region that kernels use.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) index: u8,
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) symmetric: bool,
    pub(crate) handle: HandleBytes,
    pub(crate) unwanted: bool,
    _memory: Option<Box<dyn SharedBlock>>,
}

impl Registered {
    /// A region that has no index yet.
    pub(crate) fn new(
        (base, len): (usize, usize),
        symmetric: bool,
        handle: HandleBytes,
        memory: Option<Box<dyn SharedBlock>>,
    ) -> Self {
        Self { index: 0, base, len, symmetric, handle, unwanted: false, _memory: memory }
    }
}

/// Of eight indices, those withheld from symmetric memory while there are others.
const WITHHELD: u8 = 0b1000_1000;

#[derive(Debug, Default)]
pub(crate) struct Regions {
    pub(crate) all: Vec<Registered>,
    /// Indices offered for symmetric memory in a registration under way: local memory gets none.
    offered: Free,
}

impl Regions {
    /// Returns the index of the region at an address that is released next, the one whose release
    /// was tried before or else the latest, and whether that is collective.
    pub(crate) fn latest(&self, base: usize) -> Option<(u8, bool)> {
        let mut there = self.all.iter().rev().filter(|region| region.base == base);
        let last = there.clone().next();
        let region = there.find(|region| region.unwanted).or(last)?;
        Some((region.index, region.symmetric && !region.unwanted))
    }

    pub(crate) fn remove(&mut self, index: u8) -> Option<Registered> {
        let at = self.all.iter().position(|region| region.index == index)?;
        Some(self.all.remove(at))
    }

    /// Begins an offer of free indices to the other PEs.
    pub(crate) fn offer(&mut self) -> Free {
        let free = self.free();
        self.offered = free.map(|bits| bits & !WITHHELD);
        if self.offered == Free::default() {
            self.offered = free;
        }
        self.offered
    }

    pub(crate) fn end_offer(&mut self) {
        self.offered = Free::default();
    }

    pub(crate) fn local_index(&self) -> Option<u8> {
        let mut free = self.free();
        free.iter_mut().zip(self.offered).for_each(|(bits, offered)| *bits &= !offered);
        lowest(&free)
    }

    fn free(&self) -> Free {
        let mut free: Free = [0xff; size_of::<Free>()];
        let not_theirs = [c::NLF_OWN_REGION as u8, c::NLF_NO_REGION as u8];
        for index in self.all.iter().map(|region| region.index).chain(not_theirs) {
            free[usize::from(index / 8)] &= !(1 << (index % 8));
        }
        free
    }

    /// Returns how many entries of their table kernels look at.
    pub(crate) fn entries(&self) -> u32 {
        self.all.iter().map(|region| u32::from(region.index) + 1).max().unwrap_or(0)
    }
}

pub(crate) fn own() -> Free {
    let mut free: Free = [0; size_of::<Free>()];
    free[c::NLF_OWN_REGION as usize / 8] = 1 << (c::NLF_OWN_REGION % 8);
    free
}

pub(crate) fn check_len(addr: usize, len: usize) -> Result<(), ChannelError> {
    if len as u64 > c::NLF_MAX_OFFSET + 1 {
        let why = format!("a region has at most {} bytes", c::NLF_MAX_OFFSET + 1);
        return Err(ChannelError::Register { addr, len, why });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::wire::handle::HANDLE_BYTES;

    fn region(index: u8, base: usize) -> Registered {
        let registered = Registered::new((base, 64), false, [0; HANDLE_BYTES], None);
        Registered { index, ..registered }
    }

    fn regions(indices: impl IntoIterator<Item = u8>) -> Regions {
        let all = indices.into_iter().map(|index| region(index, 0)).collect();
        Regions { all, ..Regions::default() }
    }

    #[test]
    fn release_takes_latest_region() {
        let all = [8, 16, 8, 24].into_iter().zip(0..).map(|(base, index)| region(index, base));
        let mut regions = Regions { all: all.collect(), ..Regions::default() };
        regions.all[3].symmetric = true;
        assert_eq!(regions.latest(8), Some((2, false)));
        regions.all[0].unwanted = true;
        assert_eq!(regions.latest(8), Some((0, false)));
        assert_eq!((regions.latest(24), regions.latest(32)), (Some((3, true)), None));
        regions.all[3].unwanted = true;
        assert_eq!(regions.latest(24), Some((3, false)));
    }

    #[test]
    fn own_region_index_is_reserved() {
        let count = |free: Free| free.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let own = lowest(&own()).unwrap();
        assert_eq!((u32::from(own), count(super::own())), (c::NLF_OWN_REGION, 1));
        let theirs = regions([]).free();
        assert_eq!(count(theirs), c::NLF_MAX_REGIONS);
        assert_eq!(theirs[usize::from(own / 8)] & 1 << (own % 8), 0);
    }

    /// Local memory gets no index that is offered to other PEs, but others.
    #[test]
    fn offered_indices_are_not_given_away() {
        let mut regions = regions(0..3);
        let offered = regions.offer();
        let mut given = Vec::new();
        while let Some(index) = regions.local_index() {
            assert_eq!(offered[usize::from(index / 8)] >> (index % 8) & 1, 0, "{index}");
            regions.all.push(region(index, 0));
            given.push(index);
        }
        assert_eq!((given.len(), given[0], given[62]), (63, 3, 251));
        regions.end_offer();
        assert_eq!((lowest(&offered), regions.local_index()), (Some(4), Some(4)));
    }

    #[test]
    fn region_length_is_bounded() {
        let most = c::NLF_MAX_OFFSET as usize + 1;
        assert!(check_len(0x1000, most).is_ok() && check_len(0x1000, 1).is_ok());
        for len in [most + 1, 2 * most] {
            let refused = check_len(0x1000, len).unwrap_err().to_string();
            assert!(refused.contains(&format!("at most {most} bytes")), "{refused}");
        }
    }
}
