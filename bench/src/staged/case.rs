//! What is measured: which operations, on which sides, and the figures' names.

use std::fmt;

use crate::case::{Direction, Size};

/// A side of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// From host memory to host memory.
    Host,
    /// From device memory to device memory.
    Staged,
    /// Copies of the driver alone, from the device to page-locked memory.
    CopyOut,
    /// Copies of the driver alone, the other way.
    CopyIn,
}

impl Side {
    /// For people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Side::Host => "host",
            Side::Staged => "staged",
            Side::CopyOut => "copy out",
            Side::CopyIn => "copy in",
        }
    }
}

/// What is issued.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// Puts or gets.
    Move(Direction),
    /// Puts with a signal in the memory that they write.
    Signal,
}

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) what: What,
    /// Bytes of one operation.
    pub(crate) bytes: u64,
    /// Operations posted before the loop waits for all of them. Each has its own place in memory.
    pub(crate) window: u64,
}

/// Puts of this size stand beside copies of the driver.
const COPIED: u64 = 1 << 20;

impl Case {
    /// Every row.
    pub(crate) const ALL: [Case; 6] = [
        Case { what: What::Move(Direction::Put), bytes: COPIED, window: 32 },
        Case { what: What::Move(Direction::Put), bytes: 4 << 20, window: 8 },
        Case { what: What::Move(Direction::Put), bytes: 16 << 20, window: 2 },
        Case { what: What::Move(Direction::Get), bytes: 1 << 20, window: 32 },
        Case { what: What::Move(Direction::Put), bytes: 8, window: 1 },
        Case { what: What::Signal, bytes: 4 << 10, window: 1 },
    ];

    /// Bytes that the largest window takes up on each side.
    pub(crate) const LARGEST: u64 = 32 << 20;

    /// The sides, in the order in which they are reported; without host memory in jobs that have none.
    pub(crate) fn sides(self, host: bool) -> Vec<Side> {
        let mut sides = vec![Side::Staged];
        if host {
            sides.insert(0, Side::Host);
        }
        if self.has_copies() {
            sides.extend([Side::CopyOut, Side::CopyIn]);
        }
        sides
    }

    /// Whether copies of the driver are among the sides.
    pub(crate) fn has_copies(self) -> bool {
        self.what == What::Move(Direction::Put) && self.bytes == COPIED
    }

    /// Direction of the data.
    pub(crate) fn direction(self) -> Direction {
        match self.what {
            What::Move(direction) => direction,
            What::Signal => Direction::Put,
        }
    }

    /// Bytes of memory that a window takes up on each side.
    pub(crate) fn span(self) -> u64 {
        self.bytes * self.window
    }

    /// Whether its figure is the time of one operation; otherwise it is what staging reaches of the
    /// bandwidth on host memory.
    pub(crate) fn is_latency(self) -> bool {
        self.window == 1
    }

    /// The figure's name for one provider.
    pub(crate) fn measure(self, provider: &str) -> String {
        let kind = if self.is_latency() { "latency" } else { "ratio" };
        format!("staged_{self}_{kind}_{provider}")
    }

    /// What an operation of so many seconds is, as people read it.
    pub(crate) fn show(self, seconds: f64) -> String {
        if self.is_latency() {
            format!("{:.2} us", seconds * 1e6)
        } else {
            format!("{:.2} GB/s", self.bytes as f64 / seconds / 1e9)
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::Move(direction) => write!(f, "{direction}_{}", Size(self.bytes)),
            What::Signal => write!(f, "put_signal_{}", Size(self.bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_by_operation_size_and_provider() {
        let names = Case::ALL.map(|case| case.measure("rxm"));
        assert_eq!(
            names,
            [
                "staged_put_1MiB_ratio_rxm",
                "staged_put_4MiB_ratio_rxm",
                "staged_put_16MiB_ratio_rxm",
                "staged_get_1MiB_ratio_rxm",
                "staged_put_8B_latency_rxm",
                "staged_put_signal_4KiB_latency_rxm",
            ]
        );
    }

    #[test]
    fn every_window_fits() {
        let largest = Case::ALL.into_iter().map(Case::span).max();
        assert_eq!(largest, Some(Case::LARGEST));
    }

    #[test]
    fn one_case_has_copies_beside_it_and_host_memory_may_be_missing() {
        let [first, others @ ..] = Case::ALL;
        assert_eq!(first.sides(true), [Side::Host, Side::Staged, Side::CopyOut, Side::CopyIn]);
        for case in others {
            assert_eq!(case.sides(true), [Side::Host, Side::Staged]);
            assert_eq!(case.sides(false), [Side::Staged]);
        }
    }
}
