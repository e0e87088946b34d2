//! What is measured: direction, size, and how many operations are in flight.

use std::fmt;

/// Direction of the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// To the peer.
    Put,
    /// From the peer.
    Get,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Put => "put",
            Direction::Get => "get",
        })
    }
}

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Case {
    pub(crate) direction: Direction,
    /// Bytes of one operation, at least 8 and a multiple of 8.
    pub(crate) bytes: u64,
    /// Operations posted before the loop waits for all of them. Each has its own place in memory.
    pub(crate) window: u64,
}

/// Sizes and windows. Small operations are posted in windows as a benchmark's user would; large
/// ones fill any pipe with a few.
const SIZES: [(u64, u64); 6] =
    [(8, 64), (64, 64), (4 << 10, 64), (64 << 10, 16), (1 << 20, 4), (16 << 20, 4)];

/// Up to this size it is the rate of messages that counts.
const RATE_BYTES: u64 = 64;

impl Case {
    /// Every row, puts first.
    pub(crate) fn all() -> impl Iterator<Item = Case> {
        [Direction::Put, Direction::Get].into_iter().flat_map(|direction| {
            SIZES.into_iter().map(move |(bytes, window)| Case { direction, bytes, window })
        })
    }

    /// Bytes of memory that a window takes up on each side.
    pub(crate) fn span(self) -> u64 {
        self.bytes * self.window
    }

    /// The figure's name for one provider.
    pub(crate) fn measure(self, provider: &str) -> String {
        let rate = if self.bytes <= RATE_BYTES { "_rate" } else { "" };
        format!("{self}{rate}_over_raw_{provider}")
    }

    /// A rate as people read it: operations for small sizes, bytes for large ones.
    pub(crate) fn show_rate(self, ops_per_second: f64) -> String {
        if self.bytes <= RATE_BYTES {
            format!("{:.1} kop/s", ops_per_second / 1e3)
        } else {
            format!("{:.1} MB/s", ops_per_second * self.bytes as f64 / 1e6)
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.direction, Size(self.bytes))
    }
}

/// A number of bytes, in the unit that it is a multiple of, as figures are named by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Size(pub(crate) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            bytes if bytes >= 1 << 20 => (bytes >> 20, "MiB"),
            bytes if bytes >= 1 << 10 => (bytes >> 10, "KiB"),
            bytes => (bytes, "B"),
        };
        write!(f, "{value}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_named_by_direction_size_and_provider() {
        let names: Vec<String> = Case::all().map(|case| case.measure("tcp")).collect();
        assert_eq!(names.len(), 12);
        assert_eq!(names[0], "put_8B_rate_over_raw_tcp");
        assert_eq!(names[3], "put_64KiB_over_raw_tcp");
        assert_eq!(names[4], "put_1MiB_over_raw_tcp");
        assert_eq!(names[11], "get_16MiB_over_raw_tcp");
    }

    #[test]
    fn rates_are_shown_in_the_unit_of_their_size() {
        let case = |bytes| Case { direction: Direction::Put, bytes, window: 1 };
        assert_eq!(case(8).show_rate(2e6), "2000.0 kop/s");
        assert_eq!(case(1 << 20).show_rate(1000.0), "1048.6 MB/s");
    }
}
