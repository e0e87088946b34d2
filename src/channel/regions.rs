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
    /// All PEs want it released.
    pub(crate) unwanted: bool,
    /// If it was allocated here.
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

/// The indices that are not in use.
pub(crate) fn free(regions: &[Registered]) -> Free {
    let mut free: Free = [0xff; size_of::<Free>()];
    let not_theirs = [c::NLF_OWN_REGION as u8, c::NLF_NO_REGION as u8];
    for index in regions.iter().map(|region| region.index).chain(not_theirs) {
        free[usize::from(index / 8)] &= !(1 << (index % 8));
    }
    free
}

/// The index of the library's own memory alone, as one that is free.
pub(crate) fn own() -> Free {
    let mut free: Free = [0; size_of::<Free>()];
    free[c::NLF_OWN_REGION as usize / 8] = 1 << (c::NLF_OWN_REGION % 8);
    free
}

/// Entries of the table that kernels look at.
pub(crate) fn entries(regions: &[Registered]) -> u32 {
    regions.iter().map(|region| u32::from(region.index) + 1).max().unwrap_or(0)
}

/// Refuses what no descriptor could name.
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

    #[test]
    fn the_library_has_an_index_that_no_program_gets() {
        let count = |free: Free| free.iter().map(|bits| bits.count_ones()).sum::<u32>();
        let own = lowest(&own()).unwrap();
        assert_eq!((u32::from(own), count(super::own())), (c::NLF_OWN_REGION, 1));
        let theirs = free(&[]);
        assert_eq!(count(theirs), c::NLF_MAX_REGIONS);
        assert_eq!(theirs[usize::from(own / 8)] & 1 << (own % 8), 0);
    }
}
