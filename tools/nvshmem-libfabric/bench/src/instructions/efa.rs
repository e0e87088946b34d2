//! The efa provider on NICs that are not there: jobs of two hosts with one NIC each, on either
//! fabric.

use std::path::{Path, PathBuf};

use nvshmem_sim::{BoxError, JobSettings};

use crate::harness::fabric::absolute;
use nvshmem_sim::PrivateDir;

/// The machine whose NICs both fabrics can do everything on.
const PERSONA: &str = "p5en";

/// What its NICs may take, whose thread works beside the PEs'.
const PAUSE_MS: u64 = 10;

/// Where the stand-in for the NICs is, and the provider.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "efa")]
pub(super) struct Options {
    /// Count over efa as well: libibverbs.so.1 and libefa.so.1 in DIR are those of tools/labs/efa
    #[arg(long, value_name = "DIR", value_parser = names, requires = "libfabric2")]
    efa_lab: Option<PathBuf>,
    /// A libfabric 2.x with efa, for --efa-lab
    #[arg(long, value_name = "FILE", value_parser = library, requires = "efa_lab")]
    libfabric2: Option<PathBuf>,
}

/// The directory, if it has both names.
fn names(dir: &str) -> Result<PathBuf, String> {
    let dir = absolute(dir).map_err(|error| error.to_string())?;
    match ["libibverbs.so.1", "libefa.so.1"].into_iter().find(|name| !dir.join(name).exists()) {
        None => Ok(dir),
        Some(name) => {
            Err(format!("there is no {name} in it: `make bench-efa` makes such a directory"))
        }
    }
}

/// The file, if it is there.
fn library(file: &str) -> Result<PathBuf, String> {
    let file = absolute(file).map_err(|error| error.to_string())?;
    if file.is_file() {
        Ok(file)
    } else {
        Err(String::from(
            "there is no such file: `scripts/libfabric2.sh` fetches one and prints its path",
        ))
    }
}

impl Options {
    /// Both fabrics; none without a laboratory.
    pub(super) fn fabrics(&self) -> Vec<Efa<'_>> {
        let (Some(names), Some(library)) = (&self.efa_lab, &self.libfabric2) else {
            return Vec::new();
        };
        [("efa", "_efa"), ("efa-direct", "_efa_direct")]
            .map(|(fabric, suffix)| Efa { names, library, fabric, suffix })
            .into()
    }
}

/// A fabric of the efa provider.
#[derive(Clone, Copy, Debug)]
pub(super) struct Efa<'a> {
    names: &'a Path,
    library: &'a Path,
    /// Its name.
    pub(super) fabric: &'static str,
    /// What the names of its figures end in.
    pub(super) suffix: &'static str,
}

impl Efa<'_> {
    /// Whether it is the NIC itself.
    pub(super) fn is_direct(&self) -> bool {
        self.fabric == "efa-direct"
    }

    /// Has the job use it, with NICs in a new directory below this one.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub(super) fn on(&self, job: JobSettings, dir: &PrivateDir) -> Result<JobSettings, BoxError> {
        let nics = dir.path().join("efa-lab");
        std::fs::create_dir_all(&nics)?;
        let mut paths = self.names.as_os_str().to_owned();
        if let Some(others) = std::env::var_os("LD_LIBRARY_PATH") {
            paths.push(":");
            paths.push(others);
        }
        let job = job
            .env("LD_LIBRARY_PATH", paths.to_string_lossy())
            .env("EFA_LAB_DIR", nics.display())
            .env("EFA_LAB_PERSONA", PERSONA)
            .env("EFA_LAB_NICS", 1)
            .env("SYSFS_PATH", nics.join("sys").display())
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "efa")
            .env("NVSHMEM_LIBFABRIC_FABRIC", self.fabric)
            .env("NVSHMEM_LIBFABRIC_DEVICES", "all")
            .env("NVSHMEM_LIBFABRIC_LIBRARY", self.library.display());
        let job = job.param("pause_ms", PAUSE_MS);
        let hosts = 0..job.n_pes;
        Ok(hosts.fold(job, |job, pe| job.env_of_pe(pe, "EFA_LAB_HOST", pe + 1)))
    }
}
