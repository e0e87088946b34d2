//! Encoding of outgoing messages into frames, and their sealing.

use crate::atomic::Atomic;
use crate::ids::Pe;
use crate::port::packet::Packet;
use crate::wire::message::{
    Body, COUNTED_SIGNAL, FETCH, HEAD, KIND_ACK, KIND_ACK_REQUEST, KIND_COUNTED_SIGNAL, KIND_FETCH,
    KIND_PUT_SIGNAL, KIND_REFUSAL, KIND_REPLY, KIND_WORD, MAP_BYTES, MAX_EAGER, MAX_REASON,
    PUT_SIGNAL_HEAD, REFUSAL, REPLY, RegionAddr, Seq, VERSION, WORD,
};
use crate::wire::seal::{Receiver, Seal};

/// Numbers that the sender of a message adds to its body.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    /// Number of the message, or the sender's next one if it has none.
    pub seq: Seq,
    /// First number of the reverse direction that is not executed.
    pub ack: Seq,
    /// Distance to the last message that has to be executed first; 0 for none.
    pub mark: u16,
    /// Mask of the head's word for this number, see [`Seal::mask`].
    pub mask: u32,
}

/// Buffer of one outgoing message, without a payload that is sent from elsewhere.
pub type Frame = Packet;

impl Frame {
    #[inline(always)]
    pub(crate) fn put(&mut self, offset: usize, word: u64) {
        self.bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }

    #[inline(always)]
    fn word(&mut self, addr: RegionAddr, atomic: &Atomic, mark: u16) {
        self.put(16, addr.offset | u64::from(mark) << 48);
        self.put(24, atomic.operand);
    }

    /// Writes an atomic that fetches nothing, or that of a put with signal, whose
    /// [data](Frame::data) comes next. Does not seal the head.
    #[inline(always)]
    pub(crate) fn atomic(
        &mut self,
        from: Pe,
        n: &Numbers,
        (addr, atomic): (RegionAddr, &Atomic),
        with_data: bool,
    ) {
        let kind = if with_data { KIND_PUT_SIGNAL } else { KIND_WORD };
        self.head(from, n, kind, code_of(atomic), addr.region);
        self.word(addr, atomic, n.mark);
        if !with_data {
            self.len = WORD;
        }
    }

    /// Writes the destination of a payload; returns the space for it, cut at [`MAX_EAGER`].
    #[inline(always)]
    pub(crate) fn data(&mut self, to: RegionAddr, len: usize) -> &mut [u8] {
        self.put(32, u64::from(to.region) | (len as u64) << 32);
        self.put(40, to.offset);
        let end = PUT_SIGNAL_HEAD + len.min(MAX_EAGER);
        self.len = end;
        &mut self.bytes[PUT_SIGNAL_HEAD..end]
    }

    /// Writes and seals a put with signal whose payload of `len` bytes is sent from its own memory.
    pub fn put_signal_long(
        &mut self,
        to: &SealContext<'_>,
        n: &Numbers,
        signal: (RegionAddr, &Atomic),
        data: RegionAddr,
        len: usize,
    ) {
        self.atomic(to.from, n, signal, true);
        self.data(data, len);
        // The payload follows as the tail of the message.
        self.len = PUT_SIGNAL_HEAD;
        self.seal(to);
    }

    /// Writes and seals any message. Cuts a payload or text that is too long.
    pub fn encode(&mut self, to: &SealContext<'_>, n: &Numbers, body: &Body<'_>) {
        if let Some((kind, word, len)) = self.staged(n.mark, body) {
            self.len = len;
            return self.close(to, n, kind, 0, word);
        }
        let (mut code, mut word) = (0, 0);
        let (kind, len) = match *body {
            Body::Ack(None) => (KIND_ACK, HEAD),
            Body::Ack(Some(map)) => {
                self.bytes[HEAD..HEAD + MAP_BYTES].copy_from_slice(map);
                (KIND_ACK, HEAD + MAP_BYTES)
            }
            Body::AckRequest => (KIND_ACK_REQUEST, HEAD),
            Body::Word { addr, atomic } => {
                self.atomic(to.from, n, (addr, &atomic), false);
                return self.seal(to);
            }
            Body::Fetch { addr, atomic, reply_slot } => {
                self.word(addr, &atomic, n.mark);
                self.put(32, atomic.compare);
                self.put(40, reply_slot.into());
                (code, word) = (code_of(&atomic), addr.region);
                (KIND_FETCH, FETCH)
            }
            Body::Reply { reply_slot, low, value } => {
                self.put(16, value);
                self.put(24, low.into());
                word = reply_slot;
                (KIND_REPLY, REPLY)
            }
            Body::PutSignal { addr, atomic, to: data, payload } => {
                self.atomic(to.from, n, (addr, &atomic), true);
                let room = self.data(data, payload.len().min(MAX_EAGER));
                let len = room.len();
                room.copy_from_slice(&payload[..len]);
                return self.seal(to);
            }
            Body::CountedSignal { addr, atomic, tag, segments } => {
                self.word(addr, &atomic, n.mark);
                self.put(32, u64::from(segments) | u64::from(tag.0) << 32);
                (code, word) = (code_of(&atomic), addr.region);
                (KIND_COUNTED_SIGNAL, COUNTED_SIGNAL)
            }
            Body::Refusal { low, why } => {
                // Cut between characters, since the receiver takes UTF-8 alone.
                let fits = why.char_indices().map(|(at, c)| at + c.len_utf8());
                let end = fits.take_while(|end| *end <= MAX_REASON).last().unwrap_or(0);
                self.put(16, low.into());
                self.bytes[REFUSAL..REFUSAL + end].copy_from_slice(&why.as_bytes()[..end]);
                (KIND_REFUSAL, REFUSAL + end)
            }
            _ => return,
        };
        self.len = len;
        self.close(to, n, kind, code, word);
    }

    /// Writes and seals the head.
    pub(crate) fn close(
        &mut self,
        to: &SealContext<'_>,
        n: &Numbers,
        kind: u8,
        code: u8,
        word: u32,
    ) {
        self.head(to.from, n, kind, code, word);
        self.seal(to);
    }

    #[inline(always)]
    fn head(&mut self, from: Pe, n: &Numbers, kind: u8, code: u8, word: u32) {
        let kind_and_code = u64::from(VERSION | kind << 4) | u64::from(code) << 8;
        self.put(0, kind_and_code | u64::from(from.0 as u16) << 16 | u64::from(n.seq.low()) << 32);
        self.put(8, u64::from(n.ack.low()) | u64::from(word ^ n.mask) << 32);
    }

    /// Seals the head, once all bytes that the seal covers are written.
    #[inline(always)]
    pub(crate) fn seal(&mut self, to: &SealContext<'_>) {
        to.seal.close(to.receiver, &mut self.bytes, self.len);
    }
}

/// Seal, sender and receiver of messages from one PE to another.
#[derive(Clone, Copy, Debug)]
pub struct SealContext<'a> {
    pub seal: &'a Seal,
    pub from: Pe,
    pub receiver: &'a Receiver,
}

/// Encodes an operation, the width of its word and whether that is floating point in one byte.
#[inline(always)]
pub(crate) fn code_of(atomic: &Atomic) -> u8 {
    atomic.op as u8 | (atomic.width as u8) << 5 | u8::from(atomic.float) << 7
}
