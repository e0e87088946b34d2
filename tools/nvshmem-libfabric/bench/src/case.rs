//! Cases: an operation at one size, and the sides that are timed in turn.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// Windows of puts.
    Put,
    /// Windows of gets.
    Get,
    /// Windows of puts with signal.
    PutSignal,
    /// A put with signal and its answer; of the raw side a message. An operation is one of the two
    /// ways.
    PingPong,
    /// A fetching atomic that is waited for; of the raw side a message of 8 bytes and its answer.
    FetchAdd,
    /// A fence and a signal behind puts. Only the calls of fence and signal count.
    Fence,
    /// `quiet` with nothing outstanding. Only counted.
    Quiet,
    /// `progress` with nothing outstanding. Only counted.
    Progress,
}

/// Who moves the data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Side {
    /// The plugin.
    Plugin,
    /// libfabric alone.
    Raw,
    /// The plugin, with a quiet for every PE in place of what orders a signal or a fence.
    Reference,
    /// The plugin, in the heap's last chunk, which is host memory where the first is a device's.
    Host,
}

/// An operation at one size.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Case {
    /// The operation.
    pub op: Op,
    /// Bytes of one operation: a multiple of 8.
    pub bytes: u64,
    /// Operations before all of them are waited for.
    pub window: u64,
    /// The sides, the plugin among them.
    pub sides: Vec<Side>,
}

impl Case {
    pub(crate) fn ops(&self) -> u64 {
        match self.op {
            Op::Put | Op::Get | Op::PutSignal => self.window,
            Op::PingPong => 2,
            Op::FetchAdd | Op::Fence | Op::Quiet | Op::Progress => 1,
        }
    }

    /// Returns whether the time of an operation counts, and not how many there are in a second.
    pub fn is_latency(&self) -> bool {
        self.window == 1 || self.op == Op::Fence
    }

    /// Returns the time of an operation as people read it.
    pub fn show(&self, seconds: f64) -> String {
        if self.is_latency() {
            format!("{:.2} us", seconds * 1e6)
        } else if self.is_rate() {
            format!("{:.1} kop/s", 1e-3 / seconds)
        } else {
            format!("{:.1} MB/s", self.bytes as f64 / seconds / 1e6)
        }
    }

    fn is_rate(&self) -> bool {
        self.bytes <= 64 || self.op == Op::PutSignal
    }
}

/// The name of a case in figures.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = match self.op {
            Op::Put => "put",
            Op::Get => "get",
            Op::PutSignal | Op::PingPong => "put_signal",
            Op::FetchAdd => return f.write_str("fetch_add"),
            Op::Fence => return f.write_str("fence_signal_cost"),
            Op::Quiet => return f.write_str("quiet_empty"),
            Op::Progress => return f.write_str("progress_idle"),
        };
        let unit = match (self.is_latency(), self.is_rate()) {
            (true, _) => "_latency",
            (false, true) => "_rate",
            (false, false) => "",
        };
        write!(f, "{op}_{}{unit}", size(self.bytes))
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// Returns a number of bytes in the largest unit that it is a multiple of.
fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 => format!("{}MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{}KiB", bytes >> 10),
        bytes => format!("{bytes}B"),
    }
}
