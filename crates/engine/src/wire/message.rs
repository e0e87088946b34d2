//! Messages between proxy lanes.
//!
//! Every message begins with a head of 16 bytes, which travels [sealed](crate::wire::seal). All
//! numbers are little endian.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | bits 0..4: [`VERSION`]; bits 4..8: kind |
//! | 1 | atomic: bits 0..5 operation, 5..7 width (0: 2 bytes, 1: 4, 2: 8), 7 floating point; else zero |
//! | 2..4 | sender's PE |
//! | 4..8 | low half of the message's number; where it has none, of the sender's next number |
//! | 8..12 | low half of the first number of the reverse direction that the sender has not executed |
//! | 12..16 | receiver's id of the word's region, or as in the table below; masked with the number's high half |
//!
//! | kind | length | content |
//! |---|---|---|
//! | ack | 16, or 80 | 12..16 zero; 16.. bitmap: bit `n`: the message `n` beyond the acknowledged number is executed |
//! | ack request | 16 | 12..16 zero |
//! | atomic | 32 | 16..24 offset, 24..32 operand |
//! | fetch | 48 | as atomic; 32..40 comparand, 40 reply slot, 41..48 zero |
//! | reply | 32 | 12..16 reply slot; 16..24 the word before; 24..28 low half of the fetch's number; 28..32 zero |
//! | put with signal | 48 + payload | as atomic; 32..36 region, 36..40 length and 40..48 offset of the payload |
//! | counted signal | 40 | as atomic; 32..36 number of segments, 36..38 tag, 38..40 zero |
//! | refusal | 24 + text | 12..16 zero; 16..20 low half of the refused number; 20..24 zero; UTF-8 |
//!
//! Kinds from 8 to 11 are about staged memory, see [`crate::wire::staging`].
//!
//! A numbered message has in 22..24 its *mark*: 0, or how many numbers lower the last message is
//! that its target must execute first. Offsets have 48 bits. Bytes described as zero are checked.
//!
//! An atomic, the most common signal, has 32 bytes and fits the inline send of NICs.

use crate::atomic::Atomic;
use crate::ids::Pe;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::wire::staging::{GetId, Pull, PullTarget};

pub use crate::wire::decode::Message;
pub use crate::wire::encode::{Frame, Numbers, SealContext};

/// Version of the messages, 1 to 15.
pub const VERSION: u8 = 3;

pub const HEAD: usize = 16;

/// Maximum number of unacknowledged messages to one peer. The receiver remembers as many.
pub const WINDOW: u64 = 512;

/// Bytes of the bitmap of an acknowledgement.
pub const MAP_BYTES: usize = (WINDOW / 8) as usize;

/// Longest payload that fits one message with its signal on every rail.
pub const MAX_EAGER: usize = MAX_MESSAGE - PUT_SIGNAL_HEAD;

/// Returns the longest payload that fits one message of `message` bytes with its signal.
pub const fn eager_in(message: usize) -> usize {
    message - PUT_SIGNAL_HEAD
}

/// Maximum number of fetches to one peer in flight.
pub const FETCHES: usize = 16;

pub(super) const WORD: usize = 32;
pub(super) const FETCH: usize = 48;
pub(super) const REPLY: usize = 32;
/// Bytes of a put with signal before its payload.
pub(crate) const PUT_SIGNAL_HEAD: usize = 48;
pub(super) const COUNTED_SIGNAL: usize = 40;
pub(super) const REFUSAL: usize = 24;
/// Longest text of a refusal.
pub const MAX_REASON: usize = MAX_MESSAGE - REFUSAL;

pub(super) const KIND_ACK: u8 = 0;
pub(super) const KIND_ACK_REQUEST: u8 = 1;
pub(super) const KIND_WORD: u8 = 2;
pub(super) const KIND_FETCH: u8 = 3;
pub(super) const KIND_REPLY: u8 = 4;
pub(super) const KIND_PUT_SIGNAL: u8 = 5;
pub(super) const KIND_COUNTED_SIGNAL: u8 = 6;
pub(super) const KIND_REFUSAL: u8 = 7;
/// The first kind about staged memory.
pub(crate) const KIND_STAGED: u8 = 8;

const _: () = assert!(MAX_EAGER >= 64 && MAX_LONG_MESSAGE <= u16::MAX as usize);

/// Number of a message in its direction between two PEs. It never repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seq(pub u64);

impl Seq {
    /// No message: below every number.
    pub const NONE: Seq = Seq(0);

    /// First number in every direction, so near a wrap that every longer job crosses it.
    pub const FIRST: Seq = Seq((1 << 32) - 300);

    /// Returns the half that is sent.
    #[inline(always)]
    pub fn low(self) -> u32 {
        self.0 as u32
    }

    /// Returns the half that masks a word of the head.
    #[inline(always)]
    pub fn high(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Returns the number with this low half that is nearest to `self`.
    #[inline(always)]
    pub fn near(self, low: u32) -> Seq {
        // The window is far below 2^31, so the nearest number is the right one.
        let distance = low.wrapping_sub(self.low()) as i32;
        Seq(self.0.wrapping_add_signed(distance.into()))
    }

    #[inline(always)]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// Address of a word or a payload at the receiver: a region and an offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionAddr {
    /// The receiver's id of the region.
    pub region: u32,
    /// Offset of the first byte in the region, below 2^48.
    pub offset: u64,
}

/// Name of a counted put among those of its sender to one peer in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u16);

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    #[error("a message of {0} bytes")]
    Head(usize),
    #[error("a message of kind {kind} with {len} bytes")]
    Length { kind: u8, len: usize },
    /// Not of this job, or from another version of this transport.
    #[error("a message of version {0}, this transport speaks version {VERSION}")]
    Version(u8),
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    #[error("a message of kind {kind} with atomic operation {code:#04x}")]
    Operation { kind: u8, code: u8 },
    #[error("a counted signal with no segments to wait for")]
    Segments,
    /// Bytes without meaning that are not zero, or text that is not UTF-8.
    #[error("a message of kind {kind} with content in bytes that have no meaning")]
    Reserved { kind: u8 },
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Body<'a> {
    /// Acknowledges all messages before the head's number, and those whose bit is set.
    Ack(Option<&'a [u8; MAP_BYTES]>),
    /// Requests an acknowledgement once everything before the head's number is executed.
    AckRequest,
    /// Applies an operation that returns nothing.
    Word { addr: RegionAddr, atomic: Atomic },
    /// Applies an operation and replies with the word before. The reply's slot, below [`FETCHES`],
    /// caches it until the sender's next fetch with that slot.
    Fetch { addr: RegionAddr, atomic: Atomic, reply_slot: u8 },
    /// Answers the fetch whose number has this low half, with the word before.
    Reply { reply_slot: u32, low: u32, value: u64 },
    /// Stores the payload at `to`, then applies the operation to the signal word at `addr`.
    PutSignal { addr: RegionAddr, atomic: Atomic, to: RegionAddr, payload: &'a [u8] },
    /// Applies the operation once all segments with the tag, at least one, have arrived.
    CountedSignal { addr: RegionAddr, atomic: Atomic, tag: Tag, segments: u32 },
    /// Reports a message, by the low half of its number, that could not be executed, nor is any
    /// later one of the sender.
    Refusal { low: u32, why: &'a str },
    /// Stores the payload, at least one byte, in staged memory.
    InlinePut { to: RegionAddr, payload: &'a [u8] },
    /// Requests bytes of staged memory, at least one; `more` are further gets, see
    /// [`further_get`](crate::wire::staging::further_get).
    GetRequest { from: RegionAddr, len: u32, get: u32, more: &'a [u8] },
    /// Makes the receiver read bytes and store them.
    Pull(Pull<'a>),
    /// Brings the requested bytes of a short get.
    GetReply { get: GetId, payload: &'a [u8] },
}

impl Body<'_> {
    /// Returns true if the message has a number of its own and is acknowledged.
    pub(crate) fn is_numbered(&self) -> bool {
        !matches!(self, Body::Ack(_) | Body::AckRequest | Body::Reply { .. } | Body::Refusal { .. })
    }

    /// Returns the region in the head's word, if it has one.
    pub(crate) fn region(&self) -> Option<u32> {
        match self {
            Body::Word { addr, .. } | Body::Fetch { addr, .. } => Some(addr.region),
            Body::PutSignal { addr, .. } | Body::CountedSignal { addr, .. } => Some(addr.region),
            Body::InlinePut { to: addr, .. } | Body::GetRequest { from: addr, .. } => {
                Some(addr.region)
            }
            Body::Pull(Pull { target: PullTarget::One(record), .. }) => Some(record.to.region),
            Body::Ack(_) | Body::AckRequest | Body::Reply { .. } | Body::Refusal { .. } => None,
            Body::Pull(_) | Body::GetReply { .. } => None,
        }
    }

    /// Returns the receiver's get in the head's word, if it has one.
    pub(crate) fn get(&self) -> Option<u32> {
        match self {
            Body::GetReply { get, .. } => Some(get.number),
            Body::Pull(Pull { target: PullTarget::Get(get), .. }) => Some(get.number),
            _ => None,
        }
    }
}

/// Head of a message before it is sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Kind and atomic, bytes 0 and 1.
    pub kind_and_code: u16,
    pub from: Pe,
    /// Low half of the number.
    pub seq: u32,
    /// Low half of the acknowledged number.
    pub ack: u32,
    /// Bytes 12..16, masked.
    pub word: u32,
}

impl Head {
    #[inline(always)]
    pub(crate) fn kind(self) -> u8 {
        self.kind_and_code as u8 >> 4
    }

    #[inline(always)]
    pub(crate) fn code(self) -> u8 {
        (self.kind_and_code >> 8) as u8
    }

    /// Returns the head of an opened message from its two words.
    #[inline(always)]
    pub fn of(low: u64, high: u64) -> Self {
        Self {
            kind_and_code: low as u16,
            from: Pe((low >> 16) as u32 & 0xffff),
            seq: (low >> 32) as u32,
            ack: high as u32,
            word: (high >> 32) as u32,
        }
    }
}
