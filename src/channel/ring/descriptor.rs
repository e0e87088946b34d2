//! Descriptors: one operation that a kernel asks for.

use std::fmt;

use channel_sys as c;
use thiserror::Error;

use crate::channel::ring::slot::Words;
use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;

/// A region of the context's table, by its index there. The same on all PEs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RegionIndex(u8);

impl RegionIndex {
    /// The region of an index. None for an index that no region can have.
    #[inline(always)]
    pub fn new(index: u8) -> Option<Self> {
        (u32::from(index) != c::NLF_NO_REGION).then_some(Self(index))
    }

    /// The region as an index into a table with one entry per region.
    #[inline(always)]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// An address in registered memory: a region and an offset. Its user checks the region's bounds.
///
/// The region's index in bits 47 to 40, the offset below, as in a slot; the rest is zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RegionAddr(u64);

impl RegionAddr {
    /// The bits of a word that hold it.
    pub(crate) const BITS: u64 = (1 << c::NLF_VALUE_SHIFT) - 1;

    /// Lowest value that means no address; every address is less.
    pub(crate) const NONE: u64 = (c::NLF_NO_REGION as u64) << c::NLF_REGION_SHIFT;

    /// The address `offset` bytes from the base of a region. None past `NLF_MAX_OFFSET`.
    #[inline]
    pub fn new(region: RegionIndex, offset: u64) -> Option<Self> {
        let index = u64::from(region.0) << c::NLF_REGION_SHIFT;
        (offset <= c::NLF_MAX_OFFSET).then_some(Self(index | offset))
    }

    /// The address in a word's low 48 bits. None if its region is `NLF_NO_REGION`.
    #[inline(always)]
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let addr = word & Self::BITS;
        (addr < Self::NONE).then_some(Self(addr))
    }

    /// The address of a word that is less than [`RegionAddr::NONE`].
    #[inline(always)]
    pub(crate) const fn of_word(word: u64) -> Self {
        debug_assert!(word < Self::NONE);
        Self(word)
    }

    /// The word's low 48 bits.
    #[inline(always)]
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub fn region(self) -> RegionIndex {
        RegionIndex((self.0 >> c::NLF_REGION_SHIFT) as u8)
    }

    #[inline(always)]
    pub fn offset(self) -> u64 {
        self.0 & c::NLF_OFFSET_MASK
    }
}

impl fmt::Debug for RegionAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} + {:#x}", self.region().index(), self.offset())
    }
}

/// One operation with PE `pe`: `dst` there, `src` and `fetch` here, lengths in bytes, not zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptor {
    /// `bytes` from `src` to `dst`.
    Put { pe: Pe, dst: RegionAddr, src: RegionAddr, bytes: u32 },
    /// A value of 1, 2, 4 or 8 bytes to `dst`.
    PutValue { pe: Pe, dst: RegionAddr, bytes: u32, value: u64 },
    /// As [`Descriptor::Put`], and then the word `signal` of 8 bytes at the peer changes by
    /// [`AtomicOp::SignalSet`] or [`AtomicOp::SignalAdd`].
    PutSignal {
        pe: Pe,
        dst: RegionAddr,
        src: RegionAddr,
        bytes: u32,
        signal: RegionAddr,
        op: AtomicOp,
        value: u64,
    },
    /// `bytes` from `dst` to `src`.
    Get { pe: Pe, dst: RegionAddr, src: RegionAddr, bytes: u32 },
    /// Completes when all earlier operations of the ring to the peer are delivered.
    Quiet { pe: Pe },
    /// The word `dst` of [`Width::Four`] or [`Width::Eight`] changes or is read, by
    /// [`AtomicOp::Set`] to [`AtomicOp::Xor`], or by one that fetches: then the word from before
    /// comes to `fetch`. Both operands are of that width; [`AtomicOp::CompareSwap`] alone compares.
    Atomic {
        pe: Pe,
        dst: RegionAddr,
        width: Width,
        op: AtomicOp,
        value: u64,
        compare: u64,
        fetch: Option<RegionAddr>,
    },
    /// Earlier operations, to the PE or without one to all, are visible there before later ones.
    Fence { pe: Option<Pe> },
}

/// A put, the most common descriptor, in registers: the fields of [`Descriptor::Put`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    pub pe: Pe,
    pub dst: RegionAddr,
    pub src: RegionAddr,
    pub bytes: u32,
}

impl From<Put> for Descriptor {
    #[inline(always)]
    fn from(put: Put) -> Self {
        let Put { pe, dst, src, bytes } = put;
        Self::Put { pe, dst, src, bytes }
    }
}

/// Reason for which a slot's words are no descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Wrong {
    #[error("there is no such operation")]
    Operation,
    /// Also where it fetches when it must not, or the other way round.
    #[error("no such kind of atomic or signal")]
    Kind,
    #[error("a length that the operation does not take")]
    Length,
    #[error("a place in no region")]
    Region,
    /// Words that decode, but not to the encoding of that descriptor.
    #[error("bits that the operation does not use, or two slots for what fits into one")]
    NotCanonical,
}

/// Words that are no descriptor: of overwritten memory, or of kernels of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "no descriptor: {wrong}; words {:#018x} {:#018x} {:#018x} {:#018x}",
    words[0], words[1], words[2], words[3]
)]
pub struct BadDescriptor {
    pub wrong: Wrong,
    /// The first slot's words.
    pub words: Words,
}
