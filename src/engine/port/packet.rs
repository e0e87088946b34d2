//! The bytes of one message, of a length that every rail takes.

/// Bytes of the longest message.
pub const MAX_MESSAGE: usize = 256;

/// The bytes of one message.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub(in crate::engine) bytes: [u8; MAX_MESSAGE],
    pub(in crate::engine) len: usize,
}

impl Packet {
    /// An empty packet, to receive into.
    pub const EMPTY: Packet = Packet { bytes: [0; MAX_MESSAGE], len: 0 };

    /// The message's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Writes eight bytes.
    pub(in crate::engine) fn put(&mut self, at: usize, word: u64) {
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Writes the bytes from `at` on, with which the message ends.
    pub(in crate::engine) fn tail(&mut self, at: usize, bytes: &[u8]) {
        self.len = at + bytes.len();
        self.bytes[at..self.len].copy_from_slice(bytes);
    }

    /// Takes over the bytes of a message that came in; cut at [`MAX_MESSAGE`].
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) {
        self.len = bytes.len().min(MAX_MESSAGE);
        self.bytes[..self.len].copy_from_slice(&bytes[..self.len]);
    }
}
