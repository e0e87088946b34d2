//! The providers that need no hardware, and jobs of the simulator on them.

use std::path::{Path, PathBuf};

use libfabric_sys::DEFAULT_LIBRARY;
use nvshmem_sim::{BoxError, JobSettings, Layout};

use crate::times::case::Shape;

/// The layout driven: the newest.
const LAYOUT: Layout = Layout::V7;

/// A provider that needs no hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
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
    fn source(self) -> &'static str {
        if self == Provider::Shm { "" } else { "127.0.0.1" }
    }
}

/// Where the plugin and the libraries below it are.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Fabric {
    /// The installed plugins (nvshmem_transport_libfabric.so.N)
    #[arg(long, value_name = "DIR")]
    pub(crate) plugin_dir: Option<PathBuf>,
    /// A libfabric 2.x, for the native tcp provider
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    pub(crate) libfabric2: Option<PathBuf>,
    /// A setting of the plugin, such as NVSHMEM_LIBFABRIC_DEBUG=signals=chained; may be given again
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, String)>,
}

impl Fabric {
    /// The library that has a provider.
    fn library(&self, provider: Provider) -> Result<String, BoxError> {
        let path = match (provider, &self.libfabric2) {
            (Provider::Rxm | Provider::Shm, _) => Path::new(DEFAULT_LIBRARY),
            (_, Some(path)) => path,
            (_, None) => {
                return Err("the native tcp provider needs --libfabric2 FILE; \
                            --only rxm or --only shm do without"
                    .into());
            }
        };
        Ok(path.to_string_lossy().into_owned())
    }

    /// A job of a scenario on a provider.
    ///
    /// # Errors
    /// It needs a library that is not given.
    pub(crate) fn job(
        &self,
        scenario: &str,
        provider: Provider,
        Shape { peers, rails }: Shape,
    ) -> Result<JobSettings, BoxError> {
        let devices: Vec<String> = match provider {
            // A device named twice is two rails.
            Provider::Shm => vec![String::from("shm"); rails],
            Provider::Tcp | Provider::Rxm => (1..=rails).map(|n| format!("127.0.0.{n}")).collect(),
        };
        let library = self.library(provider)?;
        let plugins = self.plugin_dir.as_ref().ok_or("the plugin needs --plugin-dir DIR")?;
        let job = JobSettings::new(scenario, peers + 1, LAYOUT, plugins)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", provider.full_name())
            .env("NVSHMEM_LIBFABRIC_DEVICES", devices.join(","))
            .env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", rails)
            .env("NVSHMEM_LIBFABRIC_LIBRARY", &library)
            // As the raw side does, whatever the number of cores.
            .env("NVSHMEM_LIBFABRIC_YIELD", "always")
            // A hang is an error.
            .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 60)
            .param("provider", provider.full_name())
            .param("library", library)
            .param("source", provider.source())
            .param("rails", rails)
            .param("pause_ms", 0);
        Ok(self.settings.iter().fold(job, |job, (name, value)| job.env(name, value)))
    }
}

/// A setting from the command line.
fn setting(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE is meant")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// A path from the command line for PEs, which have a working directory of their own.
pub(crate) fn absolute(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}
