//! The fragments that wait for copies, in both directions, first in first out.

use std::collections::VecDeque;

use crate::ids::WrId;
use crate::port::copies::{CopyDirection, MOST_TOGETHER, Tagged};
use crate::staging::state::State;

/// What waits for copies, in both directions.
#[derive(Debug)]
pub(crate) struct Ready {
    out: VecDeque<WrId>,
    inward: VecDeque<WrId>,
    /// Room for what is started together.
    pub(in crate::staging) together: Vec<Tagged>,
}

impl Ready {
    pub(super) fn new() -> Self {
        let (out, inward) = (VecDeque::new(), VecDeque::new());
        Self { out, inward, together: Vec::with_capacity(MOST_TOGETHER) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.out.is_empty() && self.inward.is_empty()
    }

    /// How many wait, in both directions.
    #[cfg(any(test, feature = "audit"))]
    pub(in crate::staging) fn len(&self) -> usize {
        self.out.len() + self.inward.len()
    }
}

impl State {
    /// Fragments whose copies in a direction can be started.
    pub(crate) fn ready(&mut self, direction: CopyDirection) -> &mut VecDeque<WrId> {
        match direction {
            CopyDirection::Out => &mut self.ready.out,
            CopyDirection::In => &mut self.ready.inward,
        }
    }
}
