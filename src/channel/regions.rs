//! Regions that kernels use: what this PE has registered under an index that all PEs agree on.

use channel_sys as c;

use crate::channel::error::ChannelError;
use crate::channel::memory::symmetric_memory::SymmetricMemory;
use crate::channel::registration::Free;
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
    _memory: Option<SymmetricMemory>,
}

impl Registered {
    pub(crate) fn new(
        index: u8,
        (base, len): (usize, usize),
        symmetric: bool,
        handle: HandleBytes,
        memory: Option<SymmetricMemory>,
    ) -> Self {
        Self { index, base, len, symmetric, handle, unwanted: false, _memory: memory }
    }
}

/// Returns which of the regions that begin at an address is released next: one whose release was
/// tried before, or the one that was registered last.
pub(crate) fn latest(regions: &[Registered], base: usize) -> Option<usize> {
    let mut there = regions.iter().enumerate().rev().filter(|(_, region)| region.base == base);
    let last = there.clone().next();
    there.find(|(_, region)| region.unwanted).or(last).map(|(at, _)| at)
}

pub(crate) fn free(regions: &[Registered]) -> Free {
    let mut free: Free = [0xff; size_of::<Free>()];
    let not_theirs = [c::NLF_OWN_REGION as u8, c::NLF_NO_REGION as u8];
    for index in regions.iter().map(|region| region.index).chain(not_theirs) {
        free[usize::from(index / 8)] &= !(1 << (index % 8));
    }
    free
}

pub(crate) fn own() -> Free {
    let mut free: Free = [0; size_of::<Free>()];
    free[c::NLF_OWN_REGION as usize / 8] = 1 << (c::NLF_OWN_REGION % 8);
    free
}

pub(crate) fn entries(regions: &[Registered]) -> u32 {
    regions.iter().map(|region| u32::from(region.index) + 1).max().unwrap_or(0)
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
    use crate::channel::registration::lowest;
    use engine::wire::handle::HANDLE_BYTES;

    #[test]
    fn latest_region_of_an_address_is_released() {
        let region = |base| Registered::new(0, (base, 64), false, [0; HANDLE_BYTES], None);
        let mut regions = vec![region(8), region(16), region(8), region(24)];
        assert_eq!(latest(&regions, 8), Some(2));
        regions[0].unwanted = true;
        assert_eq!(latest(&regions, 8), Some(0));
        assert_eq!((latest(&regions, 24), latest(&regions, 32)), (Some(3), None));
    }

    #[test]
    fn the_library_has_an_index_that_no_program_gets() {
        let count = |free: Free| free.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let own = lowest(&own()).unwrap();
        assert_eq!((u32::from(own), count(super::own())), (c::NLF_OWN_REGION, 1));
        let theirs = free(&[]);
        assert_eq!(count(theirs), c::NLF_MAX_REGIONS);
        assert_eq!(theirs[usize::from(own / 8)] & 1 << (own % 8), 0);
    }

    #[test]
    fn what_is_in_use_is_not_free_and_kernels_look_as_far_as_the_last() {
        let of = |indices: &[u8]| -> Vec<Registered> {
            let one = |index| Registered::new(index, (0, 8), true, [0; HANDLE_BYTES], None);
            indices.iter().copied().map(one).collect()
        };
        for (used, next, count) in [
            (&[][..], Some(0), 0),
            (&[0], Some(1), 1),
            (&[1, 9, 0], Some(2), 10),
            (&[253, 2], Some(0), 254),
        ] {
            let regions = of(used);
            assert_eq!((lowest(&free(&regions)), entries(&regions)), (next, count), "{used:?}");
        }
        let all: Vec<u8> = (0..254).collect();
        for left in [0, 7, 8, 17, 253] {
            let others: Vec<u8> = all.iter().copied().filter(|index| *index != left).collect();
            assert_eq!(lowest(&free(&of(&others))), Some(left));
        }
        assert_eq!(lowest(&free(&of(&all))), None);
    }

    #[test]
    fn a_region_is_as_long_as_its_offsets_reach() {
        let most = c::NLF_MAX_OFFSET as usize + 1;
        assert!(check_len(0x1000, most).is_ok() && check_len(0x1000, 1).is_ok());
        for len in [most + 1, 2 * most] {
            let refused = check_len(0x1000, len).unwrap_err().to_string();
            assert!(refused.contains(&format!("at most {most} bytes")), "{refused}");
        }
    }
}
