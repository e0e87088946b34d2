//! What a lane copies from bounce buffers of peers on its host.

use std::collections::VecDeque;

use crate::ids::Pe;
use crate::staging::state::waiting::Wanted;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};

/// Most copies from bounce buffers of peers, for puts of theirs, that are under way.
pub(crate) const SHARED_COPIES: u32 = 64;

/// What a lane copies from bounce buffers of peers.
#[derive(Debug, Default)]
pub(crate) struct SameHost {
    /// Puts of peers that may be copied now, first in first out. A copy ends whatever its peer
    /// does, so peers need no shares.
    pub(in crate::staging) queue: VecDeque<Wanted>,
    /// Such copies under way.
    pub(in crate::staging) under_way: u32,
    /// Peers that were declared failed while their process may still read.
    pub(in crate::staging) failed: Vec<Pe>,
}

impl SameHost {
    pub(super) fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// As many copies are under way as there are fragments of them.
    #[cfg(any(test, feature = "audit"))]
    pub(in crate::staging) fn audit(&self, under_way: u32) -> Result<(), Discrepancy> {
        same("copies from bounce buffers of peers", self.under_way, under_way)
    }

    /// How many puts of a peer are in the queue.
    #[cfg(any(test, feature = "audit"))]
    pub(in crate::staging) fn queued_of(&self, pe: Pe) -> usize {
        self.queue.iter().filter(|wanted| wanted.pe == pe).count()
    }
}
