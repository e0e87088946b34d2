//! Flights: operations and copies under way, and what is told of their end.

use engine::atomic::Atomic;
use engine::ids::{Pe, RailId, WrId};
use engine::port::copies::Copy;
use engine::port::{Failure, PortError, Transfer};

/// What an address names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) pe: Pe,
    pub(crate) rail: RailId,
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) lane: usize,
    pub(crate) from: Pe,
    pub(crate) to: Pe,
    pub(crate) remote_rail: RailId,
    pub(crate) rail: RailId,
    pub(crate) wr_id: WrId,
    pub(crate) transfer: Transfer,
    /// What the peer is told when the data is there.
    pub(crate) data: Option<u64>,
    pub(crate) due: u64,
    /// Once delivered: what the completion says.
    pub(crate) outcome: Option<Result<(), PortError>>,
}

/// A copy under way.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) pe: Pe,
    pub(crate) copy: Copy,
    /// The word that is changed in place of a copy.
    pub(crate) word: Option<(usize, Atomic)>,
    pub(crate) tag: u32,
    /// The call that started it, with others.
    pub(crate) call: u64,
    pub(crate) due: u64,
    /// What went wrong with another copy of its tag.
    pub(crate) failed: Option<PortError>,
}

/// Something completed, to be reported by a poll.
#[derive(Debug)]
pub(crate) enum Done {
    WrId(WrId),
    Failure(Failure),
}
