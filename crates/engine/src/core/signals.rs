//! Signal protocols that the rails and peers of a lane allow.

use crate::channel::counts::TAGS;
use crate::core::config::{LaneConfig, SignalChoice};
use crate::port::RailLimits;
use crate::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use crate::wire::message::eager_in;

#[derive(Debug)]
pub(crate) struct Signals {
    pub(crate) eager: bool,
    /// Longest payload of one message in bytes, where processors reach it at both ends.
    pub(crate) longest: usize,
    /// Maximum number of counted puts to a peer at a time; 0 where nothing is counted.
    pub(crate) tags: u16,
    /// Whether signals follow all earlier puts and signals.
    pub(crate) strong: bool,
}

impl Signals {
    pub(crate) fn new(config: &LaneConfig, limits: &[RailLimits]) -> Self {
        let choice = config.signals;
        // Any rail may carry a segment, so one without immediate data rules out counting.
        let counts = limits.iter().all(|rail| rail.immediate_data)
            && matches!(choice, SignalChoice::Auto | SignalChoice::Counted);
        let longest = limits.iter().map(|rail| rail.longest_message).min().unwrap_or(0);
        let longest = longest.min(config.longest_message).clamp(MAX_MESSAGE, MAX_LONG_MESSAGE);
        Self {
            eager: matches!(choice, SignalChoice::Auto | SignalChoice::Eager),
            longest: eager_in(longest),
            tags: if counts { config.counted.min(TAGS) } else { 0 },
            strong: false,
        }
    }
}
