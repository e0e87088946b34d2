//! Marks: what the segments of a counted put tell the peer, as immediate data.
//!
//! A write of no bytes needs no key, so whoever reaches a rail's port can tell it anything this
//! way. A mark names its sender and the slot of its put, in as few bits as the job needs; all bits
//! above are those of an enciphered block of sender, receiver and [`Tag`]. Who guesses hits a slot
//! that waits for this once in 2^52 where the fabric carries eight bytes, in a job of 256 PEs.
//! Where it carries four, that is once in 2^20: EFA, whose NICs want a random number of 32 bits
//! besides.

use std::fmt;

use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes128Enc, Block};

use crate::ids::Pe;
use crate::wire::cookie::Cookie;
use crate::wire::format::Tag;

/// Bits of a tag that name its slot.
pub(crate) const SLOT_BITS: u32 = 4;

/// What a PE marks segments with, and knows those of others by.
pub struct Marks {
    cipher: Aes128Enc,
    me: Pe,
    /// Bits of a mark that name its sender and the slot.
    names: u32,
    bits: u32,
}

impl Marks {
    /// Those of a PE, in a job of so many with this cookie, whose fabric carries so many bytes.
    pub fn new(cookie: Cookie, me: Pe, n_pes: u32, bytes: u8) -> Self {
        let (low, high) = cookie.secret(4);
        let cipher = Aes128Enc::new(&Block::from(of_words(low, high)));
        let names = SLOT_BITS + u32::BITS - n_pes.saturating_sub(1).leading_zeros();
        Self { cipher, me, names, bits: u32::from(bytes.clamp(4, 8)) * 8 }
    }

    /// The mark of a segment of this PE.
    pub fn of_mine(&self, to: Pe, tag: Tag) -> u64 {
        self.mark(self.me, to, tag)
    }

    /// Whether a mark is one of a put to this PE.
    pub fn is_of(&self, mark: u64, from: Pe, tag: Tag) -> bool {
        self.mark(from, self.me, tag) == mark
    }

    /// The sender that a mark names, which there may not be, and the slot.
    pub fn named(&self, mark: u64) -> (Pe, usize) {
        let names = mark & ((1 << self.names) - 1);
        let slot = names & ((1 << SLOT_BITS) - 1);
        (Pe((names >> SLOT_BITS) as u32), slot as usize)
    }

    fn mark(&self, from: Pe, to: Pe, tag: Tag) -> u64 {
        let (pes, put) = (u64::from(from.0) | u64::from(to.0) << 32, u64::from(tag.0));
        let mut block = Block::from(of_words(pes, put));
        self.cipher.encrypt_block(&mut block);
        let slot = put & ((1 << SLOT_BITS) - 1);
        let secret = u128::from_le_bytes(block.into()) as u64;
        let mark = secret << self.names | u64::from(from.0) << SLOT_BITS | slot;
        mark & (u64::MAX >> (u64::BITS - self.bits))
    }
}

fn of_words(low: u64, high: u64) -> [u8; 16] {
    (u128::from(low) | u128::from(high) << 64).to_le_bytes()
}

/// It has a secret.
impl fmt::Debug for Marks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marks")
    }
}
