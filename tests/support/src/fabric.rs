//! Fabrics that jobs run on: providers, each with the libfabric it comes from.

use std::path::PathBuf;

use crate::needs::{Need, libfabric2};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fabric {
    /// `tcp;ofi_rxm` of the system's libfabric (1.17 on Debian 12).
    Rxm,
    /// `shm` of the system's libfabric.
    Shm,
    /// Native `tcp` of a libfabric 2.x.
    Tcp2,
    /// `tcp;ofi_rxm` of a libfabric 2.x.
    Rxm2,
    /// `shm` of a libfabric 2.x.
    Shm2,
}

impl Fabric {
    pub fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }

    pub fn provider(self) -> &'static str {
        match self {
            Self::Rxm | Self::Rxm2 => "tcp;ofi_rxm",
            Self::Shm | Self::Shm2 => "shm",
            Self::Tcp2 => "tcp",
        }
    }

    /// The libfabric that the plugin is to load, unless it is the system's.
    pub fn library(self) -> Need<Option<PathBuf>> {
        match self {
            Self::Rxm | Self::Shm => Ok(None),
            Self::Tcp2 | Self::Rxm2 | Self::Shm2 => libfabric2().map(Some),
        }
    }
}
