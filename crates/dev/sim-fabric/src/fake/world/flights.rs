//! Flights: operations and copies under way, and what is told of their end.

use engine::atomic::Atomic;
use engine::ids::{Pe, RailId, WrId};
use engine::port::copies::Copy;
use engine::port::{Failure, PortError, Transfer};

/// What an address names.
#[derive(Clone, Copy, Debug)]
pub(in crate::fake) struct Target {
    pub(in crate::fake) pe: Pe,
    pub(in crate::fake) rail: RailId,
}

/// An operation under way.
#[derive(Debug)]
pub(in crate::fake) struct Flight {
    pub(in crate::fake) lane: usize,
    pub(in crate::fake) from: Pe,
    pub(in crate::fake) to: Pe,
    pub(in crate::fake) remote_rail: RailId,
    pub(in crate::fake) rail: RailId,
    pub(in crate::fake) wr_id: WrId,
    pub(in crate::fake) transfer: Transfer,
    /// What the peer is told when the data is there.
    pub(in crate::fake) data: Option<u64>,
    pub(in crate::fake) due: u64,
    /// Once delivered: what the completion says.
    pub(in crate::fake) outcome: Option<Result<(), PortError>>,
}

/// A copy under way.
#[derive(Debug)]
pub(in crate::fake) struct Moving {
    pub(in crate::fake) pe: Pe,
    pub(in crate::fake) copy: Copy,
    /// The word that is changed in place of a copy.
    pub(in crate::fake) word: Option<(usize, Atomic)>,
    pub(in crate::fake) tag: u32,
    /// The call that started it, with others.
    pub(in crate::fake) call: u64,
    pub(in crate::fake) due: u64,
    /// What went wrong with another copy of its tag.
    pub(in crate::fake) failed: Option<PortError>,
}

/// Something completed, to be reported by a poll.
#[derive(Debug)]
pub(in crate::fake) enum Done {
    WrId(WrId),
    Failure(Failure),
}
