//! The report of what was opened, in words.

use std::fmt;
use std::path::PathBuf;

use crate::discovery::immediate_data::ImmediateData;
use crate::provider::Striping;
use engine::port::Addressing;

/// Requested and granted properties, and open rails. Its `Display` is one line.
#[derive(Clone, Debug)]
pub struct Report {
    /// libfabric, the provider, and what it was asked for and has answered, in words.
    pub(crate) fabric: String,
    /// The provider with its layers.
    pub provider: String,
    /// Properties that PEs need in common to reach each other, the provider first.
    pub common: String,
    /// How peers address registered memory, on every rail.
    pub addressing: Addressing,
    /// Whether writes may carry immediate data, on every rail.
    pub immediate_data: ImmediateData,
    /// How puts and gets are cut, where the settings do not say.
    pub striping: Striping,
    /// The rails of the proxy lane, in rail order. The host lane is on the first one's device.
    pub rails: Vec<RailReport>,
}

/// One open rail.
#[derive(Clone, Debug)]
pub struct RailReport {
    /// Its name in messages.
    pub name: String,
    /// Libfabric's name of the domain.
    pub domain: String,
    /// The fabric: what has the same name reaches one another. It is libfabric's name, with the
    /// rail's number where rails are separate.
    pub fabric: String,
    /// The NIC in sysfs, for NICs.
    pub pci_path: Option<PathBuf>,
    /// Connections for bulk, each with a thread.
    pub bulk: usize,
    /// Most operations in flight.
    pub depth: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ImmediateData { offered, reason, .. } = self.immediate_data;
        let (offered, rails) = (if offered { "yes" } else { "no" }, self.rails.len());
        write!(f, "{}; immediate data: {offered} ({reason}); {rails} rail(s):", self.fabric)?;
        for rail in &self.rails {
            write!(f, " {} (depth {}", rail.name, rail.depth)?;
            match rail.bulk {
                0 => f.write_str(")")?,
                bulk => write!(f, ", {bulk} thread(s) for bulk)")?,
            }
        }
        Ok(())
    }
}
