//! Messages about rails and paths, as bytes. They begin as all messages do, see
//! [`crate::wire::message`], with the kind of an acknowledgement and what they are about in byte 1.
//! They have no numbers in their connection, and each may be lost, or arrive twice or late: who
//! waits for an answer asks again. What goes over every path has a number of its own, the same on
//! all of them, from 1 on for each peer. It is heard once, or answers would be as many as paths for
//! each path.
//!
//! | code | what | 12..16 | what follows |
//! |---|---|---|---|
//! | 1 | ping | zero | |
//! | 2 | pong | zero | |
//! | 3 | reset | generation | 16 rail |
//! | 4 | rail is | generation | 16 rail, 18..20 cause; 40.. address |
//! | 5 | heard | generation | 16 rail |
//! | 6 | reply again | slot of the request id | 16 place; 20..24 number of the request |
//! | 7 | probe | number | 16 rail, 17 the receiver's; 40.. address |
//! | 8 | probed | number | 16 rail |
//! | 9 | key wanted | zero | 16 rail, 17 rail of the key wanted; 24..32 key |
//! | 10 | key is | 0 for none, 1 | as before; 32..40 the key wanted |
//!
//! All have 40 bytes, and the address behind them. What is not named is zero.

use crate::ids::{Pe, RailId};
use crate::port::packet::{MAX_MESSAGE, Packet, PacketOf};
use crate::wire::format::{RequestId, WireError};
use crate::wire::window::Seq;

const HEAD: usize = 40;

/// Bytes of the longest address that can be told. A rail with a longer one is not opened again.
pub const MAX_TOLD_ADDRESS: usize = MAX_MESSAGE - HEAD;

/// What a message about rails says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rails<'a> {
    /// Are you there?
    Ping,
    /// I am.
    Pong,
    /// What I sent to this rail of yours in this generation must not arrive any more.
    Reset {
        /// The receiver's rail.
        rail: RailId,
        /// Its generation as the sender knows it.
        generation: u32,
    },
    /// A rail of mine has been opened again, or cannot be.
    RailIs {
        /// The sender's rail.
        rail: RailId,
        /// Its generation.
        generation: u32,
        /// Who wanted that.
        cause: Pe,
        /// Where it is now; empty if it cannot be opened again.
        address: &'a [u8],
    },
    /// I know that.
    Heard {
        /// The receiver's rail.
        rail: RailId,
        /// Its generation.
        generation: u32,
    },
    /// The reply to a fetch of mine, once more.
    ReplyAgain {
        /// The fetch's.
        request_id: RequestId,
        /// The fetch's.
        place: u8,
    },
    /// Tell me if this arrives, by the way back. It goes from one data endpoint to another, as all
    /// that it is about.
    Probe {
        /// The sender's rail.
        rail: RailId,
        /// The receiver's rail.
        remote: RailId,
        /// Comes back.
        number: u32,
        /// Where the sender's rail is.
        address: &'a [u8],
    },
    /// It has arrived.
    Probed {
        /// The receiver's rail.
        rail: RailId,
        /// The probe's.
        number: u32,
    },
    /// The key, on one of your rails, of the region that has this key on another.
    KeyWanted {
        /// The receiver's rail that the key is of.
        rail: RailId,
        /// The key.
        key: u64,
        /// The rail that a key is wanted for.
        wanted: RailId,
    },
    /// The answer.
    KeyIs {
        /// As asked.
        rail: RailId,
        /// As asked.
        key: u64,
        /// As asked.
        wanted: RailId,
        /// The key on that rail; none if no region has the first one.
        found: Option<u64>,
    },
}

impl<'a> Rails<'a> {
    /// Writes what follows the first 12 bytes, and gives the code and the four bytes from 12 on. An
    /// address that is too long is an error of the caller and is cut.
    pub(crate) fn encode<const N: usize>(&self, packet: &mut PacketOf<N>) -> (u8, u32) {
        let mut first = 0;
        let mut words = (0, 0);
        let mut tail: &[u8] = &[];
        let head = match *self {
            Rails::Ping => (1, 0),
            Rails::Pong => (2, 0),
            Rails::Reset { rail, generation } => {
                first = u64::from(rail.0);
                (3, generation)
            }
            Rails::RailIs { rail, generation, cause, address } => {
                first = u64::from(rail.0) | u64::from(cause.0 as u16) << 16;
                tail = &address[..address.len().min(MAX_TOLD_ADDRESS)];
                (4, generation)
            }
            Rails::Heard { rail, generation } => {
                first = u64::from(rail.0);
                (5, generation)
            }
            Rails::ReplyAgain { request_id, place } => {
                first = u64::from(place) | u64::from(request_id.seq.0) << 32;
                (6, request_id.slot)
            }
            Rails::Probe { rail, remote, number, address } => {
                first = u64::from(rail.0) | u64::from(remote.0) << 8;
                tail = &address[..address.len().min(MAX_TOLD_ADDRESS)];
                (7, number)
            }
            Rails::Probed { rail, number } => {
                first = u64::from(rail.0);
                (8, number)
            }
            Rails::KeyWanted { rail, key, wanted } => {
                first = u64::from(rail.0) | u64::from(wanted.0) << 8;
                words.0 = key;
                (9, 0)
            }
            Rails::KeyIs { rail, key, wanted, found } => {
                first = u64::from(rail.0) | u64::from(wanted.0) << 8;
                words = (key, found.unwrap_or(0));
                (10, u32::from(found.is_some()))
            }
        };
        packet.put(16, first);
        packet.put(24, words.0);
        packet.put(32, words.1);
        packet.tail(HEAD, tail);
        head
    }

    pub(crate) fn decode(
        kind: u8,
        code: u8,
        word: u32,
        bytes: &'a [u8],
    ) -> Result<Self, WireError> {
        let Some(address) = bytes.get(HEAD..) else {
            return Err(WireError::Length { kind, len: bytes.len() });
        };
        let get = |at: usize| {
            let word = bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
            word.map_or(0, u64::from_le_bytes)
        };
        let [first, second, low, high, rest @ ..] = get(16).to_le_bytes();
        let (rail, wanted) = (RailId(first), RailId(second));
        let cause = Pe(u32::from(u16::from_le_bytes([low, high])));
        let (key, other) = (get(24), get(32));
        let read = match code {
            1 => Rails::Ping,
            2 => Rails::Pong,
            3 => Rails::Reset { rail, generation: word },
            4 => Rails::RailIs { rail, generation: word, cause, address },
            5 => Rails::Heard { rail, generation: word },
            6 => {
                let seq = Seq(u32::from_le_bytes(rest));
                Rails::ReplyAgain { request_id: RequestId { slot: word, seq }, place: first }
            }
            7 => Rails::Probe { rail, remote: wanted, number: word, address },
            8 => Rails::Probed { rail, number: word },
            9 => Rails::KeyWanted { rail, key, wanted },
            10 => {
                let found = (word == 1).then_some(other);
                Rails::KeyIs { rail, key, wanted, found }
            }
            _ => return Err(WireError::Operation { kind, code }),
        };
        // Whatever has no meaning is zero: then it is written as it was read.
        let mut again = Packet::EMPTY;
        let head = read.encode(&mut again);
        let same = head == (code, word) && again.bytes().get(16..) == bytes.get(16..);
        if same { Ok(read) } else { Err(WireError::Reserved { kind }) }
    }
}
