//! Descriptors: one operation that a kernel asks for.
//!
//! `encoding` has the words that they travel in.

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

/// A place in registered memory. Whether the region has that many bytes is for its owner to check.
///
/// The region's index in bits 47 to 40, the offset below, as in a slot; the rest is zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place(u64);

impl Place {
    /// The bits of a word that a place has.
    pub(crate) const BITS: u64 = (1 << c::NLF_VALUE_SHIFT) - 1;

    /// What stands for no place, with all offsets of that region; every place is less.
    pub(crate) const NONE: u64 = (c::NLF_NO_REGION as u64) << c::NLF_REGION_SHIFT;

    /// The place `offset` bytes from the base of a region. None past `NLF_MAX_OFFSET`.
    #[inline]
    pub fn new(region: RegionIndex, offset: u64) -> Option<Self> {
        let index = u64::from(region.0) << c::NLF_REGION_SHIFT;
        (offset <= c::NLF_MAX_OFFSET).then_some(Self(index | offset))
    }

    /// The place in a word's low 48 bits. None when its region is `NLF_NO_REGION`.
    #[inline(always)]
    pub(crate) fn from_word(word: u64) -> Option<Self> {
        let place = word & Self::BITS;
        (place < Self::NONE).then_some(Self(place))
    }

    /// The place that a word is, which is less than [`Place::NONE`].
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

    /// The region.
    #[inline(always)]
    pub fn region(self) -> RegionIndex {
        RegionIndex((self.0 >> c::NLF_REGION_SHIFT) as u8)
    }

    /// In bytes from its base.
    #[inline(always)]
    pub fn offset(self) -> u64 {
        self.0 & c::NLF_OFFSET_MASK
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "region {} + {:#x}", self.region().index(), self.offset())
    }
}

/// One operation. Lengths are in bytes, and not zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Descriptor {
    /// `bytes` from `src` here to `dst` at the peer.
    Put {
        /// The peer.
        pe: Pe,
        /// There.
        dst: Place,
        /// Here.
        src: Place,
        /// How many.
        bytes: u32,
    },
    /// A value to `dst` at the peer.
    PutValue {
        /// The peer.
        pe: Pe,
        /// There.
        dst: Place,
        /// How many of its bytes: 1, 2, 4 or 8.
        bytes: u32,
        /// The value, of so many bytes.
        value: u64,
    },
    /// As [`Descriptor::Put`], and then a word of 8 bytes at the peer changes.
    PutSignal {
        /// The peer.
        pe: Pe,
        /// There.
        dst: Place,
        /// Here.
        src: Place,
        /// How many.
        bytes: u32,
        /// The word.
        signal: Place,
        /// [`AtomicOp::SignalSet`] or [`AtomicOp::SignalAdd`].
        op: AtomicOp,
        /// What is set or added.
        value: u64,
    },
    /// `bytes` from `dst` at the peer to `src` here.
    Get {
        /// The peer.
        pe: Pe,
        /// There.
        dst: Place,
        /// Here.
        src: Place,
        /// How many.
        bytes: u32,
    },
    /// Nothing, but it is told when what is for the peer and in the ring before it is delivered.
    Quiet {
        /// The peer.
        pe: Pe,
    },
    /// A word at the peer changes or is read.
    Atomic {
        /// The peer.
        pe: Pe,
        /// The word.
        dst: Place,
        /// [`Width::Four`] or [`Width::Eight`].
        width: Width,
        /// What is done: [`AtomicOp::Set`] to [`AtomicOp::Xor`], or one that fetches.
        op: AtomicOp,
        /// The operand, of that width.
        value: u64,
        /// With what [`AtomicOp::CompareSwap`] compares, of that width.
        compare: u64,
        /// Where the word from before comes to, here, if the operation fetches.
        fetch: Option<Place>,
    },
    /// What was before, to the PE or to all, is visible there before what comes after.
    Fence {
        /// The peer; None for all.
        pe: Option<Pe>,
    },
}

/// A put, which nearly all descriptors are, in words that a processor keeps in registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Put {
    /// As in [`Descriptor::Put`].
    pub pe: Pe,
    /// There.
    pub dst: Place,
    /// Here.
    pub src: Place,
    /// How many.
    pub bytes: u32,
}

impl From<Put> for Descriptor {
    #[inline(always)]
    fn from(put: Put) -> Self {
        let Put { pe, dst, src, bytes } = put;
        Self::Put { pe, dst, src, bytes }
    }
}

/// What is wrong with the words of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Wrong {
    /// The operation has no such number.
    #[error("there is no such operation")]
    Operation,
    /// Flags that the operation does not have.
    #[error("flags that the operation does not have")]
    Flags,
    /// No such kind of atomic or signal, or it fetches when it must not, or the other way round.
    #[error("no such kind of atomic or signal")]
    Kind,
    /// No bytes, or not a word's width.
    #[error("a length that the operation does not take")]
    Length,
    /// A place without a region.
    #[error("a place in no region")]
    Region,
    /// A field is not zero that the operation does not use, or a value is wider than its word.
    #[error("a field that must be zero is not")]
    NotZero,
    /// Two slots where one would do.
    #[error("two slots for what fits into one")]
    Extended,
}

/// Words that are no descriptor. No producer writes such, so memory was overwritten, or the kernels
/// are of another version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "no descriptor: {wrong}; words {:#018x} {:#018x} {:#018x} {:#018x}",
    words[0], words[1], words[2], words[3]
)]
pub struct BadDescriptor {
    /// The reason.
    pub wrong: Wrong,
    /// The first slot's words.
    pub words: Words,
}
