//! Messages between the lanes of two PEs, and the immediate data of their writes.

use crate::ids::{RailId, WrId};
use crate::port::data_path::DataPath;
use crate::port::packet::{LongPacket, Tail};
use crate::port::{PeerAddr, PortError, Posted};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Incoming {
    Nothing,
    /// A message, copied into the packet.
    Message,
    /// The immediate data of a peer's write. The write's own data is visible.
    ImmediateData(u64),
    /// A message that was too long or truncated. Its receive buffer is posted again.
    Broken {
        /// The positive `fi_errno` value.
        code: i32,
    },
}

/// Messages, on the rails of a data path. They may arrive in any order or twice, and are lost where
/// a rail fails.
pub trait Messaging: DataPath {
    /// Sends a message of at most [`MAX_MESSAGE`](crate::port::packet::MAX_MESSAGE) bytes, copied
    /// before this returns. Never blocks. Its end is known by the peer's acknowledgement alone.
    ///
    /// # Errors
    /// The fabric refused the message for good. A poll reports a later failure with this
    /// work-request id, which the caller chooses outside the range of segments, or nobody does.
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> Result<Posted, PortError>;

    /// Sends a message that ends with bytes elsewhere in memory that the CPU reaches, as
    /// [`Messaging::send`] does. The whole has at most
    /// [`RailLimits::longest_message`](crate::port::RailLimits::longest_message) bytes and is
    /// copied before this returns.
    fn send_with_tail(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        head: &[u8],
        tail: Tail,
    ) -> Result<Posted, PortError> {
        let _ = (rail, to, wr_id, head, tail);
        let text = String::from("this fabric has no long messages");
        Err(PortError { call: "sending a message", code: 0, text })
    }

    /// Sends a message on the fast path. Returns true if it has left, and no reason otherwise.
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

    /// Returns true if [`Messaging::receive`] may have something to give.
    #[inline(always)]
    fn has_message(&self, _rail: RailId) -> bool {
        true
    }

    /// Takes a message, copied into the packet, or immediate data that the last poll has found.
    fn receive(&mut self, rail: RailId, into: &mut LongPacket) -> Incoming;
}
