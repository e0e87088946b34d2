//! The search: what can happen next, what was chosen of it, and the states that were seen.

use std::collections::HashSet;

use crate::prelude::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    Issue(usize),
    Turn(usize),
    /// A write's completion will be found by the next poll.
    Complete(u32),
    /// A message will be found by the next poll.
    Arrive(u32),
    /// The same, and it will arrive once more.
    ArriveTwice(u32),
    /// A write's immediate data will be found by the target's next poll.
    Land(u32),
    /// A write is lost; its failure will be found by the next poll.
    LoseWrite(u32),
    /// A message is lost; its failure will be found by the next poll.
    LoseMessage(u32),
    /// A rail of a PE fails with what is under way on it, likewise.
    LoseRail(usize, RailId),
    /// The lane that waits inside a call looks again.
    Resume,
    /// Whether a post or a send finds no room.
    Again(bool),
    /// Whether a write is delivered at once, rather than as late as it may be.
    Early(bool),
}

#[derive(Debug)]
pub(crate) struct Fork {
    pub(crate) taken: Choice,
    pub(crate) left: Vec<Choice>,
}

#[derive(Debug, Default)]
pub(crate) struct Search {
    pub(crate) path: Vec<Fork>,
    pub(crate) at: usize,
    pub(crate) seen: HashSet<u64>,
    /// Histories after which a lane's turn does nothing unless it is told more.
    pub(crate) idle: HashSet<u64>,
    pub(crate) random: Option<Random>,
}
