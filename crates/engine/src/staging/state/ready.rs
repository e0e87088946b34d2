//! The fragments that wait for copies, in both directions, first in first out.

use std::collections::VecDeque;

use crate::ids::WrId;
use crate::port::copies::{CopyDirection, MOST_STEPS, MOST_TOGETHER, Step, Tagged};
use crate::staging::state::State;

/// What waits for copies, in both directions.
#[derive(Debug)]
pub(crate) struct Ready {
    out: VecDeque<WrId>,
    inward: VecDeque<WrId>,
    /// Room for what is started together.
    pub(in crate::staging) together: Vec<Tagged>,
    /// Room for what is started in its order.
    pub(in crate::staging) steps: Vec<Step>,
}

impl Ready {
    pub(super) fn new() -> Self {
        let (out, inward) = (VecDeque::new(), VecDeque::new());
        let (together, steps) = (Vec::with_capacity(MOST_TOGETHER), Vec::with_capacity(MOST_STEPS));
        Self { out, inward, together, steps }
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
    pub(crate) fn ready(&mut self, direction: CopyDirection) -> &mut VecDeque<WrId> {
        match direction {
            CopyDirection::Out => &mut self.ready.out,
            CopyDirection::In => &mut self.ready.inward,
        }
    }
}
