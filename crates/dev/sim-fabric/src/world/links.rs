//! The links of the fake fabric: between which rails anything goes at present.

use std::collections::HashSet;

use engine::ids::{Pe, RailId};

/// A rail of a PE.
pub(crate) type End = (Pe, RailId);

/// What goes nowhere.
#[derive(Default, Debug)]
pub(crate) struct Links {
    stalled: HashSet<Pe>,
    /// Targets are not told of writes that have landed.
    holds_data: bool,
    /// Pairs of rails between which nothing goes in this direction.
    down: Vec<(End, End)>,
    down_rails: Vec<End>,
    version: u64,
}

impl Links {
    /// As long as it is the same, so is what goes where.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Whether anything goes from one rail to another.
    pub(crate) fn goes(&self, from: End, to: End) -> bool {
        (self.down.is_empty() && self.down_rails.is_empty())
            || !(self.down_rails.contains(&from)
                || self.down_rails.contains(&to)
                || self.down.contains(&(from, to)))
    }

    pub(crate) fn is_stalled(&self, pe: Pe) -> bool {
        self.stalled.contains(&pe)
    }

    pub(crate) fn holds_data(&self) -> bool {
        self.holds_data
    }

    pub(crate) fn stall(&mut self, pe: Pe, stalls: bool) {
        self.version += 1;
        if stalls {
            self.stalled.insert(pe);
        } else {
            self.stalled.remove(&pe);
        }
    }

    pub(crate) fn hold_data(&mut self, hold: bool) {
        self.version += 1;
        self.holds_data = hold;
    }

    pub(crate) fn set_link(&mut self, from: End, to: End, up: bool) {
        self.version += 1;
        set(&mut self.down, (from, to), up);
    }

    pub(crate) fn set_rail(&mut self, rail: End, up: bool) {
        self.version += 1;
        set(&mut self.down_rails, rail, up);
    }
}

fn set<T: PartialEq>(down: &mut Vec<T>, what: T, up: bool) {
    down.retain(|other| *other != what);
    if !up {
        down.push(what);
    }
}
