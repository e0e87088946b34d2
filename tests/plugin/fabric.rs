//! The fabrics to test on: provider, libfabric and rails.

use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout};
use test_support::built::plugin_dir;
use test_support::needs::{self, Need, libfabric2};

/// A provider with the libfabric it comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fabric {
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
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fabric::Rxm => "rxm",
            Fabric::Shm => "shm",
            Fabric::Tcp2 => "tcp2",
            Fabric::Rxm2 => "rxm2",
            Fabric::Shm2 => "shm2",
        }
    }

    fn provider(self) -> &'static str {
        match self {
            Fabric::Rxm | Fabric::Rxm2 => "tcp;ofi_rxm",
            Fabric::Shm | Fabric::Shm2 => "shm",
            Fabric::Tcp2 => "tcp",
        }
    }

    fn library(self) -> Need<Option<PathBuf>> {
        match self {
            Fabric::Rxm | Fabric::Shm => Ok(None),
            Fabric::Tcp2 | Fabric::Rxm2 | Fabric::Shm2 => libfabric2().map(Some),
        }
    }

    pub(crate) fn devices(self, rails: u8) -> String {
        let device = |rail| match self {
            Fabric::Shm | Fabric::Shm2 => "shm".to_owned(),
            _ => format!("127.0.0.{}", rail + 1),
        };
        (0..rails).map(device).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn job(self, scenario: &str, n_pes: u32, rails: u8, layout: Layout) -> JobSettings {
        let mut job = job(scenario, n_pes, layout)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", self.provider())
            .env("NVSHMEM_LIBFABRIC_DEVICES", self.devices(rails));
        if let Ok(Some(library)) = self.library() {
            job = job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.to_string_lossy());
        }
        job
    }
}

pub(crate) fn job(scenario: &str, n_pes: u32, layout: Layout) -> JobSettings {
    JobSettings::new(scenario, n_pes, layout, plugin_dir())
        .env("NVSHMEM_DEBUG", "INFO")
        // A machine that is busy with other things delays every wait.
        .env("NVSHMEM_LIBFABRIC_WARN_SECONDS", 100)
        .deadline(Duration::from_secs(900))
        .step_deadline(Duration::from_secs(600))
}

pub(crate) fn trial(
    name: String,
    fabric: Option<Fabric>,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let need = fabric.map_or(Ok(()), |fabric| fabric.library().map(drop));
    needs::trial(name, need, |()| run())
}

pub(crate) fn says(text: &str, part: &str) -> Result<(), Failed> {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in:\n{text}").into()) }
}
