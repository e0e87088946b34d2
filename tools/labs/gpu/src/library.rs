//! What the programs are of, NVSHMEM or NCCL, and the environment that makes it use this transport
//! for everything between two processes.

use std::path::{Path, PathBuf};

use crate::installation::{Installation, Nccl, NoInstallation};
use crate::options::Options;

/// Settings for what the user's environment leaves open.
///
/// None of CUDA's own: what works here has to work with CUDA's defaults.
const UNLESS_SET: [(&str, &str); 1] = [("NVSHMEM_SYMMETRIC_SIZE", "1G")];

/// See the module.
#[derive(Debug)]
pub(crate) enum Library {
    /// By its transport.
    Nvshmem(Installation),
    /// By its RMA plugin.
    Nccl(Nccl),
}

/// A job, as far as its environment depends on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct For<'a> {
    /// The provider to run over.
    pub(crate) provider: &'a str,
    /// Where the files of counters are to be.
    pub(crate) dir: &'a Path,
    /// Whether processes share GPUs.
    pub(crate) shares_gpus: bool,
}

impl Library {
    /// The one that the options name.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn of(options: &Options) -> Result<Self, NoInstallation> {
        if let Some(nccl) = &options.nccl {
            return Nccl::at(nccl).map(Self::Nccl);
        }
        let nvshmem = options.nvshmem.as_ref().expect("one of the two is required");
        Installation::at(nvshmem).map(Self::Nvshmem)
    }

    /// Its name and version.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Nvshmem(nvshmem) => format!("NVSHMEM {}", nvshmem.version),
            Self::Nccl(nccl) => format!("NCCL {}", nccl.version),
        }
    }

    /// Where it is.
    pub(crate) fn root(&self) -> &Path {
        match self {
            Self::Nvshmem(nvshmem) => &nvshmem.root,
            Self::Nccl(nccl) => &nccl.root,
        }
    }

    /// The file of this project's that it loads.
    pub(crate) fn plugin(&self, directory: &Path) -> PathBuf {
        directory.join(match self {
            Self::Nvshmem(nvshmem) => {
                format!("nvshmem_transport_libfabric.so.{}", nvshmem.transports)
            }
            Self::Nccl(_) => String::from("libnccl-rma-nvshmem-libfabric.so"),
        })
    }

    /// What makes every process' traffic with others go through the transport that is tested, and
    /// what makes that show. Of what concerns neither, the user's own environment decides.
    pub(crate) fn environment(
        &self,
        options: &Options,
        plugin: &Path,
        job: For<'_>,
    ) -> Vec<(String, String)> {
        let lib = match self {
            Self::Nvshmem(nvshmem) => nvshmem.lib(),
            Self::Nccl(nccl) => nccl.lib(),
        };
        let libraries = match std::env::var("LD_LIBRARY_PATH") {
            Ok(more) if !more.is_empty() => format!("{}:{more}", lib.display()),
            _ => lib.display().to_string(),
        };
        let mut env = vec![
            ("LD_LIBRARY_PATH", libraries),
            ("NVSHMEM_LIBFABRIC_PROVIDER", job.provider.to_owned()),
            ("NVSHMEM_LIBFABRIC_COUNTERS", job.dir.join("counters-%p.json").display().to_string()),
        ];
        if let Some(libfabric) = &options.libfabric {
            env.push(("NVSHMEM_LIBFABRIC_LIBRARY", libfabric.display().to_string()));
        }
        let plugin = plugin.display().to_string();
        let (one, off) = (|| String::from("1"), || String::from("0"));
        match self {
            Self::Nvshmem(_) => {
                env.extend([
                    // The path that is compiled into NVSHMEM's library comes before
                    // LD_LIBRARY_PATH, so its own transport would be found first; a loaded one of
                    // the same name comes before both.
                    ("LD_PRELOAD", plugin),
                    ("NVSHMEM_REMOTE_TRANSPORT", String::from("libfabric")),
                    // PEs would share memory otherwise, or reach one another over NVLink.
                    ("NVSHMEM_DISABLE_P2P", one()),
                    ("NVSHMEM_DISABLE_NVLS", one()),
                    ("NVSHMEM_DISABLE_NCCL", one()),
                    ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", String::from("lo")),
                ]);
                let unset = |(name, _): &(&str, &str)| std::env::var_os(name).is_none();
                let unset = UNLESS_SET.into_iter().filter(unset);
                env.extend(unset.map(|(name, value)| (name, value.to_owned())));
            }
            Self::Nccl(_) => {
                env.extend([
                    ("NCCL_RMA_PLUGIN", plugin.clone()),
                    ("NCCL_GIN_PLUGIN", plugin),
                    ("NCCL_GIN_TYPE", String::from("2")),
                    // Each rank is a team of its own, so that host calls go through the plugin.
                    ("NCCL_LSA_TEAM_SIZE", one()),
                    ("NCCL_SOCKET_IFNAME", String::from("lo")),
                    ("NCCL_NVLS_ENABLE", off()),
                ]);
                if job.shares_gpus {
                    env.push(("NCCL_MULTI_RANK_GPU_ENABLE", one()));
                }
            }
        }
        env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
