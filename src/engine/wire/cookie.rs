//! The cookie of a job: 16 secret bytes that lie over the head of every message.
//!
//! Whoever reaches a rail's port can send to it. A head is written exclusive-or the cookie, so what was written without
//! it, by a stranger or by a process of another job, is read as noise. In a job of 256 PEs its version, kind and
//! sender are then right once in some 2^20 messages; in one of 65 536 PEs any sender is one that there is, and that is once
//! in some 2^12. The number of a request is one that is awaited once in 2^23 of these, and its region one that there
//! is once in 2^20 of those. Answers and acknowledgements have more to guess. Who reads along on the network learns the
//! cookie: against that a network needs encryption of its own.

use std::fmt;

use crate::engine::ids::Pe;
use crate::engine::wire::format::VERSION;

/// Bytes that each PE contributes to the cookie.
pub const SHARE_BYTES: usize = 16;

/// What all messages of a job have in common, and nobody else knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie {
    first: u64,
    second: u64,
}

/// A PE with its job's cookie, as the head of what it sends has them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) struct Sender(Cookie);

impl Cookie {
    /// That of nobody: heads are as they are meant.
    pub const NONE: Self = Self { first: 0, second: 0 };

    /// The cookie of a job whose PEs have contributed these bytes. A share that nobody else can foretell is enough to
    /// make the whole so.
    pub fn of(shares: impl IntoIterator<Item = [u8; SHARE_BYTES]>) -> Self {
        let mut cookie = Self::NONE;
        for share in shares {
            let whole = u128::from_le_bytes(share);
            cookie.first ^= whole as u64;
            cookie.second ^= (whole >> 64) as u64;
        }
        cookie
    }

    #[inline]
    pub(in crate::engine) fn sender(self, from: Pe) -> Sender {
        let first = self.first ^ u64::from(VERSION) ^ u64::from(from.0 as u16) << 16;
        Sender(Self { first, ..self })
    }

    /// The first 16 bytes of a message, as they were meant.
    #[inline(always)]
    pub(in crate::engine) fn read(self, first: u64, second: u64) -> (u64, u64) {
        (first ^ self.first, second ^ self.second)
    }
}

impl Sender {
    /// The first 16 bytes of a message, given all that is not the sender's.
    #[inline(always)]
    pub(in crate::engine) fn write(self, first: u64, second: u64) -> (u64, u64) {
        (first ^ self.0.first, second ^ self.0.second)
    }
}

/// It is a secret.
impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie")
    }
}
