//! Options of this layer, which the caller derives from the user's settings.

use libfabric_sys::DEFAULT_LIBRARY;

use crate::provider::Provider;
use crate::topology::Distance;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Name or path of the libfabric to load.
    pub library: String,
    pub provider: Provider,
    /// Fabric to use, of a provider with several; None for the first that answers.
    pub fabric: Option<String>,
    pub devices: Devices,
    /// Maximum number of rails of the proxy lane.
    pub max_nic_per_pe: u8,
    pub threading: Threading,
    /// Maximum segments in flight on one rail; 0 for the provider's limit.
    pub queue_depth: u32,
    /// Maximum bytes of a segment; 0 for the provider's limit.
    pub max_segment: u64,
    pub bulk: BulkChoice,
    pub gpu_direct: GpuDirect,
    pub gdr_level: Distance,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            library: String::from(DEFAULT_LIBRARY),
            provider: Provider::Auto,
            fabric: None,
            devices: Devices::Any,
            max_nic_per_pe: 16,
            threading: Threading::Completion,
            queue_depth: 0,
            max_segment: 0,
            bulk: BulkChoice::Auto,
            gpu_direct: GpuDirect::Auto,
            gdr_level: Distance::Pxb,
        }
    }
}

/// Devices that become rails, each named by its domain, interface, NIC or IP address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Devices {
    /// All that the provider offers.
    Any,
    /// These, in this order. A device named twice gives two rails.
    Include(Vec<String>),
    /// All but these.
    Exclude(Vec<String>),
}

/// Threading level to request of libfabric first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threading {
    Completion,
    Domain,
    Safe,
}

/// Number of bulk connections of each rail, each with a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkChoice {
    /// By the speed of its link and the number of cores.
    Auto,
    /// This number; with 0 the proxy thread makes all transfers.
    Each(u8),
}

/// Policy of direct access by NICs to device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuDirect {
    /// Direct if the fabric can; else the memory is staged.
    Auto,
    /// Always direct: memory that the fabric refuses is an error.
    Always,
    /// Never direct: all device memory is staged.
    Never,
}

/// Kinds of memory of the process, on which requesting `FI_HMEM` depends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKinds {
    /// Host memory only: `FI_HMEM` is not requested.
    Host,
    /// Perhaps also memory of CUDA devices.
    HostAndDevices,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn options() -> Options {
        let defaults = Options::default();
        let library = std::env::var("OFI_TEST_LIBRARY").unwrap_or(defaults.library);
        Options { library, ..Options::default() }
    }
}
