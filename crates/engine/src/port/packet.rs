//! Buffers for the bytes of one message.

/// Bytes of the longest message that every rail takes.
pub const MAX_MESSAGE: usize = 256;

/// Bytes of the longest message of rails that take long ones: 4 KiB of payload and its headers.
pub const MAX_LONG_MESSAGE: usize = (4 << 10) + 64;

/// Buffer for one message of at most `N` bytes.
#[derive(Clone, Copy, Debug)]
pub struct PacketOf<const N: usize> {
    pub(crate) bytes: [u8; N],
    pub(crate) len: usize,
}

/// Buffer for messages that every rail takes.
pub type Packet = PacketOf<MAX_MESSAGE>;

pub type LongPacket = PacketOf<MAX_LONG_MESSAGE>;

/// Memory of this process whose bytes form the end of a message; none if `len` is 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Virtual address of the first byte.
    pub addr: usize,
    pub len: usize,
}

impl Tail {
    pub const NONE: Tail = Tail { addr: 0, len: 0 };
}

impl<const N: usize> PacketOf<N> {
    pub const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Replaces the content by a received message, truncated to the buffer.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) {
        self.len = bytes.len().min(N);
        self.bytes[..self.len].copy_from_slice(&bytes[..self.len]);
    }
}
