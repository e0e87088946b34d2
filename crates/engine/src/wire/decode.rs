//! Decoding of opened messages.

use crate::atomic::{Atomic, AtomicOp, Width};
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::wire::message::{
    Body, COUNTED_SIGNAL, FETCH, FETCHES, HEAD, Head, KIND_ACK, KIND_ACK_REQUEST,
    KIND_COUNTED_SIGNAL, KIND_FETCH, KIND_PUT_SIGNAL, KIND_REFUSAL, KIND_REPLY, KIND_WORD,
    MAP_BYTES, PUT_SIGNAL_HEAD, REFUSAL, REPLY, RegionAddr, Tag, VERSION, WORD, WireError,
    eager_in,
};
use crate::wire::staging::{self, KIND_PULL};

/// A message of the most common kinds: an atomic or a put with signal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommonMessage<'a> {
    pub(crate) mark: u16,
    pub(crate) addr: RegionAddr,
    /// The operation, which fetches nothing.
    pub(crate) atomic: Atomic,
    pub(crate) to: RegionAddr,
    /// The payload; empty in an atomic.
    pub(crate) payload: &'a [u8],
}

impl<'a> CommonMessage<'a> {
    /// Decodes the most common kinds. `word` is the head's, unmasked. Returns None for other kinds,
    /// and for whatever [`Message::decode`] refuses.
    #[inline(always)]
    pub(crate) fn decode(head: Head, word: u32, bytes: &'a [u8]) -> Option<Self> {
        const WORD_HEAD: u8 = VERSION | KIND_WORD << 4;
        const PUT_SIGNAL: u8 = VERSION | KIND_PUT_SIGNAL << 4;
        if bytes.len() < WORD {
            return None;
        }
        let (offset, mark) = split_offset(get64(bytes, 16));
        let (to, payload) = match head.kind_and_code as u8 {
            WORD_HEAD if bytes.len() == WORD => {
                (RegionAddr { region: 0, offset: 0 }, &bytes[WORD..])
            }
            PUT_SIGNAL if bytes.len() >= PUT_SIGNAL_HEAD => {
                let named = get64(bytes, 32);
                let payload = &bytes[PUT_SIGNAL_HEAD..];
                // The length in the message and the length of the message have to agree.
                if payload.len() as u64 != named >> 32 {
                    return None;
                }
                (RegionAddr { region: named as u32, offset: get64(bytes, 40) }, payload)
            }
            _ => return None,
        };
        let atomic = plain_of(head.code(), get64(bytes, 24))?;
        Some(Self { mark, addr: RegionAddr { region: word, offset }, atomic, to, payload })
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Message<'a> {
    /// Distance to the last message that has to be executed first; 0 for none.
    pub mark: u16,
    pub body: Body<'a>,
}

impl<'a> Message<'a> {
    /// Decodes an opened message; `word` is the head's, unmasked.
    ///
    /// # Errors
    /// The first fault of the bytes. Nothing of a refused message may be used.
    pub fn decode(head: Head, word: u32, bytes: &'a [u8]) -> Result<Self, WireError> {
        let len = bytes.len();
        let (kind, code) = (head.kind(), head.code());
        let version = head.kind_and_code as u8 & 0xf;
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        // Only these kinds carry a payload from the sender's own memory.
        if len > MAX_MESSAGE && !matches!(kind, KIND_PUT_SIGNAL | KIND_PULL) {
            return Err(WireError::Length { kind, len });
        }
        let wrong = WireError::Length { kind, len };
        let exactly = |expected: usize| if len == expected { Ok(()) } else { Err(wrong) };
        // Unused bits are checked, so that a later version can give them a meaning.
        let zero = |rest: u64| if rest == 0 { Ok(()) } else { Err(WireError::Reserved { kind }) };
        let atomic = |fetches: bool| {
            let op = AtomicOp::from_code((code & 0x1f).into());
            let atomic = op.and_then(|op| from_parts(op, code, get64(bytes, 24)));
            let atomic = atomic.filter(|atomic| atomic.op.fetches() == fetches);
            let atomic = atomic.ok_or(WireError::Operation { kind, code })?;
            Ok((RegionAddr { region: word, offset: split_offset(get64(bytes, 16)).0 }, atomic))
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
                let (addr, atomic) = atomic(false)?;
                Body::Word { addr, atomic }
            }
            KIND_FETCH => {
                exactly(FETCH)?;
                let (addr, atomic) = atomic(true)?;
                let reply_slot = get64(bytes, 40);
                // The reply slot indexes the cached replies.
                zero(reply_slot / FETCHES as u64)?;
                let atomic = Atomic { compare: get64(bytes, 32), ..atomic };
                Body::Fetch { addr, atomic, reply_slot: reply_slot as u8 }
            }
            KIND_REPLY => {
                exactly(REPLY)?;
                let low = get64(bytes, 24);
                zero(u64::from(code) | low >> 32)?;
                Body::Reply { reply_slot: word, low: low as u32, value: get64(bytes, 16) }
            }
            KIND_PUT_SIGNAL => {
                if len < PUT_SIGNAL_HEAD {
                    return Err(wrong);
                }
                let named = get64(bytes, 32);
                let (region, size) = (named as u32, (named >> 32) as usize);
                if size > eager_in(MAX_LONG_MESSAGE) {
                    return Err(wrong);
                }
                exactly(PUT_SIGNAL_HEAD + size)?;
                let (addr, atomic) = atomic(false)?;
                let to = RegionAddr { region, offset: get64(bytes, 40) };
                Body::PutSignal { addr, atomic, to, payload: &bytes[PUT_SIGNAL_HEAD..] }
            }
            KIND_COUNTED_SIGNAL => {
                exactly(COUNTED_SIGNAL)?;
                let (addr, atomic) = atomic(false)?;
                let put = get64(bytes, 32);
                zero(put >> 48)?;
                let (segments, tag) = (put as u32, Tag((put >> 32) as u16));
                if segments == 0 {
                    return Err(WireError::Segments);
                }
                Body::CountedSignal { addr, atomic, tag, segments }
            }
            KIND_REFUSAL => {
                let text = bytes.get(REFUSAL..).ok_or(wrong)?;
                let low = get64(bytes, 16);
                zero(u64::from(code) | u64::from(word) | low >> 32)?;
                let why = std::str::from_utf8(text).map_err(|_| WireError::Reserved { kind })?;
                Body::Refusal { low: low as u32, why }
            }
            kind => {
                zero(code.into())?;
                staging::decode(kind, word, bytes)?
            }
        };
        // Other kinds have content in these bytes.
        let mark = if body.is_numbered() { split_offset(get64(bytes, 16)).1 } else { 0 };
        Ok(Self { mark, body })
    }
}

/// Splits the word at 16..24 of a numbered message into offset and mark.
#[inline(always)]
pub(super) fn split_offset(word: u64) -> (u64, u16) {
    (word & ((1 << 48) - 1), (word >> 48) as u16)
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
pub(crate) fn get64(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]
mod tests {
    use super::*;
    use crate::ids::Pe;
    use crate::wire::message::Seq;
    use proptest::prelude::*;

    proptest! {
        /// Both ways of reading the most common kinds agree.
        #[test]
        fn short_way_reads_the_same(
            (code, word, kind) in any::<(u8, u32, bool)>(),
            mut bytes in proptest::collection::vec(any::<u8>(), 28..64),
            (fits, is_marked) in any::<(bool, bool)>(),
        ) {
            let kind = if kind { KIND_WORD } else { KIND_PUT_SIGNAL };
            let payload = bytes.len().saturating_sub(PUT_SIGNAL_HEAD);
            match kind {
                KIND_WORD if fits => bytes.resize(WORD, 0),
                KIND_PUT_SIGNAL if fits && bytes.len() >= PUT_SIGNAL_HEAD => {
                    bytes[36..40].copy_from_slice(&(payload as u32).to_le_bytes());
                }
                _ => {}
            }
            if !is_marked {
                bytes[22..24].fill(0);
            }
            let kind_and_code = u16::from(VERSION | kind << 4) | u16::from(code) << 8;
            let head = Head { kind_and_code, from: Pe(0), seq: 7, ack: 3, word };
            let nowhere = RegionAddr { region: 0, offset: 0 };
            let read = match Message::decode(head, word, &bytes) {
                Ok(Message { mark, body: Body::Word { addr, atomic } }) => {
                    Some((mark, addr, atomic, nowhere, &[][..]))
                }
                Ok(Message { mark, body: Body::PutSignal { addr, atomic, to, payload } }) => {
                    Some((mark, addr, atomic, to, payload))
                }
                _ => None,
            };
            let plain = CommonMessage::decode(head, word, &bytes);
            prop_assert_eq!(plain.map(|p| (p.mark, p.addr, p.atomic, p.to, p.payload)), read);
        }
    }

    #[test]
    fn low_half_identifies_number() {
        for seq in [Seq::FIRST, Seq((1 << 32) - 1), Seq(1 << 32), Seq(5 << 32 | 7)] {
            assert_eq!(u64::from(seq.high()) << 32 | u64::from(seq.low()), seq.0);
            for distance in [0, 1, 511, 100_000, (1 << 31) - 1] {
                let later = Seq(seq.0 + distance);
                assert_eq!(seq.near(later.low()), later);
                assert_eq!(later.near(seq.low()), seq);
            }
        }
    }
}
