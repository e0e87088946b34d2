//! Facts of a provider's profile, with their cautious values.

use std::fs;
use std::path::Path;

use libfabric_sys::Version;

use super::fact::{Fact, Source};
use super::variable::Variable;
use engine::port::packet::MAX_MESSAGE;

facts! {
    /// Whether every interface of the host is a device, also useless ones.
    interfaces: bool = false, "what it lists is taken as it is";
    /// Whether devices can be opened by an unlisted IP address.
    by_address: bool = false, "only what is listed is opened";
    /// Whether it joins only PEs of one host.
    one_host: bool = false, "it has a network";
    /// Files of endpoints in `/dev/shm`; None if endpoints are no files.
    endpoint_files: Option<EndpointFiles> = None, "nothing of it is known to be a file";
    /// Whether a rail reaches only peers' rails with the same number.
    separate_rails: bool = false, "its rails reach what libfabric says is of one fabric";
    /// Kernel class of its NICs, for RDMA NICs.
    nic: Option<Nic> = None, "nothing of it is known to read memory by itself";
    /// Its fabrics by preference, if several lead to the same devices.
    fabrics: &'static [&'static str] = &[], "its devices are of one fabric each";
    /// Whether immediate data consumes a receive, which it may report (`FI_RX_CQ_DATA`). That
    /// bounds peers' entries in its completion queue, so without the report it gets no immediate
    /// data.
    data_takes_receives: bool = false, "nothing of it is known to wait for this to be offered";

    /// Probable remedy if libfabric does not offer it although its NICs exist, which is logged if
    /// the choice is automatic; empty if unknown.
    missing: &'static str = "", "nobody has seen it missing where its NICs are";
    /// Environment variables that it reads, and their values.
    environment: &'static [Variable] = &[], "nothing of it is known to want another environment than it gets";
    /// Probable remedy if it refuses to enable an endpoint; empty if unknown.
    enabling_refused: &'static str = "", "nobody has seen it refuse";

    /// Whether it aborts the process if an endpoint's socket gets no descriptor, which is then
    /// checked.
    crashes_without_descriptors: bool = false, "nothing of it is known to crash for lack of descriptors";

    /// Probable remedy if it refuses the addresses of peers; empty if unknown.
    addresses_refused: &'static str = "", "nobody has seen it refuse";

    /// Whether with `FI_THREAD_COMPLETION` one thread may register memory while another polls.
    registers_beside: bool = false, "whether memory may be registered while another thread polls has not been examined";
    /// Whether `FI_PROGRESS_AUTO` does harm, and is not requested.
    avoids_auto: bool = false, "it is asked for, and lanes make progress whatever the answer";
    /// Whether it orders writes, at a cost, unless told not to. The engine needs no such order.
    order_of_writes_costs: bool = false, "nothing of it is known to go faster without an order of writes";
    /// Whether errors of no operation go to an event queue; without one they end the process.
    events: bool = false, "nothing of it is known to need an event queue";
    /// Option that tells whether the target's CPU executes an endpoint's writes, and not the NICs.
    software_writes: Option<SoftwareWrites> = None, "nothing of it is known to write now by NICs and now without";
    /// Entries of a completion queue, if it has more than those of a rail's operations in flight.
    completions: Completions = Completions::NONE, "a queue has room for what a rail has under way";
    /// Whether immediate data arrives after its write's data, and the target's completion queue has
    /// capacity for that of all peers.
    immediate_data: bool = false, "whether its completion queue has room for all peers has not been examined";
    /// Whether the rail continues after any error of a receive.
    outlives_receives: bool = false, "what else than the length of a message its errors of receives are about has not been examined";
    /// Bytes of the longest message that is cheaper than a write and a message, up to
    /// `MAX_LONG_MESSAGE`, with libfabric before 2.5 and from 2.5 on; a smaller value saves memory
    /// for receives.
    longest_message: [usize; 2] = [MAX_MESSAGE; 2], "what a longer message costs has not been examined";

    /// Whether the process may choose any 64-bit memory key, which cannot be guessed then. Else
    /// keys are counted: there may be few, or small ones may be faster.
    random_keys: bool = false, "whether it takes any 64 bits for a key has not been examined";

    /// Whether device memory is requested without `NVSHMEM_LIBFABRIC_GPU_DIRECT=always`.
    device_memory: bool = false, "whether it moves device memory without waiting for kernels has not been examined";
    /// Whether an endpoint can do without copies by CUDA, at no loss.
    forbids_cuda: bool = true, "a copy by CUDA may wait for running kernels";
    /// Whether endpoints are told not to use memory shared by the processes of a host.
    forbids_sharing: bool = false, "nothing of it is known to leave its NICs";
    /// Whether it heeds descriptors of local memory that it does not require, once told so by an
    /// extension (`fi_open_ops(3)`), and then does not query CUDA about such memory.
    heeds_descriptors: bool = false, "nothing of it is known to look at memory itself";
    /// Whether a region of device memory ends with the allocation in which it begins.
    one_allocation: bool = false, "nothing of it is known to map less than it is told";
    /// Switches in the environment without which it maps device memory wrongly.
    device_switches: &'static [&'static str] = &[], "nothing of it is known to need any";
    /// Log line on opening a domain by which it maps device memory wrongly.
    maps_wrongly: Option<LogPattern> = None, "nothing of it is known to say so";
    /// Requirements of direct access to device memory, for users of its NICs; empty if unknown.
    device_memory_takes: &'static str = "", "it is not asked for device memory";
    /// Names by which it decides whether NICs reach device memory.
    device_memory_by_name: Option<ByName> = None, "nothing of it is known to look at names";
    /// First libfabric with which it registers dma-bufs (`FI_MR_DMABUF`).
    dma_bufs: Option<Version> = None, "whether it registers dma-bufs has not been examined";

    /// Whether it copies with the CPU, concurrently in threads that poll different domains: rails
    /// may have bulk connections.
    bulk_connections: bool = false, "hardware moves bytes, or whether threads do so side by side has not been examined";
    /// Length from which puts and gets are striped, and their segments.
    striping: Striping = Striping::NICS, "as for NICs, which reach their rate with operations of some hundred KiB";
}

/// Option of an endpoint that tells whether the target's CPU executes its writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SoftwareWrites {
    /// The option, a bool.
    pub(crate) option: i32,
    pub(crate) variable: &'static str,
}

/// Text in libfabric's log about a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogPattern {
    pub(crate) words: &'static str,
    /// Setting that prevents it.
    pub(crate) remedy: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndpointFiles {
    /// Prefix of their names, which libfabric would derive from the process' number alone.
    pub(crate) prefix: &'static str,
    /// Sizes with libfabric before 2.0, and from 2.0 on.
    pub(crate) sizes: [FileSize; 2],
}

/// Sizes of an endpoint's file in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileSize {
    /// Whole file, mostly untouched. libfabric offers no endpoint if less is free for each core.
    pub(crate) nominal: u64,
    /// Pages touched in the end, the last [`GROWTH`] of them after it has opened; and buffers for
    /// bytes that the kernel does not copy.
    pub(crate) used: u64,
}

const GROWTH: u64 = 2 << 20;

/// Buffers for the transfers of a peer if the kernel does not copy between processes, and for those
/// of all peers.
const BUFFERS: [u64; 2] = [2 << 20, 8 << 20];

impl EndpointFiles {
    fn size(&self, library: Version) -> FileSize {
        self.sizes[usize::from(library >= Version::new(2, 0))]
    }

    /// Returns the free bytes without which libfabric offers no endpoint.
    pub(crate) fn offered_with(&self, library: Version) -> u64 {
        // SAFETY: takes and returns a number.
        let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        cores.max(1) as u64 * self.size(library).nominal
    }

    /// Returns the bytes that must be free for each endpoint when one of `here` PEs opens its own,
    /// since those of others grow. `by_kernel`: whether the kernel copies between them.
    pub(crate) fn opened_with(&self, library: Version, here: usize, by_kernel: bool) -> u64 {
        let others = here.saturating_sub(1) as u64;
        let buffers = if by_kernel { 0 } else { BUFFERS[1].min(others * BUFFERS[0]) };
        self.size(library).used + buffers + others * (GROWTH + buffers)
    }
}

/// Class of NICs in `/sys/class`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nic {
    pub(crate) class: &'static str,
    /// Suffix of libfabric's domain name after the kernel's device name.
    pub(crate) domain_suffix: &'static str,
    /// The kernel's driver of these NICs, if the class has others as well.
    pub(crate) driver: Option<&'static str>,
}

impl Nic {
    pub(crate) fn of_machine(&self, sysfs: &Path) -> Vec<String> {
        let class = sysfs.join("class").join(self.class);
        let is_one = |name: &String| match self.driver {
            None => true,
            Some(driver) => {
                let link = fs::read_link(class.join(name).join("device/driver"));
                link.is_ok_and(|link| link.ends_with(driver))
            }
        };
        let devices = class.read_dir().into_iter().flatten().flatten();
        let names = devices.filter_map(|device| device.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(is_one).collect();
        names.sort();
        names
    }

    pub(crate) fn active(&self, sysfs: &Path) -> Vec<String> {
        let class = sysfs.join("class").join(self.class);
        let is_active = |name: &String| {
            let ports = class.join(name).join("ports").read_dir().into_iter().flatten().flatten();
            let mut states = ports.map(|port| fs::read_to_string(port.path().join("state")));
            states.any(|state| state.is_ok_and(|state| state.contains("ACTIVE")))
        };
        self.of_machine(sysfs).into_iter().filter(is_active).collect()
    }
}

/// Advice on what NICs need to reach device memory.
pub(super) const GPU_DIRECT: &str = "it takes a libfabric built with CUDA, and a GPU driver that exports dma-bufs or the kernel's module nvidia_peermem";

/// Names of NICs that reach device memory, according to a provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ByName {
    /// Parts of a name, one of which is required, each with the first libfabric that accepts it.
    pub(crate) parts: &'static [(&'static str, Version)],
    /// First libfabric that queries the NIC itself.
    pub(crate) until: Version,
}

impl ByName {
    pub(crate) fn help(&self, version: Version, nics: &[String]) -> Option<String> {
        if version >= self.until {
            return None;
        }
        let parts: Vec<&str> = self
            .parts
            .iter()
            .filter(|(_, since)| version >= *since)
            .map(|(part, _)| *part)
            .collect();
        let is_other = |nic: &&String| !parts.iter().any(|part| nic.contains(part));
        let others: Vec<&str> = nics.iter().filter(is_other).map(String::as_str).collect();
        let first = others.first()?;
        Some(format!(
            "libfabric {version} grants it to NICs with {} in their names, which {} lack: \
             `rdma dev set {first} name {}5_0`, or NAME_KERNEL for udev's 60-rdma-persistent-naming.rules, gives \
             such names, and libfabric {} asks the NIC itself",
            parts.join(" or "),
            others.join(", "),
            parts.first()?,
            self.until,
        ))
    }
}

/// Entries of a completion queue, by the number of peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Completions {
    pub(super) least: usize,
    pub(super) each_peer: usize,
    pub(super) most: usize,
}

impl Completions {
    const NONE: Self = Self { least: 0, each_peer: 0, most: 0 };

    pub(crate) fn of(self, peers: usize) -> usize {
        peers.saturating_mul(self.each_peer).clamp(self.least, self.most)
    }
}

/// Segmentation of puts and gets, if the settings leave it to the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Striping {
    /// Minimum bytes of a striped operation.
    pub from: usize,
    /// Maximum bytes of a segment.
    pub segment: usize,
}

impl Striping {
    const NICS: Self = Self { from: 512 << 10, segment: 512 << 10 };

    /// With copies by the CPU, a segment's few microseconds are small in comparison.
    pub(super) const SOFTWARE: Self = Self { from: 128 << 10, segment: 128 << 10 };
}

/// Providers that copy with the CPU: shm, and those over sockets.
pub(super) const SOFTWARE: Profile = Profile {
    registers_beside: Fact::seen(
        true,
        "heaps grow while the proxy thread polls",
        "tests/plugin, libfabric 1.17 and 2.5.1",
    ),
    immediate_data: Fact::seen(
        true,
        "the data was seen to be there before what is told of it",
        "tests/plugin (counted signals), libfabric 1.17 and 2.5.1",
    ),
    random_keys: Fact::seen(
        true,
        "it takes any 64 bits for a key",
        "tests/ofi, libfabric 1.17 and 2.5.1",
    ),
    striping: Fact::seen(
        Striping::SOFTWARE,
        "the processor moves the bytes",
        "docs/performance.md, libfabric 2.5.1",
    ),
    ..CAUTIOUS
};
