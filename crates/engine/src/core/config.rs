use std::sync::Arc;

use crate::Watchdog;
use crate::ids::{LaneKind, Pe};
use crate::rails::Spread;
use crate::rails::paths::PathTable;
use crate::regions::RegionDirectory;
use crate::wire::cookie::Cookie;

#[derive(Debug)]
pub struct LaneConfig {
    pub me: Pe,
    pub cookie: Cookie,
    pub kind: LaneKind,
    pub paths: PathTable,
    pub regions: Arc<RegionDirectory>,
    pub watchdog: Watchdog,
    pub signals: SignalChoice,
    /// Maximum number of counted puts to one peer at a time, at most
    /// [`TAGS`](crate::channel::counts::TAGS); 0 where some rail of some PE carries no immediate
    /// data.
    pub counted: u16,
    /// Bytes of immediate data that every rail of every PE carries: four or eight, if any.
    pub immediate_bytes: u8,
    /// Longest message in bytes that every PE accepts on every rail.
    pub longest_message: usize,
    pub spread: Spread,
    /// Whether local memory may be device memory although none is registered.
    pub devices: bool,
}

/// Protocol by which the signal of a put follows its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalChoice {
    /// The fastest protocol that the put and the fabric allow.
    Auto,
    /// The signal is sent when its own data is delivered.
    Chained,
    /// Data and signal are one message; chained where the data is too long for that.
    Eager,
    /// The target applies the signal when it has counted the data's segments; else chained.
    Counted,
}
