//! Messages between the lanes of two PEs, and the immediate data of their writes.

use crate::ids::{RailId, WrId};
use crate::port::data_path::DataPath;
use crate::port::packet::{LongPacket, Tail};
use crate::port::{PeerAddr, PortError, Posted};

/// What a poll has found beside completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Incoming {
    /// Nothing more.
    Nothing,
    /// A message, now in the packet given.
    Message,
    /// The immediate data of a peer's write. The write's own data is visible.
    ImmediateData(u64),
    /// Something that could not be received: it was too long, or broke off. What was to receive it
    /// is there for the next.
    Broken {
        /// The positive `fi_errno` value.
        code: i32,
    },
}

/// Messages, on the rails of a data path. They may arrive in any order, twice, or not at all where
/// a rail fails. A port without them refuses to send.
pub trait Messaging: DataPath {
    /// Sends a message of at most [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE) bytes, which
    /// are copied before this returns. Never blocks. Its arrival is not reported: the peer
    /// acknowledges messages itself.
    ///
    /// # Errors
    /// The fabric refused the message for good. One that fails later is reported by a poll as a
    /// failure with this work-request id, which the caller chooses: it is no segment's, and takes
    /// no part in anything else.
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        let _ = (rail, to, wr_id, bytes);
        Err(PortError::not_offered("sending a message", "this fabric has no messages"))
    }

    /// As [`Messaging::send`], of a message that ends with bytes elsewhere in memory, which the
    /// processor reaches. All of it is at most
    /// [`RailLimits::longest_message`](crate::port::RailLimits::longest_message) bytes, and is
    /// copied before this returns.
    ///
    /// # Errors
    /// As [`Messaging::send`].
    fn send_with_tail(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        head: &[u8],
        tail: Tail,
    ) -> Result<Posted, PortError> {
        let _ = (rail, to, wr_id, head, tail);
        Err(PortError::not_offered("sending a message", "this fabric has no long messages"))
    }

    /// As [`Messaging::send`], where there is a fast path and without reasons: whether the message
    /// has left.
    #[inline(always)]
    fn try_send(
        &mut self,
        _fast: Self::Fast,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> bool {
        matches!(self.send(rail, to, wr_id, bytes), Ok(Posted::Yes))
    }

    /// Whether [`Messaging::receive`] may have something to give.
    #[inline(always)]
    fn has_message(&self, _rail: RailId) -> bool {
        true
    }

    /// Takes one thing that the last poll of the rail found: a message, copied into the packet, or
    /// the immediate data of a write.
    fn receive(&mut self, rail: RailId, into: &mut LongPacket) -> Incoming {
        let _ = (rail, into);
        Incoming::Nothing
    }
}
