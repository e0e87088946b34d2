//! The work of a segment: bytes for the fabric, a message to the peer, or a step of a mechanism.

use crate::port::{Desc, Direction, Local, Transfer};
use crate::request::ResultPlace;
use crate::state::segment::NIL;
use crate::wire::format::Tag;

/// What a segment has to do.
///
/// `bulk`: the port may have another thread move the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// Bytes that the fabric moves. They end with their completion.
    Transfer(Transfer),
    /// The same, with immediate data by which the peer counts them for this tag.
    Counted { tag: Tag, bulk: bool, transfer: Transfer },
    /// Bytes of an operation whose rail is chosen by load.
    Stripe { bulk: bool, transfer: Transfer },
    /// Bytes that were in doubt before.
    Reissued { bulk: bool, transfer: Transfer },
    /// The rest of an operation, `len` bytes, that waits for rails in a place of the pool: see
    /// [`crate::striping::pool`].
    Pooled { place: u32, len: usize },
    /// A request about `len` bytes that returns nothing. It ends with the peer's acknowledgement.
    Message { slot: MessageSlot, len: usize },
    /// The same, for a signal whose data the peer counts. With it ends the use of its tag.
    CountedSignal { slot: MessageSlot, len: usize, tag: Tag },
    /// A request for a word, one of those under way to its peer. It ends with the reply, which goes
    /// to `result`.
    Fetch { slot: MessageSlot, len: usize, place: u8, result: ResultPlace },
    /// A fragment of staged memory, which has a message until its peer was asked, and is bytes to
    /// move then: see [`crate::staging::fragments`].
    Fragment { slot: MessageSlot, bulk: bool, transfer: Transfer },
    /// The same, for a peer. The connection knows nothing of it.
    PeerRequest { bulk: bool, transfer: Transfer },
}

/// The slot of a message in the table of messages, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MessageSlot(u32);

impl MessageSlot {
    /// None.
    pub(crate) const NONE: MessageSlot = MessageSlot(NIL);

    #[inline(always)]
    pub(crate) fn of(slot: u32) -> Self {
        Self(slot)
    }

    #[inline(always)]
    pub(crate) fn get(self) -> Option<u32> {
        (self.0 != NIL).then_some(self.0)
    }
}

impl Work {
    /// A fragment of so many bytes that has not set out, with the message by which its peer is
    /// asked, if it is.
    pub(crate) fn fragment(slot: Option<u32>, direction: Direction, len: usize) -> Self {
        let slot = slot.map_or(MessageSlot::NONE, MessageSlot::of);
        Self::Fragment { slot, bulk: false, transfer: no_bytes(direction, len) }
    }

    /// A peer's, of so many bytes.
    pub(crate) fn peer_request(direction: Direction, len: usize) -> Self {
        Self::PeerRequest { bulk: false, transfer: no_bytes(direction, len) }
    }

    /// Whether it is bytes that the fabric moves as they are, rather than having a place in the
    /// table of messages or in the pool.
    #[inline]
    pub(crate) fn is_rma(&self) -> bool {
        use Work::{Counted, Reissued, Stripe, Transfer};
        matches!(self, Transfer(_) | Counted { .. } | Stripe { .. } | Reissued { .. })
    }

    #[inline]
    pub(crate) fn is_staged(&self) -> bool {
        matches!(self, Work::Fragment { .. } | Work::PeerRequest { .. })
    }

    #[inline]
    pub(crate) fn has_mover(&self) -> bool {
        matches!(self, Work::Pooled { .. }) || self.is_staged()
    }

    #[inline]
    pub(crate) fn is_message(&self) -> bool {
        use Work::{CountedSignal, Fetch, Message};
        matches!(self, Message { .. } | CountedSignal { .. } | Fetch { .. })
    }

    #[inline]
    pub(crate) fn message(&self) -> Option<u32> {
        use Work::{CountedSignal, Fetch, Fragment, Message};
        match self {
            Message { slot, .. }
            | CountedSignal { slot, .. }
            | Fetch { slot, .. }
            | Fragment { slot, .. } => slot.get(),
            _ => None,
        }
    }

    pub(super) fn take_message(&mut self) -> Option<u32> {
        use Work::{CountedSignal, Fetch, Fragment, Message};
        match self {
            Message { slot, .. }
            | CountedSignal { slot, .. }
            | Fetch { slot, .. }
            | Fragment { slot, .. } => std::mem::replace(slot, MessageSlot::NONE).get(),
            _ => None,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        use Work::{Counted, CountedSignal, Fetch, Fragment, Message, PeerRequest, Pooled};
        use Work::{Reissued, Stripe, Transfer};
        match self {
            Transfer(transfer)
            | Counted { transfer, .. }
            | Stripe { transfer, .. }
            | Reissued { transfer, .. }
            | Fragment { transfer, .. }
            | PeerRequest { transfer, .. } => transfer.len,
            Pooled { len, .. }
            | Message { len, .. }
            | CountedSignal { len, .. }
            | Fetch { len, .. } => *len,
        }
    }

    #[inline]
    pub(crate) fn transfer(&self) -> Option<&Transfer> {
        match self {
            Work::Transfer(transfer)
            | Work::Counted { transfer, .. }
            | Work::Stripe { transfer, .. }
            | Work::Reissued { transfer, .. }
            | Work::Fragment { transfer, .. }
            | Work::PeerRequest { transfer, .. } => Some(transfer),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn transfer_mut(&mut self) -> Option<&mut Transfer> {
        match self {
            Work::Transfer(transfer)
            | Work::Counted { transfer, .. }
            | Work::Stripe { transfer, .. }
            | Work::Reissued { transfer, .. }
            | Work::Fragment { transfer, .. }
            | Work::PeerRequest { transfer, .. } => Some(transfer),
            _ => None,
        }
    }

    /// Whether another thread of the port may move its bytes.
    #[inline]
    pub(crate) fn is_bulk(&self) -> bool {
        use Work::{Counted, Fragment, PeerRequest, Reissued, Stripe};
        match self {
            Counted { bulk, .. }
            | Stripe { bulk, .. }
            | Reissued { bulk, .. }
            | Fragment { bulk, .. }
            | PeerRequest { bulk, .. } => *bulk,
            _ => false,
        }
    }

    pub(super) fn memory(&self) -> Option<(usize, usize)> {
        match self {
            Work::Fetch { result, len, .. } => Some(result.memory(*len)),
            _ if self.is_rma() => match self.transfer()? {
                Transfer { local: Local::Memory { addr, .. }, len, .. } => Some((*addr, *len)),
                _ => None,
            },
            _ => None,
        }
    }

    /// A copy touches these bytes of a fragment until it has ended.
    pub(super) fn touch(&mut self, addr: usize, bytes: usize) {
        if let Some(Transfer { local, len, .. }) = self.transfer_mut() {
            (*local, *len) = (Local::Memory { addr, desc: Desc(0) }, bytes);
        }
    }

    pub(super) fn touch_nothing(&mut self) {
        if let Some(transfer) = self.transfer_mut() {
            transfer.local = Local::Value(0);
        }
    }

    pub(super) fn what(&self, direction: Direction) -> &'static str {
        match (self, direction) {
            (Work::PeerRequest { .. }, _) => "put or get of the peer",
            (Work::Message { .. } | Work::CountedSignal { .. }, _) => "signal or atomic",
            (Work::Fetch { .. }, _) => "fetching atomic",
            (_, Direction::Write) => "put",
            (_, Direction::Read) => "get",
        }
    }
}

/// What moves no bytes yet.
pub(super) const fn no_bytes(direction: Direction, len: usize) -> Transfer {
    Transfer { direction, local: Local::Value(0), len, remote: 0, key: 0 }
}
