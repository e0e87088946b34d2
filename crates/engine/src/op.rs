//! Operations of callers, from the call to the queue of their peer.

use std::sync::Arc;

use crate::atomic::Atomic;
use crate::error::EngineError;
use crate::group::{CompletionId, OrderGroup};
use crate::ids::Pe;
use crate::port::Direction;
use crate::request::{FetchTarget, LocalSide, Request};
use crate::wire::handle::HandleBytes;
use crate::wire::message::{RegionAddr, Tag};

/// An operation. `submit` borrows it; what cannot start at once moves into the queue of its peer,
/// together with the handle of its remote memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Op {
    pub(crate) kind: OpKind,
    /// Address of the remote bytes in the peer.
    pub(crate) remote: u64,
    pub(crate) local: LocalSide,
    pub(crate) len: usize,
    pub(crate) sent: usize,
    /// Completion group of the operation while queued, then of its segments and messages.
    pub(crate) completion: CompletionId,
    /// Order group of its segments, if not the peer's last one.
    pub(crate) group: Option<OrderGroup>,
    /// Whether staging submits it, because the fabric does not reach one of the sides.
    pub(crate) staged: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum OpKind {
    Transfer(Direction),
    /// A put of values to staged memory, whose bytes staging holds.
    Values,
    PutSignal(WordOp, SignalProtocol),
    /// An atomic that fetches nothing. Only fences order it.
    Atomic(WordOp),
    /// A signal sent apart from its data; it follows all earlier puts.
    Signal(WordOp),
    Fetch(WordOp, FetchTarget),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct WordOp {
    pub(crate) addr: RegionAddr,
    pub(crate) atomic: Atomic,
}

/// Protocol by which a signal follows its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SignalProtocol {
    /// Not chosen yet.
    Undecided,
    /// One message carries data and signal.
    Eager,
    /// As `Eager`, but the payload is outside the frame: the port copies it as the message leaves.
    EagerLong,
    /// The target counts the segments, which carry `tag`; `segments` of them are posted so far.
    Counted { tag: Tag, segments: u32 },
    /// The signal is sent when the segments, counted in the completion group `data`, are delivered.
    /// Until then the operation counts as a write of its peer in `group`.
    Chained { data: CompletionId, group: OrderGroup },
    /// The signal follows everything submitted before it.
    Ordered,
}

impl Op {
    pub(crate) fn new(kind: OpKind, completion: CompletionId) -> Self {
        let local = LocalSide::Value(0);
        Self { kind, remote: 0, local, len: 0, sent: 0, completion, group: None, staged: false }
    }

    /// Returns true if the operation can no longer move after another one.
    pub(crate) fn has_begun(&self) -> bool {
        // A chosen protocol holds a tag or a group, which an operation in front might wait for.
        let has_protocol = matches!(self.kind, OpKind::PutSignal(_, protocol) if protocol != SignalProtocol::Undecided);
        self.sent > 0 || has_protocol
    }

    pub(crate) fn request<'a>(&self, pe: Pe, remote_handle: &'a HandleBytes) -> Request<'a> {
        // Of the other kinds only the peer and the handle are used: their length is 0.
        let direction = match self.kind {
            OpKind::Transfer(direction) => direction,
            _ => Direction::Write,
        };
        let Self { remote: remote_addr, local, len, .. } = *self;
        Request { direction, pe, remote_handle, remote_addr, local, len }
    }

    /// Returns the operation's name, with address and length of its local memory.
    pub(crate) fn memory(&self) -> Option<(&'static str, (usize, usize))> {
        match (self.kind, self.local) {
            (OpKind::Fetch(word, result), _) => {
                Some(("fetching atomic", result.memory(word.atomic.width.bytes())))
            }
            // A value was copied when it was submitted.
            (_, LocalSide::Memory(addr)) => Some((self.what(), (addr, self.len))),
            _ => None,
        }
    }

    /// Whether it is a put whose signal follows in a completion group.
    pub(crate) fn is_chained(&self) -> bool {
        matches!(self.kind, OpKind::PutSignal(_, SignalProtocol::Chained { .. }))
    }

    pub(crate) fn what(&self) -> &'static str {
        match self.kind {
            OpKind::Transfer(Direction::Read) => "get",
            OpKind::Transfer(Direction::Write) | OpKind::Values => "put",
            OpKind::PutSignal(..) => "put with signal",
            OpKind::Atomic(_) | OpKind::Signal(_) => "atomic",
            OpKind::Fetch(..) => "fetching atomic",
        }
    }
}

#[derive(Debug)]
pub(crate) enum QueueEntry {
    Op(Op, Arc<HandleBytes>),
    Fence,
    /// Deferred writes to own words, which `Staging::flush_own` completes.
    OwnWords,
    /// A wait for everything queued before it, after which the completion group ends.
    Quiet(CompletionId),
}

pub(crate) type Attempt = Result<Outcome, EngineError>;

/// Outcome of an attempt to submit an operation, which goes on from where it stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Done,
    /// Earlier work of the peer has to end first, or stands before the operation in the queue.
    Blocked,
    /// The operation waits for a limit of its own peer: window, fetch slots, tags.
    PeerFull,
    /// The operation waits for a resource of all peers: a rail, a message slot, a bounce buffer.
    LaneFull,
}
