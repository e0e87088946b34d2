//! Messages about staged memory. They begin as all messages do, see [`crate::wire::message`].
//!
//! | kind | length | content |
//! |---|---|---|
//! | inline put | 24 + payload | 12..16 region; 16..24 offset and mark; 24.. payload |
//! | get request | 32 + 6 a further get | 12..16 region; 16..24 offset and mark; 24..28 length; 28..32 number of the get; for each further get of the region 4 bytes of distance from the first and 2 of its length less one |
//! | pull | 88 + 8 a key + bytes | 12..16 region of one record's destination, or number of the get, or zero; 16..24 its offset or zero, and mark; 24..28 length; 28..30 records, 0 for a get; 30: 1 for the sender's bounce memory; 31 keys; 32..40 address or offset of the first byte; 40..88 the record; the keys; the bytes, or none |
//! | get reply | 24 + payload | 12..16 number of the get; 16..20 low half of the request's number; 20..22 zero, 22..24 mark; 24.. payload |
//!
//! A record has 48 bytes: 0..4 region, 4..8 length, 8..16 offset, 16..20 its place after the first
//! byte; of its signal 20..24 region, 24 operation or 0, 32..40 offset, 40..48 operand; 25 whether
//! it is ordered; others zero. A signal alone has length 0. The record of one put is in the
//! message, without destination; several are at the start of the bytes that are read. In place of a
//! record, a get has the low half of the request's number in 40..44 and zeros. The bytes of a
//! request's gets are in their order, each at the next multiple of 8.

use crate::atomic::Atomic;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::wire::decode::{get64, plain_of, split_offset};
use crate::wire::encode::{Frame, code_of};
use crate::wire::message::{Body, KIND_STAGED, RegionAddr, WireError};

/// Longest payload of a inline put, and of the reply to a get.
pub const MAX_PAYLOAD: usize = MAX_MESSAGE - SHORT;

/// Maximum number of records in one pull.
pub const MAX_RECORDS: usize = 128;

pub const RECORD: usize = 48;

/// Maximum number of gets in one request.
pub const MAX_GETS: usize = 1 + (MAX_MESSAGE - GET_REQUEST) / FURTHER_GET;

/// Bytes of a further get in a request.
pub const FURTHER_GET: usize = 7;

/// Maximum number of keys in a pull. With more rails the target reads over the first ones alone.
pub const MAX_KEYS: usize = (MAX_MESSAGE - PULL) / 8;

const SHORT: usize = 24;
const GET_REQUEST: usize = 32;
const PULL: usize = 88;

const KIND_INLINE_PUT: u8 = KIND_STAGED;
const KIND_GET_REQUEST: u8 = KIND_STAGED + 1;
pub(super) const KIND_PULL: u8 = KIND_STAGED + 2;
const KIND_GET_REPLY: u8 = KIND_STAGED + 3;

const IN_BOUNCE: u8 = 1;

/// Returns the maximum payload of a pull with `keys` in a message of `message` bytes.
pub const fn max_pull_payload(message: usize, keys: usize) -> usize {
    message.saturating_sub(PULL + 8 * keys)
}

/// Name of a get of the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GetId {
    /// Its number at the receiver.
    pub number: u32,
    /// Low half of the number of the message that requested it.
    pub low: u32,
}

/// A put, with the signal that follows it if it has one, or a signal alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct WireRecord {
    pub to: RegionAddr,
    /// Number of bytes; 0 for a signal alone.
    pub len: u32,
    /// Offset from the first byte that is read.
    pub offset: u32,
    /// The signal: its word and an operation that fetches nothing.
    pub signal: Option<(RegionAddr, Atomic)>,
    /// Whether it follows all records before it. Others are unordered, back to the last ordered
    /// one, except for a put and its own signal.
    pub is_ordered: bool,
}

/// Destination of the bytes that a pull reads.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PullTarget {
    One(WireRecord),
    /// As many records, which are at the start of the bytes.
    List(u16),
    /// A get of the receiver.
    Get(GetId),
}

/// The sender's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PullSource<'a> {
    /// At an offset of its bounce memory, which the receiver sees.
    Bounce(u64),
    /// Memory to read through the fabric: address of the first byte, and an 8-byte key per rail.
    Fabric(u64, &'a [u8]),
}

/// Announcement of bytes that the receiver reads and stores.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pull<'a> {
    pub target: PullTarget,
    /// Number of bytes, one at least.
    pub len: u32,
    pub source: PullSource<'a>,
    /// The bytes, if the message carries them. They can be read all the same.
    pub payload: &'a [u8],
}

impl WireRecord {
    pub fn encode(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        let mut put = |offset: usize, word: u64| {
            bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes())
        };
        put(0, pair(self.to.region, self.len));
        put(8, self.to.offset);
        let is_ordered = u64::from(self.is_ordered) << 8;
        match self.signal {
            None => {
                put(16, pair(self.offset, 0));
                put(24, is_ordered);
            }
            Some((addr, atomic)) => {
                put(16, pair(self.offset, addr.region));
                put(24, is_ordered | u64::from(code_of(&atomic)));
                put(32, addr.offset);
                put(40, atomic.operand);
            }
        }
        bytes
    }

    /// Decodes [`RECORD`] bytes. None for a wrong signal, or if unused bytes are not zero.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let ((region, len), (offset, word)) = (halves(get64(bytes, 0)), halves(get64(bytes, 16)));
        let signal = match bytes[24] {
            0 => None,
            code => {
                let atomic = plain_of(code, get64(bytes, 40))?;
                Some((RegionAddr { region: word, offset: get64(bytes, 32) }, atomic))
            }
        };
        let to = RegionAddr { region, offset: get64(bytes, 8) };
        let record = Self { to, len, offset, signal, is_ordered: bytes[25] != 0 };
        // Encoded again, all unused bytes are zero: one comparison checks them.
        (record.encode() == *bytes).then_some(record)
    }
}

/// Encodes a further get of a request. None if it is too far from the first, or too long.
pub fn further_get(first: RegionAddr, from: RegionAddr, len: usize) -> Option<[u8; FURTHER_GET]> {
    let distance = i32::try_from(from.offset.wrapping_sub(first.offset) as i64).ok()?;
    let less = u32::try_from(len.checked_sub(1)?).ok().filter(|_| from.region == first.region)?;
    let mut bytes = [0; FURTHER_GET];
    bytes[..4].copy_from_slice(&distance.to_le_bytes());
    bytes[4..].copy_from_slice(less.to_le_bytes().strip_suffix(&[0])?);
    Some(bytes)
}

/// Iterates over the further gets of a decoded request.
pub fn further_gets(first: RegionAddr, more: &[u8]) -> impl Iterator<Item = (RegionAddr, usize)> {
    more.chunks_exact(FURTHER_GET).map(move |bytes| {
        let distance = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let offset = first.offset.wrapping_add_signed(distance.into());
        let less = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], 0]);
        (RegionAddr { offset, ..first }, less as usize + 1)
    })
}

impl Frame {
    /// Writes what follows the head of a message about staged memory, without the payload of a
    /// pull. Returns kind and word for the head, and the length. None for other messages.
    pub(super) fn staged(&mut self, mark: u16, body: &Body<'_>) -> Option<(u8, u32, usize)> {
        let mark = u64::from(mark) << 48;
        Some(match *body {
            Body::InlinePut { to, payload } => {
                self.put(16, to.offset | mark);
                (KIND_INLINE_PUT, to.region, self.payload(payload))
            }
            Body::GetRequest { from, len, get, more } => {
                self.put(16, from.offset | mark);
                self.put(24, pair(len, get));
                let more = &more[..more.len().min(MAX_MESSAGE - GET_REQUEST)];
                self.bytes[GET_REQUEST..GET_REQUEST + more.len()].copy_from_slice(more);
                (KIND_GET_REQUEST, from.region, GET_REQUEST + more.len())
            }
            Body::GetReply { get, payload } => {
                self.put(16, u64::from(get.low) | mark);
                (KIND_GET_REPLY, get.number, self.payload(payload))
            }
            Body::Pull(Pull { target, len, source, .. }) => {
                let mut offset = 0;
                let (word, count, record) = match target {
                    PullTarget::One(record) => {
                        offset = record.to.offset;
                        // The destination is in the head and the offset, as in other messages.
                        let to = RegionAddr { region: 0, offset: 0 };
                        (record.to.region, 1, WireRecord { to, ..record }.encode())
                    }
                    PullTarget::List(count) => (0, count, [0; RECORD]),
                    PullTarget::Get(GetId { number, low }) => {
                        let mut bytes = [0; RECORD];
                        bytes[..4].copy_from_slice(&low.to_le_bytes());
                        (number, 0, bytes)
                    }
                };
                let (flags, addr, keys): (u8, _, &[u8]) = match source {
                    PullSource::Bounce(offset) => (IN_BOUNCE, offset, &[]),
                    PullSource::Fabric(remote, keys) => {
                        (0, remote, &keys[..keys.len().min(8 * MAX_KEYS)])
                    }
                };
                let how = u32::from(flags) << 16 | (keys.len() as u32 / 8) << 24;
                self.put(16, offset | mark);
                self.put(24, pair(len, u32::from(count) | how));
                self.put(32, addr);
                self.bytes[40..PULL].copy_from_slice(&record);
                self.bytes[PULL..PULL + keys.len()].copy_from_slice(keys);
                (KIND_PULL, word, PULL + keys.len())
            }
            _ => return None,
        })
    }

    fn payload(&mut self, payload: &[u8]) -> usize {
        let len = payload.len().min(MAX_PAYLOAD);
        self.bytes[SHORT..SHORT + len].copy_from_slice(&payload[..len]);
        SHORT + len
    }
}

/// Decodes a message about staged memory; `word` is the head's, unmasked.
pub(super) fn decode(kind: u8, word: u32, bytes: &[u8]) -> Result<Body<'_>, WireError> {
    let wrong = WireError::Length { kind, len: bytes.len() };
    let reserved = WireError::Reserved { kind };
    let payload = || match bytes.get(SHORT..) {
        Some(payload) if !payload.is_empty() && payload.len() <= MAX_PAYLOAD => Ok(payload),
        _ => Err(wrong),
    };
    let offset = || split_offset(get64(bytes, 16)).0;
    match kind {
        KIND_INLINE_PUT => {
            let payload = payload()?;
            Ok(Body::InlinePut { to: RegionAddr { region: word, offset: offset() }, payload })
        }
        KIND_GET_REQUEST => {
            let more = bytes.get(GET_REQUEST..).ok_or(wrong)?;
            let (len, get) = halves(get64(bytes, 24));
            let from = RegionAddr { region: word, offset: offset() };
            if len == 0 || more.len() % FURTHER_GET != 0 {
                return Err(wrong);
            }
            Ok(Body::GetRequest { from, len, get, more })
        }
        KIND_GET_REPLY => {
            let payload = payload()?;
            let low = u32::try_from(offset()).map_err(|_| reserved)?;
            Ok(Body::GetReply { get: GetId { number: word, low }, payload })
        }
        KIND_PULL => {
            let (record, rest) = (bytes.get(40..PULL).ok_or(wrong)?, &bytes[PULL..]);
            let ((len, how), addr) = (halves(get64(bytes, 24)), get64(bytes, 32));
            let (count, flags) = (how as u16, (how >> 16) as u8);
            let keys = 8 * (how >> 24) as usize;
            if len == 0 || keys > 8 * MAX_KEYS || keys > rest.len() {
                return Err(wrong);
            }
            let (keys, carried) = rest.split_at(keys);
            // A payload is all of the bytes, or absent.
            let is_whole = carried.len() == len as usize && bytes.len() <= MAX_LONG_MESSAGE;
            if !carried.is_empty() && !is_whole {
                return Err(wrong);
            }
            let source = match flags {
                0 => PullSource::Fabric(addr, keys),
                IN_BOUNCE if rest.is_empty() => PullSource::Bounce(addr),
                _ => return Err(reserved),
            };
            let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            let target = match count {
                0 if is_zero(&record[4..]) => {
                    let (low, _) = halves(get64(record, 0));
                    PullTarget::Get(GetId { number: word, low })
                }
                1 => {
                    let read = WireRecord::decode(record).ok_or(reserved)?;
                    // A single record is the whole of the bytes, and nothing precedes it.
                    let is_whole = (read.len, read.offset, read.is_ordered) == (len, 0, false);
                    let is_placed = read.to != (RegionAddr { region: 0, offset: 0 });
                    if !is_whole || is_placed || read.encode()[..] != *record {
                        return Err(reserved);
                    }
                    let to = RegionAddr { region: word, offset: offset() };
                    PullTarget::One(WireRecord { to, ..read })
                }
                count if word == 0 && is_zero(record) => PullTarget::List(count),
                _ => return Err(reserved),
            };
            if count != 1 && offset() != 0 {
                return Err(reserved);
            }
            Ok(Body::Pull(Pull { target, len, source, payload: carried }))
        }
        kind => Err(WireError::Kind(kind)),
    }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}
