//! Messages between proxy lanes, as bytes.
//!
//! Every message starts with the same 16 bytes, which leave [sealed](crate::wire::seal); all
//! numbers are little endian. Here they are as they are meant.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | low 4 bits: [`VERSION`]; high 4 bits: kind |
//! | 1 | atomic: bits 0..5 operation, 5..7 width (0: 2 bytes, 1: 4, 2: 8), 7 floating point; else zero |
//! | 2..4 | sender's PE |
//! | 4..8 | number of the message in its connection; for an ack, all before it has arrived, if not been executed; for an ack request, the number it asks about; for a reply, that of the request; about rails, that of what is said; zero for what has none |
//! | 8..12 | acknowledges everything of the reverse connection before this number |
//! | 12..16 | atomic: the receiver's slot for the region of the word; reply: the slot of the request id; else zero |
//!
//! What follows:
//!
//! | kind | bytes | content |
//! |---|---|---|
//! | ack, ack request | 16 | nothing |
//! | atomic | 32 | 16..24 offset of the word in its region, 24..32 operand |
//! | fetching atomic | 48 | as atomic; 32..40 comparand, 40..44 slot of the request id, 44 place, 45..48 zero |
//! | reply | 24 | 16..24 the word before |
//! | put with signal | 48 + payload | as atomic, for the signal; 32..36 slot and 40..48 offset of the payload's place, 36..40 its length, up to what the job's longest message has room for |
//! | counted signal | 40 | as atomic; 32..36 number of segments, 36..38 tag, 38..40 zero |
//!
//! Of the offset at 16..24 of a request, 22..24 is what it comes *behind*: 0 for nothing; else
//! every request of its sender whose number is lower by so much or more is executed before it.
//! Offsets are below 2^48.
//!
//! Kinds from 7 on are about staged memory: [`crate::wire::staged`]. An ack with a code in byte 1
//! is about rails: [`crate::wire::rails`].
//!
//! Bytes that are said to be zero are refused when they are not.
//!
//! The segments of a put with a counted signal carry immediate data, see [`crate::wire::marks`].
//!
//! A signal, the most common, is an atomic of 32 bytes: it fits the small inline sends of NICs.

use crate::atomic::Atomic;
use crate::ids::Pe;
pub use crate::port::packet::{LongPacket, MAX_LONG_MESSAGE, MAX_MESSAGE, Packet, PacketOf};
pub use crate::wire::format::{RequestId, Spot, Tag, VERSION, WireError};
use crate::wire::format::{atomic_of, code_of, plain_of, split_offset};
use crate::wire::rails::Rails;
use crate::wire::seal::COVERED;
use crate::wire::staged::{self, Staged};
use crate::wire::window::Seq;

/// Most payload that goes with its signal in one message of any rail.
pub const MAX_EAGER: usize = MAX_MESSAGE - PUT_SIGNAL_HEAD;

/// Most payload that goes with its signal in one message of this many bytes.
pub const fn eager_in(message: usize) -> usize {
    message - PUT_SIGNAL_HEAD
}

const HEAD: usize = 16;
/// Bytes of an atomic.
pub(crate) const ATOMIC: usize = 32;
const FETCH: usize = 48;
const REPLY: usize = 24;
/// Bytes of a put with signal before its payload.
pub(crate) const PUT_SIGNAL_HEAD: usize = 48;

// Bytes that come from elsewhere begin behind it, and are not there yet when the message is sealed.
const _: () = assert!(PUT_SIGNAL_HEAD >= COVERED);
const COUNTED: usize = 40;

const _: () = assert!(ATOMIC == 32, "a signal fits 32 bytes of inline send");
const _: () = assert!(MAX_EAGER >= 64);

/// What a message asks for or tells.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Body<'a> {
    /// Nothing but the head: its number is that of the first message which has not arrived.
    Ack,
    /// Acknowledge the message with the head's number as soon as everything up to it has arrived.
    AckRequest,
    /// Apply an operation that returns nothing.
    Atomic {
        /// The word.
        at: Spot,
        /// The operation.
        atomic: Atomic,
    },
    /// Apply an operation and reply with the word before.
    Fetch {
        /// The word.
        at: Spot,
        /// The operation.
        atomic: Atomic,
        /// Goes back with the reply.
        request_id: RequestId,
        /// Which of the sender's fetches to this peer it is, below 16. The reply is kept until the
        /// next one with this place.
        place: u8,
    },
    /// The answer to a fetch.
    Reply {
        /// The fetch's request id.
        request_id: RequestId,
        /// The word before.
        value: u64,
    },
    /// Store the payload, then apply the operation.
    PutSignal {
        /// The signal word.
        at: Spot,
        /// The operation on it.
        atomic: Atomic,
        /// Where the payload goes.
        to: Spot,
        /// At most as many bytes as [`eager_in`] the longest message.
        payload: &'a [u8],
    },
    /// The same, as its sender writes it whose payload is the message's
    /// [`Tail`](crate::port::Tail). Read it is the other one.
    PutSignalHead {
        /// The signal word.
        at: Spot,
        /// The operation on it.
        atomic: Atomic,
        /// Where the payload goes.
        to: Spot,
        /// Its bytes.
        len: usize,
    },
    /// Apply the operation once all segments of the put with this tag are there.
    CountedSignal {
        /// The signal word.
        at: Spot,
        /// The operation on it.
        atomic: Atomic,
        /// The put.
        tag: Tag,
        /// Its segments; one at least.
        segments: u32,
    },
    /// Something about staged memory.
    Staged(Staged<'a>),
    /// Something about rails.
    Rails(Rails<'a>),
}

/// A message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Message<'a> {
    /// Its sender; below 65536, as NVSHMEM's PEs are.
    pub from: Pe,
    /// Its number. A reply has that of its request, an ack that of the first message of the reverse
    /// connection that has not arrived; what is about rails has a number of its own, or zero, which
    /// is the same over all paths; all others without a number carry zero.
    pub seq: Seq,
    /// Everything of the reverse connection before this number has arrived.
    pub ack: Seq,
    /// What a request comes behind: each one with a number lower by so much or more. 0 is nothing.
    pub behind: u16,
    /// The rest.
    pub body: Body<'a>,
}

impl Body<'_> {
    pub(crate) fn payload_len(&self) -> usize {
        if let Body::PutSignal { payload, .. } = self { payload.len() } else { 0 }
    }

    pub(crate) fn is_request(&self) -> bool {
        match self {
            Body::Staged(staged) => staged.is_request(),
            Body::Atomic { .. }
            | Body::Fetch { .. }
            | Body::PutSignal { .. }
            | Body::PutSignalHead { .. }
            | Body::CountedSignal { .. } => true,
            Body::Ack | Body::AckRequest | Body::Reply { .. } | Body::Rails(_) => false,
        }
    }
}

impl<const N: usize> PacketOf<N> {
    #[inline]
    pub(crate) fn set_behind(&mut self, behind: u16) {
        self.bytes[22..24].copy_from_slice(&behind.to_le_bytes());
    }

    /// Writes number and acknowledgement into a message that is encoded already.
    #[inline]
    pub fn number(&mut self, seq: Seq, ack: Seq) {
        self.bytes[4..8].copy_from_slice(&seq.0.to_le_bytes());
        self.bytes[8..12].copy_from_slice(&ack.0.to_le_bytes());
    }

    pub(crate) fn behind(&self) -> u16 {
        split_offset(get64(&self.bytes, 16)).1
    }

    #[inline(always)]
    pub(crate) fn atomic(&mut self, from: Pe, numbers: (Seq, Seq), at: Spot, atomic: &Atomic) {
        self.word(KIND_ATOMIC, from, numbers, at, atomic);
        self.len = ATOMIC;
    }

    #[inline(always)]
    pub(crate) fn signal(&mut self, from: Pe, numbers: (Seq, Seq), at: Spot, atomic: &Atomic) {
        self.word(KIND_PUT_SIGNAL, from, numbers, at, atomic);
    }

    /// Writes where the payload of a put with signal goes, and gives the room for its `len` bytes:
    /// at most as many as the packet has room for; beyond it is cut.
    #[inline(always)]
    pub(crate) fn data(&mut self, to: Spot, len: usize) -> &mut [u8] {
        let len = len.min(eager_in(N));
        self.place(to, len);
        self.len = PUT_SIGNAL_HEAD + len;
        &mut self.bytes[PUT_SIGNAL_HEAD..PUT_SIGNAL_HEAD + len]
    }

    /// Writes the place of `len` bytes of payload.
    #[inline(always)]
    fn place(&mut self, to: Spot, len: usize) {
        put64(&mut self.bytes, 32, u64::from(to.slot) | (len as u64) << 32);
        put64(&mut self.bytes, 40, to.offset);
    }

    /// Writes the first 32 bytes of what changes a word.
    #[inline(always)]
    fn word(&mut self, kind: u8, from: Pe, numbers: (Seq, Seq), at: Spot, atomic: &Atomic) {
        put64(&mut self.bytes, 16, at.offset);
        put64(&mut self.bytes, 24, atomic.operand);
        self.head(kind, code_of(atomic), from, numbers, at.slot);
    }

    /// Writes the first 16 bytes.
    #[inline(always)]
    fn head(&mut self, kind: u8, code: u8, from: Pe, (seq, ack): (Seq, Seq), word: u32) {
        let what = u64::from(VERSION | kind << 4) | u64::from(code) << 8;
        let from = u64::from(from.0 as u16) << 16;
        put64(&mut self.bytes, 0, what | from | u64::from(seq.0) << 32);
        put64(&mut self.bytes, 8, u64::from(ack.0) | u64::from(word) << 32);
    }
}

const KIND_ACK: u8 = 0;
const KIND_ACK_REQUEST: u8 = 1;
const KIND_ATOMIC: u8 = 2;
const KIND_FETCH: u8 = 3;
const KIND_REPLY: u8 = 4;
const KIND_PUT_SIGNAL: u8 = 5;
const KIND_COUNTED: u8 = 6;

/// A message of the kinds that are most common, an atomic or a put with signal, as
/// [`PlainMessage::decode`] reads it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PlainMessage<'a> {
    /// As in [`Message`].
    pub from: Pe,
    /// As in [`Message`].
    pub seq: Seq,
    /// As in [`Message`].
    pub ack: Seq,
    /// The word.
    pub at: Spot,
    /// The operation, which fetches nothing.
    pub atomic: Atomic,
    /// Where bytes go before that, and the bytes; there are none in an atomic.
    pub to: Spot,
    /// See `to`.
    pub payload: &'a [u8],
}

impl<'a> PlainMessage<'a> {
    /// [`Message::decode`] for these kinds, in few instructions. None for all others, and for what
    /// [`Message::decode`] refuses.
    #[inline(always)]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < ATOMIC {
            return None;
        }
        let (head, second) = (get64(bytes, 0), get64(bytes, 8));
        let code = (head >> 8) as u8;
        let offset = get64(bytes, 16);
        if split_offset(offset).1 != 0 {
            return None;
        }
        let nowhere = Spot { slot: 0, offset: 0 };
        let (to, payload) = match head as u8 {
            ATOMIC_HEAD if bytes.len() == ATOMIC => (nowhere, &bytes[ATOMIC..]),
            PUT_SIGNAL_HEAD_BYTE if bytes.len() >= PUT_SIGNAL_HEAD => {
                let place = get64(bytes, 32);
                let payload = &bytes[PUT_SIGNAL_HEAD..];
                if payload.len() as u64 != place >> 32 || payload.len() > eager_in(MAX_LONG_MESSAGE)
                {
                    return None;
                }
                (Spot { slot: place as u32, offset: get64(bytes, 40) }, payload)
            }
            _ => return None,
        };
        let atomic = plain_of(code, get64(bytes, 24))?;
        Some(PlainMessage {
            from: Pe((head >> 16) as u32 & 0xffff),
            seq: Seq((head >> 32) as u32),
            ack: Seq(second as u32),
            at: Spot { slot: (second >> 32) as u32, offset },
            atomic,
            to,
            payload,
        })
    }
}

const ATOMIC_HEAD: u8 = VERSION | KIND_ATOMIC << 4;
const PUT_SIGNAL_HEAD_BYTE: u8 = VERSION | KIND_PUT_SIGNAL << 4;

impl<'a> Message<'a> {
    pub(crate) fn comes_behind(&self) -> Option<Seq> {
        let last = self.seq.0.wrapping_sub(self.behind.into());
        (self.behind != 0).then(|| Seq(last).next())
    }

    /// Writes the message. A payload for which the packet has no room is an error of the caller and
    /// is cut.
    #[inline]
    pub fn encode<const N: usize>(&self, packet: &mut PacketOf<N>) {
        self.encode_unordered(packet);
        if self.behind != 0 {
            packet.set_behind(self.behind);
        }
    }

    #[inline]
    fn encode_unordered<const N: usize>(&self, packet: &mut PacketOf<N>) {
        let (from, numbers) = (self.from, (self.seq, self.ack));
        let bytes = &mut packet.bytes;
        let mut code = 0;
        let mut word = 0;
        let (kind, len) = match self.body {
            Body::Ack => (KIND_ACK, HEAD),
            Body::AckRequest => (KIND_ACK_REQUEST, HEAD),
            Body::Atomic { at, atomic } => {
                return packet.atomic(from, numbers, at, &atomic);
            }
            Body::Fetch { at, atomic, request_id, place } => {
                (code, word) = (code_of(&atomic), at.slot);
                put64(bytes, 16, at.offset);
                put64(bytes, 24, atomic.operand);
                put64(bytes, 32, atomic.compare);
                put64(bytes, 40, u64::from(request_id.slot) | u64::from(place) << 32);
                (KIND_FETCH, FETCH)
            }
            Body::Reply { request_id, value } => {
                word = request_id.slot;
                put64(bytes, 16, value);
                (KIND_REPLY, REPLY)
            }
            Body::PutSignal { at, atomic, to, payload } => {
                debug_assert!(payload.len() <= eager_in(N));
                packet.signal(from, numbers, at, &atomic);
                let room = packet.data(to, payload.len());
                return room.copy_from_slice(&payload[..room.len()]);
            }
            Body::PutSignalHead { at, atomic, to, len } => {
                packet.signal(from, numbers, at, &atomic);
                packet.place(to, len);
                packet.len = PUT_SIGNAL_HEAD;
                return;
            }
            Body::CountedSignal { at, atomic, tag, segments } => {
                (code, word) = (code_of(&atomic), at.slot);
                put64(bytes, 16, at.offset);
                put64(bytes, 24, atomic.operand);
                put64(bytes, 32, u64::from(segments) | u64::from(tag.0) << 32);
                (KIND_COUNTED, COUNTED)
            }
            Body::Rails(rails) => {
                let (code, word) = rails.encode(packet);
                return packet.head(KIND_ACK, code, from, numbers, word);
            }
            Body::Staged(staged) => {
                let (kind, word) = staged.encode(packet);
                return packet.head(kind, 0, from, numbers, word);
            }
        };
        packet.head(kind, code, from, numbers, word);
        packet.len = len;
    }

    /// Reads a message that came from another process of the job, and was opened.
    ///
    /// # Errors
    /// What is wrong with the bytes. Nothing of a refused message may be used.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Result<Self, WireError> {
        let len = bytes.len();
        if len < HEAD {
            return Err(WireError::Head(len));
        }
        let (head, second) = (get64(bytes, 0), get64(bytes, 8));
        let (version, kind, code) = (head as u8 & 0xf, head as u8 >> 4, (head >> 8) as u8);
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        if len > MAX_MESSAGE && kind != KIND_PUT_SIGNAL && kind != staged::PULL {
            return Err(WireError::Length { kind, len });
        }
        let exactly = |expected: usize| {
            if len == expected { Ok(()) } else { Err(WireError::Length { kind, len }) }
        };
        let seq = Seq((head >> 32) as u32);
        let word = (second >> 32) as u32;
        let atomic = |fetches: bool| {
            let atomic = atomic_of(code, get64(bytes, 24));
            let atomic = atomic.filter(|atomic| atomic.op.fetches() == fetches);
            let atomic = atomic.ok_or(WireError::Operation { kind, code })?;
            Ok((Spot { slot: word, offset: split_offset(get64(bytes, 16)).0 }, atomic))
        };
        let zero = |rest: u64| if rest == 0 { Ok(()) } else { Err(WireError::Reserved { kind }) };
        let body = match kind {
            KIND_ACK if code != 0 => Body::Rails(Rails::decode(kind, code, word, bytes)?),
            KIND_ACK | KIND_ACK_REQUEST => {
                exactly(HEAD)?;
                zero(u64::from(code) | u64::from(word))?;
                if kind == KIND_ACK_REQUEST { Body::AckRequest } else { Body::Ack }
            }
            KIND_ATOMIC => {
                exactly(ATOMIC)?;
                let (at, atomic) = atomic(false)?;
                Body::Atomic { at, atomic }
            }
            KIND_FETCH => {
                exactly(FETCH)?;
                let (at, atomic) = atomic(true)?;
                let atomic = Atomic { compare: get64(bytes, 32), ..atomic };
                let named = get64(bytes, 40);
                zero(named >> 36)?;
                let (slot, place) = (named as u32, (named >> 32) as u8);
                Body::Fetch { at, atomic, request_id: RequestId { slot, seq }, place }
            }
            KIND_REPLY => {
                exactly(REPLY)?;
                zero(code.into())?;
                Body::Reply { request_id: RequestId { slot: word, seq }, value: get64(bytes, 16) }
            }
            KIND_PUT_SIGNAL => {
                if len < PUT_SIGNAL_HEAD {
                    return Err(WireError::Length { kind, len });
                }
                let place = get64(bytes, 32);
                let (slot, size) = (place as u32, (place >> 32) as usize);
                if size > eager_in(MAX_LONG_MESSAGE) {
                    return Err(WireError::Length { kind, len });
                }
                exactly(PUT_SIGNAL_HEAD + size)?;
                let (at, atomic) = atomic(false)?;
                let to = Spot { slot, offset: get64(bytes, 40) };
                Body::PutSignal { at, atomic, to, payload: &bytes[PUT_SIGNAL_HEAD..] }
            }
            KIND_COUNTED => {
                exactly(COUNTED)?;
                let (at, atomic) = atomic(false)?;
                let put = get64(bytes, 32);
                zero(put >> 48)?;
                let (segments, tag) = (put as u32, Tag((put >> 32) as u16));
                if segments == 0 {
                    return Err(WireError::Segments);
                }
                Body::CountedSignal { at, atomic, tag, segments }
            }
            kind => {
                let staged = Staged::decode(kind, seq, word, bytes)?;
                zero(code.into())?;
                Body::Staged(staged.ok_or(WireError::Kind(kind))?)
            }
        };
        // All requests have more than a head.
        let behind = if body.is_request() { split_offset(get64(bytes, 16)).1 } else { 0 };
        let (from, ack) = (Pe((head >> 16) as u32 & 0xffff), Seq(second as u32));
        Ok(Message { from, seq, ack, behind, body })
    }
}

#[inline]
fn put64<const N: usize>(bytes: &mut [u8; N], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Eight bytes of a message that is long enough.
#[inline]
fn get64(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
