//! Operations of callers, from the entry to the queue.

use std::sync::Arc;

use crate::atomic::Atomic;
use crate::group::{GroupId, GroupRef};
use crate::ids::Pe;
use crate::port::Direction;
use crate::request::{LocalSide, Request, ResultPlace};
use crate::wire::handle::HandleBytes;
use crate::wire::message::{Spot, Tag};

/// An operation. `submit` borrows it; what cannot be submitted at once is moved into the queue of
/// its peer, with the handle of its remote memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// Address of the remote bytes in the peer.
    pub(crate) remote: u64,
    pub(crate) local: LocalSide,
    pub(crate) len: usize,
    /// Bytes that are submitted.
    pub(crate) sent: usize,
    /// Counts the operation while it is in a queue, and then its segments and messages.
    pub(crate) completion: GroupId,
    /// The order group that counts its segments, if not the peer's last one.
    pub(crate) counted_by: Option<GroupRef>,
    /// Whether staging submits it.
    pub(crate) staged: bool,
}

/// Kinds of operations.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A put or a get.
    Transfer(Direction),
    /// A put with its signal.
    PutSignal(Word, Way),
    /// An atomic that fetches nothing, ordered by fences alone.
    Word(Word),
    /// A signal apart from its data, behind all puts before it.
    Signal(Word),
    /// An atomic that fetches.
    Fetch(Word, ResultPlace),
}

/// An operation on a word of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) at: Spot,
    pub(crate) atomic: Atomic,
}

/// How a signal follows its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Not chosen yet.
    New,
    /// In one message with the data.
    Inline,
    /// The same; the payload is sent from its own memory.
    InlineLong,
    /// Beside segments that carry the tag. So many of them are posted.
    Counted { tag: Tag, segments: u32 },
    /// Behind segments in a completion group of their own. The operation counts as a write of its
    /// peer meanwhile.
    Chained { data: GroupId, held: GroupRef },
    /// Behind everything that was submitted before the signal.
    Ordered,
}

impl Op {
    pub(crate) fn new(kind: Kind, completion: GroupId) -> Self {
        let local = LocalSide::Value(0);
        Self {
            kind,
            remote: 0,
            local,
            len: 0,
            sent: 0,
            completion,
            counted_by: None,
            staged: false,
        }
    }

    /// Whether parts of it are submitted, or its way is chosen.
    pub(crate) fn has_begun(&self) -> bool {
        let has_way = matches!(self.kind, Kind::PutSignal(_, way) if way != Way::New);
        self.sent > 0 || has_way
    }

    /// The operation as a request.
    pub(crate) fn request<'a>(&self, pe: Pe, remote_handle: &'a HandleBytes) -> Request<'a> {
        let direction = match self.kind {
            Kind::Transfer(direction) => direction,
            _ => Direction::Write,
        };
        let Self { remote: remote_addr, local, len, .. } = *self;
        Request { direction, pe, remote_handle, remote_addr, local, len }
    }

    /// Local memory that the operation is going to touch, and its name in messages to users.
    pub(crate) fn memory(&self) -> Option<(&'static str, (usize, usize))> {
        match (self.kind, self.local) {
            (Kind::Fetch(word, result), _) => {
                Some(("fetching atomic", result.memory(word.atomic.width.bytes())))
            }
            (_, LocalSide::Memory(addr)) if self.len > 0 => Some((self.what(), (addr, self.len))),
            _ => None,
        }
    }

    /// The operation's name in messages to users.
    pub(crate) fn what(&self) -> &'static str {
        match self.kind {
            Kind::Transfer(Direction::Read) => "get",
            Kind::Transfer(Direction::Write) | Kind::PutSignal(..) => "put",
            Kind::Word(_) | Kind::Signal(_) => "atomic",
            Kind::Fetch(..) => "fetching atomic",
        }
    }
}

/// Entry of a peer's queue.
#[derive(Debug)]
pub(crate) enum Queued {
    /// An operation and the peer's handle for its remote memory.
    Op(Op, Arc<HandleBytes>),
    Fence,
    /// A wait for everything before it, which a completion group stands for.
    Quiet(GroupId),
}

/// What became of an attempt to submit an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Done,
    /// It waits for an order group of its own peer.
    Held,
    /// It waits for a place of its own peer: in the window, for a fetch, a tag.
    NoPlace,
    /// It waits for something shared: a rail, a slot, a bounce buffer.
    NoRoom,
}
