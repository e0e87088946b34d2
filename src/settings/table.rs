//! The settings, named once.

use std::path::PathBuf;
use std::time::Duration;

use channel_sys::{NLF_MAX_RINGS, NLF_MAX_SLOTS, NLF_MIN_SLOTS};

use super::value::{
    Range, choice, devices, name_of, names, seconds, show_devices, show_seconds, truth,
};
use super::{
    ConsistencyChoice, CountersPage, CountersSignal, RailBalance, Settings, SignalChoice,
    StagingChoice, StripeThreshold, WordsChoice, YieldWhen,
};
use ofi::topology::Distance;
use ofi::{AtomicsChoice, BatchChoice, GpuDirect, Progress, Provider, Threading};

/// What our own variables, and NVIDIA's for its libfabric transport, begin with.
pub(super) const PREFIX: &str = "NVSHMEM_LIBFABRIC_";

/// Variables of NVIDIA's own libfabric transport (NVSHMEM 3.7 and 3.8) that steer machinery this
/// plugin does not have. They are accepted, and nothing changes.
pub(super) const WITHOUT_EFFECT: &[&str] =
    &["NVSHMEM_LIBFABRIC_PROXY_REQUEST_BATCH_MAX", "NVSHMEM_LIBFABRIC_SIGNAL_WAIT_SPIN_COUNT"];

/// One setting.
pub(super) struct Setting {
    /// The environment variable.
    pub(super) name: &'static str,
    /// What it accepts, for people.
    pub(super) accepts: fn() -> String,
    /// What it does, for people. Whole sentences.
    pub(super) doc: &'static str,
    /// Parses a value, never empty, and puts it in place. The error is what is wrong with it.
    pub(super) set: fn(&mut Settings, &str) -> Result<(), String>,
    /// The value in force, as the user would write it.
    pub(super) show: fn(&Settings) -> String,
}

const RAILS: Range = Range { min: 1, max: 32, zero: None, suffixes: false };

const DEPTH: Range =
    Range { min: 0, max: 65536, zero: Some("what the provider offers"), suffixes: false };

const SEGMENT: Range =
    Range { min: 0, max: u64::MAX, zero: Some("the provider's own limit"), suffixes: true };

// Shorter ones take the rails in turn.
const STRIPE_THRESHOLD: Range = Range { min: 8192, max: u64::MAX, zero: None, suffixes: true };

const STRIPE_SEGMENT: Range =
    Range { min: 0, max: u64::MAX, zero: Some("what suits the provider"), suffixes: true };

/// The least that operations are cut into, but for 0: pages.
const STRIPE_UNIT: u64 = 4096;

// The largest two pools of chunks are then 512 GiB, far above what can be page-locked: the driver
// refuses it with its reason.
const CHUNK: Range = Range { min: CHUNK_UNIT, max: 1 << 30, zero: None, suffixes: true };

/// What chunks are multiples of: pages, and what providers like transfers to be.
const CHUNK_UNIT: u64 = 4096;

const CHUNKS: Range = Range { min: 1, max: 256, zero: None, suffixes: false };

// The upper bound, more than eleven days, keeps every sum of deadlines far from overflow.
const SECONDS: Range = Range { min: 0, max: 1_000_000, zero: Some("never"), suffixes: false };

const PATIENCE: Range = Range { min: 1, max: 1_000_000, zero: None, suffixes: false };

// 64 bytes each: up to 4 GiB.
const RECORDS: Range = Range { min: 1024, max: MOST_RECORDS, zero: None, suffixes: true };
const MOST_RECORDS: u64 = 1 << 26;

const RINGS: Range = Range { min: 1, max: NLF_MAX_RINGS as u64, zero: None, suffixes: false };

const SLOTS: Range =
    Range { min: NLF_MIN_SLOTS as u64, max: NLF_MAX_SLOTS as u64, zero: None, suffixes: true };

const SLEEP: Range = Range { min: 0, max: 100_000, zero: Some("never"), suffixes: false };

/// Parses a power of two of a range.
fn power_of_two(range: &Range, text: &str) -> Result<u32, String> {
    let value = range.parse(text)?;
    let value = u32::try_from(value).map_err(|error| error.to_string())?;
    if value.is_power_of_two() { Ok(value) } else { Err(String::from("not a power of two")) }
}

/// Every setting, in the order in which they are documented.
pub(super) const TABLE: &[Setting] = &[
    Setting {
        name: "NVSHMEM_LIBFABRIC_PROVIDER",
        accepts: names::<Provider>,
        doc: "The libfabric provider to use. `auto` takes the first that works of efa, cxi, verbs \
              and tcp, and says why in the log. `tcp` is libfabric's own tcp provider where that \
              has reliable datagram endpoints (libfabric 2.x), else `tcp;ofi_rxm`. `verbs` is \
              `verbs;ofi_rxm`. `shm` joins PEs of one host only.",
        set: |settings, text| choice(text).map(|value| settings.provider = value),
        show: |settings| name_of(settings.provider),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_FABRIC",
        accepts: || String::from("auto, or the name of one of libfabric's fabrics"),
        doc: "The fabric to use, where a provider has several for the same devices. `auto` takes the first \
              that answers: with efa `efa-direct`, which is the NIC itself, and `efa`, which does in software \
              what an older NIC cannot.",
        set: |settings, text| {
            settings.fabric = (text != "auto").then(|| String::from(text));
            Ok(())
        },
        show: |settings| settings.fabric.clone().unwrap_or_else(|| String::from("auto")),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_DEVICES",
        accepts: || {
            String::from(
                "all; or domain, interface or NIC names or IP addresses, separated by commas; or \
                 the same with '^' in front of each",
            )
        },
        doc: "The devices that become rails, in this order. A device named twice gives two rails. \
              With `^` in front of each, all devices but these. A name that matches nothing is an \
              error, and so is a named device that cannot be opened; one that nobody has named is left out with a warning.",
        set: |settings, text| devices(text).map(|value| settings.devices = value),
        show: |settings| show_devices(&settings.devices),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE",
        accepts: || RAILS.to_string(),
        doc: "The most rails that one PE opens.",
        set: |settings, text| {
            let value = RAILS.parse(text)?;
            settings.max_nic_per_pe = u8::try_from(value).map_err(|error| error.to_string())?;
            Ok(())
        },
        show: |settings| settings.max_nic_per_pe.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_PROGRESS",
        accepts: names::<Progress>,
        doc: "The progress to ask libfabric for. `auto` asks for automatic progress and falls \
              back to manual; `manual` does not ask.",
        set: |settings, text| choice(text).map(|value| settings.progress = value),
        show: |settings| name_of(settings.progress),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_THREADING",
        accepts: names::<Threading>,
        doc: "The threading level to ask libfabric for first. When the provider refuses it, the \
              levels that ask less of the provider follow.",
        set: |settings, text| choice(text).map(|value| settings.threading = value),
        show: |settings| name_of(settings.threading),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_QUEUE_DEPTH",
        accepts: || DEPTH.to_string(),
        doc: "The most segments in flight on one rail.",
        set: |settings, text| {
            let value = DEPTH.parse(text)?;
            settings.queue_depth = u32::try_from(value).map_err(|error| error.to_string())?;
            Ok(())
        },
        show: |settings| settings.queue_depth.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_MAX_SEGMENT",
        accepts: || SEGMENT.to_string(),
        doc: "The largest segment in bytes. Longer operations are cut into several.",
        set: |settings, text| SEGMENT.parse(text).map(|value| settings.max_segment = value),
        show: |settings| settings.max_segment.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_RAIL_BALANCE",
        accepts: names::<RailBalance>,
        doc: "Which rail a put or get of 8 KiB or more goes by. `rate`: the one that is expected to be \
              done with it first, by what it still has to do and the rate it has lately shown. \
              `round_robin`: the next, with operations whole, as shorter ones always do.",
        set: |settings, text| choice(text).map(|value| settings.rail_balance = value),
        show: |settings| name_of(settings.rail_balance),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD",
        accepts: || format!("auto, never, or {STRIPE_THRESHOLD}"),
        doc: "Puts and gets with at least so many bytes are cut into segments for all rails, with \
              NVSHMEM_LIBFABRIC_RAIL_BALANCE=rate. `auto` is 128 KiB; with efa, cxi and verbs 512 KiB.",
        set: |settings, text| {
            settings.stripe_threshold = match text.to_ascii_lowercase().as_str() {
                "auto" => StripeThreshold::Auto,
                "never" => StripeThreshold::Never,
                bytes => StripeThreshold::Bytes(STRIPE_THRESHOLD.parse(bytes)?),
            };
            Ok(())
        },
        show: |settings| match settings.stripe_threshold {
            StripeThreshold::Auto => String::from("auto"),
            StripeThreshold::Never => String::from("never"),
            StripeThreshold::Bytes(bytes) => bytes.to_string(),
        },
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_STRIPE_SEGMENT",
        accepts: || format!("{STRIPE_SEGMENT}; else at least {STRIPE_UNIT}"),
        doc: "The longest of these segments in bytes. Towards the end of an operation they become \
              shorter, down to an eighth, so that all rails end together. By default 128 KiB; with \
              efa, cxi and verbs 512 KiB.",
        set: |settings, text| {
            let value = STRIPE_SEGMENT.parse(text)?;
            if (1..STRIPE_UNIT).contains(&value) {
                return Err(String::from("too small"));
            }
            settings.stripe_segment = value;
            Ok(())
        },
        show: |settings| settings.stripe_segment.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_SIGNAL_ENGINE",
        accepts: names::<SignalChoice>,
        doc: "How the signal of a put follows its data. `native`: back to back on one rail, where \
              the provider keeps messages behind writes. `chained`: sent when its own data is \
              delivered. `eager`: small data goes with the signal in one message. `counted`: data and \
              signal go out at once on all rails, and the target applies the signal when it has \
              counted the data's segments, where the provider carries remote data and no rail is looked \
              after (NVSHMEM_LIBFABRIC_RAIL_TIMEOUT=0 where there are several). What a put or a \
              provider does not allow is done `chained`. `auto` takes the fastest for each put.",
        set: |settings, text| choice(text).map(|value| settings.signal_engine = value),
        show: |settings| name_of(settings.signal_engine),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_ATOMICS",
        accepts: names::<AtomicsChoice>,
        doc: "Who carries out atomics and signals, for the whole job: all PEs must be set alike. \
              `native`: the fabric, at the target; an error where a rail of a PE cannot do every \
              operation. Signals are then sent when their data is delivered. `target`: the \
              target's proxy thread. `auto` takes the fabric where its hardware does all of them \
              (cxi), else the target.",
        set: |settings, text| choice(text).map(|value| settings.atomics = value),
        show: |settings| name_of(settings.atomics),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_BATCH_RMA",
        accepts: names::<BatchChoice>,
        doc: "Whether puts that NVSHMEM 3.7 and newer announces together are posted together, with \
              one doorbell of the NIC (`FI_MORE`). `auto` does so with cxi of libfabric 2.x.",
        set: |settings, text| choice(text).map(|value| settings.batch_rma = value),
        show: |settings| name_of(settings.batch_rma),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA",
        accepts: || String::from("0, no or false; anything else is true"),
        doc: "True is the same as NVSHMEM_LIBFABRIC_BATCH_RMA=never: NVIDIA's name for it.",
        set: |settings, text| {
            settings.disable_batch_rma = truth(text);
            Ok(())
        },
        show: |settings| settings.disable_batch_rma.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_STAGING_CHUNK",
        accepts: || format!("{CHUNK}; a multiple of {CHUNK_UNIT}"),
        doc: "Bytes of a chunk of page-locked host memory. Memory of devices that the fabric does not \
              reach is copied through such chunks.",
        set: |settings, text| {
            let value = CHUNK.parse(text)?;
            if value % CHUNK_UNIT != 0 {
                return Err(format!("not a multiple of {CHUNK_UNIT}"));
            }
            settings.staging_chunk = usize::try_from(value).map_err(|error| error.to_string())?;
            Ok(())
        },
        show: |settings| settings.staging_chunk.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_STAGING_DEPTH",
        accepts: || CHUNKS.to_string(),
        doc: "Chunks for each direction. A process that stages has twice this times \
              NVSHMEM_LIBFABRIC_STAGING_CHUNK bytes page-locked, from the first memory of a device \
              that is registered on, and a few KiB per device. It never takes more.",
        set: |settings, text| {
            let value = CHUNKS.parse(text)?;
            settings.staging_depth = u16::try_from(value).map_err(|error| error.to_string())?;
            Ok(())
        },
        show: |settings| settings.staging_depth.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_STAGING_CONTEXT",
        accepts: names::<StagingChoice>,
        doc: "The CUDA context that memory of devices is staged in. `own`: one that the transport makes on each \
              device, so that no call of the program (cudaFree, a module that is loaded) holds up what its kernels wait for. \
              `program`: the program's, which takes no memory of the device, and may stand still beside such calls. `auto` is \
              `own`, unless that cannot be made, or short copies in it do not go on beside kernels; the log says what was measured.",
        set: |settings, text| choice(text).map(|value| settings.staging_context = value),
        show: |settings| name_of(settings.staging_context),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_WORDS",
        accepts: names::<WordsChoice>,
        doc: "How the CPU reaches signals and the words of atomics in memory of devices. `gdrcopy`: \
              by a window that GDRCopy opens. `dmabuf`: by mapping the memory's dma-buf, where the \
              driver lets the CPU do so. `stream`: by the driver's streams, which always works. \
              What does not work here is done by `stream`, and the log says why. `auto` takes the \
              first that works, in this order.",
        set: |settings, text| choice(text).map(|value| settings.words = value),
        show: |settings| name_of(settings.words),
    },
    Setting {
        name: "NVSHMEM_DISABLE_GDRCOPY",
        accepts: || String::from("0, no or false; anything else is true"),
        doc: "True is that GDRCopy is not used, whatever NVSHMEM_LIBFABRIC_WORDS says: NVIDIA's name \
              for it.",
        set: |settings, text| {
            settings.disable_gdrcopy = truth(text);
            Ok(())
        },
        show: |settings| settings.disable_gdrcopy.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_GPU_DIRECT",
        accepts: names::<GpuDirect>,
        doc: "Whether NICs reach device memory by themselves (GPUDirect RDMA). `auto`: where every \
              rail takes the memory and the device keeps the order of what NICs write and the signals \
              that follow; else it is staged through host memory, and the log says why. `always`: \
              whatever the order; memory that is not taken is an error. `never`: all device memory is \
              staged.",
        set: |settings, text| choice(text).map(|value| settings.gpu_direct = value),
        show: |settings| name_of(settings.gpu_direct),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_GDR_LEVEL",
        accepts: names::<Distance>,
        doc: "How far from a GPU a NIC may be to reach its memory by itself, as NCCL_NET_GDR_LEVEL: \
              the same device, behind one PCIe switch, behind several, on one root complex, on one \
              NUMA node, anywhere. Memory of a GPU from which one of the rails is farther is staged. \
              A NIC whose place is not known, and one on the GPU's root complex in a virtual machine \
              that hides the switches, counts as near. NVSHMEM_LIBFABRIC_GPU_DIRECT=always does not \
              ask.",
        set: |settings, text| choice(text).map(|value| settings.gdr_level = value),
        show: |settings| name_of(settings.gdr_level),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_CONSISTENCY",
        accepts: names::<ConsistencyChoice>,
        doc: "How data that NICs have written to device memory is made visible to the device before \
              a flag that follows it. `none`: it is visible in order. `flush`: CUDA's call for it. \
              `read`: a read through each rail, behind which the writes are done. `write-read`: a \
              write and a read. `auto` takes what the device's attributes ask for. With `read` and \
              `write-read` NVSHMEM's requests for consistency are served whatever the memory is.",
        set: |settings, text| choice(text).map(|value| settings.consistency = value),
        show: |settings| name_of(settings.consistency),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_WARN_SECONDS",
        accepts: || SECONDS.to_string(),
        doc: "A wait this long is reported with the peer, the rail and what is outstanding.",
        set: |settings, text| SECONDS.parse(text).map(|value| settings.warn_after = seconds(value)),
        show: |settings| show_seconds(settings.warn_after),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS",
        accepts: || SECONDS.to_string(),
        doc: "A wait this long fails.",
        set: |settings, text| SECONDS.parse(text).map(|value| settings.fail_after = seconds(value)),
        show: |settings| show_seconds(settings.fail_after),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_RAIL_TIMEOUT",
        accepts: || SECONDS.to_string(),
        doc: "With several rails: a rail on which nothing to a PE completes for so long, while the PE \
              answers on others, is taken out of service for that PE, and what was on it goes over the \
              others. A rail that reports an error is at once. Well below \
              NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS; on all PEs alike. Signals are not `counted` then, also where \
              NVSHMEM_LIBFABRIC_SIGNAL_ENGINE asks for it. 0: a rail that fails ends the job. So it \
              does with `shm`, `cxi` and whatever goes through ofi_rxm, and with `efa` unless this is \
              set.",
        set: |settings, text| {
            SECONDS.parse(text).map(|value| settings.rail_timeout = seconds(value))
        },
        show: |settings| show_seconds(settings.rail_timeout),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_RAIL_COOLING",
        accepts: || SECONDS.to_string(),
        doc: "A rail that was taken out of service is tried again so long after, and comes back when it \
              works. 0: it does not come back.",
        set: |settings, text| {
            SECONDS.parse(text).map(|value| settings.rail_cooling = seconds(value))
        },
        show: |settings| show_seconds(settings.rail_cooling),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_YIELD",
        accepts: names::<YieldWhen>,
        doc: "Whether an idle progress call gives up its core. `auto` does when this host has \
              fewer cores than twice its PEs.",
        set: |settings, text| choice(text).map(|value| settings.yield_when = value),
        show: |settings| name_of(settings.yield_when),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_COUNTERS",
        accepts: || String::from("none; or a path, in which %p stands for the number of the PE"),
        doc: "A file that is written when NVSHMEM finalizes the transport: what each rail has carried, \
              and what has gone to and come from each peer, as JSON. Without it, the log has the same, \
              at level INFO.",
        set: |settings, text| {
            settings.counters = (text != "none").then(|| String::from(text));
            Ok(())
        },
        show: |settings| settings.counters.clone().unwrap_or_else(|| String::from("none")),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_COUNTERS_PAGE",
        accepts: || String::from("none, auto; or an absolute path"),
        doc: "The directory in which the same counters are published while the job runs, twice a second, in a file \
              that only its user can read: `nvshmem-libfabric top` shows them. `auto` is \
              /dev/shm/nvshmem-libfabric-UID. It is made if it is not there; one that is another user's, or that \
              others may write to, is not used. The file goes when the transport is finalized or the process ends by \
              itself, and that of a process that was killed with the next job of the user.",
        set: |settings, text| {
            settings.counters_page = match text.to_ascii_lowercase().as_str() {
                "none" => CountersPage::None,
                "auto" => CountersPage::Auto,
                _ if text.starts_with('/') => CountersPage::In(PathBuf::from(text)),
                _ => return Err(String::from("not an absolute path")),
            };
            Ok(())
        },
        show: |settings| match &settings.counters_page {
            CountersPage::None => String::from("none"),
            CountersPage::Auto => String::from("auto"),
            CountersPage::In(directory) => directory.display().to_string(),
        },
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_COUNTERS_SIGNAL",
        accepts: names::<CountersSignal>,
        doc: "A signal at which the file of NVSHMEM_LIBFABRIC_COUNTERS is written, within about a second, and again each \
              time: `kill -USR1 PID`. Not where the program has a handler of its own for it; the log says so.",
        set: |settings, text| choice(text).map(|value| settings.counters_signal = value),
        show: |settings| name_of(settings.counters_signal),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_TRACE",
        accepts: || String::from("none; or a path with %p, which stands for the number of the PE"),
        doc: "The file in which the newest calls of NVSHMEM are recorded, with when they were seen to end: \
              `nvshmem-libfabric trace` shows and checks it. It is made anew when the PEs connect, has addresses and \
              lengths and no data, and is whole also when the process is killed. Only its user can read it. Calls of \
              a device channel are not recorded.",
        set: |settings, text| {
            settings.trace = match text {
                "none" => None,
                _ if text.contains("%p") => Some(String::from(text)),
                _ => {
                    return Err(String::from(
                        "there is no %p in it, and each PE needs a file of its own",
                    ));
                }
            };
            Ok(())
        },
        show: |settings| settings.trace.clone().unwrap_or_else(|| String::from("none")),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_TRACE_RECORDS",
        accepts: || RECORDS.to_string(),
        doc: "How many of the newest records that file keeps. A call is one record, and so is what was seen to end. The \
              room, 64 bytes for each, is taken when the file is made; what was not needed is given back when the \
              transport is finalized.",
        set: |settings, text| {
            let value = RECORDS.parse(text)?;
            settings.trace_records = u32::try_from(value).map_err(|error| error.to_string())?;
            Ok(())
        },
        show: |settings| settings.trace_records.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_BOOTSTRAP",
        accepts: || String::from("none; or HOST:PORT"),
        doc: "Of a device channel: where PE 0 listens for the other PEs, and where these connect to. The \
              program may give an address of its own instead.",
        set: |settings, text| {
            settings.bootstrap = (text != "none").then(|| String::from(text));
            Ok(())
        },
        show: |settings| settings.bootstrap.clone().unwrap_or_else(|| String::from("none")),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_BOOTSTRAP_SECONDS",
        accepts: || PATIENCE.to_string(),
        doc: "Of a device channel: how long its PEs wait for one another, when they start, register \
              memory or come to a barrier. Unless it is set, a minute more than \
              NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS where that is longer: a PE that is late with its operations is late \
              here, too.",
        set: |settings, text| {
            PATIENCE
                .parse(text)
                .map(|value| settings.bootstrap_patience = Duration::from_secs(value))
        },
        show: |settings| settings.bootstrap_patience.as_secs().to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_CHANNEL_RINGS",
        accepts: || format!("a power of two, {RINGS}"),
        doc: "Of a device channel: its rings. Blocks of kernels share them in turn.",
        set: |settings, text| power_of_two(&RINGS, text).map(|n| settings.channel_rings = n),
        show: |settings| settings.channel_rings.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_CHANNEL_SLOTS",
        accepts: || format!("a power of two, {SLOTS}"),
        doc: "Of a device channel: the slots of each ring. An operation takes one or two.",
        set: |settings, text| power_of_two(&SLOTS, text).map(|n| settings.channel_slots = n),
        show: |settings| settings.channel_slots.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_CHANNEL_SLEEP",
        accepts: || SLEEP.to_string(),
        doc: "Of a device channel: microseconds that its proxy thread sleeps at a time when it has had \
              nothing to do for some milliseconds. What comes then waits that much longer. Where the \
              provider moves peers' data only while it is polled, as `tcp` and `shm` do, the thread gives up \
              its core instead, and does not sleep.",
        set: |settings, text| {
            let sleep = SLEEP.parse(text)?;
            settings.channel_sleep = (sleep > 0).then(|| Duration::from_micros(sleep));
            Ok(())
        },
        show: |settings| settings.channel_sleep.map_or(0, |sleep| sleep.as_micros()).to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_CHANNEL_PIN",
        accepts: || String::from("a truth value: 0, no and false are false"),
        doc: "Of a device channel: on a host of several NUMA nodes, its proxy thread keeps to the CPUs \
              near its first NIC.",
        set: |settings, text| {
            settings.channel_pin = truth(text);
            Ok(())
        },
        show: |settings| settings.channel_pin.to_string(),
    },
    Setting {
        name: "NVSHMEM_LIBFABRIC_LIBRARY",
        accepts: || String::from("a file name to search for as the dynamic linker does, or a path"),
        doc: "The libfabric to load. It must be version 1.17 or newer.",
        set: |settings, text| {
            settings.library = String::from(text);
            Ok(())
        },
        show: |settings| settings.library.clone(),
    },
];
