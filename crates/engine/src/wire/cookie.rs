//! The key of a job: 16 secret bytes that its PEs share.
//!
//! Messages are [sealed](crate::wire::seal) with it, and the immediate data of writes is
//! [marked](crate::wire::immediate). An observer of the network does not learn the cookie, but sees
//! the memory keys of RMA operations in the clear.

use aes::cipher::{BlockEncrypt, KeyInit};
use aes::{Aes128Enc, Block};

/// Bytes that each PE contributes to the cookie.
pub const SHARE_BYTES: usize = 16;

/// Secret shared by all PEs of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Cookie(u128);

impl Cookie {
    /// Combines the shares of all PEs. One unpredictable share makes the cookie unpredictable.
    pub fn of(shares: impl IntoIterator<Item = [u8; SHARE_BYTES]>) -> Self {
        Self(shares.into_iter().fold(0, |cookie, share| cookie ^ u128::from_le_bytes(share)))
    }

    /// Returns the key that enciphers message heads.
    pub(crate) fn key(self) -> [u8; SHARE_BYTES] {
        self.0.to_le_bytes()
    }

    /// Derives an independent secret; `number` selects its use.
    pub(crate) fn secret(self, number: u8) -> (u64, u64) {
        let mut block = Block::from(u128::from(number).to_le_bytes());
        Aes128Enc::new(&Block::from(self.key())).encrypt_block(&mut block);
        let whole = u128::from_le_bytes(block.into());
        (whole as u64, (whole >> 64) as u64)
    }

    pub(crate) fn cipher(self, number: u8) -> Aes128Enc {
        let (low, high) = self.secret(number);
        Aes128Enc::new(&Block::from((u128::from(low) | u128::from(high) << 64).to_le_bytes()))
    }
}

debug_by_name!(Cookie);
