//! An entry of the producers' table of regions, which changes while they look addresses up.

use channel_sys as c;

use crate::channel::ring::sync::{AtomicU64, Ordering, fence};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownRegion {
    /// Its address on this PE.
    pub base: u64,
    /// Length in bytes, up to 2 to the 40. 0: there is no region.
    pub len: u64,
    /// True if peers have one of the same size.
    pub symmetric: bool,
}

impl ShownRegion {
    pub const NONE: Self = Self { base: 0, len: 0, symmetric: false };

    fn size(self) -> u64 {
        let symmetric = if self.symmetric { c::NLF_REGION_SYMMETRIC } else { 0 };
        self.len & c::NLF_REGION_LENGTH | symmetric
    }
}

/// The two words of an `nlf_region`, which one thread changes and any number of producers read.
///
/// Between two regions there is none, of the generation of the next. So a reader that finds the
/// same size before and after it has read the base has the base of that size.
#[derive(Clone, Copy, Debug)]
pub struct RegionEntry<'a> {
    pub base: &'a AtomicU64,
    pub size: &'a AtomicU64,
}

impl RegionEntry<'_> {
    /// Replaces a region, one thread at a time. `push` shows producers what is written by then.
    pub fn set<E>(
        &self,
        region: ShownRegion,
        mut push: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        let generation = (self.size.load(Ordering::Relaxed) >> c::NLF_REGION_GENERATION_SHIFT)
            .wrapping_add(1)
            << c::NLF_REGION_GENERATION_SHIFT;
        self.size.store(generation, Ordering::Relaxed);
        // A reader of the new base will find that the size has changed.
        fence(Ordering::Release);
        push()?;
        self.base.store(region.base, Ordering::Relaxed);
        push()?;
        self.size.store(generation | region.size(), Ordering::Release);
        push()
    }
}
