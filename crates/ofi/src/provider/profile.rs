//! The profile of a provider: which facts there are, and what is right where nobody knows.

use std::fs;
use std::path::Path;

use libfabric_sys::Version;

use super::fact::{Fact, Source};
use super::variable::Variable;
use engine::port::packet::MAX_MESSAGE;

facts! {
    /// Every interface of the host is a device, also those that lead nowhere useful.
    interfaces: bool = false, "what it lists is taken as it is";
    /// Devices can be opened by an IP address that is not listed.
    by_address: bool = false, "only what is listed is opened";
    /// It joins the PEs of one host only.
    one_host: bool = false, "it has a network";
    /// Endpoints are files in `/dev/shm`. None: they are not.
    endpoint_files: Option<EndpointFiles> = None, "nothing of it is known to be a file";
    /// Rails lead from the rail with one number to the rail with the same number, and to no other.
    separate_rails: bool = false, "its rails reach what libfabric says is of one fabric";
    /// Where the kernel lists its NICs, for those that read and write memory by themselves.
    nic: Option<Nic> = None, "nothing of it is known to read memory by itself";
    /// Its fabrics by preference, where several are ways to the same devices.
    fabrics: &'static [&'static str] = &[], "its devices are of one fabric each";
    /// Immediate data takes a receive, which it may say (`FI_RX_CQ_DATA`). That bounds what peers'
    /// writes put into its queue of completions, so where it does not say so, it gets none.
    data_takes_receives: bool = false, "nothing of it is known to wait for this to be offered";

    /// What probably helps when libfabric does not answer with it although its NICs are there, of
    /// which a user is warned who leaves the choice to us. Nothing known: empty.
    missing: &'static str = "", "nobody has seen it missing where its NICs are";
    /// What it reads from the environment, and ought to find there.
    environment: &'static [Variable] = &[], "nothing of it is known to want another environment than it gets";
    /// What probably helps when it refuses to enable an endpoint. Nothing known: empty.
    enabling_refused: &'static str = "", "nobody has seen it refuse";

    /// It ends the process when an endpoint's socket gets no descriptor: so none is opened then.
    crashes_without_descriptors: bool = false, "nothing of it is known to crash for lack of descriptors";

    /// What probably helps when it refuses the addresses of peers. Nothing known: empty.
    addresses_refused: &'static str = "", "nobody has seen it refuse";

    /// With `FI_THREAD_COMPLETION`, memory may be registered by one thread while another polls.
    registers_beside: bool = false, "whether memory may be registered while another thread polls has not been examined";
    /// `FI_PROGRESS_AUTO` does harm, and is not asked for.
    avoids_auto: bool = false, "it is asked for, and lanes make progress whatever the answer";
    /// It orders writes, at a cost, unless told not to. The engine needs no such order.
    order_of_writes_costs: bool = false, "nothing of it is known to go faster without an order of writes";
    /// Errors of no operation go to an event queue; without one they end the process.
    events: bool = false, "nothing of it is known to need an event queue";
    /// How it tells that the target's processor does the writes of an endpoint, and not the NICs.
    software_writes: Option<SoftwareWrites> = None, "nothing of it is known to write now by NICs and now without";
    /// Entries of a completion queue, where more than what a rail has under way go through it.
    completions: Completions = Completions::NONE, "a queue has room for what a rail has under way";
    /// A write may tell its target, by immediate data, that its own data is there, and the target's
    /// completion queue has room for all who write to it.
    immediate_data: bool = false, "whether its completion queue has room for all peers has not been examined";
    /// An error of something that comes in, whatever it is, is of that alone, and the rail goes on.
    outlives_receives: bool = false, "what else than the length of a message its errors of receives are about has not been examined";
    /// Bytes of the longest message that costs little more than a short one, up to
    /// `MAX_LONG_MESSAGE`: for what has no cheaper way, and spares the memory for receives.
    longest_message: usize = MAX_MESSAGE, "what a longer message costs has not been examined";

    /// Keys of memory are the process' to choose, any 64 bits, and so cannot be guessed. Else they
    /// are counted: there may be few, or small ones may be better.
    random_keys: bool = false, "whether it takes any 64 bits for a key has not been examined";

    /// It is asked for device memory without the user insisting.
    device_memory: bool = false, "whether it moves device memory without waiting for kernels has not been examined";
    /// An endpoint can be told to make no copies by CUDA, and loses nothing by it.
    forbids_cuda: bool = true, "a copy by CUDA may wait for running kernels";
    /// An endpoint is told to pass nothing through memory that the processes of a host share.
    forbids_sharing: bool = false, "nothing of it is known to leave its NICs";
    /// It heeds descriptors of local memory that it does not ask for, once it is told so in its own
    /// way (`fi_open_ops(3)`), and asks CUDA about nothing that has one.
    heeds_descriptors: bool = false, "nothing of it is known to look at memory itself";
    /// A region of device memory ends with the allocation that it begins in.
    one_allocation: bool = false, "nothing of it is known to map less than it is told";
    /// Switches in the environment without which it maps device memory wrongly.
    device_switches: &'static [&'static str] = &[], "nothing of it is known to need any";
    /// How libfabric's log tells, when a domain is opened, that it maps device memory wrongly.
    maps_wrongly: Option<Said> = None, "nothing of it is known to say so";
    /// What reaching device memory takes, for users of its NICs. Nothing known: empty.
    device_memory_takes: &'static str = "", "it is not asked for device memory";
    /// It goes by the names of NICs whether they reach device memory.
    device_memory_by_name: Option<ByName> = None, "nothing of it is known to look at names";
    /// The libfabric from which on it registers dma-bufs (`FI_MR_DMABUF`).
    dma_bufs: Option<Version> = None, "whether it registers dma-bufs has not been examined";

    /// The processor moves its bytes, and threads that poll different domains move them side by
    /// side: rails may have connections for bulk.
    bulk_connections: bool = false, "hardware moves bytes, or whether threads do so side by side has not been examined";
    /// From which length on puts and gets are cut, and into which segments.
    striping: Striping = Striping::NICS, "as for NICs, which reach their rate with operations of some hundred KiB";
}

/// How to know of an endpoint that the target's processor does its writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SoftwareWrites {
    /// The endpoint's option that says so, a bool.
    pub(crate) option: i32,
    pub(crate) variable: &'static str,
}

/// Text in libfabric's log about a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Said {
    pub(crate) words: &'static str,
    /// Setting that prevents it.
    pub(crate) remedy: &'static str,
}

/// Endpoints that are files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndpointFiles {
    /// Prefix of their names, which libfabric would make of the process' number alone.
    pub(crate) prefix: &'static str,
    /// Sizes with libfabric before 2.0, and from 2.0 on.
    pub(crate) sizes: [FileSize; 2],
}

/// Bytes of an endpoint's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileSize {
    /// All, mostly untouched. libfabric offers no endpoint where each core has less left than this.
    pub(crate) nominal: u64,
    /// Touched in the end, the last [`GROWTH`] of it after it has opened; and what bytes go through
    /// that the kernel does not copy.
    pub(crate) used: u64,
}

const GROWTH: u64 = 2 << 20;

/// Buffers that the transfers of a peer go through where the kernel does not copy between
/// processes, and those of all peers.
const BUFFERS: [u64; 2] = [2 << 20, 8 << 20];

impl EndpointFiles {
    fn size(&self, library: Version) -> FileSize {
        self.sizes[usize::from(library >= Version::new(2, 0))]
    }

    /// Bytes without which libfabric offers no endpoint.
    pub(crate) fn offered_with(&self, library: Version) -> u64 {
        // SAFETY: a number alone.
        let cores = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        cores.max(1) as u64 * self.size(library).nominal
    }

    /// Bytes that must be free for each endpoint when one of `here` PEs opens its own: those of
    /// others grow. `by_kernel`: whether the kernel copies between them.
    pub(crate) fn opened_with(&self, library: Version, here: usize, by_kernel: bool) -> u64 {
        let others = here.saturating_sub(1) as u64;
        let buffers = if by_kernel { 0 } else { BUFFERS[1].min(others * BUFFERS[0]) };
        self.size(library).used + buffers + others * (GROWTH + buffers)
    }
}

/// Where the kernel lists NICs, in `/sys/class`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Nic {
    pub(crate) class: &'static str,
    /// Suffix of libfabric's domain name after the kernel's device name.
    pub(crate) domain_suffix: &'static str,
    /// The kernel's driver of these NICs, where the class has others as well.
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

/// Name that a NIC needs to reach device memory.
pub(super) const GPU_DIRECT: &str = "it takes a libfabric built with CUDA, and a GPU driver that exports dma-bufs or the kernel's module nvidia_peermem";

/// NICs that reach device memory, as a provider has it: those with certain names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ByName {
    /// Parts of a name, one of which it needs, with the libfabric from which on each counts.
    pub(crate) parts: &'static [(&'static str, Version)],
    /// The libfabric from which on the NIC itself is asked.
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

    /// For so many peers.
    pub(crate) fn of(self, peers: usize) -> usize {
        peers.saturating_mul(self.each_peer).clamp(self.least, self.most)
    }
}

/// How puts and gets are cut into segments, where the settings leave it to the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Striping {
    /// Least bytes of an operation that is cut.
    pub from: usize,
    /// Most bytes of a segment.
    pub segment: usize,
}

impl Striping {
    const NICS: Self = Self { from: 512 << 10, segment: 512 << 10 };

    /// Where software moves the bytes, a segment's few microseconds are little beside them.
    pub(super) const SOFTWARE: Self = Self { from: 128 << 10, segment: 128 << 10 };
}

/// Providers whose NIC is the processor: shm, and what goes over sockets.
pub(super) const SOFTWARE: Profile = Profile {
    registers_beside: Fact::seen(
        true,
        "heaps grow while the proxy thread polls",
        "tests/plugin, libfabric 1.17 and 2.5.1",
    ),
    immediate_data: Fact::seen(
        true,
        "the data was seen to be there before what is told of it",
        "tests/ofi/immediate_data.rs, libfabric 1.17 and 2.5.1",
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
