//! The providers measured, and how each is asked for.

use std::path::Path;

use libfabric_sys::DEFAULT_LIBRARY;
use nvshmem_sim::{JobSettings, Layout};

use crate::options::Options;

/// The layout driven: the newest.
const LAYOUT: Layout = Layout::V7;

/// A provider that needs no hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Provider {
    /// libfabric's own tcp, with reliable datagram endpoints: libfabric 2.x.
    Tcp,
    /// `tcp;ofi_rxm` of the installed libfabric.
    Rxm,
    /// Shared memory, of the installed libfabric.
    Shm,
}

impl Provider {
    pub(crate) const ALL: [Provider; 3] = [Provider::Tcp, Provider::Rxm, Provider::Shm];

    /// The short name, in figures.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Provider::Tcp => "tcp",
            Provider::Rxm => "rxm",
            Provider::Shm => "shm",
        }
    }

    /// libfabric's name, which is the plugin's as well.
    pub(crate) fn full_name(self) -> &'static str {
        match self {
            Provider::Tcp => "tcp",
            Provider::Rxm => "tcp;ofi_rxm",
            Provider::Shm => "shm",
        }
    }

    /// The address to open, where devices have addresses.
    pub(crate) fn source(self) -> Option<&'static str> {
        (self != Provider::Shm).then_some("127.0.0.1")
    }

    /// The library to load.
    pub(crate) fn library(self, options: &Options) -> String {
        let path = match self {
            Provider::Tcp => options.libfabric2.as_deref(),
            Provider::Rxm | Provider::Shm => None,
        };
        path.unwrap_or(Path::new(DEFAULT_LIBRARY)).to_string_lossy().into_owned()
    }

    /// As [`Provider::job`], for a scenario that measures in rounds: see [`crate::setup`].
    pub(crate) fn job_of_rounds(
        self,
        scenario: &str,
        options: &Options,
        n_pes: u32,
        rails: usize,
    ) -> JobSettings {
        self.job(scenario, options, n_pes, rails)
            .param("provider", self.full_name())
            .param("library", self.library(options))
            .param("source", self.source().unwrap_or_default())
            .param("rounds", options.rounds)
            .param("round_ms", options.round.as_millis())
    }

    /// A job on this provider of so many PEs with so many rails each.
    pub(crate) fn job(
        self,
        scenario: &str,
        options: &Options,
        n_pes: u32,
        rails: usize,
    ) -> JobSettings {
        let devices: Vec<String> = match self {
            // A device named twice is two rails.
            Provider::Shm => vec![String::from("shm"); rails],
            Provider::Tcp | Provider::Rxm => (1..=rails).map(|n| format!("127.0.0.{n}")).collect(),
        };
        JobSettings::new(scenario, n_pes, LAYOUT, &options.plugin_dir)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", self.full_name())
            .env("NVSHMEM_LIBFABRIC_DEVICES", devices.join(","))
            .env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", rails)
            .env("NVSHMEM_LIBFABRIC_LIBRARY", self.library(options))
            // As the raw side does, whatever the number of cores.
            .env("NVSHMEM_LIBFABRIC_YIELD", "always")
            // A hang is an error.
            .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 60)
    }
}
