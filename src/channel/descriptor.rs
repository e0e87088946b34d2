//! Descriptors: one operation that a kernel asks for, and the slots that it travels in.
//!
//! The bits are in `include/nvshmem_libfabric_ring.h`. Every descriptor has one encoding: what decodes,
//! encodes to the same words.

use std::fmt;

use channel_sys as c;
use thiserror::Error;

use super::slot::Words;
use crate::engine::atomic::{AtomicOp, Width};
use crate::engine::ids::Pe;

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
    /// The place `offset` bytes from the base of a region. None past `NLF_MAX_OFFSET`.
    #[inline]
    pub fn new(region: RegionIndex, offset: u64) -> Option<Self> {
        let index = u64::from(region.0) << c::NLF_REGION_SHIFT;
        (offset <= c::NLF_MAX_OFFSET).then_some(Self(index | offset))
    }

    /// The place in a word's low 48 bits. None when its region is `NLF_NO_REGION`.
    #[inline(always)]
    fn from_word(word: u64) -> Option<Self> {
        let place = word & PLACE;
        (place < NO_FETCH).then_some(Self(place))
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
    /// The same, and then a word of 8 bytes at the peer changes.
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

/// Words that are no descriptor. No producer writes such, so memory was overwritten, or the kernels are of
/// another version.
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

/// A descriptor's words, without laps. The second slot is there when the first is marked as extended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// The first slot.
    pub first: Words,
    /// The second.
    pub second: Option<Words>,
}

const FLAGS: u64 = c::NLF_FLAGS_MASK as u64;
const KIND: u64 = c::NLF_KIND_MASK as u64;
const EXTENDED: u64 = c::NLF_FLAG_EXTENDED as u64;
const ALL_PES: u64 = c::NLF_FLAG_ALL_PES as u64;
/// Region and offset in a word.
const PLACE: u64 = (1 << c::NLF_VALUE_SHIFT) - 1;
/// The second slot's place when nothing is fetched. No place is as large.
const NO_FETCH: u64 = (c::NLF_NO_REGION as u64) << c::NLF_REGION_SHIFT;

/// Whether the descriptor goes on in a second slot.
#[inline(always)]
pub(super) fn is_extended(first: &Words) -> bool {
    first[1] & (EXTENDED << c::NLF_FLAGS_SHIFT) != 0
}

impl Descriptor {
    /// The put that the words of a slot are, if they are one: the short way for what is most of all.
    #[inline(always)]
    pub(super) fn decode_put(first: &Words) -> Option<Self> {
        const PUT: u64 = (c::NLF_OP_PUT as u64) << (c::NLF_OP_SHIFT - c::NLF_FLAGS_SHIFT);
        let [dst, q1, q2, q3] = *first;
        let src = q3 & !c::NLF_LAP;
        let bytes = q1 as u32;
        let is_put = (q1 & !c::NLF_LAP) >> c::NLF_FLAGS_SHIFT == PUT;
        // A place with no value's bits above it is smaller than any without a region.
        if is_put && dst < NO_FETCH && src < NO_FETCH && q2 == 0 && bytes != 0 {
            return Some(Descriptor::Put {
                pe: pe_of(q1),
                dst: Place(dst),
                src: Place(src),
                bytes,
            });
        }
        None
    }

    /// The put with signal that the words of a slot are, if they are one of one slot.
    #[inline(always)]
    pub(super) fn decode_put_signal(first: &Words) -> Option<Self> {
        const SET: u64 = (c::NLF_OP_PUT_SIGNAL as u64) << (c::NLF_OP_SHIFT - c::NLF_FLAGS_SHIFT);
        const ADD: u64 = SET | c::NLF_KIND_ADD as u64;
        let [q0, q1, q2, q3] = *first;
        let op = match (q1 & !c::NLF_LAP) >> c::NLF_FLAGS_SHIFT {
            SET => AtomicOp::SignalSet,
            ADD => AtomicOp::SignalAdd,
            _ => return None,
        };
        let (dst, src, signal) =
            (Place::from_word(q0)?, Place::from_word(q3)?, Place::from_word(q2)?);
        let bytes = q1 as u32;
        if bytes == 0 {
            return None;
        }
        let value = inline_value(first);
        Some(Descriptor::PutSignal { pe: pe_of(q1), dst, src, bytes, signal, op, value })
    }

    /// The descriptor that the words of one slot or two are. Laps are ignored, and so is a second slot of
    /// one that is not extended.
    ///
    /// # Errors
    /// When no descriptor has these words; for one when the first is extended and there is no second.
    pub fn decode(first: Words, second: Option<Words>) -> Result<Self, BadDescriptor> {
        let [q0, q1, q2, q3] = first;
        let bad = |wrong| bad(wrong, first);
        let pe = pe_of(q1);
        let flags = (q1 >> c::NLF_FLAGS_SHIFT) & FLAGS;
        let bytes = q1 as u32;
        match (q1 >> c::NLF_OP_SHIFT) as u32 & c::NLF_OP_MASK {
            op @ (c::NLF_OP_PUT | c::NLF_OP_GET) => {
                if flags != 0 {
                    return Err(bad(Wrong::Flags));
                }
                if (q0 | (q3 & !c::NLF_LAP)) >> c::NLF_VALUE_SHIFT != 0 || q2 != 0 {
                    return Err(bad(Wrong::NotZero));
                }
                if bytes == 0 {
                    return Err(bad(Wrong::Length));
                }
                let (Some(dst), Some(src)) = (Place::from_word(q0), Place::from_word(q3)) else {
                    return Err(bad(Wrong::Region));
                };
                Ok(if op == c::NLF_OP_PUT {
                    Descriptor::Put { pe, dst, src, bytes }
                } else {
                    Descriptor::Get { pe, dst, src, bytes }
                })
            }
            c::NLF_OP_PUT_SIGNAL => {
                if flags & !(KIND | EXTENDED) != 0 {
                    return Err(bad(Wrong::Flags));
                }
                let op = match (flags & KIND) as u32 {
                    c::NLF_KIND_SET => AtomicOp::SignalSet,
                    c::NLF_KIND_ADD => AtomicOp::SignalAdd,
                    _ => return Err(bad(Wrong::Kind)),
                };
                if bytes == 0 {
                    return Err(bad(Wrong::Length));
                }
                let mut value = inline_value(&first);
                if flags & EXTENDED != 0 {
                    let operands = Operands::decode(value, second).map_err(bad)?;
                    if operands.fetch.is_some() || operands.compare != 0 {
                        return Err(bad(Wrong::NotZero));
                    }
                    if operands.value <= c::NLF_MAX_INLINE {
                        return Err(bad(Wrong::Extended));
                    }
                    value = operands.value;
                }
                let (Some(dst), Some(src), Some(signal)) =
                    (Place::from_word(q0), Place::from_word(q3), Place::from_word(q2))
                else {
                    return Err(bad(Wrong::Region));
                };
                Ok(Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value })
            }
            c::NLF_OP_ATOMIC => {
                if flags & !(KIND | EXTENDED) != 0 {
                    return Err(bad(Wrong::Flags));
                }
                if (q2 | q3) & PLACE != 0 {
                    return Err(bad(Wrong::NotZero));
                }
                let (width, largest) = match bytes {
                    8 => (Width::Eight, u64::MAX),
                    4 => (Width::Four, u64::from(u32::MAX)),
                    _ => return Err(bad(Wrong::Length)),
                };
                let mut operands = Operands::inline(inline_value(&first));
                if flags & EXTENDED != 0 {
                    operands = Operands::decode(operands.value, second).map_err(bad)?;
                    if operands.fetch.is_none() && operands.value <= c::NLF_MAX_INLINE {
                        return Err(bad(Wrong::Extended));
                    }
                }
                let Operands { value, compare, fetch } = operands;
                let op = atomic_op((flags & KIND) as u32, fetch.is_some());
                let op = op.ok_or_else(|| bad(Wrong::Kind))?;
                let uses_value = op != AtomicOp::Fetch;
                let uses_compare = op == AtomicOp::CompareSwap;
                if value > if uses_value { largest } else { 0 }
                    || compare > if uses_compare { largest } else { 0 }
                {
                    return Err(bad(Wrong::NotZero));
                }
                let dst = Place::from_word(q0).ok_or_else(|| bad(Wrong::Region))?;
                Ok(Descriptor::Atomic { pe, dst, width, op, value, compare, fetch })
            }
            c::NLF_OP_FENCE => {
                if flags & !ALL_PES != 0 {
                    return Err(bad(Wrong::Flags));
                }
                if q0 | q2 | (q3 & !c::NLF_LAP) | u64::from(bytes) != 0 {
                    return Err(bad(Wrong::NotZero));
                }
                if flags == 0 {
                    return Ok(Descriptor::Fence { pe: Some(pe) });
                }
                if pe.0 != 0 {
                    return Err(bad(Wrong::NotZero));
                }
                Ok(Descriptor::Fence { pe: None })
            }
            _ => Err(bad(Wrong::Operation)),
        }
    }

    /// The words of the descriptor, as a kernel would write them, but for laps. Numbers that are too large
    /// for their fields are cut: a PE at 16 bits, an offset at 40.
    pub fn encode(&self) -> Encoded {
        match *self {
            Descriptor::Put { pe, dst, src, bytes } => Encoded {
                first: [dst.0, head(c::NLF_OP_PUT, 0, pe, bytes), 0, src.0],
                second: None,
            },
            Descriptor::Get { pe, dst, src, bytes } => Encoded {
                first: [dst.0, head(c::NLF_OP_GET, 0, pe, bytes), 0, src.0],
                second: None,
            },
            Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value } => {
                let kind = kind_of(op);
                let first = [dst.0, head(c::NLF_OP_PUT_SIGNAL, kind, pe, bytes), signal.0, src.0];
                Operands { value, compare: 0, fetch: None }.encode(first)
            }
            Descriptor::Atomic { pe, dst, width, op, value, compare, fetch } => {
                let first =
                    [dst.0, head(c::NLF_OP_ATOMIC, kind_of(op), pe, width.bytes() as u32), 0, 0];
                Operands { value, compare, fetch }.encode(first)
            }
            Descriptor::Fence { pe } => {
                let (pe, flags) = pe.map_or((Pe(0), c::NLF_FLAG_ALL_PES), |pe| (pe, 0));
                Encoded { first: [0, head(c::NLF_OP_FENCE, flags, pe, 0), 0, 0], second: None }
            }
        }
    }
}

/// What the second slot is for.
#[derive(Clone, Copy)]
struct Operands {
    value: u64,
    compare: u64,
    fetch: Option<Place>,
}

impl Operands {
    #[inline(always)]
    fn inline(value: u64) -> Self {
        Self { value, compare: 0, fetch: None }
    }

    /// From the second slot. `inline` is the value in the first.
    #[inline]
    fn decode(inline: u64, second: Option<Words>) -> Result<Self, Wrong> {
        let Some([value, q5, compare, q7]) = second else {
            return Err(Wrong::Extended);
        };
        let q7 = q7 & !c::NLF_LAP;
        if q5 & !c::NLF_LAP != 0 || q7 & !PLACE != 0 || inline != 0 {
            return Err(Wrong::NotZero);
        }
        let fetch = Place::from_word(q7);
        if fetch.is_none() && q7 != NO_FETCH {
            return Err(Wrong::NotZero);
        }
        Ok(Self { value, compare, fetch })
    }

    fn encode(self, mut first: Words) -> Encoded {
        if self.fetch.is_none() && self.value <= c::NLF_MAX_INLINE {
            let (q0_bits, q3_bits) = (c::NLF_VALUE_Q0_BITS, c::NLF_VALUE_Q3_BITS);
            let q3 = (self.value >> q0_bits) & ((1 << q3_bits) - 1);
            first[0] |= self.value << c::NLF_VALUE_SHIFT;
            first[2] |= (self.value >> (q0_bits + q3_bits)) << c::NLF_VALUE_SHIFT;
            first[3] |= q3 << c::NLF_VALUE_SHIFT;
            return Encoded { first, second: None };
        }
        first[1] |= EXTENDED << c::NLF_FLAGS_SHIFT;
        Encoded {
            first,
            second: Some([
                self.value,
                0,
                self.compare,
                self.fetch.map_or(NO_FETCH, |place| place.0),
            ]),
        }
    }
}

#[cold]
fn bad(wrong: Wrong, words: Words) -> BadDescriptor {
    BadDescriptor { wrong, words }
}

fn head(op: u32, flags: u32, pe: Pe, bytes: u32) -> u64 {
    (u64::from(op) << c::NLF_OP_SHIFT)
        | (u64::from(flags) << c::NLF_FLAGS_SHIFT)
        | (u64::from(pe.0 & c::NLF_PE_MASK) << c::NLF_PE_SHIFT)
        | u64::from(bytes)
}

#[inline(always)]
fn pe_of(q1: u64) -> Pe {
    Pe((q1 >> c::NLF_PE_SHIFT) as u32 & c::NLF_PE_MASK)
}

/// The value that is spread over the first slot.
#[inline(always)]
fn inline_value(first: &Words) -> u64 {
    let (q0_bits, q3_bits) = (c::NLF_VALUE_Q0_BITS, c::NLF_VALUE_Q3_BITS);
    let high = |word: u64| word >> c::NLF_VALUE_SHIFT;
    high(first[0])
        | (high(first[3] & !c::NLF_LAP) << q0_bits)
        | (high(first[2]) << (q0_bits + q3_bits))
}

/// What a kind of atomic does, with a place to fetch to and without.
#[inline]
fn atomic_op(kind: u32, fetches: bool) -> Option<AtomicOp> {
    Some(match (kind, fetches) {
        (c::NLF_KIND_SET, false) => AtomicOp::Set,
        (c::NLF_KIND_ADD, false) => AtomicOp::Add,
        (c::NLF_KIND_AND, false) => AtomicOp::And,
        (c::NLF_KIND_OR, false) => AtomicOp::Or,
        (c::NLF_KIND_XOR, false) => AtomicOp::Xor,
        (c::NLF_KIND_ADD, true) => AtomicOp::FetchAdd,
        (c::NLF_KIND_AND, true) => AtomicOp::FetchAnd,
        (c::NLF_KIND_OR, true) => AtomicOp::FetchOr,
        (c::NLF_KIND_XOR, true) => AtomicOp::FetchXor,
        (c::NLF_KIND_SWAP, true) => AtomicOp::Swap,
        (c::NLF_KIND_COMPARE_SWAP, true) => AtomicOp::CompareSwap,
        (c::NLF_KIND_FETCH, true) => AtomicOp::Fetch,
        _ => return None,
    })
}

/// The kind of an operation; `Inc` has none of its own, and is an add of one.
fn kind_of(op: AtomicOp) -> u32 {
    match op {
        AtomicOp::Set | AtomicOp::Signal | AtomicOp::SignalSet => c::NLF_KIND_SET,
        AtomicOp::Inc
        | AtomicOp::Add
        | AtomicOp::SignalAdd
        | AtomicOp::FetchInc
        | AtomicOp::FetchAdd => c::NLF_KIND_ADD,
        AtomicOp::And | AtomicOp::FetchAnd => c::NLF_KIND_AND,
        AtomicOp::Or | AtomicOp::FetchOr => c::NLF_KIND_OR,
        AtomicOp::Xor | AtomicOp::FetchXor => c::NLF_KIND_XOR,
        AtomicOp::Swap => c::NLF_KIND_SWAP,
        AtomicOp::CompareSwap => c::NLF_KIND_COMPARE_SWAP,
        AtomicOp::Fetch => c::NLF_KIND_FETCH,
    }
}
