//! Flights: operations and copies under way, and what is told of their end.

use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::port::copies::Copy;
use crate::engine::port::fabric_atomic::FabricAtomic;
use crate::engine::port::{Failure, PortError, Transfer};

/// What a segment does.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::fake) enum Work {
    /// With what the peer is told when the data is there.
    Transfer(Transfer, Option<u64>),
    Atomic(FabricAtomic),
}

/// What an address names.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::fake) struct Target {
    pub(in crate::engine::fake) pe: Pe,
    pub(in crate::engine::fake) rail: RailId,
    pub(in crate::engine::fake) generation: u32,
}

/// An operation under way.
#[derive(Debug)]
pub(in crate::engine::fake) struct Flight {
    pub(in crate::engine::fake) lane: usize,
    pub(in crate::engine::fake) from: Pe,
    pub(in crate::engine::fake) to: Pe,
    pub(in crate::engine::fake) remote_rail: RailId,
    /// The generation of the target's rail that it was posted to.
    pub(in crate::engine::fake) generation: u32,
    /// Nobody waits for it any more: its rail was closed, or it was reported as failed.
    pub(in crate::engine::fake) orphan: bool,
    /// Then, for a write: its bytes as they were.
    pub(in crate::engine::fake) frozen: Option<Vec<u8>>,
    pub(in crate::engine::fake) rail: RailId,
    pub(in crate::engine::fake) token: Token,
    pub(in crate::engine::fake) work: Work,
    pub(in crate::engine::fake) due: u64,
    /// Whether the device knows of it.
    pub(in crate::engine::fake) rung: bool,
    /// Once delivered: what the completion says.
    pub(in crate::engine::fake) outcome: Option<Result<(), PortError>>,
}

/// A copy under way.
#[derive(Debug)]
pub(in crate::engine::fake) struct Moving {
    pub(in crate::engine::fake) pe: Pe,
    pub(in crate::engine::fake) copy: Copy,
    pub(in crate::engine::fake) tag: u32,
    pub(in crate::engine::fake) due: u64,
}

/// Something completed, to be reported by a poll.
#[derive(Debug)]
pub(in crate::engine::fake) enum Done {
    Token(Token),
    Failure(Failure),
}
