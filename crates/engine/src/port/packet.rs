//! The bytes of one message, of a length that every rail takes, or of one that rails for long
//! messages take.

/// Bytes of the longest message that every rail takes.
pub const MAX_MESSAGE: usize = 256;

/// Bytes of the longest message of rails that take long ones: 4 KiB, and what goes before them.
pub const MAX_LONG_MESSAGE: usize = (4 << 10) + 64;

/// The bytes of one message, of at most `N`.
#[derive(Clone, Copy, Debug)]
pub struct PacketOf<const N: usize> {
    pub(crate) bytes: [u8; N],
    pub(crate) len: usize,
}

/// A message that every rail takes.
pub type Packet = PacketOf<MAX_MESSAGE>;

/// Any message.
pub type LongPacket = PacketOf<MAX_LONG_MESSAGE>;

/// Memory of this process whose bytes leave as the end of a message. None of it, if it has no
/// length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tail {
    /// Virtual address of the first byte.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
}

impl Tail {
    /// No bytes.
    pub const NONE: Tail = Tail { addr: 0, len: 0 };
}

impl<const N: usize> PacketOf<N> {
    /// An empty packet, to receive into.
    pub const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    /// The message's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Takes over the bytes of a message that came in; cut at the packet's room.
    #[inline]
    pub fn fill(&mut self, bytes: &[u8]) {
        self.len = bytes.len().min(N);
        self.bytes[..self.len].copy_from_slice(&bytes[..self.len]);
    }
}
