//! Immediate data of the segments of a counted put.
//!
//! A write of no bytes needs no key, so anyone who reaches a rail's port can deliver immediate
//! data. The data therefore names sender and tag counter in as few bits as the job needs; all bits
//! above come from an enciphered block of sender, receiver and tag. With eight bytes of immediate
//! data and 256 PEs a guess matches a waiting counter once in 2^52; with four bytes (EFA) once in
//! 2^20, and EFA NICs also require a random 32-bit number.

use aes::cipher::BlockEncrypt;
use aes::{Aes128Enc, Block};

use crate::ids::Pe;
use crate::wire::cookie::Cookie;
use crate::wire::message::Tag;

/// Bits of immediate data that name the tag's counter.
pub(crate) const COUNTER_BITS: u32 = 4;

/// Encodes immediate data, and recognises it.
pub struct ImmediateCodec {
    cipher: Aes128Enc,
    me: Pe,
    /// Bits that name sender and counter.
    names: u32,
    /// All bits that the fabric carries.
    bits: u32,
}

impl ImmediateCodec {
    /// Creates the codec of `me` for four to eight `bytes` of immediate data.
    pub fn new(cookie: Cookie, me: Pe, n_pes: u32, bytes: u8) -> Self {
        let names = COUNTER_BITS + u32::BITS - n_pes.saturating_sub(1).leading_zeros();
        Self { cipher: cookie.cipher(4), me, names, bits: u32::from(bytes.clamp(4, 8)) * 8 }
    }

    /// Returns the immediate data of a segment that this PE sends.
    pub fn encode(&self, to: Pe, tag: Tag) -> u64 {
        self.encode_from(self.me, to, tag)
    }

    /// Returns true if received data is that of a put from `from` with this tag.
    pub fn matches(&self, data: u64, from: Pe, tag: Tag) -> bool {
        self.encode_from(from, self.me, tag) == data
    }

    /// Returns the sender and tag counter that received data names; the sender may not exist.
    pub fn claimed_sender(&self, data: u64) -> (Pe, usize) {
        let names = data & ((1 << self.names) - 1);
        let counter = names & ((1 << COUNTER_BITS) - 1);
        (Pe((names >> COUNTER_BITS) as u32), counter as usize)
    }

    fn encode_from(&self, from: Pe, to: Pe, tag: Tag) -> u64 {
        let pes = u128::from(from.0) | u128::from(to.0) << 32;
        let mut block = Block::from((pes | u128::from(tag.0) << 64).to_le_bytes());
        self.cipher.encrypt_block(&mut block);
        let counter = u64::from(tag.0) & ((1 << COUNTER_BITS) - 1);
        // Without the key nobody can tell the upper bits of a tag's next use.
        let secret = u128::from_le_bytes(block.into()) as u64;
        let data = secret << self.names | u64::from(from.0) << COUNTER_BITS | counter;
        data & (u64::MAX >> (u64::BITS - self.bits))
    }
}

// The cipher is keyed with a secret.
debug_by_name!(ImmediateCodec);
