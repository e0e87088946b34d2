//! Copies under way in one direction, in the order of starting.

use std::collections::VecDeque;

/// What tells that a copy has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum By {
    /// Nothing: the CPU has copied, it had ended when it was started.
    Cpu,
    /// The engine of the context with this index.
    Engine(usize),
}

/// A copy under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    pub(crate) tag: u32,
    pub(crate) by: By,
}

/// Copies of one direction. Several engines may be at work; the end of each copy is told in the
/// order of starting, so it waits for those before it. An engine's own copies end in their order,
/// so the first copy here is the oldest of its engine.
#[derive(Debug)]
pub(crate) struct Flight {
    started: VecDeque<Started>,
    capacity: usize,
}

impl Flight {
    /// Room for that many.
    pub(crate) fn new(capacity: usize) -> Self {
        Self { started: VecDeque::with_capacity(capacity), capacity }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.started.len() == self.capacity
    }

    /// The one that ends next.
    #[inline]
    pub(crate) fn first(&self) -> Option<Started> {
        self.started.front().copied()
    }

    /// Takes one in. There is room, so this does not allocate.
    #[inline]
    pub(crate) fn push(&mut self, started: Started) {
        self.started.push_back(started);
    }

    /// Lets the first go.
    #[inline]
    pub(crate) fn pop(&mut self) {
        self.started.pop_front();
    }
}
