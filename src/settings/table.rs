//! The settings, each written once. The struct, its defaults, reading, refusals,
//! [`Settings::describe`] and `docs/settings.md` are made from this.

use std::time::Duration;

use channel_sys::{NLF_MAX_RINGS, NLF_MAX_SLOTS, NLF_MIN_SLOTS};

use super::choices::{ConsistencyChoice, RailBalance, StripeThreshold, WordsChoice, YieldWhen};
use super::kind::{DeviceList, Kind, Names, Number, OrAuto, Text, Time, Truth, bytes, number};
use cuda::StagingContext;
use engine::lane::SignalChoice;
use ofi::topology::Distance;
use ofi::{BulkChoice, Devices, GpuDirect, Options, Provider, Threading};

/// Prefix of our own variables, and of NVIDIA's for its libfabric transport.
pub(super) const PREFIX: &str = "NVSHMEM_LIBFABRIC_";

/// The variable that has the debug keys.
pub(super) const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";

pub(super) const DEBUG_ACCEPTS: &str = "key=value, separated by commas";

/// Text of its row in `docs/settings.md`.
pub(super) const DEBUG_DOC: &str =
    "Debug keys, for experts and tests, such as `queue_depth=2,signals=chained`: see below.";

/// Variables of NVIDIA's own libfabric transport (NVSHMEM 3.7 and 3.8) that steer machinery this
/// plugin does not have. They are accepted, and nothing changes.
pub(super) const WITHOUT_EFFECT: &[&str] = &[
    "NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA",
    "NVSHMEM_LIBFABRIC_PROXY_REQUEST_BATCH_MAX",
    "NVSHMEM_LIBFABRIC_SIGNAL_WAIT_SPIN_COUNT",
];

/// Variables of earlier versions and what replaces them; those that became keys of [`DEBUG`] are
/// found by name.
pub(super) const BEFORE: &[(&str, &str)] = &[
    ("NVSHMEM_LIBFABRIC_SIGNAL_ENGINE", "is now NVSHMEM_LIBFABRIC_DEBUG=signals=..."),
    ("NVSHMEM_LIBFABRIC_ATOMICS", "is gone, as the target's proxy thread executes all atomics"),
    ("NVSHMEM_LIBFABRIC_COUNTERS_PAGE", COUNTERS),
    ("NVSHMEM_LIBFABRIC_COUNTERS_SIGNAL", COUNTERS),
    ("NVSHMEM_LIBFABRIC_BATCH_RMA", "is gone, as operations share no doorbells"),
    ("NVSHMEM_LIBFABRIC_PROGRESS", "is gone, as no provider progresses by itself"),
    ("NVSHMEM_LIBFABRIC_CHANNEL_SLEEP", "is gone, as no provider progresses by itself"),
    ("NVSHMEM_LIBFABRIC_RAIL_COOLING", RAILS),
    ("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT", RAILS),
    ("NVSHMEM_LIBFABRIC_TRACE", RECORDING),
    ("NVSHMEM_LIBFABRIC_TRACE_RECORDS", RECORDING),
];

const COUNTERS: &str =
    "is gone; NVSHMEM_LIBFABRIC_COUNTERS names a file that is written at the end of the job";

const RAILS: &str = "is gone: a rail that fails ends the job";

const RECORDING: &str =
    "is gone, with the recording of calls; NVSHMEM_DEBUG=TRACE logs what the transport does";

/// Part of `docs/settings.md` that lists a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum For {
    /// A variable of its own, for users.
    Users,
    /// A key of [`DEBUG`], for experts and tests.
    Debug,
}

pub(super) struct Setting {
    pub(super) name: &'static str,
    pub(super) who: For,
    /// Text of its row in `docs/settings.md`, and the documentation of its field.
    pub(super) doc: &'static str,
    pub(super) accepts: fn() -> String,
    /// Parses a value, never empty, and puts it in place. The error is what is wrong with it.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
    /// The value in force, as the user would write it.
    pub(super) show: fn(&Settings) -> String,
}

pub(super) fn variables_of_their_own() -> impl Iterator<Item = &'static Setting> {
    TABLE.iter().filter(|setting| setting.who != For::Debug)
}

pub(super) fn keys() -> impl Iterator<Item = &'static Setting> {
    TABLE.iter().filter(|setting| setting.who == For::Debug)
}

fn ofi() -> Options {
    Options::default()
}

// The upper bound, more than eleven days, keeps every sum of deadlines far from overflow.
const SECONDS: Number = number(1, 1_000_000);

const NEVER: Time = Time::seconds(SECONDS.or_zero("never"));

const PAGE: u64 = 4096;

macro_rules! settings {
    ($(
        $(#[doc = $doc:literal])+
        $who:ident $name:literal $field:ident: $type:ty = $default:expr, $kind:expr;
    )+) => {
        /// The values in force, parsed and checked.
        #[derive(Clone, Debug)]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $field: $type,)+
            /// The variables and debug keys that are set; all others have their defaults.
            pub set: Vec<&'static str>,
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $($field: $default,)+ set: Vec::new() }
            }
        }

        /// Every setting, in the order in which they are documented.
        pub(super) const TABLE: &[Setting] = &[$(Setting {
            name: $name,
            who: For::$who,
            doc: concat!($($doc),+).trim_ascii(),
            accepts: || Kind::<$type>::accepts(&$kind),
            set: |settings, text| {
                settings.$field = Kind::<$type>::parse(&$kind, text)?;
                Ok(())
            },
            show: |settings| Kind::<$type>::show(&$kind, &settings.$field),
        }),+];
    };
}

settings! {
    /// The libfabric provider. `auto`: the first of efa, cxi, verbs and tcp that works; the log
    /// says why. `tcp` is native in libfabric 2.x, else `tcp;ofi_rxm`; `verbs` is `verbs;ofi_rxm`;
    /// `shm` connects PEs of one host only.
    Users "NVSHMEM_LIBFABRIC_PROVIDER" provider: Provider = ofi().provider, Names;

    /// The fabric, where a provider has several for one NIC. `auto`: the first that answers; with
    /// efa, `efa-direct` before `efa`.
    Users "NVSHMEM_LIBFABRIC_FABRIC" fabric: Option<String> = ofi().fabric,
        Text { none: "auto", accepts: "the name of a fabric" };

    /// NICs to use as rails, in this order; one named twice is two rails. With `^` in front of
    /// each, all but these. A named NIC that is missing or cannot be opened is an error; others are
    /// left out with a warning.
    Users "NVSHMEM_LIBFABRIC_DEVICES" devices: Devices = ofi().devices, DeviceList;

    /// The most NICs that one PE uses.
    Users "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE" max_nic_per_pe: u8 = ofi().max_nic_per_pe, number(1, 32);

    /// The libfabric to load, version 1.17 or newer.
    Users "NVSHMEM_LIBFABRIC_LIBRARY" library: String = ofi().library,
        Text { none: "", accepts: "a file name, searched for as the dynamic linker does, or a path" };

    /// How puts and gets of 8 KiB or more choose their rail; shorter ones take rails in turn.
    /// `rate`: the one expected to finish first, by queued bytes and recent rate. `round_robin`:
    /// the next, without striping.
    Users "NVSHMEM_LIBFABRIC_RAIL_BALANCE" rail_balance: RailBalance = RailBalance::Rate, Names;

    /// Puts and gets from this many bytes on are striped over all rails, unless
    /// NVSHMEM_LIBFABRIC_RAIL_BALANCE is `round_robin`. Staged ones are not: each of their
    /// fragments takes one rail. `auto`: 128 KiB; 512 KiB with efa, cxi and verbs.
    Users "NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD" stripe_threshold: StripeThreshold = StripeThreshold::Auto,
        bytes(8192, u64::MAX); // Shorter ones take the rails in turn.

    /// Bytes of a bounce buffer: page-locked memory through which device memory is copied that NICs
    /// cannot reach. A fragment fills a quarter of a buffer. Between PEs that share buffers it is a
    /// quarter of the operation, or a buffer's bytes while four are in flight. Either way it has at
    /// least 512 KiB, and at most a buffer's bytes.
    Users "NVSHMEM_LIBFABRIC_STAGING_CHUNK" staging_chunk: usize = 2 << 20,
        // Two pools of the largest are 512 GiB, far above what can be page-locked: the driver says
        // so.
        bytes(PAGE, 1 << 30).multiple_of(PAGE);

    /// Bounce buffers for each direction (4 for NCCL), page-locked when device memory is first
    /// registered, with a few KiB per device.
    Users "NVSHMEM_LIBFABRIC_STAGING_DEPTH" staging_depth: u16 = 8, number(1, 256);

    /// The CUDA context of staged copies. `own`: one of the transport's on each device, which no
    /// CUDA call of the program blocks. `program`: the program's, which needs no device memory but
    /// may block behind calls such as cudaFree. `auto`: `own`, unless it cannot be made or is
    /// measured not to progress beside kernels.
    Users "NVSHMEM_LIBFABRIC_STAGING_CONTEXT" staging_context: StagingContext = StagingContext::Auto, Names;

    /// Whether NICs access device memory directly (GPUDirect RDMA). `auto`: where every rail can
    /// register it and the device keeps their writes in order; else it is staged, and the log says
    /// why. `always`: whatever the order; memory that cannot be registered is an error. `never`: it
    /// is staged.
    Users "NVSHMEM_LIBFABRIC_GPU_DIRECT" gpu_direct: GpuDirect = ofi().gpu_direct, Names;

    /// Greatest distance of a NIC from a GPU for direct access, as NCCL_NET_GDR_LEVEL: the same
    /// device, one PCIe switch, several, one root complex, one NUMA node, anywhere. If a rail is
    /// farther away, memory is staged. Unknown distances, and those in virtual machines that hide
    /// switches, count as near. NVSHMEM_LIBFABRIC_GPU_DIRECT=always ignores it.
    Users "NVSHMEM_LIBFABRIC_GDR_LEVEL" gdr_level: Distance = ofi().gdr_level, Names;

    /// A wait of this length in which nothing to or from the peer completes is logged, with peer,
    /// rail and oldest operation.
    Users "NVSHMEM_LIBFABRIC_WARN_SECONDS" warn_after: Option<Duration> = Some(Duration::from_secs(10)), NEVER;

    /// A wait in which nothing completes for so long fails; for copies and what other PEs hold, for
    /// twice as long.
    Users "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS" fail_after: Option<Duration> = Some(Duration::from_secs(120)), NEVER;

    /// Whether an idle progress iteration yields its core. `auto`: where the host has fewer than
    /// two cores per PE, and while the kernel gives the core to other threads.
    Users "NVSHMEM_LIBFABRIC_YIELD" yield_when: YieldWhen = YieldWhen::Auto, Names;

    /// A JSON file of what each rail and peer has carried, written when the transport is finalized
    /// or the process exits. Without it the log has the counters at level INFO. Later jobs of a
    /// process, such as NCCL's groups, append `.2` and so on to the name.
    Users "NVSHMEM_LIBFABRIC_COUNTERS" counters: Option<String> = None,
        Text { none: "none", accepts: "a path, in which %p stands for the number of the PE" };

    /// This PE's host, where boot id and host name mislead: in clones of machines, sandboxes, and
    /// containers with names of their own.
    Users "NVSHMEM_LIBFABRIC_HOST_ID" host_id: Option<String> = None,
        Text { none: "none", accepts: "a name" };

    /// Device channel: where PE 0 listens and the others connect, unless the program gives an
    /// address.
    Users "NVSHMEM_LIBFABRIC_BOOTSTRAP" bootstrap: Option<String> = None,
        Text { none: "none", accepts: "HOST:PORT" };

    /// NVSHMEM's own: GDRCopy is not used, whatever `words` says. The driver may still map
    /// dma-bufs.
    Users "NVSHMEM_DISABLE_GDRCOPY" disable_gdrcopy: bool = false, Truth;

    /// The threading level to request first; if it is refused, those after it in this list.
    Debug "threading" threading: Threading = ofi().threading, Names;

    /// The most segments in flight on one rail.
    Debug "queue_depth" queue_depth: u32 = ofi().queue_depth,
        number(1, 65536).or_zero("what the provider offers");

    /// The longest segment in bytes. Longer operations are split.
    Debug "max_segment" max_segment: u64 = ofi().max_segment, bytes(1, u64::MAX).or_zero("the provider's limit");

    /// The longest segment of a striped operation in bytes; shorter operations are cut down to an
    /// eighth of it.
    Debug "stripe_segment" stripe_segment: u64 = 0,
        bytes(PAGE, u64::MAX).or_zero("128 KiB, or 512 KiB with efa, cxi and verbs");

    /// With tcp, if operations are striped: connections of each rail for long transfers, each with
    /// a thread of its own (`nvshmem-bulk-N`). `auto`: one for each 25 Gbit/s of the link, up to 4,
    /// or one if its rate is unknown, on at most half of the PE's cores; none if that leaves one in
    /// all, or all links together have at most 25 Gbit/s. PEs may differ.
    Debug "bulk_connections" bulk_connections: BulkChoice = ofi().bulk,
        OrAuto(number(1, 6).or_zero("none"));

    /// How a signal follows its put's data. `chained`: once the data is delivered. `eager`: small
    /// data in the same message. `counted`: at once, applied when the target has counted the data's
    /// segments by their immediate data. What is not possible is `chained`. `auto`: the fastest for
    /// each put.
    Debug "signals" signals: SignalChoice = SignalChoice::Auto, Names;

    /// How the CPU reaches signals, atomics and short data in device memory. `gdrcopy`, `dma_buf`:
    /// through a window of GDRCopy, or of the driver (CUDA 13.3). `stream`: by the driver's
    /// streams. `auto`: the first that works.
    Debug "words" words: WordsChoice = WordsChoice::Auto, Names;

    /// Under CUDA's multi-process service: whether a resident kernel copies short staged bytes.
    Debug "resident" resident: bool = true, Truth;

    /// Whether PEs of one host share bounce buffers, so that only devices copy staged bytes between
    /// them. Others use the fabric; the log says why.
    Debug "share_bounce" share_bounce: bool = true, Truth;

    /// How NICs' writes to device memory become visible to the device before a flag that follows.
    /// `none`: they are in order. `flush`: CUDA's call. `auto`: what the device's attributes ask
    /// for.
    Debug "consistency" consistency: ConsistencyChoice = ConsistencyChoice::Auto, Names;

    /// Device channel: seconds that PEs wait for one another at start, registration and barriers.
    /// Unless set, at least a minute more than NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS.
    Debug "bootstrap_seconds" bootstrap_patience: Duration = Duration::from_secs(180), Time::seconds(SECONDS);

    /// Device channel: the rings that blocks of kernels share.
    Debug "channel_rings" channel_rings: u32 = 4, number(1, NLF_MAX_RINGS as u64).power_of_two();

    /// Device channel: the slots of each ring. An operation takes one or two.
    Debug "channel_slots" channel_slots: u32 = 4096,
        bytes(NLF_MIN_SLOTS as u64, NLF_MAX_SLOTS as u64).power_of_two();

    /// Device channel: the proxy thread stays on the CPUs near its first NIC, on hosts of several
    /// NUMA nodes.
    Debug "channel_pin" channel_pin: bool = true, Truth;
}
