//! Settings of the user, each read once at start from the environment.
//!
//! Users set variables of their own; experts and tests set keys of `NVSHMEM_LIBFABRIC_DEBUG`.
#![forbid(unsafe_code)]

mod choices;
mod error;
mod kind;
mod load;
mod notice;
mod table;

#[cfg(test)]
mod docs;

use ofi::{BulkChoice, Options};

pub use choices::{ConsistencyChoice, RailBalance, StripeThreshold, WordsChoice, YieldWhen};
pub use error::{Refused, SettingsError};
pub use load::{Row, Source};
pub use notice::Notice;
pub use table::Settings;

impl Settings {
    /// Returns the options for opening the fabric.
    pub fn ofi(&self) -> Options {
        Options {
            library: self.library.clone(),
            provider: self.provider,
            fabric: self.fabric.clone(),
            devices: self.devices.clone(),
            max_nic_per_pe: self.max_nic_per_pe,
            threading: self.threading,
            queue_depth: self.queue_depth,
            max_segment: self.max_segment,
            bulk: self.bulk(),
            gpu_direct: self.gpu_direct,
            gdr_level: self.gdr_level,
        }
    }

    /// The bulk connections: none if nothing is striped.
    fn bulk(&self) -> BulkChoice {
        let stripes = self.rail_balance == RailBalance::Rate
            && self.stripe_threshold != StripeThreshold::Never;
        if stripes { self.bulk_connections } else { BulkChoice::Each(0) }
    }

    /// True if both settings about GDRCopy permit it.
    pub fn may_use_gdrcopy(&self) -> bool {
        !self.disable_gdrcopy && matches!(self.words, WordsChoice::Auto | WordsChoice::Gdrcopy)
    }

    pub fn may_map_dma_bufs(&self) -> bool {
        matches!(self.words, WordsChoice::Auto | WordsChoice::DmaBuf)
    }
}
