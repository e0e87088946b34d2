//! Cases: what is measured, who is timed, and the figures that are made of it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// One row of a table: an operation, and its sides.
pub(crate) trait Case: Copy + fmt::Display + Send + 'static {
    /// Who is timed.
    fn sides(&self) -> Vec<Side>;

    /// How people read a side's time.
    fn unit(&self) -> Unit;

    /// What is made of the times, on a provider.
    fn figures(&self, provider: &str) -> Vec<Figure>;
}

/// Who moves the data, or from where: what is timed beside something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Side {
    /// libfabric alone.
    Raw,
    /// The plugin, as it is meant to be used.
    Plugin,
    /// The plugin, made to wait as the shipped transport does.
    Reference,
    /// An atomic that fetches, through the plugin.
    FetchAdd,
    /// The plugin, from host memory to host memory.
    Host,
    /// The plugin, from device memory to device memory.
    Staged,
    /// Copies of the driver alone, from the device to page-locked memory.
    CopyOut,
    /// Copies of the driver alone, the other way.
    CopyIn,
    /// The device channel's rings.
    Channel,
    /// The engine, called directly.
    Direct,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Raw => "raw",
            Side::Plugin => "plugin",
            Side::Reference => "reference",
            Side::FetchAdd => "fetch_add",
            Side::Host => "host",
            Side::Staged => "staged",
            Side::CopyOut => "copy out",
            Side::CopyIn => "copy in",
            Side::Channel => "channel",
            Side::Direct => "direct",
        })
    }
}

/// A kind of job: PE 0, its peers, and their rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) peers: u32,
    pub(crate) rails: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} peer(s), {} rail(s)", self.peers, self.rails)
    }
}

/// How the time of an operation is shown.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Unit {
    /// Operations a second.
    Rate,
    /// Bytes a second, of operations of so many.
    Bandwidth(u64),
    /// The time itself.
    Time,
    /// Half of it: one way of a round trip.
    HalfTime,
}

impl Unit {
    /// The time of an operation as people read it.
    pub(crate) fn show(self, seconds: f64) -> String {
        match self {
            Unit::Rate => format!("{:.1} kop/s", 1e-3 / seconds),
            Unit::Bandwidth(bytes) => format!("{:.1} MB/s", bytes as f64 / seconds / 1e6),
            Unit::Time => format!("{:.2} us", seconds * 1e6),
            Unit::HalfTime => format!("{:.2} us", seconds / 2.0 * 1e6),
        }
    }
}

/// What is made of the times of a case.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: Value,
}

/// How a figure follows from times.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    /// The time of a side over that of another, round by round. Of several sides, the one that took
    /// longest.
    Ratio { of: Vec<Side>, over: Side },
    /// The same of the time of whole rounds, not only of what is counted of them.
    WholeRatio { of: Side, over: Side },
    /// The time of an operation, in microseconds.
    Micros(Side),
}

impl Figure {
    /// What a rate reaches of another one: the time of the other over its own.
    pub(crate) fn rate_over(name: String, of: Side, over: Side) -> Self {
        Self::time_over(name, over, of)
    }

    /// A time over another one.
    pub(crate) fn time_over(name: String, of: Side, over: Side) -> Self {
        Self { name, value: Value::Ratio { of: vec![of], over } }
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
    fn times_are_shown_in_their_unit() {
        assert_eq!(Unit::Rate.show(0.5e-6), "2000.0 kop/s");
        assert_eq!(Unit::Bandwidth(1 << 20).show(1e-3), "1048.6 MB/s");
        assert_eq!(Unit::Time.show(2e-6), "2.00 us");
        assert_eq!(Unit::HalfTime.show(2e-6), "1.00 us");
    }
}
