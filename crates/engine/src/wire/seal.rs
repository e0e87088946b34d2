//! The seal over the head of every message.
//!
//! Whoever reaches a rail's port can send to it. So the first 16 bytes of a message leave
//! enciphered, with AES-128 under the job's [cookie](Cookie), after a secret number was added to
//! them that depends on the receiver and on the bytes from 16 to 48. What no PE of the job has
//! sealed for this one is read as noise. In a job of 256 PEs its version, kind, sender and number
//! are then right once in some 2^36 messages; its region and offset have to be right as well.
//!
//! Who has got hold of messages makes no other ones of them: a head that is put together from two,
//! goes with other bytes, or to another PE, is noise as well. They can be sent again as they were,
//! and then they have a number that was there before. Bytes beyond 48, which are payload, are not
//! covered: with other ones, too, it is a message that was there before, and is dropped.
//!
//! The number added is NH of UMAC (Black et al., 1999), in words of 64 bits: for two bodies, or two
//! receivers, it differs by any given amount with a probability of about 2^-64.

use std::fmt;

use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use aes::{Aes128Dec, Aes128Enc, Block};

use crate::ids::Pe;
use crate::port::packet::PacketOf;
use crate::wire::cookie::Cookie;

const HEAD: usize = 16;

/// Up to here bytes of a message count for what its head looks like.
pub(super) const COVERED: usize = 48;

/// The head of a message that is not sealed.
#[derive(Clone, Copy, Debug)]
pub struct Head([u8; HEAD]);

/// What is added to the heads of messages to one PE, but for their bodies.
#[derive(Clone, Copy, Default)]
pub(crate) struct Receiver {
    /// Of those of 32 bytes.
    short: u128,
    /// Of those of [`COVERED`] or more.
    long: u128,
}

/// What a PE seals its messages with, and opens those of others.
pub struct Seal {
    encipher: Aes128Enc,
    decipher: Aes128Dec,
    /// Added to the words of a body before they are multiplied.
    body: [(u64, u64); 2],
    receiver: u64,
    /// Multiplied with the length, so that a body differs from the same one with zeros behind it.
    length: u64,
    /// The product for messages of 32 bytes, and that for all of [`COVERED`] or more.
    lengths: [u128; 2],
    /// What is added to heads for this PE, but for their bodies.
    mine: u128,
}

impl Seal {
    /// That of a PE, in the job with this cookie.
    pub fn new(cookie: Cookie, me: Pe) -> Self {
        let encipher = Aes128Enc::new(&Block::from(cookie.key()));
        let body = [cookie.secret(1), cookie.secret(2)];
        let (receiver, length) = cookie.secret(3);
        let mine = of_receiver(receiver, me);
        let decipher = Aes128Dec::new(&Block::from(cookie.key()));
        let lengths = [32, COVERED].map(|len| u128::from(length) * len as u128);
        Self { encipher, decipher, body, receiver, length, lengths, mine }
    }

    /// Seals a message to a PE. Gives the head as it was.
    #[inline(always)]
    pub fn close<const N: usize>(&self, to: Pe, packet: &mut PacketOf<N>) -> Head {
        let added = self.of_body(packet, packet.len).wrapping_add(of_receiver(self.receiver, to));
        self.close_with(packet, added)
    }

    /// The same of a message of 32 bytes or, if `is_long`, of [`COVERED`] or more.
    #[inline(always)]
    pub(crate) fn close_to<const N: usize>(
        &self,
        to: &Receiver,
        is_long: bool,
        packet: &mut PacketOf<N>,
    ) -> Head {
        let [first, second] = self.body;
        let added = if is_long {
            to.long.wrapping_add(product(whole(packet, 32), second))
        } else {
            to.short
        };
        let added = added.wrapping_add(product(whole(packet, HEAD), first));
        self.close_with(packet, added)
    }

    pub(crate) fn receiver(&self, to: Pe) -> Receiver {
        let receiver = of_receiver(self.receiver, to);
        let [short, long] = self.lengths.map(|length| length.wrapping_add(receiver));
        Receiver { short, long }
    }

    #[inline(always)]
    fn close_with<const N: usize>(&self, packet: &mut PacketOf<N>, added: u128) -> Head {
        let head = Head::of(packet);
        head_mut(packet).copy_from_slice(&head.number().wrapping_add(added).to_le_bytes());
        self.encipher.encrypt_block(head_mut(packet));
        head
    }

    /// Opens what has come in for this PE. Less than a head stays as it is.
    #[inline(always)]
    pub fn open<const N: usize>(&self, packet: &mut PacketOf<N>) {
        self.open_as(packet, packet.len);
    }

    #[inline(always)]
    pub(crate) fn open_as<const N: usize>(&self, packet: &mut PacketOf<N>, len: usize) {
        if len < HEAD {
            return;
        }
        self.decipher.decrypt_block(head_mut(packet));
        let added = self.mine.wrapping_add(self.of_body(packet, len));
        let head = Head::of(packet).number().wrapping_sub(added);
        head_mut(packet).copy_from_slice(&head.to_le_bytes());
    }

    /// What is added to a head for the bytes behind it, up to byte [`COVERED`], and for how many of
    /// these there are. A message whose last bytes come from elsewhere is longer than that without
    /// them, so it makes no difference whether they are here.
    #[inline(always)]
    fn of_body<const N: usize>(&self, packet: &PacketOf<N>, len: usize) -> u128 {
        let [first, second] = self.body;
        let [short, long] = self.lengths;
        // Requests have 32 bytes, and with a word of data all that are covered.
        match len {
            32 => short.wrapping_add(product(whole(packet, HEAD), first)),
            COVERED.. => {
                let body = product(whole(packet, HEAD), first);
                long.wrapping_add(body).wrapping_add(product(whole(packet, 32), second))
            }
            len => {
                let mut covered = [0; COVERED];
                covered[..len].copy_from_slice(packet.bytes());
                let covered = PacketOf { bytes: covered, len };
                let length = u128::from(self.length) * len as u128;
                let added = length.wrapping_add(product(whole(&covered, HEAD), first));
                let rest = if len <= 32 { 0 } else { product(whole(&covered, 32), second) };
                added.wrapping_add(rest)
            }
        }
    }
}

#[inline(always)]
fn head_mut<const N: usize>(packet: &mut PacketOf<N>) -> &mut Block {
    Block::from_mut_slice(&mut packet.bytes[..HEAD])
}

#[inline(always)]
fn product((first, second): (u64, u64), secret: (u64, u64)) -> u128 {
    u128::from(first.wrapping_add(secret.0)) * u128::from(second.wrapping_add(secret.1))
}

#[inline(always)]
fn whole<const N: usize>(packet: &PacketOf<N>, at: usize) -> (u64, u64) {
    const { assert!(N >= COVERED, "packets have room for all that is covered") }
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&packet.bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    (word(at), word(at + 8))
}

impl Head {
    #[inline(always)]
    fn of<const N: usize>(packet: &PacketOf<N>) -> Self {
        let mut head = [0; HEAD];
        head.copy_from_slice(&packet.bytes[..HEAD]);
        Self(head)
    }

    #[inline(always)]
    fn number(self) -> u128 {
        u128::from_le_bytes(self.0)
    }

    /// Puts it back where it was before the message was sealed.
    #[inline(always)]
    pub fn put_back<const N: usize>(self, packet: &mut PacketOf<N>) {
        packet.bytes[..HEAD].copy_from_slice(&self.0);
    }
}

#[inline(always)]
fn of_receiver(secret: u64, to: Pe) -> u128 {
    u128::from(secret) * (u128::from(to.0) + 1)
}

/// It is a secret.
impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// Likewise.
impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::packet::Packet;

    #[test]
    fn messages_are_sealed_alike_on_every_path() {
        let seal = Seal::new(Cookie::of([*b"a share of a job"]), Pe(0));
        for (to, len) in [(1, 32), (1, 48), (65535, 32), (65535, 56), (7, 256)] {
            let mut packets = [Packet { bytes: [len as u8; 256], len }; 2];
            let receiver = seal.receiver(Pe(to));
            let [plain, fast] = &mut packets;
            seal.close(Pe(to), plain);
            match len {
                32 => seal.close_to(&receiver, false, fast),
                _ => seal.close_to(&receiver, true, fast),
            };
            assert_eq!(plain.bytes(), fast.bytes(), "{len} bytes to {to}");
            Seal::new(Cookie::of([*b"a share of a job"]), Pe(to)).open(fast);
            assert_eq!(fast.bytes(), &[len as u8; 256][..len]);
        }
    }
}
