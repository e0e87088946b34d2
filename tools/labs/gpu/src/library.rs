//! The library that programs are built for, NVSHMEM or NCCL, and the environment that makes it use
//! this transport for all traffic between processes.

use std::fs;
use std::path::{Path, PathBuf};

use crate::options::Options;

/// An NVSHMEM or an NCCL as it is installed, by a package or by pip.
#[derive(Debug)]
pub(crate) struct Library {
    /// The directory with `include` and `lib`.
    pub(crate) root: PathBuf,
    /// As the headers say: `3.4.5`.
    version: String,
    /// Number in the file names of NVSHMEM's transports, by which it looks for ours. None for NCCL.
    transports: Option<u32>,
}

/// The properties of a job that its environment depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct For<'a> {
    pub(crate) provider: &'a str,
    pub(crate) dir: &'a Path,
    pub(crate) shares_gpus: bool,
}

impl Library {
    pub(crate) fn of(options: &Options) -> Result<Self, String> {
        if let Some(root) = options.nccl.clone() {
            let version = version(&root.join("include/nccl.h"), |part| format!("NCCL_{part}"))?;
            return Ok(Self { root, version, transports: None });
        }
        let root = options.nvshmem.clone().expect("one of the two is required");
        let header = root.join("include/non_abi/nvshmem_version.h");
        let version = version(&header, |part| format!("NVSHMEM_VENDOR_{part}_VERSION"))?;
        let lib = root.join("lib");
        let files = fs::read_dir(&lib).map_err(|error| format!("{}: {error}", lib.display()))?;
        let numbers = files.filter_map(Result::ok).filter_map(|file| {
            let name = file.file_name();
            let (name, number) = name.to_str()?.rsplit_once(".so.")?;
            name.starts_with("nvshmem_transport_").then(|| number.parse().ok()).flatten()
        });
        let missing = || format!("{} has no nvshmem_transport_*.so.N", lib.display());
        let transports = Some(numbers.max().ok_or_else(missing)?);
        Ok(Self { root, version, transports })
    }

    pub(crate) fn name(&self) -> String {
        let name = if self.transports.is_some() { "NVSHMEM" } else { "NCCL" };
        format!("{name} {}", self.version)
    }

    pub(crate) fn plugin(&self, directory: &Path) -> PathBuf {
        directory.join(match self.transports {
            Some(number) => format!("nvshmem_transport_libfabric.so.{number}"),
            None => String::from("libnccl-rma-nvshmem-libfabric.so"),
        })
    }

    /// Returns the variables that make all traffic between processes go through the transport that
    /// is tested, and make that show. All else is left to the user's environment; nothing is set of
    /// CUDA's own, since what works here has to work with CUDA's defaults.
    pub(crate) fn environment(
        &self,
        options: &Options,
        plugin: &Path,
        job: For<'_>,
    ) -> Vec<(String, String)> {
        let lib = self.root.join("lib");
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
        match self.transports {
            Some(_) => {
                env.extend([
                    // NVSHMEM's library has a search path compiled in, which comes before
                    // LD_LIBRARY_PATH and has its own transport. A library of the same name that
                    // is loaded already comes before both.
                    ("LD_PRELOAD", plugin),
                    ("NVSHMEM_REMOTE_TRANSPORT", String::from("libfabric")),
                    // PEs would share memory otherwise, or reach one another over NVLink.
                    ("NVSHMEM_DISABLE_P2P", one()),
                    ("NVSHMEM_DISABLE_NVLS", one()),
                    ("NVSHMEM_DISABLE_NCCL", one()),
                    ("NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME", String::from("lo")),
                ]);
                if std::env::var_os("NVSHMEM_SYMMETRIC_SIZE").is_none() {
                    env.push(("NVSHMEM_SYMMETRIC_SIZE", String::from("1G")));
                }
            }
            None => {
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

fn version(header: &Path, name: impl Fn(&str) -> String) -> Result<String, String> {
    let path = header.display();
    let text = fs::read_to_string(header).map_err(|error| format!("{path}: {error}"))?;
    let number = |part: &str| {
        let name = name(part);
        let value = text.lines().find_map(|line| {
            let mut words = line.split_whitespace();
            let named = words.next() == Some("#define") && words.next() == Some(&name);
            named.then(|| words.next()).flatten()?.parse::<u32>().ok()
        });
        value.ok_or_else(|| format!("{path} does not define {name}"))
    };
    Ok(format!("{}.{}.{}", number("MAJOR")?, number("MINOR")?, number("PATCH")?))
}
