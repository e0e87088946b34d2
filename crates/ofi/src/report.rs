use std::fmt;
use std::path::PathBuf;

use crate::discovery::immediate_data::ImmediateData;
use crate::provider::Striping;
use engine::port::Addressing;

/// Requested and granted properties, and open rails. Its `Display` is one line.
#[derive(Clone, Debug)]
pub struct Report {
    /// Description of libfabric, the provider, and its requested and granted properties.
    pub(crate) fabric: String,
    /// The provider with its layers.
    pub provider: String,
    /// Properties that PEs must share to reach each other, the provider first.
    pub common: String,
    /// Addressing of registered memory by peers, on every rail.
    pub addressing: Addressing,
    /// Immediate data of writes, on every rail.
    pub immediate_data: ImmediateData,
    /// Segmentation of puts and gets, unless the settings have it.
    pub striping: Striping,
    /// Whether rails are interfaces of the host: each endpoint connects its own sockets.
    pub over_sockets: bool,
    /// Rails of the proxy lane, in rail order. The host lane is on the first one's device.
    pub rails: Vec<RailReport>,
}

#[derive(Clone, Debug)]
pub struct RailReport {
    /// Its name in the log.
    pub name: String,
    /// Libfabric's name of the domain.
    pub domain: String,
    /// Libfabric's name of the fabric, with the rail's number if rails are separate. Rails with
    /// equal names reach each other.
    pub fabric: String,
    /// The NIC's directory in sysfs.
    pub pci_path: Option<PathBuf>,
    /// Number of bulk connections, each with a thread.
    pub bulk: usize,
    /// Maximum number of operations in flight.
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
