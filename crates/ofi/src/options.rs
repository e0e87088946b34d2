//! What this layer is asked for. Whoever opens a fabric makes it, out of what users have set.

use libfabric_sys::DEFAULT_LIBRARY;

use crate::provider::Provider;
use crate::topology::Distance;

/// How libfabric is loaded, searched and opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The libfabric to load, a name or a path.
    pub library: String,
    /// The provider to use.
    pub provider: Provider,
    /// The one fabric to use, where a provider has several; none is the first that answers.
    pub fabric: Option<String>,
    /// Which devices become rails, and in which order.
    pub devices: Devices,
    /// Most rails of the proxy lane.
    pub max_nic_per_pe: u8,
    /// The threading level to ask for first.
    pub threading: Threading,
    /// Most segments in flight on one rail; 0 takes what the provider offers.
    pub queue_depth: u32,
    /// Longest segment in bytes; 0 takes the provider's limit.
    pub max_segment: u64,
    /// How many connections for bulk each rail gets, where the processor moves bytes.
    pub bulk: BulkChoice,
    /// Whether NICs reach device memory by themselves.
    pub gpu_direct: GpuDirect,
    /// How far from a GPU a NIC may be to reach its memory by itself.
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

/// Which devices become rails, each named by its domain, interface, NIC or IP address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Devices {
    /// All that the provider offers.
    Any,
    /// These, in this order. A device named twice gives two rails.
    Include(Vec<String>),
    /// All but these.
    Exclude(Vec<String>),
}

/// Threading level to ask libfabric for first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Threading {
    /// `FI_THREAD_COMPLETION`.
    Completion,
    /// `FI_THREAD_DOMAIN`.
    Domain,
    /// `FI_THREAD_SAFE`.
    Safe,
}

/// How many connections for bulk each rail gets, each with a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BulkChoice {
    /// By the speed of its link and the cores that there are.
    Auto,
    /// So many; with 0 the proxy thread moves everything.
    Each(u8),
}

/// Whether NICs reach device memory by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuDirect {
    /// Where the fabric can; else it is staged.
    Auto,
    /// Always: what the fabric does not take is an error.
    Always,
    /// Never: all device memory is staged.
    Never,
}

/// Kinds of memory of the process, which decide about `FI_HMEM`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKinds {
    /// Host memory only: nothing is asked of libfabric for devices.
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
