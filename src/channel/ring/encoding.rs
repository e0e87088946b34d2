//! The encoding of descriptors in words of slots.
//!
//! The bits are in `include/nvshmem_libfabric_ring.h`. Every descriptor has one encoding.

use channel_sys as c;

use crate::channel::ring::descriptor::{BadDescriptor, Descriptor, Put, RegionAddr, Wrong};
use crate::channel::ring::slot::Words;
use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;

/// A descriptor's words, without laps. The second slot is there if the first is extended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded {
    pub first: Words,
    pub second: Option<Words>,
}

const KIND: u64 = c::NLF_KIND_MASK as u64;
const EXTENDED: u64 = c::NLF_FLAG_EXTENDED as u64;
const ALL_PES: u64 = c::NLF_FLAG_ALL_PES as u64;

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
    /// Decodes a put. None for all other words.
    #[inline(always)]
    pub fn decode(words: &Words) -> Option<Self> {
        let (dst, src) = transfer(words, PUT)?;
        Some(Self { pe: pe_of(words), dst, src, bytes: words[1] as u32 })
    }
}

#[inline(always)]
pub(crate) fn decode_get(first: &Words) -> Option<Descriptor> {
    let (dst, src) = transfer(first, GET)?;
    Some(Descriptor::Get { pe: pe_of(first), dst, src, bytes: first[1] as u32 })
}

/// Decodes a put with signal of one slot, whose words have no unused bits.
#[inline(always)]
pub(crate) fn decode_put_signal(first: &Words) -> Option<Descriptor> {
    let op = match key_of(first[1]) {
        key if key == SET => AtomicOp::SignalSet,
        key if key == ADD => AtomicOp::SignalAdd,
        _ => return None,
    };
    let [q0, q1, q2, q3] = *first;
    let (dst, src) = (RegionAddr::from_word(q0)?, RegionAddr::from_word(q3)?);
    let (signal, bytes, value) = (RegionAddr::from_word(q2)?, q1 as u32, inline_value(first));
    let put = Descriptor::PutSignal { pe: pe_of(first), dst, src, bytes, signal, op, value };
    (bytes != 0).then_some(put)
}

const PUT: u64 = key(c::NLF_OP_PUT, 0);
const GET: u64 = key(c::NLF_OP_GET, 0);
const SET: u64 = key(c::NLF_OP_PUT_SIGNAL, c::NLF_KIND_SET);
const ADD: u64 = key(c::NLF_OP_PUT_SIGNAL, c::NLF_KIND_ADD);

/// Decodes a descriptor. `second` is read if the first is extended; laps are ignored.
pub(crate) fn decode(first: &Words, second: &Words) -> Result<Descriptor, Wrong> {
    let descriptor = read(first, second)?;
    let encoded = descriptor.encode();
    let is_same = |words: &Words, of: &Words| {
        let [q0, q1, q2, q3] = *of;
        *words == [q0, q1 & !c::NLF_LAP, q2, q3 & !c::NLF_LAP]
    };
    // Unused bits, and values in fields of others, are lost in the encoding.
    if is_same(&encoded.first, first) && encoded.second.is_none_or(|words| is_same(&words, second))
    {
        Ok(descriptor)
    } else {
        Err(Wrong::NotCanonical)
    }
}

/// [`decode`] without a check of unused bits.
#[inline(always)]
fn read(first: &Words, second: &Words) -> Result<Descriptor, Wrong> {
    let [q0, q1, q2, q3] = *first;
    let (pe, bytes, key) = (pe_of(first), q1 as u32, key_of(q1));
    let (op, kind) = ((key >> (c::NLF_OP_SHIFT - c::NLF_FLAGS_SHIFT)) as u32, key & KIND);
    let addr = |word: u64| RegionAddr::from_word(word).ok_or(Wrong::Region);
    let Operands { value, compare, fetch } = match is_extended(first) {
        true => {
            let [value, _, compare, q7] = *second;
            Operands { value, compare, fetch: RegionAddr::from_word(q7) }
        }
        false => Operands { value: inline_value(first), compare: 0, fetch: None },
    };
    match op {
        c::NLF_OP_PUT | c::NLF_OP_GET | c::NLF_OP_PUT_SIGNAL if bytes == 0 => Err(Wrong::Length),
        c::NLF_OP_PUT => Ok(Descriptor::Put { pe, dst: addr(q0)?, src: addr(q3)?, bytes }),
        c::NLF_OP_GET => Ok(Descriptor::Get { pe, dst: addr(q0)?, src: addr(q3)?, bytes }),
        c::NLF_OP_PUT_SIGNAL => {
            let op = match kind as u32 {
                c::NLF_KIND_SET => AtomicOp::SignalSet,
                c::NLF_KIND_ADD => AtomicOp::SignalAdd,
                _ => return Err(Wrong::Kind),
            };
            let (dst, src, signal) = (addr(q0)?, addr(q3)?, addr(q2)?);
            Ok(Descriptor::PutSignal { pe, dst, src, bytes, signal, op, value })
        }
        c::NLF_OP_PUT_VALUE => {
            if !matches!(bytes, 1 | 2 | 4 | 8) {
                return Err(Wrong::Length);
            }
            let value = value & (u64::MAX >> (64 - 8 * bytes));
            Ok(Descriptor::PutValue { pe, dst: addr(q0)?, bytes, value })
        }
        c::NLF_OP_ATOMIC => {
            let width = match bytes {
                8 => Width::Eight,
                4 => Width::Four,
                _ => return Err(Wrong::Length),
            };
            let ops = if fetch.is_some() { &FETCHING } else { &PLAIN };
            let Some(op) = ops[kind as usize] else { return Err(Wrong::Kind) };
            // Operands that are not used are zero, and none is wider than the word.
            let value = if op == AtomicOp::Fetch { 0 } else { value & width.mask() };
            let compare = if op == AtomicOp::CompareSwap { compare & width.mask() } else { 0 };
            Ok(Descriptor::Atomic { pe, dst: addr(q0)?, width, op, value, compare, fetch })
        }
        c::NLF_OP_FENCE => Ok(Descriptor::Fence { pe: (key & ALL_PES == 0).then_some(pe) }),
        c::NLF_OP_QUIET => Ok(Descriptor::Quiet { pe }),
        _ => Err(Wrong::Operation),
    }
}

impl Descriptor {
    /// The descriptor in one slot or two. Laps are ignored, and a second slot unless extended.
    pub fn decode(first: Words, second: Option<Words>) -> Result<Self, BadDescriptor> {
        let decoded = match second {
            None if is_extended(&first) => Err(Wrong::NotCanonical),
            second => decode(&first, &second.unwrap_or_default()),
        };
        decoded.map_err(|wrong| BadDescriptor { wrong, words: first })
    }

    /// The words of the descriptor, as a kernel would write them, but for laps. Numbers that are
    /// too large for their fields are cut: a PE at 16 bits, an offset at 40.
    pub fn encode(&self) -> Encoded {
        match *self {
            Descriptor::Put { pe, dst, src, bytes } => {
                one_slot([dst.word(), head(c::NLF_OP_PUT, 0, pe, bytes), 0, src.word()])
            }
            Descriptor::Get { pe, dst, src, bytes } => {
                one_slot([dst.word(), head(c::NLF_OP_GET, 0, pe, bytes), 0, src.word()])
            }
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
                one_slot([0, head(c::NLF_OP_FENCE, flags, pe, 0), 0, 0])
            }
            Descriptor::Quiet { pe } => one_slot([0, head(c::NLF_OP_QUIET, 0, pe, 0), 0, 0]),
        }
    }
}

/// The addresses of a put or a get, if the key is its key and the words are valid.
#[inline(always)]
fn transfer(first: &Words, key: u64) -> Option<(RegionAddr, RegionAddr)> {
    let [dst, q1, q2, q3] = *first;
    let src = q3 & !c::NLF_LAP;
    // An address with no value's bits above it is less than `NONE`.
    let is_one = dst < RegionAddr::NONE && src < RegionAddr::NONE && q2 == 0 && q1 as u32 != 0;
    (key_of(q1) == key && is_one).then(|| (RegionAddr::of_word(dst), RegionAddr::of_word(src)))
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

/// Use of the second slot.
#[derive(Clone, Copy)]
struct Operands {
    value: u64,
    compare: u64,
    fetch: Option<RegionAddr>,
}

impl Operands {
    fn encode(self, mut first: Words) -> Encoded {
        if self.fetch.is_none() && self.value <= c::NLF_MAX_INLINE {
            let (q0_bits, q3_bits) = (c::NLF_VALUE_Q0_BITS, c::NLF_VALUE_Q3_BITS);
            let q3 = (self.value >> q0_bits) & ((1 << q3_bits) - 1);
            first[0] |= self.value << c::NLF_VALUE_SHIFT;
            first[2] |= (self.value >> (q0_bits + q3_bits)) << c::NLF_VALUE_SHIFT;
            first[3] |= q3 << c::NLF_VALUE_SHIFT;
            return one_slot(first);
        }
        first[1] |= EXTENDED << c::NLF_FLAGS_SHIFT;
        Encoded {
            first,
            second: Some([
                self.value,
                0,
                self.compare,
                self.fetch.map_or(RegionAddr::NONE, RegionAddr::word),
            ]),
        }
    }
}

fn one_slot(first: Words) -> Encoded {
    Encoded { first, second: None }
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

    const AT: RegionAddr = addr(1, 64);
    const FROM: RegionAddr = addr(2, 128);
    const ABOVE: u64 = 1 << c::NLF_VALUE_SHIFT;

    const fn addr(region: u64, offset: u64) -> RegionAddr {
        RegionAddr::of_word(region << c::NLF_REGION_SHIFT | offset)
    }

    #[test]
    fn malformed_descriptors_name_their_fault() {
        let head = |op, flags, bytes| head(op, flags, Pe(3), bytes);
        let (put, signal) = (c::NLF_OP_PUT, c::NLF_OP_PUT_SIGNAL);
        let (value, atomic) = (c::NLF_OP_PUT_VALUE, c::NLF_OP_ATOMIC);
        let fence = c::NLF_OP_FENCE;
        let extended = c::NLF_FLAG_EXTENDED;
        let (at, from, none, over) =
            (AT.word(), FROM.word(), RegionAddr::NONE, c::NLF_MAX_INLINE + 1);
        let empty = [0, 0, 0, none];
        let fetch = |value, compare| [value, 0, compare, from];
        let swap = c::NLF_KIND_COMPARE_SWAP | extended;
        use Wrong::{Kind, Length, NotCanonical, Operation, Region};
        for (first, second, wrong) in [
            ([at, head(9, 0, 8), 0, from], empty, Operation),
            ([at, head(put, 1, 8), 0, from], empty, NotCanonical),
            ([at, head(put, 0, 8), 1, from], empty, NotCanonical),
            ([at, head(put, 0, 8), 0, from | ABOVE], empty, NotCanonical),
            ([at, head(put, 0, 0), 0, from], empty, Length),
            ([none, head(put, 0, 8), 0, from], empty, Region),
            ([at, head(put, 0, 8), 0, none], empty, Region),
            ([at, head(signal, c::NLF_KIND_AND, 8), at, from], empty, Kind),
            ([at, head(signal, 0, 0), at, from], empty, Length),
            ([at, head(signal, 0, 8), none, from], empty, Region),
            ([none, head(signal, 0, 8), at, from], empty, Region),
            ([at, head(signal, 0, 8), at, none], empty, Region),
            ([at, head(signal, extended, 8), at, from], empty, NotCanonical),
            ([at, head(signal, extended, 8), at, from], fetch(over, 0), NotCanonical),
            ([at, head(signal, extended, 8), at, from], [over, 1, 0, none], NotCanonical),
            ([at, head(value, 0, 3), 0, 0], empty, Length),
            ([at | ABOVE << 8, head(value, 0, 1), 0, 0], empty, NotCanonical),
            ([at, head(atomic, 1, 2), 0, 0], empty, Length),
            ([at, head(atomic, c::NLF_KIND_SWAP, 8), 0, 0], empty, Kind),
            ([at, head(atomic, extended, 8), 0, 0], fetch(1, 0), Kind),
            ([at, head(atomic, 1 | extended, 8), 0, 0], fetch(1, 1), NotCanonical),
            ([at, head(atomic, swap, 4), 0, 0], fetch(1 << 32, 0), NotCanonical),
            ([0, head(fence, 1, 0), 0, 0], empty, NotCanonical),
            ([0, head(fence, 0, 1), 0, 0], empty, NotCanonical),
        ] {
            let with_lap = |[q0, q1, q2, q3]: Words| [q0, q1 | c::NLF_LAP, q2, q3 | c::NLF_LAP];
            for (words, second) in [(first, second), (with_lap(first), with_lap(second))] {
                let decoded = Descriptor::decode(words, Some(second));
                assert_eq!(decoded, Err(BadDescriptor { wrong, words }), "{first:x?} {second:x?}");
            }
        }
        let alone = [at, head(signal, extended, 8), at, from];
        let decoded = Descriptor::decode(alone, None);
        assert_eq!(decoded, Err(BadDescriptor { wrong: NotCanonical, words: alone }));
        assert_eq!(RegionIndex::new(1).map(RegionIndex::index), Some(AT.region().index()));
    }
}
