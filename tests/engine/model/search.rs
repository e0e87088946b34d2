//! The search: what can happen next, what was chosen of it, and the states that were seen.

use std::collections::HashSet;

use engine::ids::RailId;

/// Something that can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Choice {
    /// A PE issues its next operation.
    Issue(usize),
    /// A lane turns.
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
    /// A message is lost, likewise.
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

/// A choice taken, and those not tried yet.
#[derive(Debug)]
pub(crate) struct Fork {
    pub(crate) taken: Choice,
    pub(crate) left: Vec<Choice>,
}

/// What outlasts an execution.
#[derive(Debug, Default)]
pub(crate) struct Search {
    pub(crate) path: Vec<Fork>,
    pub(crate) at: usize,
    pub(crate) seen: HashSet<u64>,
    /// Histories after which a lane's turn does nothing unless it is told more.
    pub(crate) idle: HashSet<u64>,
    pub(crate) random: Option<Random>,
}

/// Numbers that follow from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// One below the bound, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0.rotate_left(23) ^ 0x9e37_79b9_7f4a_7c15;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z = (z ^ (z >> 31)).wrapping_add(self.0.wrapping_mul(0xff51_afd7_ed55_8ccd));
        (z % bound as u64) as usize
    }
}
