//! The seal over the head of every message.
//!
//! Anyone who reaches a rail's port can send to it. The first 16 bytes of a message therefore
//! travel enciphered with AES-128 under the job's [cookie](Cookie), after a secret sum over the
//! receiver and bytes 16 to 48 was added. A message that no PE of the job has sealed for this one
//! decrypts to noise: version, kind, sender and number are right once in about 2^36, and region and
//! offset have to be right as well. The sum is NH of UMAC (Black et al., 1999) in words of 64 bits:
//! for two bodies or two receivers it differs by any given amount with a probability of about
//! 2^-64.
//!
//! A recorded message can be replayed. While its number is within 2^31 of the receiver's, it is
//! dropped as executed. Later another high half of the number masks a word of the head: the message
//! names a random region or get. Bytes beyond 48 are payload and not covered.

use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes128Dec, Aes128Enc, Block};

use crate::ids::Pe;
use crate::port::packet::MAX_MESSAGE;
use crate::wire::cookie::Cookie;
use crate::wire::decode::get64;
use crate::wire::message::{HEAD, Head};

/// End of the bytes that the seal covers.
const COVERED: usize = 48;

/// Part of the sum that depends on the receiver, precomputed.
#[derive(Clone, Copy, Default)]
pub struct Receiver {
    /// For messages of 32 bytes.
    short: u128,
    /// For messages of [`COVERED`] bytes or more.
    long: u128,
    /// For other lengths, whose part is added.
    base: u128,
}

/// Seals the messages of one PE and opens those of others.
pub struct Seal {
    encipher: Aes128Enc,
    decipher: Aes128Dec,
    masks: Aes128Enc,
    me: Pe,
    /// Added to the words of a body before they are multiplied.
    body: [(u64, u64); 2],
    /// Multiplied with the receiver's number.
    receiver: u64,
    /// Multiplied with the length, so that trailing zeros make a difference.
    length: u64,
    mine: Receiver,
}

impl Seal {
    /// Creates the seal of `me` in the job with this cookie.
    pub fn new(cookie: Cookie, me: Pe) -> Self {
        let key = cookie.key();
        let mut seal = Self {
            encipher: Aes128Enc::new(&Block::from(key)),
            decipher: Aes128Dec::new(&Block::from(key)),
            masks: cookie.cipher(5),
            me,
            body: [cookie.secret(1), cookie.secret(2)],
            receiver: cookie.secret(3).0,
            length: cookie.secret(3).1,
            mine: Receiver::default(),
        };
        seal.mine = seal.receiver(me);
        seal
    }

    /// Precomputes the part of the sum that depends on the receiver.
    pub fn receiver(&self, to: Pe) -> Receiver {
        let base = u128::from(self.receiver) * (u128::from(to.0) + 1);
        let of = |len: usize| base.wrapping_add(u128::from(self.length) * len as u128);
        Receiver { short: of(32), long: of(COVERED), base }
    }

    /// Returns the mask of the head's word for messages whose number has this high half.
    #[cold]
    pub fn mask(&self, from: Pe, to: Pe, high: u32) -> u32 {
        let pes = u128::from(from.0) | u128::from(to.0) << 32;
        let mut block = Block::from((pes | u128::from(high) << 64).to_le_bytes());
        self.masks.encrypt_block(&mut block);
        u128::from_le_bytes(block.into()) as u32
    }

    /// Seals the head, the first 16 bytes, of the message in `bytes` of length `len`.
    #[inline(always)]
    pub fn close(&self, to: &Receiver, bytes: &mut [u8; MAX_MESSAGE], len: usize) {
        // Callers mostly know on which side the length is.
        if len >= COVERED { self.close_long(to, bytes) } else { self.close_short(to, bytes, len) }
    }

    // Neither is inlined: there it would keep the covered bytes in more registers than there are.
    #[inline(never)]
    fn close_long(&self, to: &Receiver, bytes: &mut [u8; MAX_MESSAGE]) {
        self.close_with(self.sum(to, bytes, COVERED), bytes);
    }

    #[inline(never)]
    fn close_short(&self, to: &Receiver, bytes: &mut [u8; MAX_MESSAGE], len: usize) {
        self.close_with(self.sum(to, bytes, len), bytes);
    }

    #[inline(always)]
    fn close_with(&self, sum: u128, bytes: &mut [u8; MAX_MESSAGE]) {
        if let Some(head) = bytes.first_chunk_mut::<HEAD>() {
            *head = u128::from_le_bytes(*head).wrapping_add(sum).to_le_bytes();
            self.encipher.encrypt_block(Block::from_mut_slice(head));
        }
    }

    /// Opens a message received by this PE. None if it is shorter than a head.
    #[inline(always)]
    pub fn open(&self, bytes: &[u8]) -> Option<Head> {
        let mut head: [u8; HEAD] = bytes.get(..HEAD)?.try_into().ok()?;
        let block = Block::from_mut_slice(&mut head);
        self.decipher.decrypt_block(block);
        let sum = self.sum(&self.mine, bytes, bytes.len());
        let head = u128::from_le_bytes(head).wrapping_sub(sum);
        Some(Head::of(head as u64, (head >> 64) as u64))
    }

    pub fn me(&self) -> Pe {
        self.me
    }

    #[inline(always)]
    fn sum(&self, to: &Receiver, bytes: &[u8], len: usize) -> u128 {
        // A payload that is sent from elsewhere is beyond the covered bytes.
        let [first, second] = self.body;
        match len {
            // The parts of the two common lengths are precomputed.
            32 if bytes.len() >= 32 => to.short.wrapping_add(product(pair(bytes, 16), first)),
            COVERED.. if bytes.len() >= COVERED => {
                let body = product(pair(bytes, 16), first);
                to.long.wrapping_add(body).wrapping_add(product(pair(bytes, 32), second))
            }
            len => self.sum_of_odd(to, bytes, len),
        }
    }

    /// Computes the sum of a message of any length.
    #[cold]
    #[inline(never)]
    fn sum_of_odd(&self, to: &Receiver, bytes: &[u8], len: usize) -> u128 {
        let [first, second] = self.body;
        // Padded with zeros; the length is part of the sum, so that padding cannot be forged.
        let mut covered = [0; COVERED];
        let known = len.min(bytes.len()).min(COVERED);
        covered[..known].copy_from_slice(&bytes[..known]);
        let sum = to.base.wrapping_add(u128::from(self.length) * len as u128);
        let sum = sum.wrapping_add(product(pair(&covered, 16), first));
        if len <= 32 { sum } else { sum.wrapping_add(product(pair(&covered, 32), second)) }
    }
}

#[inline(always)]
fn product((first, second): (u64, u64), secret: (u64, u64)) -> u128 {
    // NH of two words.
    u128::from(first.wrapping_add(secret.0)) * u128::from(second.wrapping_add(secret.1))
}

#[inline(always)]
fn pair(bytes: &[u8], offset: usize) -> (u64, u64) {
    (get64(bytes, offset), get64(bytes, offset + 8))
}

debug_by_name!(Receiver, Seal);
