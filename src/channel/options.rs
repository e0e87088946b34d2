//! Options of a channel, and the settings they come from.

use std::time::Duration;

use crate::channel::error::ChannelError;
use crate::logging;
use crate::settings::Settings;

/// How a channel is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Rings, a power of two of at most `NLF_MAX_RINGS`.
    pub rings: u32,
    /// Slots of each ring, a power of two from `NLF_MIN_SLOTS` to `NLF_MAX_SLOTS`.
    pub slots: u64,
    /// Polls without any change after which a kernel gives up a wait; 0: never.
    pub spins: u64,
    /// How long [`Channel::stop`](super::Channel::stop) and dropping wait for operations.
    pub drain: Duration,
    /// The rest, as in the environment.
    pub settings: Settings,
}

impl Options {
    /// As the environment says.
    ///
    /// # Errors
    /// Values that are not accepted.
    pub fn from_env() -> Result<Self, ChannelError> {
        logging::init();
        let settings = Settings::from_env()?;
        Ok(Self {
            rings: settings.channel_rings,
            slots: settings.channel_slots.into(),
            spins: 0,
            drain: Duration::from_secs(10),
            settings,
        })
    }
}
