//! Fabrics that jobs run on.

use std::path::{Path, PathBuf};
use std::process::Command;

use launcher::reaches_other_processes;
use test_support::built::{cxi_lab, efa_lab_dir};
use test_support::needs::{Need, libfabric2};

/// A fabric that jobs run on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fabric {
    /// `tcp;ofi_rxm` of the system's libfabric.
    Rxm,
    /// Its shared memory.
    Shm,
    /// TCP of the second libfabric, if there is one.
    Tcp2,
    /// efa of the second libfabric, on two emulated NICs of a p5 for each PE, as if each were on a
    /// host of its own.
    Efa,
    /// A strict mock of cxi, over TCP of the second libfabric: its NICs reach memory of devices.
    Cxi,
}

impl Fabric {
    /// The libfabric that the plugin is to load, unless it is the system's.
    pub(crate) fn library(self) -> Need<Option<PathBuf>> {
        match self {
            Self::Rxm | Self::Shm => Ok(None),
            Self::Tcp2 => libfabric2().map(Some),
            Self::Efa => reaches_other_processes().and_then(|()| libfabric2().map(Some)),
            Self::Cxi => libfabric2().map(|_| Some(cxi_lab())),
        }
    }

    /// Has a PE use it, whose NICs are in a directory. Returns the directory of libraries that it
    /// finds in place of the system's.
    pub(crate) fn take_in(
        self,
        me: u32,
        command: &mut Command,
        nics: &Path,
        seed: u32,
    ) -> Option<PathBuf> {
        command.env("NVSHMEM_LIBFABRIC_PROVIDER", self.provider());
        match self {
            Self::Rxm | Self::Shm | Self::Tcp2 => None,
            Self::Efa => {
                command.env("EFA_LAB_DIR", nics).env("SYSFS_PATH", nics.join("sys"));
                command.env("EFA_LAB_PERSONA", "p5").env("EFA_LAB_NICS", "2");
                command.env("EFA_LAB_SEED", seed.to_string());
                command.env("EFA_LAB_HOST", (me + 1).to_string());
                Some(efa_lab_dir())
            }
            Self::Cxi => {
                command.env("CXI_LAB_LIBFABRIC", libfabric2().unwrap_or_default());
                command.env("CXI_LAB_VERSION", "2.6");
                None
            }
        }
    }

    fn provider(self) -> &'static str {
        match self {
            Self::Rxm => "tcp;ofi_rxm",
            Self::Tcp2 => "tcp",
            Self::Shm => "shm",
            Self::Efa => "efa",
            Self::Cxi => "cxi",
        }
    }
}
