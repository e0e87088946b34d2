//! The encoding of descriptors, as the words that they travel in.
//!
//! The bits are in `include/nvshmem_libfabric_ring.h`. Every descriptor has one encoding: what
//! decodes, encodes to the same words.

use channel_sys as c;

use crate::channel::ring::descriptor::{BadDescriptor, Descriptor, Place, Put, Wrong};
use crate::channel::ring::slot::Words;
use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;

/// A descriptor's words, without laps. The second slot is there when the first is marked as
/// extended.
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

/// Whether the descriptor goes on in a second slot.
#[inline(always)]
pub(crate) fn is_extended(first: &Words) -> bool {
    first[1] & (EXTENDED << c::NLF_FLAGS_SHIFT) != 0
}

/// Operation and flags as the upper bits of the first slot's second word.
const fn key(op: u32, flags: u32) -> u64 {
    (op as u64) << (c::NLF_OP_SHIFT - c::NLF_FLAGS_SHIFT) | flags as u64
}

#[inline(always)]
fn key_of(q1: u64) -> u64 {
    (q1 & !c::NLF_LAP) >> c::NLF_FLAGS_SHIFT
}

impl Put {
    /// The put that a slot's words are. None for all else, also for what is no descriptor.
    #[inline(always)]
    pub fn decode(words: &Words) -> Option<Self> {
        if key_of(words[1]) != PUT {
            return None;
        }
        let (dst, src) = transfer(words).ok()?;
        Some(Self { pe: pe_of(words), dst, src, bytes: words[1] as u32 })
    }
}

#[inline(always)]
pub(crate) fn decode_get(first: &Words) -> Option<Descriptor> {
    if key_of(first[1]) != GET {
        return None;
    }
    let (dst, src) = transfer(first).ok()?;
    Some(Descriptor::Get { pe: pe_of(first), dst, src, bytes: first[1] as u32 })
}

#[inline(always)]
pub(crate) fn decode_put_signal(first: &Words) -> Option<Descriptor> {
    let op = match key_of(first[1]) {
        key if key == SET => AtomicOp::SignalSet,
        key if key == ADD => AtomicOp::SignalAdd,
        _ => return None,
    };
    put_signal(first, op, inline_value(first)).ok()
}

const PUT: u64 = key(c::NLF_OP_PUT, 0);
const GET: u64 = key(c::NLF_OP_GET, 0);
const SET: u64 = key(c::NLF_OP_PUT_SIGNAL, c::NLF_KIND_SET);
const ADD: u64 = key(c::NLF_OP_PUT_SIGNAL, c::NLF_KIND_ADD);

/// What the words are. `second` is looked at when the first is extended; laps are ignored.
#[inline(always)]
pub(crate) fn decode(first: &Words, second: &Words) -> Result<Descriptor, Wrong> {
    let [q0, q1, q2, q3] = *first;
    let key = key_of(q1);
    let flags = key & FLAGS;
    let bytes = q1 as u32;
    let pe = pe_of(first);
    match (key >> (c::NLF_OP_SHIFT - c::NLF_FLAGS_SHIFT)) as u32 {
        c::NLF_OP_PUT | c::NLF_OP_GET if flags != 0 => Err(Wrong::Flags),
        c::NLF_OP_PUT => transfer(first).map(|(dst, src)| Descriptor::Put { pe, dst, src, bytes }),
        c::NLF_OP_GET => transfer(first).map(|(dst, src)| Descriptor::Get { pe, dst, src, bytes }),
        c::NLF_OP_PUT_SIGNAL => {
            if flags & !(KIND | EXTENDED) != 0 {
                return Err(Wrong::Flags);
            }
            let op = match (flags & KIND) as u32 {
                c::NLF_KIND_SET => AtomicOp::SignalSet,
                c::NLF_KIND_ADD => AtomicOp::SignalAdd,
                _ => return Err(Wrong::Kind),
            };
            put_signal(first, op, value_of(first, second)?)
        }
        c::NLF_OP_ATOMIC => decode_atomic(first, second),
        c::NLF_OP_PUT_VALUE => decode_put_value(first, second),
        op @ (c::NLF_OP_FENCE | c::NLF_OP_QUIET) => {
            let is_fence = op == c::NLF_OP_FENCE;
            if flags & !(if is_fence { ALL_PES } else { 0 }) != 0 {
                return Err(Wrong::Flags);
            }
            let is_for_all = flags != 0;
            let rest = q0 | q2 | (q3 & !c::NLF_LAP) | u64::from(bytes);
            if rest != 0 || (is_for_all && pe.0 != 0) {
                return Err(Wrong::NotZero);
            }
            Ok(match is_fence {
                true => Descriptor::Fence { pe: (!is_for_all).then_some(pe) },
                false => Descriptor::Quiet { pe },
            })
        }
        _ => Err(Wrong::Operation),
    }
}

impl Descriptor {
    /// The descriptor that the words of one slot or two are. Laps are ignored, and so is a second
    /// slot of one that is not extended.
    ///
    /// # Errors
    /// When no descriptor has these words; for one when the first is extended and there is no
    /// second.
    pub fn decode(first: Words, second: Option<Words>) -> Result<Self, BadDescriptor> {
        let decoded = match second {
            None if is_extended(&first) => Err(Wrong::Extended),
            second => decode(&first, &second.unwrap_or_default()),
        };
        decoded.map_err(|wrong| BadDescriptor { wrong, words: first })
    }

    /// The words of the descriptor, as a kernel would write them, but for laps. Numbers that are
    /// too large for their fields are cut: a PE at 16 bits, an offset at 40.
    pub fn encode(&self) -> Encoded {
        match *self {
            Descriptor::Put { pe, dst, src, bytes } => Encoded {
                first: [dst.word(), head(c::NLF_OP_PUT, 0, pe, bytes), 0, src.word()],
                second: None,
            },
            Descriptor::Get { pe, dst, src, bytes } => Encoded {
                first: [dst.word(), head(c::NLF_OP_GET, 0, pe, bytes), 0, src.word()],
                second: None,
            },
            Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value } => {
                let kind = kind_of(op);
                let first = [
                    dst.word(),
                    head(c::NLF_OP_PUT_SIGNAL, kind, pe, bytes),
                    signal.word(),
                    src.word(),
                ];
                Operands { value, compare: 0, fetch: None }.encode(first)
            }
            Descriptor::PutValue { pe, dst, bytes, value } => {
                let first = [dst.word(), head(c::NLF_OP_PUT_VALUE, 0, pe, bytes), 0, 0];
                Operands { value, compare: 0, fetch: None }.encode(first)
            }
            Descriptor::Atomic { pe, dst, width, op, value, compare, fetch } => {
                let first = [
                    dst.word(),
                    head(c::NLF_OP_ATOMIC, kind_of(op), pe, width.bytes() as u32),
                    0,
                    0,
                ];
                Operands { value, compare, fetch }.encode(first)
            }
            Descriptor::Fence { pe } => {
                let (pe, flags) = pe.map_or((Pe(0), c::NLF_FLAG_ALL_PES), |pe| (pe, 0));
                Encoded { first: [0, head(c::NLF_OP_FENCE, flags, pe, 0), 0, 0], second: None }
            }
            Descriptor::Quiet { pe } => {
                Encoded { first: [0, head(c::NLF_OP_QUIET, 0, pe, 0), 0, 0], second: None }
            }
        }
    }
}

#[inline(always)]
fn transfer(first: &Words) -> Result<(Place, Place), Wrong> {
    let [dst, q1, q2, q3] = *first;
    let src = q3 & !c::NLF_LAP;
    // A place with no value's bits above it is less than what stands for none.
    if dst < Place::NONE && src < Place::NONE && q2 == 0 && q1 as u32 != 0 {
        return Ok((Place::of_word(dst), Place::of_word(src)));
    }
    Err(why_no_transfer(first))
}

#[cold]
fn why_no_transfer(first: &Words) -> Wrong {
    let [q0, q1, q2, q3] = *first;
    if (q0 | (q3 & !c::NLF_LAP)) >> c::NLF_VALUE_SHIFT != 0 || q2 != 0 {
        Wrong::NotZero
    } else if q1 as u32 == 0 {
        Wrong::Length
    } else {
        Wrong::Region
    }
}

#[inline(always)]
fn put_signal(first: &Words, op: AtomicOp, value: u64) -> Result<Descriptor, Wrong> {
    let [q0, q1, q2, q3] = *first;
    let bytes = q1 as u32;
    if bytes == 0 {
        return Err(Wrong::Length);
    }
    let (Some(dst), Some(src), Some(signal)) =
        (Place::from_word(q0), Place::from_word(q3), Place::from_word(q2))
    else {
        return Err(Wrong::Region);
    };
    Ok(Descriptor::PutSignal { pe: pe_of(first), dst, src, bytes, signal, op, value })
}

#[cold]
fn decode_put_value(first: &Words, second: &Words) -> Result<Descriptor, Wrong> {
    let [q0, q1, q2, q3] = *first;
    let flags = key_of(q1) & FLAGS;
    let bytes = q1 as u32;
    if flags & !EXTENDED != 0 {
        return Err(Wrong::Flags);
    }
    if (q2 | q3) & Place::BITS != 0 {
        return Err(Wrong::NotZero);
    }
    let value = value_of(first, second)?;
    if !matches!(bytes, 1 | 2 | 4 | 8) {
        return Err(Wrong::Length);
    }
    if bytes < 8 && value >> (8 * bytes) != 0 {
        return Err(Wrong::NotZero);
    }
    let Some(dst) = Place::from_word(q0) else { return Err(Wrong::Region) };
    Ok(Descriptor::PutValue { pe: pe_of(first), dst, bytes, value })
}

#[inline(always)]
fn value_of(first: &Words, second: &Words) -> Result<u64, Wrong> {
    let inline = inline_value(first);
    if !is_extended(first) {
        return Ok(inline);
    }
    let Operands { value, compare, fetch } = Operands::decode(inline, second)?;
    if fetch.is_some() || compare != 0 {
        return Err(Wrong::NotZero);
    }
    if value <= c::NLF_MAX_INLINE { Err(Wrong::Extended) } else { Ok(value) }
}

#[inline(always)]
pub(crate) fn is_atomic(first: &Words) -> bool {
    key_of(first[1]) & !FLAGS == key(c::NLF_OP_ATOMIC, 0)
}

#[inline(always)]
pub(crate) fn decode_atomic(first: &Words, second: &Words) -> Result<Descriptor, Wrong> {
    let [q0, q1, q2, q3] = *first;
    let flags = key_of(q1) & FLAGS;
    if flags & !(KIND | EXTENDED) != 0 {
        return Err(Wrong::Flags);
    }
    if (q2 | q3) & Place::BITS != 0 {
        return Err(Wrong::NotZero);
    }
    let mut operands = Operands { value: inline_value(first), compare: 0, fetch: None };
    if flags & EXTENDED != 0 {
        operands = Operands::decode(operands.value, second)?;
        if operands.fetch.is_none() && operands.value <= c::NLF_MAX_INLINE {
            return Err(Wrong::Extended);
        }
    }
    let Operands { value, compare, fetch } = operands;
    let width = match q1 as u32 {
        8 => Width::Eight,
        4 => Width::Four,
        _ => return Err(Wrong::Length),
    };
    let ops = if fetch.is_some() { &FETCHING } else { &PLAIN };
    let Some(op) = ops[(flags & KIND) as usize] else { return Err(Wrong::Kind) };
    // Operands that are not used are zero, and none is wider than the word.
    let unused = match op {
        AtomicOp::CompareSwap => 0,
        AtomicOp::Fetch => value | compare,
        _ => compare,
    };
    if unused | ((value | compare) & !width.mask()) != 0 {
        return Err(Wrong::NotZero);
    }
    let Some(dst) = Place::from_word(q0) else { return Err(Wrong::Region) };
    Ok(Descriptor::Atomic { pe: pe_of(first), dst, width, op, value, compare, fetch })
}

const PLAIN: [Option<AtomicOp>; 16] = {
    let mut ops = [None; 16];
    ops[c::NLF_KIND_SET as usize] = Some(AtomicOp::Set);
    ops[c::NLF_KIND_ADD as usize] = Some(AtomicOp::Add);
    ops[c::NLF_KIND_AND as usize] = Some(AtomicOp::And);
    ops[c::NLF_KIND_OR as usize] = Some(AtomicOp::Or);
    ops[c::NLF_KIND_XOR as usize] = Some(AtomicOp::Xor);
    ops
};

const FETCHING: [Option<AtomicOp>; 16] = {
    let mut ops = [None; 16];
    ops[c::NLF_KIND_ADD as usize] = Some(AtomicOp::FetchAdd);
    ops[c::NLF_KIND_AND as usize] = Some(AtomicOp::FetchAnd);
    ops[c::NLF_KIND_OR as usize] = Some(AtomicOp::FetchOr);
    ops[c::NLF_KIND_XOR as usize] = Some(AtomicOp::FetchXor);
    ops[c::NLF_KIND_SWAP as usize] = Some(AtomicOp::Swap);
    ops[c::NLF_KIND_COMPARE_SWAP as usize] = Some(AtomicOp::CompareSwap);
    ops[c::NLF_KIND_FETCH as usize] = Some(AtomicOp::Fetch);
    ops
};

/// What the second slot is for.
#[derive(Clone, Copy)]
struct Operands {
    value: u64,
    compare: u64,
    fetch: Option<Place>,
}

impl Operands {
    /// From the second slot. `inline` is the value in the first.
    #[inline(always)]
    fn decode(inline: u64, second: &Words) -> Result<Self, Wrong> {
        let [value, q5, compare, q7] = *second;
        let q7 = q7 & !c::NLF_LAP;
        let fetch = Place::from_word(q7);
        // What has no place to fetch to says so in one way.
        let is_clear = q7 == if fetch.is_some() { q7 & Place::BITS } else { Place::NONE };
        if (q5 & !c::NLF_LAP) | inline != 0 || !is_clear {
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
                self.fetch.map_or(Place::NONE, Place::word),
            ]),
        }
    }
}

fn head(op: u32, flags: u32, pe: Pe, bytes: u32) -> u64 {
    (u64::from(op) << c::NLF_OP_SHIFT)
        | (u64::from(flags) << c::NLF_FLAGS_SHIFT)
        | (u64::from(pe.0 & c::NLF_PE_MASK) << c::NLF_PE_SHIFT)
        | u64::from(bytes)
}

#[inline(always)]
fn pe_of(first: &Words) -> Pe {
    Pe((first[1] >> c::NLF_PE_SHIFT) as u32 & c::NLF_PE_MASK)
}

#[inline(always)]
fn inline_value(first: &Words) -> u64 {
    let (q0_bits, q3_bits) = (c::NLF_VALUE_Q0_BITS, c::NLF_VALUE_Q3_BITS);
    let high = |word: u64| word >> c::NLF_VALUE_SHIFT;
    high(first[0])
        | (high(first[3] & !c::NLF_LAP) << q0_bits)
        | (high(first[2]) << (q0_bits + q3_bits))
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::ring::descriptor::RegionIndex;

    const AT: Place = place(1, 64);
    const FROM: Place = place(2, 128);
    const ABOVE: u64 = 1 << c::NLF_VALUE_SHIFT;

    const fn place(region: u64, offset: u64) -> Place {
        Place::of_word(region << c::NLF_REGION_SHIFT | offset)
    }

    #[test]
    fn malformed_descriptors_name_their_fault() {
        let head = |op, flags, bytes| head(op, flags, Pe(3), bytes);
        let (put, signal) = (c::NLF_OP_PUT, c::NLF_OP_PUT_SIGNAL);
        let (value, atomic) = (c::NLF_OP_PUT_VALUE, c::NLF_OP_ATOMIC);
        let (fence, quiet) = (c::NLF_OP_FENCE, c::NLF_OP_QUIET);
        let extended = c::NLF_FLAG_EXTENDED;
        let (at, from, none, over) = (AT.word(), FROM.word(), Place::NONE, c::NLF_MAX_INLINE + 1);
        let empty = [0, 0, 0, none];
        let large = [over, 0, 0, none];
        let fetch = |value, compare| [value, 0, compare, from];
        let swap = c::NLF_KIND_COMPARE_SWAP | extended;
        for (first, second, wrong) in [
            ([at, head(9, 0, 8), 0, from], empty, Wrong::Operation),
            ([at, head(put, 1, 8), 0, from], empty, Wrong::Flags),
            ([at, head(c::NLF_OP_GET, 32, 8), 0, from], empty, Wrong::Flags),
            ([at, head(put, 0, 8), 1, from], empty, Wrong::NotZero),
            ([at | ABOVE, head(put, 0, 0), 0, from], empty, Wrong::NotZero),
            ([at, head(put, 0, 8), 0, from | ABOVE], empty, Wrong::NotZero),
            ([at, head(put, 0, 0), 0, from], empty, Wrong::Length),
            ([none, head(put, 0, 0), 0, from], empty, Wrong::Length),
            ([none, head(put, 0, 8), 0, from], empty, Wrong::Region),
            ([at, head(put, 0, 8), 0, none], empty, Wrong::Region),
            ([at, head(signal, 32, 8), at, from], empty, Wrong::Flags),
            ([at, head(signal, 64, 8), at, from], empty, Wrong::Flags),
            ([at, head(signal, c::NLF_KIND_AND, 8), at, from], empty, Wrong::Kind),
            ([at, head(signal, 0, 0), at, from], empty, Wrong::Length),
            ([at, head(signal, 0, 8), none, from], empty, Wrong::Region),
            ([none, head(signal, 0, 8), at, from], empty, Wrong::Region),
            ([at, head(signal, 0, 8), at, none], empty, Wrong::Region),
            ([at, head(signal, extended, 8), at, from], empty, Wrong::Extended),
            ([at | ABOVE, head(signal, extended, 8), at, from], large, Wrong::NotZero),
            ([at, head(signal, extended, 8), at, from], fetch(over, 0), Wrong::NotZero),
            ([at, head(signal, extended, 8), at, from], [over, 0, 1, none], Wrong::NotZero),
            ([at, head(signal, extended, 8), at, from], [over, 1, 0, none], Wrong::NotZero),
            ([at, head(signal, extended, 8), at, from], [over, 0, 0, none | 1], Wrong::NotZero),
            ([at, head(value, 1, 8), 0, 0], empty, Wrong::Flags),
            ([at, head(value, 0, 8), 1, 0], empty, Wrong::NotZero),
            ([at, head(value, 0, 8), 0, 1], empty, Wrong::NotZero),
            ([at, head(value, 0, 3), 0, 0], empty, Wrong::Length),
            ([at | ABOVE << 8, head(value, 0, 1), 0, 0], empty, Wrong::NotZero),
            ([none, head(value, 0, 8), 0, 0], empty, Wrong::Region),
            ([at, head(atomic, 32, 8), 0, 0], empty, Wrong::Flags),
            ([at, head(atomic, 1, 8), 1, 0], empty, Wrong::NotZero),
            ([at, head(atomic, 1, 8), 0, 1], empty, Wrong::NotZero),
            ([at, head(atomic, 1 | extended, 8), 0, 0], empty, Wrong::Extended),
            ([at, head(atomic, 1, 2), 0, 0], empty, Wrong::Length),
            ([at, head(atomic, c::NLF_KIND_SWAP, 8), 0, 0], empty, Wrong::Kind),
            ([at, head(atomic, extended, 8), 0, 0], fetch(1, 0), Wrong::Kind),
            ([at, head(atomic, 1 | extended, 8), 0, 0], fetch(1, 1), Wrong::NotZero),
            ([at, head(atomic, swap, 4), 0, 0], fetch(1 << 32, 0), Wrong::NotZero),
            ([at, head(atomic, swap, 4), 0, 0], fetch(1, 1 << 32), Wrong::NotZero),
            ([none, head(atomic, 1, 8), 0, 0], empty, Wrong::Region),
            ([0, head(fence, 1, 0), 0, 0], empty, Wrong::Flags),
            ([0, head(quiet, 32, 0), 0, 0], empty, Wrong::Flags),
            ([0, head(fence, 32, 0), 0, 0], empty, Wrong::NotZero),
            ([1, head(fence, 0, 0), 0, 0], empty, Wrong::NotZero),
            ([0, head(fence, 0, 1), 0, 0], empty, Wrong::NotZero),
            ([0, head(quiet, 0, 0), 1, 0], empty, Wrong::NotZero),
            ([0, head(quiet, 0, 0), 0, 1], empty, Wrong::NotZero),
        ] {
            let with_lap = |[q0, q1, q2, q3]: Words| [q0, q1 | c::NLF_LAP, q2, q3 | c::NLF_LAP];
            for (words, second) in [(first, second), (with_lap(first), with_lap(second))] {
                let decoded = Descriptor::decode(words, Some(second));
                assert_eq!(decoded, Err(BadDescriptor { wrong, words }), "{first:x?} {second:x?}");
            }
        }
        let alone = [at, head(signal, extended, 8), at, from];
        let decoded = Descriptor::decode(alone, None);
        assert_eq!(decoded, Err(BadDescriptor { wrong: Wrong::Extended, words: alone }));
        assert_eq!(RegionIndex::new(1).map(RegionIndex::index), Some(AT.region().index()));
    }
}
