//! Fabrics that jobs run on.

use std::path::PathBuf;

use test_support::needs::{Need, libfabric2};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fabric {
    /// `tcp;ofi_rxm` of the system's libfabric.
    Rxm,
    Shm,
    /// TCP of the second libfabric, if there is one.
    Tcp2,
}

impl Fabric {
    /// The libfabric that the plugin is to load, unless it is the system's.
    pub(crate) fn library(self) -> Need<Option<PathBuf>> {
        match self {
            Self::Rxm | Self::Shm => Ok(None),
            Self::Tcp2 => libfabric2().map(Some),
        }
    }

    pub(crate) fn provider(self) -> &'static str {
        match self {
            Self::Rxm => "tcp;ofi_rxm",
            Self::Tcp2 => "tcp",
            Self::Shm => "shm",
        }
    }
}
