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
//! | 12..16 | receiver's slot of the word's region, or as in the table below; masked with the number's high half |
//!
//! | kind | length | content |
//! |---|---|---|
//! | ack | 16, or 80 | 12..16 zero; 16.. bitmap: bit `n`: the message `n` beyond the acknowledged number is executed |
//! | ack request | 16 | 12..16 zero |
//! | atomic | 32 | 16..24 offset, 24..32 operand |
//! | fetch | 48 | as atomic; 32..40 comparand, 40 place, 41..48 zero |
//! | reply | 32 | 12..16 place; 16..24 the word before; 24..28 low half of the fetch's number; 28..32 zero |
//! | put with signal | 48 + payload | as atomic; 32..36 slot, 36..40 length and 40..48 offset of the payload |
//! | signal beside | 40 | as atomic; 32..36 number of segments, 36..38 tag, 38..40 zero |
//! | refusal | 24 + text | 12..16 zero; 16..20 low half of the refused number; 20..24 zero; UTF-8 |
//!
//! Kinds from 8 to 15 carry operations on staged memory.
//!
//! A numbered message has in 22..24 its *mark*: 0, or how many numbers lower the last message is
//! that its target must execute first. Offsets have 48 bits. Bytes described as zero are checked.
//!
//! An atomic, the most common signal, has 32 bytes and fits the inline send of NICs.

use crate::atomic::{Atomic, AtomicOp, Width};
use crate::ids::Pe;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::wire::seal::{Receiver, Seal};

/// Version of the messages, 1 to 15.
pub const VERSION: u8 = 2;

/// Bytes of the head.
pub const HEAD: usize = 16;

/// Most messages to one peer that are not acknowledged. The receiver remembers as many.
pub const WINDOW: u64 = 512;

/// Bytes of the bitmap of an acknowledgement.
pub const MAP_BYTES: usize = (WINDOW / 8) as usize;

/// Longest payload that fits one message with its signal on every rail.
pub const MAX_EAGER: usize = MAX_MESSAGE - PUT_SIGNAL_HEAD;

/// Longest payload in one message of `message` bytes with its signal.
pub const fn eager_in(message: usize) -> usize {
    message - PUT_SIGNAL_HEAD
}

/// Fetches to one peer that may be under way.
pub const FETCHES: usize = 16;

const WORD: usize = 32;
const FETCH: usize = 48;
const REPLY: usize = 32;
/// Bytes of a put with signal before its payload.
pub(crate) const PUT_SIGNAL_HEAD: usize = 48;
const BESIDE: usize = 40;
const REFUSAL: usize = 24;
/// Longest text of a refusal.
pub const MAX_REASON: usize = MAX_MESSAGE - REFUSAL;

const KIND_ACK: u8 = 0;
const KIND_ACK_REQUEST: u8 = 1;
const KIND_WORD: u8 = 2;
const KIND_FETCH: u8 = 3;
const KIND_REPLY: u8 = 4;
const KIND_PUT_SIGNAL: u8 = 5;
const KIND_BESIDE: u8 = 6;
const KIND_REFUSAL: u8 = 7;
/// The first of eight kinds about staged memory.
pub(crate) const KIND_STAGED: u8 = 8;

const _: () = assert!(MAX_EAGER >= 64 && MAX_LONG_MESSAGE <= u16::MAX as usize);

/// Number of a message in its direction between two PEs. It never repeats.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Seq(pub u64);

impl Seq {
    /// The first number in every direction: near the end of the low half, so that every longer job
    /// crosses it.
    pub const FIRST: Seq = Seq((1 << 32) - 300);

    /// The half that travels.
    #[inline(always)]
    pub fn low(self) -> u32 {
        self.0 as u32
    }

    /// The half that masks a word of the head.
    #[inline(always)]
    pub fn high(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The number with this low half that is nearest to `self`.
    #[inline(always)]
    pub fn near(self, low: u32) -> Seq {
        let distance = low.wrapping_sub(self.low()) as i32;
        Seq(self.0.wrapping_add_signed(distance.into()))
    }

    /// The number after this one.
    #[inline(always)]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

/// Place of a word or a payload at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The receiver's slot of the region.
    pub slot: u32,
    /// Offset of the first byte in the region, below 2^48.
    pub offset: u64,
}

/// Names a counted put among those of its sender to one peer that are under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tag(pub u16);

/// Bytes that are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than a head.
    #[error("a message of {0} bytes")]
    Head(usize),
    /// Shorter or longer than its kind.
    #[error("a message of kind {kind} with {len} bytes")]
    Length {
        /// Its kind.
        kind: u8,
        /// Its length.
        len: usize,
    },
    /// Not of this job, or from another version of this transport.
    #[error("a message of version {0}, this transport speaks version {VERSION}")]
    Version(u8),
    /// A kind that does not exist.
    #[error("a message of unknown kind {0}")]
    Kind(u8),
    /// An operation that does not exist or does not belong to the kind.
    #[error("a message of kind {kind} with atomic operation {code:#04x}")]
    Operation {
        /// Its kind.
        kind: u8,
        /// The byte that names the operation.
        code: u8,
    },
    /// A counted signal of no segments.
    #[error("a counted signal with no segments to wait for")]
    Segments,
    /// Bytes without meaning that are not zero, or text that is not UTF-8.
    #[error("a message of kind {kind} with content in bytes that have no meaning")]
    Reserved {
        /// Its kind.
        kind: u8,
    },
}

/// Content of a message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Body<'a> {
    /// Acknowledges what the head says, and the messages beyond it whose bit is set.
    Ack(Option<&'a [u8; MAP_BYTES]>),
    /// Asks for an acknowledgement once everything before the head's number is executed.
    AckRequest,
    /// Applies an operation that returns nothing.
    Word {
        /// The word.
        at: Spot,
        /// The operation.
        atomic: Atomic,
    },
    /// Applies an operation and replies with the word before.
    Fetch {
        /// The word.
        at: Spot,
        /// The operation.
        atomic: Atomic,
        /// Which of the sender's [`FETCHES`] to this peer it is. The reply is kept until the next
        /// fetch with this place.
        place: u8,
    },
    /// Answers a fetch.
    Reply {
        /// The fetch's place.
        place: u32,
        /// Low half of the fetch's number.
        of: u32,
        /// The word before.
        value: u64,
    },
    /// Stores the payload, then applies the operation.
    PutSignal {
        /// The signal word.
        at: Spot,
        /// The operation on it.
        atomic: Atomic,
        /// Destination of the payload.
        to: Spot,
        /// The payload.
        payload: &'a [u8],
    },
    /// Applies the operation once all segments with the tag have arrived.
    Beside {
        /// The signal word.
        at: Spot,
        /// The operation on it.
        atomic: Atomic,
        /// The put.
        tag: Tag,
        /// Number of its segments, one at least.
        segments: u32,
    },
    /// A message could not be executed.
    Refusal {
        /// Low half of its number.
        of: u32,
        /// The reason.
        why: &'a str,
    },
}

impl Body<'_> {
    /// Whether the message has a number of its own and is acknowledged.
    pub(crate) fn is_numbered(&self) -> bool {
        match self {
            Body::Word { .. } | Body::Fetch { .. } => true,
            Body::PutSignal { .. } | Body::Beside { .. } => true,
            Body::Ack(_) | Body::AckRequest | Body::Reply { .. } | Body::Refusal { .. } => false,
        }
    }
}

impl Body<'_> {
    /// The receiver's slot in the head's word, where it has one.
    pub(crate) fn slot(&self) -> Option<u32> {
        match self {
            Body::Word { at, .. } | Body::Fetch { at, .. } => Some(at.slot),
            Body::PutSignal { at, .. } | Body::Beside { at, .. } => Some(at.slot),
            Body::Ack(_) | Body::AckRequest | Body::Reply { .. } | Body::Refusal { .. } => None,
        }
    }
}

/// Head of a message as it is meant, before it is sealed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Head {
    /// Kind and atomic, bytes 0 and 1.
    pub(crate) what: u16,
    /// The sender.
    pub from: Pe,
    /// Low half of the number.
    pub seq: u32,
    /// Low half of the acknowledged number.
    pub ack: u32,
    /// Bytes 12..16, masked.
    pub(crate) word: u32,
}

impl Head {
    #[inline(always)]
    pub(crate) fn kind(self) -> u8 {
        self.what as u8 >> 4
    }

    #[inline(always)]
    fn code(self) -> u8 {
        (self.what >> 8) as u8
    }

    /// The head of an opened message, from its two words.
    #[inline(always)]
    pub(crate) fn of(low: u64, high: u64) -> Self {
        Self {
            what: low as u16,
            from: Pe((low >> 16) as u32 & 0xffff),
            seq: (low >> 32) as u32,
            ack: high as u32,
            word: (high >> 32) as u32,
        }
    }
}

/// What the sender of a message adds to its body.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Number of the message, or the sender's next one.
    pub seq: Seq,
    /// First number of the reverse direction that is not executed.
    pub ack: Seq,
    /// Distance to the last message that has to be executed first; 0 for none.
    pub mark: u16,
    /// Mask of the head's word for this number, see [`Seal::mask`].
    pub mask: u32,
}

/// Buffer of one outgoing message, without a payload that is sent from elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub(crate) bytes: [u8; MAX_MESSAGE],
    pub(crate) len: usize,
}

impl Frame {
    /// An empty frame.
    pub const EMPTY: Self = Self { bytes: [0; MAX_MESSAGE], len: 0 };

    /// The message's bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[inline(always)]
    pub(crate) fn put(&mut self, at: usize, word: u64) {
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Writes an atomic's word and operand, which many kinds begin with.
    #[inline(always)]
    fn word(&mut self, at: Spot, atomic: &Atomic, mark: u16) {
        self.put(16, at.offset | u64::from(mark) << 48);
        self.put(24, atomic.operand);
    }

    /// Writes and seals an atomic that fetches nothing.
    #[inline(always)]
    pub(crate) fn atomic(&mut self, to: &Sealing<'_>, n: &Numbers, at: Spot, atomic: &Atomic) {
        self.word(at, atomic, n.mark);
        self.len = WORD;
        self.close(to, n, KIND_WORD, code_of(atomic), at.slot);
    }

    /// Writes and seals a put with signal whose payload of `len` bytes, at most [`MAX_EAGER`], is
    /// in [`Frame::payload_mut`] already.
    #[inline(always)]
    pub(crate) fn put_signal(
        &mut self,
        to: &Sealing<'_>,
        n: &Numbers,
        (at, atomic): (Spot, &Atomic),
        data: Spot,
        len: usize,
    ) {
        self.put_signal_head((at, atomic), data, len, n.mark);
        self.len = PUT_SIGNAL_HEAD + len.min(MAX_EAGER);
        self.close(to, n, KIND_PUT_SIGNAL, code_of(atomic), at.slot);
    }

    #[inline(always)]
    fn put_signal_head(&mut self, (at, atomic): (Spot, &Atomic), data: Spot, len: usize, m: u16) {
        self.word(at, atomic, m);
        self.put(32, u64::from(data.slot) | (len as u64) << 32);
        self.put(40, data.offset);
    }

    /// Room for the payload of a put with signal, of `len` bytes; cut at [`MAX_EAGER`].
    #[inline(always)]
    pub(crate) fn payload_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[PUT_SIGNAL_HEAD..PUT_SIGNAL_HEAD + len.min(MAX_EAGER)]
    }

    /// Writes and seals a put with signal whose payload of `len` bytes is sent from its own memory.
    pub(crate) fn put_signal_long(
        &mut self,
        to: &Sealing<'_>,
        n: &Numbers,
        (at, atomic): (Spot, &Atomic),
        data: Spot,
        len: usize,
    ) {
        self.put_signal_head((at, atomic), data, len, n.mark);
        self.len = PUT_SIGNAL_HEAD;
        self.close(to, n, KIND_PUT_SIGNAL, code_of(atomic), at.slot);
    }

    /// Writes and seals any message. A payload or text that is too long is cut.
    pub fn encode(&mut self, to: &Sealing<'_>, n: &Numbers, body: &Body<'_>) {
        let (mut code, mut word) = (0, 0);
        let (kind, len) = match *body {
            Body::Ack(None) => (KIND_ACK, HEAD),
            Body::Ack(Some(map)) => {
                self.bytes[HEAD..HEAD + MAP_BYTES].copy_from_slice(map);
                (KIND_ACK, HEAD + MAP_BYTES)
            }
            Body::AckRequest => (KIND_ACK_REQUEST, HEAD),
            Body::Word { at, atomic } => return self.atomic(to, n, at, &atomic),
            Body::Fetch { at, atomic, place } => {
                self.word(at, &atomic, n.mark);
                self.put(32, atomic.compare);
                self.put(40, place.into());
                (code, word) = (code_of(&atomic), at.slot);
                (KIND_FETCH, FETCH)
            }
            Body::Reply { place, of, value } => {
                self.put(16, value);
                self.put(24, of.into());
                word = place;
                (KIND_REPLY, REPLY)
            }
            Body::PutSignal { at, atomic, to: data, payload } => {
                let room = self.payload_mut(payload.len());
                let len = room.len();
                room.copy_from_slice(&payload[..len]);
                return self.put_signal(to, n, (at, &atomic), data, len);
            }
            Body::Beside { at, atomic, tag, segments } => {
                self.word(at, &atomic, n.mark);
                self.put(32, u64::from(segments) | u64::from(tag.0) << 32);
                (code, word) = (code_of(&atomic), at.slot);
                (KIND_BESIDE, BESIDE)
            }
            Body::Refusal { of, why } => {
                let fits = why.char_indices().map(|(at, c)| at + c.len_utf8());
                let end = fits.take_while(|end| *end <= MAX_REASON).last().unwrap_or(0);
                self.put(16, of.into());
                self.bytes[REFUSAL..REFUSAL + end].copy_from_slice(&why.as_bytes()[..end]);
                (KIND_REFUSAL, REFUSAL + end)
            }
        };
        self.len = len;
        self.close(to, n, kind, code, word);
    }

    /// Writes the sealed head.
    #[inline(always)]
    pub(crate) fn close(&mut self, to: &Sealing<'_>, n: &Numbers, kind: u8, code: u8, word: u32) {
        let what = u64::from(VERSION | kind << 4) | u64::from(code) << 8;
        let low = what | u64::from(to.from.0 as u16) << 16 | u64::from(n.seq.low()) << 32;
        let high = u64::from(n.ack.low()) | u64::from(word ^ n.mask) << 32;
        let sealed = to.seal.close(to.receiver, &self.bytes, self.len, (low, high));
        self.bytes[..HEAD].copy_from_slice(&sealed);
    }
}

/// What messages from one PE to another are sealed with.
#[derive(Clone, Copy, Debug)]
pub struct Sealing<'a> {
    /// The job's seal.
    pub seal: &'a Seal,
    /// The sender.
    pub from: Pe,
    /// The receiver.
    pub receiver: &'a Receiver,
}

/// A message of the most common kinds, an atomic or a put with signal without a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plain<'a> {
    /// The word.
    pub(crate) at: Spot,
    /// The operation, which fetches nothing.
    pub(crate) atomic: Atomic,
    /// Destination of the payload.
    pub(crate) to: Spot,
    /// The payload; empty in an atomic.
    pub(crate) payload: &'a [u8],
}

impl<'a> Plain<'a> {
    /// Decodes the most common kinds. `word` is the head's, unmasked. None for other kinds, and for
    /// whatever [`Body::decode`] refuses.
    #[inline(always)]
    pub(crate) fn decode(head: Head, word: u32, bytes: &'a [u8]) -> Option<Self> {
        const WORD_HEAD: u8 = VERSION | KIND_WORD << 4;
        const PUT_SIGNAL: u8 = VERSION | KIND_PUT_SIGNAL << 4;
        if bytes.len() < WORD {
            return None;
        }
        let (offset, mark) = split_offset(get64(bytes, 16));
        if mark != 0 {
            return None;
        }
        let (to, payload) = match head.what as u8 {
            WORD_HEAD if bytes.len() == WORD => (Spot { slot: 0, offset: 0 }, &bytes[WORD..]),
            PUT_SIGNAL if bytes.len() >= PUT_SIGNAL_HEAD => {
                let place = get64(bytes, 32);
                let payload = &bytes[PUT_SIGNAL_HEAD..];
                if payload.len() as u64 != place >> 32 {
                    return None;
                }
                (Spot { slot: place as u32, offset: get64(bytes, 40) }, payload)
            }
            _ => return None,
        };
        let atomic = plain_of(head.code(), get64(bytes, 24))?;
        Some(Self { at: Spot { slot: word, offset }, atomic, to, payload })
    }
}

/// A decoded message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Message<'a> {
    /// Distance to the last message that has to be executed first; 0 for none.
    pub mark: u16,
    /// The content.
    pub body: Body<'a>,
}

impl<'a> Message<'a> {
    /// Decodes an opened message; `word` is the head's, unmasked.
    ///
    /// # Errors
    /// What is wrong with the bytes. Nothing of a refused message may be used.
    pub fn decode(head: Head, word: u32, bytes: &'a [u8]) -> Result<Self, WireError> {
        let len = bytes.len();
        let (kind, code) = (head.kind(), head.code());
        let version = head.what as u8 & 0xf;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        if len > MAX_MESSAGE && kind != KIND_PUT_SIGNAL {
            return Err(WireError::Length { kind, len });
        }
        let wrong = WireError::Length { kind, len };
        let exactly = |expected: usize| if len == expected { Ok(()) } else { Err(wrong) };
        let zero = |rest: u64| if rest == 0 { Ok(()) } else { Err(WireError::Reserved { kind }) };
        let atomic = |fetches: bool| {
            let op = AtomicOp::from_code((code & 0x1f).into());
            let atomic = op.and_then(|op| from_parts(op, code, get64(bytes, 24)));
            let atomic = atomic.filter(|atomic| atomic.op.fetches() == fetches);
            let atomic = atomic.ok_or(WireError::Operation { kind, code })?;
            Ok((Spot { slot: word, offset: split_offset(get64(bytes, 16)).0 }, atomic))
        };
        let body = match kind {
            KIND_ACK => {
                zero(u64::from(code) | u64::from(word))?;
                let map = &bytes[HEAD..];
                match <&[u8; MAP_BYTES]>::try_from(map) {
                    Ok(map) => Body::Ack(Some(map)),
                    Err(_) => {
                        exactly(HEAD)?;
                        Body::Ack(None)
                    }
                }
            }
            KIND_ACK_REQUEST => {
                exactly(HEAD)?;
                zero(u64::from(code) | u64::from(word))?;
                Body::AckRequest
            }
            KIND_WORD => {
                exactly(WORD)?;
                let (at, atomic) = atomic(false)?;
                Body::Word { at, atomic }
            }
            KIND_FETCH => {
                exactly(FETCH)?;
                let (at, atomic) = atomic(true)?;
                let place = get64(bytes, 40);
                zero(place / FETCHES as u64)?;
                let atomic = Atomic { compare: get64(bytes, 32), ..atomic };
                Body::Fetch { at, atomic, place: place as u8 }
            }
            KIND_REPLY => {
                exactly(REPLY)?;
                let of = get64(bytes, 24);
                zero(u64::from(code) | of >> 32)?;
                Body::Reply { place: word, of: of as u32, value: get64(bytes, 16) }
            }
            KIND_PUT_SIGNAL => {
                if len < PUT_SIGNAL_HEAD {
                    return Err(wrong);
                }
                let place = get64(bytes, 32);
                let (slot, size) = (place as u32, (place >> 32) as usize);
                if size > eager_in(MAX_LONG_MESSAGE) {
                    return Err(wrong);
                }
                exactly(PUT_SIGNAL_HEAD + size)?;
                let (at, atomic) = atomic(false)?;
                let to = Spot { slot, offset: get64(bytes, 40) };
                Body::PutSignal { at, atomic, to, payload: &bytes[PUT_SIGNAL_HEAD..] }
            }
            KIND_BESIDE => {
                exactly(BESIDE)?;
                let (at, atomic) = atomic(false)?;
                let put = get64(bytes, 32);
                zero(put >> 48)?;
                let (segments, tag) = (put as u32, Tag((put >> 32) as u16));
                if segments == 0 {
                    return Err(WireError::Segments);
                }
                Body::Beside { at, atomic, tag, segments }
            }
            KIND_REFUSAL => {
                let text = bytes.get(REFUSAL..).ok_or(wrong)?;
                let of = get64(bytes, 16);
                zero(u64::from(code) | u64::from(word) | of >> 32)?;
                let why = std::str::from_utf8(text).map_err(|_| WireError::Reserved { kind })?;
                Body::Refusal { of: of as u32, why }
            }
            kind => return Err(WireError::Kind(kind)),
        };
        let mark = if body.is_numbered() { split_offset(get64(bytes, 16)).1 } else { 0 };
        Ok(Self { mark, body })
    }
}

/// Splits the word at 16..24 of a numbered message into offset and mark.
#[inline(always)]
fn split_offset(word: u64) -> (u64, u16) {
    (word & ((1 << 48) - 1), (word >> 48) as u16)
}

/// Encodes an operation, the width of its word and whether that is floating point.
#[inline(always)]
pub(crate) fn code_of(atomic: &Atomic) -> u8 {
    let width = match atomic.width {
        Width::Two => 0,
        Width::Four => 1,
        Width::Eight => 2,
    };
    atomic.op as u8 | width << 5 | u8::from(atomic.float) << 7
}

/// Decodes an operation that fetches nothing.
#[inline(always)]
pub(crate) fn plain_of(code: u8, operand: u64) -> Option<Atomic> {
    from_parts(AtomicOp::plain_from_code((code & 0x1f).into())?, code, operand)
}

#[inline(always)]
fn from_parts(op: AtomicOp, code: u8, operand: u64) -> Option<Atomic> {
    let width = match code >> 5 & 3 {
        0 => Width::Two,
        1 => Width::Four,
        2 => Width::Eight,
        _ => return None,
    };
    Some(Atomic { op, width, float: code & 0x80 != 0, operand, compare: 0 })
}

/// Eight bytes of a message that is long enough.
#[inline(always)]
pub(crate) fn get64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::wire::cookie::Cookie;

    #[test]
    fn numbers_are_told_from_their_low_half() {
        for seq in [Seq::FIRST, Seq((1 << 32) - 1), Seq(1 << 32), Seq(5 << 32 | 7)] {
            for distance in [0, 1, 511, 100_000, (1 << 31) - 1] {
                let later = Seq(seq.0 + distance);
                assert_eq!(seq.near(later.low()), later);
                assert_eq!(later.near(seq.low()), seq);
            }
        }
    }

    /// A message whose number has the same low half in another round names something else.
    #[test]
    fn messages_of_an_earlier_round_name_nothing() {
        let seal = Seal::new(Cookie::of([[3; 16]]), Pe(0));
        let receiver = seal.receiver(Pe(1));
        let sealing = Sealing { seal: &seal, from: Pe(0), receiver: &receiver };
        let opener = Seal::new(Cookie::of([[3; 16]]), Pe(1));
        let (op, width) = (AtomicOp::Add, Width::Eight);
        let atomic = Atomic { op, width, float: false, operand: 5, compare: 0 };
        let body = Body::Word { at: Spot { slot: 9, offset: 64 }, atomic };
        let opened = |sent: u32, read: u32| {
            let seq = Seq(u64::from(sent) << 32 | 77);
            let mask = seal.mask(Pe(0), Pe(1), sent);
            let mut frame = Frame::EMPTY;
            frame.encode(&sealing, &Numbers { seq, ack: Seq(0), mark: 0, mask }, &body);
            let head = opener.open(frame.bytes()).unwrap();
            let word = head.word ^ opener.mask(Pe(0), Pe(1), read);
            Message::decode(head, word, frame.bytes()).unwrap().body == body
        };
        assert!(opened(4, 4));
        assert!(!opened(4, 5));
    }

    /// All that is written is read again, and no shorter or longer message of its kind.
    #[test]
    fn bodies_are_read_as_written() {
        let seal = Seal::new(Cookie::of([[3; 16]]), Pe(0));
        let receiver = seal.receiver(Pe(0));
        let sealing = Sealing { seal: &seal, from: Pe(0), receiver: &receiver };
        let numbers = Numbers { seq: Seq(7), ack: Seq(3), mark: 0, mask: 0xdead_beef };
        let atomic = |op| Atomic { op, width: Width::Four, float: true, operand: 5, compare: 0 };
        let (at, to) = (Spot { slot: 9, offset: 64 }, Spot { slot: 10, offset: 65 });
        let (set, swap) = (atomic(AtomicOp::Set), atomic(AtomicOp::CompareSwap));
        let swap = Atomic { compare: 11, ..swap };
        let map = [0x5a; MAP_BYTES];
        let bodies = [
            Body::Ack(None),
            Body::Ack(Some(&map)),
            Body::AckRequest,
            Body::Word { at, atomic: set },
            Body::Fetch { at, atomic: swap, place: 15 },
            Body::Reply { place: 3, of: 99, value: u64::MAX },
            Body::PutSignal { at, atomic: set, to, payload: &[1, 2, 3] },
            Body::PutSignal { at, atomic: set, to, payload: &[7; MAX_EAGER] },
            Body::Beside { at, atomic: set, tag: Tag(3), segments: 2 },
            Body::Refusal { of: 4, why: "no such thing" },
        ];
        for body in bodies {
            let mut frame = Frame::EMPTY;
            frame.encode(&sealing, &numbers, &body);
            let head = seal.open(frame.bytes()).unwrap();
            assert_eq!((head.from, head.seq, head.ack), (Pe(0), 7, 3));
            let word = head.word ^ numbers.mask;
            assert_eq!(Message::decode(head, word, frame.bytes()).unwrap().body, body);
            for len in (0..MAX_MESSAGE).filter(|len| *len != frame.len) {
                let mut other = Frame { len, ..frame };
                let (kind, code) = (head.kind(), head.code());
                other.close(&sealing, &numbers, kind, code, word);
                let Some(head) = seal.open(other.bytes()) else { continue };
                let read = Message::decode(head, head.word ^ numbers.mask, other.bytes());
                let text = matches!(body, Body::Refusal { .. });
                assert!(read.is_err() || text || matches!(body, Body::Ack(_)), "{body:?}: {len}");
            }
        }
    }
}
