//! The cookie of a job: 16 secret bytes that its PEs have in common, and nobody else knows.
//!
//! Messages are [sealed](crate::wire::seal) with it, and the immediate data of writes is
//! [marked](crate::wire::marks). Who reads along on the network does not learn it; but the keys of
//! regions, which are in the clear there.

use std::fmt;

use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes128Enc, Block};

/// Bytes that each PE contributes to the cookie.
pub const SHARE_BYTES: usize = 16;

/// What all PEs of a job have in common, and nobody else knows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie(u128);

impl Cookie {
    /// The cookie of a job whose PEs have contributed these bytes. A share that nobody else can
    /// foretell is enough to make the whole so.
    pub fn of(shares: impl IntoIterator<Item = [u8; SHARE_BYTES]>) -> Self {
        Self(shares.into_iter().fold(0, |cookie, share| cookie ^ u128::from_le_bytes(share)))
    }

    pub(crate) fn key(self) -> [u8; SHARE_BYTES] {
        self.0.to_le_bytes()
    }

    pub(crate) fn secret(self, number: u8) -> (u64, u64) {
        let mut block = Block::from(u128::from(number).to_le_bytes());
        Aes128Enc::new(&Block::from(self.key())).encrypt_block(&mut block);
        let whole = u128::from_le_bytes(block.into());
        (whole as u64, (whole >> 64) as u64)
    }
}

/// It is a secret.
impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cookie")
    }
}
