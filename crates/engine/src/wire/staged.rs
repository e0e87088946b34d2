//! Messages about staged memory, as bytes. They begin as all messages do, see
//! [`crate::wire::message`].
//!
//! | kind | bytes | 12..16 | what follows |
//! |---|---|---|---|
//! | put | 24 + payload | slot | 16..24 offset; 24.. the payload, 1 to [`MAX_PAYLOAD`] bytes |
//! | pull | 56, or 56 + length | slot | 16..24 offset; 24..28 length; 28..32 slot of the request id; 32..36 slot, 36..40 zero, 40..48 stamp and 48..56 offset at the sender; 56.. the bytes themselves, or nothing |
//! | pulled | 24 | slot of the request id | 16..20 number of the request id; 20..24 zero |
//! | ask | 32 | slot | 16..24 offset; 24..28 length; 28..32 slot of the request id |
//! | loaded | 24 + payload | slot of the request id | as pulled; 24.. the payload, 1 to [`MAX_PAYLOAD`] bytes |
//! | exposed | 48 | slot of the request id | as pulled; 24..28 slot, 28..32 zero, 32..40 stamp and 40..48 offset at the sender |
//! | refused | 24 + text | slot of the request id | as pulled; 24.. why, at most [`MAX_PAYLOAD`] bytes of UTF-8 |
//! | release | 24 | slot of the request id | as pulled |
//! | keys | 40 + 8n | slot | 16..24 stamp; 24..32 base; 32 virtual addresses; 33 first rail; 34 number of rails; 35..40 zero; 40.. n keys |
//!
//! The request id of an answer is that of the request, and has its number; where rails are
//! monitored the answer has a number of its own besides, and so do keys. The request id of a
//! request has the request's.
//!
//! Bytes in the sender's bounce memory, where the receiver sees that, have slot 0xfffffffe, stamp
//! 0, and their offset in it.
//!
//! Several puts and signals that are pulled at once have slot 0xfffffffd, or 0xfffffffc in their
//! order, and their number for an offset. What they are is in a list at the start of the bytes that
//! are pulled, of 48 bytes for each: 0..4 slot, 4..8 length, 8..16 offset, 16..20 where its bytes
//! are behind the start; of its signal 20..24 slot, 24 operation, 0 if it has none, 32..40 offset
//! and 40..48 operand; 25 whether it comes behind all before it; others zero. A signal by itself
//! has length 0.
//!
//! Other lengths are not zero. The offset of a put, a pull and an ask has what the request comes
//! behind in it, as all have.

use crate::atomic::Atomic;
use crate::port::Addressing;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE, PacketOf};
use crate::wire::format::{RequestId, Spot, WireError, code_of, plain_of, split_offset};
use crate::wire::window::Seq;

/// Most payload of a put, and of the answer to an ask.
pub const MAX_PAYLOAD: usize = MAX_MESSAGE - 24;

/// Most keys in one message.
pub const KEYS_PER_MESSAGE: usize = (MAX_MESSAGE - KEYS_HEAD) / 8;

const HEAD: usize = 24;
const EXPOSED_HEAD: usize = 48;
const KEYS_HEAD: usize = 40;
const PULL_HEAD: usize = 56;

/// Most bytes that a pull brings in a message of so many bytes.
pub const fn most_brought(message: usize) -> usize {
    message - PULL_HEAD
}

const _: () = assert!(HEAD + MAX_PAYLOAD <= MAX_MESSAGE);

/// Bytes of a sender's region that the receiver may read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exposure {
    /// The sender's slot for the region.
    pub slot: u32,
    /// The region's stamp: keys are of one region, not of a slot. No two regions of a process have
    /// the same.
    pub stamp: u64,
    /// Offset of the first byte in the region.
    pub offset: u64,
}

const IN_BOUNCE: u32 = u32::MAX - 1;

/// Most puts that are pulled at once.
pub const MOST_LISTED: usize = 128;

/// Bytes of the list of puts for each.
pub const LIST_ENTRY: usize = 48;

const LISTED: u32 = u32::MAX - 2;
const LISTED_IN_ORDER: u32 = u32::MAX - 3;

impl Spot {
    /// Where several puts go: a list says so. `in_order`: each of them, with its signal, comes
    /// behind those before it in the list.
    pub const fn listed(count: usize, in_order: bool) -> Self {
        Self { slot: if in_order { LISTED_IN_ORDER } else { LISTED }, offset: count as u64 }
    }

    /// How many puts a list has that says where they go; none if this is a place itself. More than
    /// [`MOST_LISTED`] is an error of the sender.
    pub fn count_listed(&self) -> Option<u64> {
        matches!(self.slot, LISTED | LISTED_IN_ORDER).then_some(self.offset)
    }

    /// Whether they are several puts in their order.
    pub fn is_in_order(&self) -> bool {
        self.slot == LISTED_IN_ORDER
    }
}

/// One of several puts that are pulled at once, or a signal among them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListEntry {
    /// Where it goes.
    pub to: Spot,
    /// Bytes; 0 of a signal by itself.
    pub len: u32,
    /// Where they are behind the start of what is pulled.
    pub at: u32,
    /// The signal that comes behind it, if it has one.
    pub signal: Option<ListedSignal>,
    /// Whether it comes behind all entries before it. Else nothing orders it and those before it,
    /// back to one that does, but for a put and its own signal.
    pub behind: bool,
}

/// The signal of one of several puts: an operation that fetches nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedSignal {
    /// Its word.
    pub at: Spot,
    /// What changes the word.
    pub atomic: Atomic,
}

impl ListEntry {
    /// As bytes.
    pub fn encode(&self) -> [u8; LIST_ENTRY] {
        let mut bytes = [0; LIST_ENTRY];
        bytes[..4].copy_from_slice(&self.to.slot.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.to.offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.at.to_le_bytes());
        if let Some(ListedSignal { at, atomic }) = self.signal {
            bytes[20..24].copy_from_slice(&at.slot.to_le_bytes());
            bytes[24] = code_of(&atomic);
            bytes[32..40].copy_from_slice(&at.offset.to_le_bytes());
            bytes[40..48].copy_from_slice(&atomic.operand.to_le_bytes());
        }
        bytes[25] = self.behind.into();
        bytes
    }

    /// From at least [`LIST_ENTRY`] bytes, whatever they are. None where its signal is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (slot, len) = halves(get(bytes, 0));
        let (at, word) = halves(get(bytes, 16));
        let signal = match bytes[24] {
            0 => None,
            code => {
                let atomic = plain_of(code, get(bytes, 40))?;
                Some(ListedSignal { at: Spot { slot: word, offset: get(bytes, 32) }, atomic })
            }
        };
        let behind = bytes[25] != 0;
        Some(Self { to: Spot { slot, offset: get(bytes, 8) }, len, at, signal, behind })
    }
}

impl Exposure {
    /// Bytes at an offset of the sender's bounce memory, which the receiver sees: it needs no keys.
    pub const fn in_bounce(offset: u64) -> Self {
        Self { slot: IN_BOUNCE, stamp: 0, offset }
    }

    /// Whether the bytes lie in bounce memory that both processes see.
    #[inline]
    pub const fn is_in_bounce(&self) -> bool {
        self.slot == IN_BOUNCE
    }

    /// Writes it into 24 bytes of a message.
    fn encode<const N: usize>(&self, packet: &mut PacketOf<N>, at: usize) {
        packet.put(at, self.slot.into());
        packet.put(at + 8, self.stamp);
        packet.put(at + 16, self.offset);
    }
}

/// The keys of a sender's region, or some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Keys<'a> {
    /// The sender's slot for the region.
    pub slot: u32,
    /// The region's stamp. Of two regions in a slot the later one has the higher.
    pub stamp: u64,
    /// The region's address, in the sender.
    pub base: u64,
    /// How it is addressed.
    pub addressing: Addressing,
    /// The rail of the first key.
    pub first: u8,
    /// Rails of the sender.
    pub rails: u8,
    /// Eight bytes for each key; one at least.
    pub keys: &'a [u8],
}

/// What a message about staged memory asks for or tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Staged<'a> {
    /// Store the payload.
    Put {
        /// Where.
        to: Spot,
        /// 1 to [`MAX_PAYLOAD`] bytes.
        payload: &'a [u8],
    },
    /// Read bytes of mine, and store them.
    Pull {
        /// Where they go.
        to: Spot,
        /// Where they are.
        from: Exposure,
        /// How many.
        len: u32,
        /// Comes back when they are there.
        request_id: RequestId,
        /// The bytes, where the message has brought them; they can be read all the same. At most as
        /// many as [`most_brought`] by the longest message.
        brought: Option<&'a [u8]>,
    },
    /// What a pull asked for is done.
    Pulled {
        /// The pull's.
        request_id: RequestId,
    },
    /// Send bytes, or let me read them.
    Ask {
        /// Where they are.
        from: Spot,
        /// How many.
        len: u32,
        /// Comes back with them.
        request_id: RequestId,
    },
    /// The bytes asked for.
    Loaded {
        /// The ask's.
        request_id: RequestId,
        /// 1 to [`MAX_PAYLOAD`] bytes.
        payload: &'a [u8],
    },
    /// Where the bytes asked for can be read, until they are released.
    Exposed {
        /// The ask's.
        request_id: RequestId,
        /// Where.
        from: Exposure,
    },
    /// What was asked for cannot be done.
    Refused {
        /// The ask's or the pull's.
        request_id: RequestId,
        /// Why.
        why: &'a str,
    },
    /// What was exposed has been read.
    Release {
        /// The ask's.
        request_id: RequestId,
    },
    /// Keys of a region, without which nothing of it can be read.
    Keys(Keys<'a>),
}

const PUT: u8 = 7;
pub(super) const PULL: u8 = 8;
const PULLED: u8 = 9;
const ASK: u8 = 10;
const LOADED: u8 = 11;
const EXPOSED: u8 = 12;
const REFUSED: u8 = 13;
const RELEASE: u8 = 14;
const KEYS: u8 = 15;

impl<'a> Staged<'a> {
    pub(crate) fn is_request(&self) -> bool {
        matches!(self, Staged::Put { .. } | Staged::Pull { .. } | Staged::Ask { .. })
    }

    /// Writes what follows the first 12 bytes, and gives the kind and the four bytes from 12 on. A
    /// payload or a text that is too long is an error of the caller and is cut.
    pub(crate) fn encode<const N: usize>(&self, packet: &mut PacketOf<N>) -> (u8, u32) {
        match *self {
            Staged::Put { to, payload } => {
                packet.put(16, to.offset);
                packet.tail(24, cut(payload));
                (PUT, to.slot)
            }
            Staged::Pull { to, from, len, request_id, brought } => {
                packet.put(16, to.offset);
                packet.put(24, pair(len, request_id.slot));
                from.encode(packet, 32);
                // What there is no room for is read.
                let brought = brought.filter(|bytes| bytes.len() <= most_brought(N));
                packet.tail(PULL_HEAD, brought.unwrap_or_default());
                (PULL, to.slot)
            }
            Staged::Ask { from, len, request_id } => {
                packet.put(16, from.offset);
                packet.put(24, pair(len, request_id.slot));
                packet.tail(32, &[]);
                (ASK, from.slot)
            }
            Staged::Pulled { request_id } => {
                packet.put(16, request_id.seq.0.into());
                packet.tail(HEAD, &[]);
                (PULLED, request_id.slot)
            }
            Staged::Release { request_id } => {
                packet.put(16, request_id.seq.0.into());
                packet.tail(HEAD, &[]);
                (RELEASE, request_id.slot)
            }
            Staged::Loaded { request_id, payload } => {
                packet.put(16, request_id.seq.0.into());
                packet.tail(HEAD, cut(payload));
                (LOADED, request_id.slot)
            }
            Staged::Exposed { request_id, from } => {
                packet.put(16, request_id.seq.0.into());
                from.encode(packet, HEAD);
                packet.tail(EXPOSED_HEAD, &[]);
                (EXPOSED, request_id.slot)
            }
            Staged::Refused { request_id, why } => {
                packet.put(16, request_id.seq.0.into());
                let fits = why.char_indices().map(|(at, c)| at + c.len_utf8());
                let end = fits.take_while(|end| *end <= MAX_PAYLOAD).last().unwrap_or(0);
                packet.tail(HEAD, &why.as_bytes()[..end]);
                (REFUSED, request_id.slot)
            }
            Staged::Keys(keys) => {
                let way = u32::from(keys.addressing == Addressing::Virtual);
                let rails = way | u32::from(keys.first) << 8 | u32::from(keys.rails) << 16;
                packet.put(16, keys.stamp);
                packet.put(24, keys.base);
                packet.put(32, rails.into());
                packet.tail(KEYS_HEAD, keys.keys);
                (KEYS, keys.slot)
            }
        }
    }

    pub(crate) fn decode(
        kind: u8,
        seq: Seq,
        word: u32,
        bytes: &'a [u8],
    ) -> Result<Option<Self>, WireError> {
        let len = bytes.len();
        let wrong = WireError::Length { kind, len };
        let exactly = |expected: usize| if len == expected { Ok(()) } else { Err(wrong) };
        let payload = |head: usize| match bytes.get(head..) {
            Some(payload) if !payload.is_empty() && payload.len() <= MAX_PAYLOAD => Ok(payload),
            _ => Err(wrong),
        };
        let some = |len: u32| if len > 0 { Ok(len) } else { Err(wrong) };
        let get = |at| get(bytes, at);
        // An answer's.
        let request_id = || match halves(get(16)) {
            (of, 0) => Ok(RequestId { slot: word, seq: Seq(of) }),
            _ => Err(WireError::Reserved { kind }),
        };
        let exposure = |at| match halves(get(at)) {
            (slot, 0) => Ok(Exposure { slot, stamp: get(at + 8), offset: get(at + 16) }),
            _ => Err(WireError::Reserved { kind }),
        };
        let spot = || Spot { slot: word, offset: split_offset(get(16)).0 };
        Ok(Some(match kind {
            PUT => {
                let payload = payload(24)?;
                Staged::Put { to: spot(), payload }
            }
            PULL => {
                let brought = bytes.get(PULL_HEAD..).ok_or(wrong)?;
                let (len, named) = halves(get(24));
                let is_whole = brought.len() == len as usize
                    && brought.len() <= most_brought(MAX_LONG_MESSAGE);
                if !brought.is_empty() && !is_whole {
                    return Err(wrong);
                }
                Staged::Pull {
                    to: spot(),
                    from: exposure(32)?,
                    len: some(len)?,
                    request_id: RequestId { slot: named, seq },
                    brought: (!brought.is_empty()).then_some(brought),
                }
            }
            PULLED => {
                exactly(HEAD)?;
                Staged::Pulled { request_id: request_id()? }
            }
            ASK => {
                exactly(32)?;
                let (len, slot) = halves(get(24));
                Staged::Ask { from: spot(), len: some(len)?, request_id: RequestId { slot, seq } }
            }
            LOADED => Staged::Loaded { payload: payload(HEAD)?, request_id: request_id()? },
            EXPOSED => {
                exactly(EXPOSED_HEAD)?;
                Staged::Exposed { request_id: request_id()?, from: exposure(HEAD)? }
            }
            REFUSED => {
                let text = bytes.get(HEAD..).filter(|text| text.len() <= MAX_PAYLOAD);
                let why = std::str::from_utf8(text.ok_or(wrong)?);
                let why = why.map_err(|_| WireError::Reserved { kind })?;
                Staged::Refused { request_id: request_id()?, why }
            }
            RELEASE => {
                exactly(HEAD)?;
                Staged::Release { request_id: request_id()? }
            }
            KEYS => {
                let keys = bytes.get(KEYS_HEAD..).filter(|keys| keys.len() % 8 == 0);
                let fits = |keys: &&[u8]| (1..=KEYS_PER_MESSAGE).contains(&(keys.len() / 8));
                let keys = keys.filter(fits).ok_or(wrong)?;
                let [way, first, rails, zeros @ ..] = get(32).to_le_bytes();
                let named = usize::from(first) + keys.len() / 8;
                if way > 1 || zeros != [0; 5] || named > usize::from(rails) {
                    return Err(WireError::Reserved { kind });
                }
                let addressing = if way == 1 { Addressing::Virtual } else { Addressing::Offset };
                let (stamp, base) = (get(16), get(24));
                Staged::Keys(Keys { slot: word, stamp, base, addressing, first, rails, keys })
            }
            _ => return Ok(None),
        }))
    }
}

fn cut(payload: &[u8]) -> &[u8] {
    debug_assert!(!payload.is_empty() && payload.len() <= MAX_PAYLOAD);
    &payload[..payload.len().min(MAX_PAYLOAD)]
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

/// Eight bytes of a message; zero beyond its end, where no kind of that length reads.
fn get(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}
