//! The fabrics to test on: provider, libfabric and rails.

use std::path::PathBuf;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{JobSettings, Layout};

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

    fn library(self) -> Option<&'static str> {
        match self {
            Fabric::Rxm | Fabric::Shm => None,
            Fabric::Tcp2 | Fabric::Rxm2 | Fabric::Shm2 => Some("NVSHMEM_TEST_LIBFABRIC2"),
        }
    }

    fn devices(self, rails: u8) -> String {
        let device = |rail| match self {
            Fabric::Shm | Fabric::Shm2 => "shm".to_owned(),
            _ => format!("127.0.0.{}", rail + 1),
        };
        (0..rails).map(device).collect::<Vec<_>>().join(",")
    }

    /// A job on this fabric.
    pub(crate) fn job(self, scenario: &str, n_pes: u32, rails: u8, layout: Layout) -> JobSettings {
        let mut job = job(scenario, n_pes, layout)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", self.provider())
            .env("NVSHMEM_LIBFABRIC_DEVICES", self.devices(rails));
        if let Some(library) = self.library().and_then(std::env::var_os) {
            job = job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.to_string_lossy());
        }
        job
    }

    /// What is missing for this fabric, if anything.
    fn missing(self) -> Option<&'static str> {
        let unset = |name: &&str| std::env::var_os(name).is_none_or(|value| value.is_empty());
        self.library().filter(unset)
    }
}

/// A job of the installed plugin, with no fabric chosen.
pub(crate) fn job(scenario: &str, n_pes: u32, layout: Layout) -> JobSettings {
    let directory = std::env::var_os(PLUGINS).map(PathBuf::from).unwrap_or_default();
    JobSettings::new(scenario, n_pes, layout, directory)
        .env("NVSHMEM_DEBUG", "INFO")
        .deadline(Duration::from_secs(300))
        .step_deadline(Duration::from_secs(120))
}

const PLUGINS: &str = "NVSHMEM_TEST_PLUGIN_DIR";

/// A test that needs the installed plugin and this fabric; ignored, with the reason, without.
pub(crate) fn trial(
    name: String,
    fabric: Option<Fabric>,
    run: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let plugins = std::env::var_os(PLUGINS).is_none().then_some(PLUGINS);
    match plugins.or_else(|| fabric.and_then(Fabric::missing)) {
        None => Trial::test(name, run),
        Some(variable) => {
            println!("{name} is ignored: {variable} is not set; `make test` sets it");
            Trial::test(name, run).with_ignored_flag(true)
        }
    }
}
