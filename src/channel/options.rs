use std::time::Duration;

use crate::channel::error::ChannelError;
use crate::logging;
use crate::settings::Settings;

#[derive(Clone, Debug)]
pub struct Options {
    /// Rings, a power of two of at most `NLF_MAX_RINGS`.
    pub rings: u32,
    /// Slots of each ring, a power of two from `NLF_MIN_SLOTS` to `NLF_MAX_SLOTS`.
    pub slots: u64,
    /// Polls without progress after which a kernel's wait fails; 0: never.
    pub spins: u64,
    /// How long [`Channel::stop`](super::Channel::stop) and dropping wait for operations.
    pub drain: Duration,
    pub settings: Settings,
}

impl Options {
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
