//! Settings of the user, each read once at start from the environment.
//!
//! `table.rs` names every setting once: what it is called, what it accepts, what it does. Parsing,
//! refusals, [`Settings::describe`] and `docs/settings.md` are all made from it.
#![forbid(unsafe_code)]

mod error;
mod load;
mod table;
mod value;

#[cfg(test)]
mod docs;

use std::path::PathBuf;
use std::time::Duration;

use ofi::topology::Distance;
use ofi::{
    AtomicsChoice, BatchChoice, Devices, GpuDirect, Options, Progress, Provider, RailLoss,
    Threading,
};

pub use error::{Refused, SettingsError};
pub use load::{Notice, Row, Source, Sources};

/// The values in force, parsed and checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `NVSHMEM_LIBFABRIC_PROVIDER`: which libfabric provider to use. Default `auto`.
    pub provider: Provider,
    /// `NVSHMEM_LIBFABRIC_FABRIC`: the one fabric to use. Default `auto`, which is none.
    pub fabric: Option<String>,
    /// `NVSHMEM_LIBFABRIC_DEVICES`: which devices become rails, and in which order. Default: all.
    pub devices: Devices,
    /// `NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE`: most rails of one PE, 1 to 32. Default 16.
    pub max_nic_per_pe: u8,
    /// `NVSHMEM_LIBFABRIC_PROGRESS`: `auto` asks libfabric for automatic progress first, `manual`
    /// does not ask for it. Default `auto`.
    pub progress: Progress,
    /// `NVSHMEM_LIBFABRIC_THREADING`: `completion`, `domain` or `safe`: the first level asked for;
    /// the weaker demands on the provider follow when it is refused. Default `completion`.
    pub threading: Threading,
    /// `NVSHMEM_LIBFABRIC_QUEUE_DEPTH`: most segments in flight on one rail; 0 takes what the
    /// provider offers. Default 0, at most 65536.
    pub queue_depth: u32,
    /// `NVSHMEM_LIBFABRIC_MAX_SEGMENT`: largest segment in bytes; 0 takes the provider's limit.
    /// Default 0. Accepts the suffixes K, M and G (powers of 1024).
    pub max_segment: u64,
    /// `NVSHMEM_LIBFABRIC_RAIL_BALANCE`: which rail an operation goes by. Default `rate`.
    pub rail_balance: RailBalance,
    /// `NVSHMEM_LIBFABRIC_STRIPE_THRESHOLD`: puts and gets with at least so many bytes are cut into
    /// segments for all rails. Default `auto`.
    pub stripe_threshold: StripeThreshold,
    /// `NVSHMEM_LIBFABRIC_STRIPE_SEGMENT`: the longest of these segments in bytes; 0 takes what suits
    /// the provider. Default 0, at least 4096 otherwise.
    pub stripe_segment: u64,
    /// `NVSHMEM_LIBFABRIC_SIGNAL_ENGINE`: how the signal of a put follows its data. Default `auto`.
    pub signal_engine: SignalChoice,
    /// `NVSHMEM_LIBFABRIC_ATOMICS`: who carries out atomics. Default `auto`.
    pub atomics: AtomicsChoice,
    /// `NVSHMEM_LIBFABRIC_BATCH_RMA`: whether puts that the host says others follow are posted
    /// together. Default `auto`. See [`Settings::batching`].
    pub batch_rma: BatchChoice,
    /// `NVSHMEM_LIBFABRIC_DISABLE_BATCH_RMA`: the same as `never`. Default false.
    pub disable_batch_rma: bool,
    /// `NVSHMEM_LIBFABRIC_STAGING_CHUNK`: bytes of a chunk that memory of devices is copied through, a
    /// multiple of 4096. Default 512 KiB.
    pub staging_chunk: usize,
    /// `NVSHMEM_LIBFABRIC_STAGING_DEPTH`: chunks for each direction, 1 to 256. Default 8.
    pub staging_depth: u16,
    /// `NVSHMEM_LIBFABRIC_STAGING_CONTEXT`: the context that memory of devices is staged in. Default `auto`.
    pub staging_context: StagingChoice,
    /// `NVSHMEM_LIBFABRIC_WORDS`: how the CPU reaches words in memory of devices. Default `auto`. See
    /// [`Settings::may_use_gdrcopy`].
    pub words: WordsChoice,
    /// `NVSHMEM_DISABLE_GDRCOPY`: GDRCopy is not used. Default false.
    pub disable_gdrcopy: bool,
    /// `NVSHMEM_LIBFABRIC_GPU_DIRECT`: whether NICs reach device memory by themselves. Default `auto`.
    pub gpu_direct: GpuDirect,
    /// `NVSHMEM_LIBFABRIC_GDR_LEVEL`: how far from a GPU a NIC may be to reach its memory by itself.
    /// Default `pxb`.
    pub gdr_level: Distance,
    /// `NVSHMEM_LIBFABRIC_CONSISTENCY`: how data that NICs have written to device memory is made
    /// visible to the device. Default `auto`.
    pub consistency: ConsistencyChoice,
    /// `NVSHMEM_LIBFABRIC_WARN_SECONDS`: a wait this long is reported. Default 10; 0 never.
    pub warn_after: Option<Duration>,
    /// `NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS`: a wait this long fails. Default 120; 0 never.
    pub fail_after: Option<Duration>,
    /// `NVSHMEM_LIBFABRIC_RAIL_TIMEOUT`: a rail on which nothing completes for so long, while the PE is
    /// alive, is done without. Default 5; 0: a rail that fails ends the job.
    pub rail_timeout: Option<Duration>,
    /// `NVSHMEM_LIBFABRIC_RAIL_COOLING`: it is tried again so long after. Default 10; 0 never.
    pub rail_cooling: Option<Duration>,
    /// `NVSHMEM_LIBFABRIC_YIELD`: whether an idle progress call gives up its core: `auto` does when
    /// this host has fewer cores than twice its PEs. Default `auto`.
    pub yield_when: YieldWhen,
    /// `NVSHMEM_LIBFABRIC_COUNTERS`: the file that gets the counters at the end, with `%p` for the number
    /// of this PE. Default: none.
    pub counters: Option<String>,
    /// `NVSHMEM_LIBFABRIC_COUNTERS_PAGE`: where they are published while the job runs. Default: none.
    pub counters_page: CountersPage,
    /// `NVSHMEM_LIBFABRIC_COUNTERS_SIGNAL`: the signal at which that file is written. Default: none.
    pub counters_signal: CountersSignal,
    /// `NVSHMEM_LIBFABRIC_TRACE`: the file in which calls are recorded, with `%p` for the number of this PE. Default:
    /// none.
    pub trace: Option<String>,
    /// `NVSHMEM_LIBFABRIC_TRACE_RECORDS`: how many of the newest records it keeps. Default 262144.
    pub trace_records: u32,
    /// `NVSHMEM_LIBFABRIC_BOOTSTRAP`: where PE 0 of a channel listens for the others, HOST:PORT. Default:
    /// none.
    pub bootstrap: Option<String>,
    /// `NVSHMEM_LIBFABRIC_BOOTSTRAP_SECONDS`: how long the PEs of a channel wait for one another. Default
    /// 60.
    pub bootstrap_patience: Duration,
    /// `NVSHMEM_LIBFABRIC_CHANNEL_RINGS`: rings of a channel, a power of two. Default 4.
    pub channel_rings: u32,
    /// `NVSHMEM_LIBFABRIC_CHANNEL_SLOTS`: slots of each, a power of two. Default 4096.
    pub channel_slots: u32,
    /// `NVSHMEM_LIBFABRIC_CHANNEL_SLEEP`: how long a channel's proxy thread sleeps at a time once it has
    /// been idle for a while. Default 50 microseconds; 0: it does not.
    pub channel_sleep: Option<Duration>,
    /// `NVSHMEM_LIBFABRIC_CHANNEL_PIN`: whether the proxy thread keeps to the CPUs near its NIC or GPU.
    /// Default true.
    pub channel_pin: bool,
    /// `NVSHMEM_LIBFABRIC_LIBRARY`: the libfabric to load, a name or a path. Default
    /// `libfabric.so.1`.
    pub library: String,
    /// Where each value came from.
    pub sources: Sources,
}

impl Default for Settings {
    /// The values used where the environment says nothing.
    fn default() -> Self {
        Self {
            provider: Provider::Auto,
            fabric: None,
            devices: Devices::Any,
            max_nic_per_pe: 16,
            progress: Progress::Auto,
            threading: Threading::Completion,
            queue_depth: 0,
            max_segment: 0,
            rail_balance: RailBalance::Rate,
            stripe_threshold: StripeThreshold::Auto,
            stripe_segment: 0,
            signal_engine: SignalChoice::Auto,
            atomics: AtomicsChoice::Auto,
            batch_rma: BatchChoice::Auto,
            disable_batch_rma: false,
            staging_chunk: 512 << 10,
            staging_depth: 8,
            staging_context: StagingChoice::Auto,
            words: WordsChoice::Auto,
            disable_gdrcopy: false,
            gpu_direct: GpuDirect::Auto,
            gdr_level: Distance::Pxb,
            consistency: ConsistencyChoice::Auto,
            warn_after: Some(Duration::from_secs(10)),
            fail_after: Some(Duration::from_secs(120)),
            rail_timeout: Some(Duration::from_secs(5)),
            rail_cooling: Some(Duration::from_secs(10)),
            yield_when: YieldWhen::Auto,
            counters: None,
            counters_page: CountersPage::None,
            counters_signal: CountersSignal::None,
            trace: None,
            trace_records: 256 << 10,
            bootstrap: None,
            bootstrap_patience: Duration::from_secs(180),
            channel_rings: 4,
            channel_slots: 4096,
            channel_sleep: Some(Duration::from_micros(50)),
            channel_pin: true,
            library: String::from("libfabric.so.1"),
            sources: Sources::default(),
        }
    }
}

impl Settings {
    /// Whether puts are posted together, from both settings about it.
    pub fn batching(&self) -> BatchChoice {
        if self.disable_batch_rma { BatchChoice::Never } else { self.batch_rma }
    }

    /// What the fabric is opened with.
    pub fn ofi(&self) -> Options {
        let asked = self.sources.of("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT") != Source::Default;
        Options {
            library: self.library.clone(),
            provider: self.provider,
            fabric: self.fabric.clone(),
            devices: self.devices.clone(),
            max_nic_per_pe: self.max_nic_per_pe,
            progress: self.progress,
            threading: self.threading,
            queue_depth: self.queue_depth,
            max_segment: self.max_segment,
            atomics: self.atomics,
            batch_rma: self.batching(),
            gpu_direct: self.gpu_direct,
            gdr_level: self.gdr_level,
            rail_loss: match self.rail_timeout {
                None => RailLoss::EndsJob,
                Some(_) if asked => RailLoss::SurvivedWherePossible,
                Some(_) => RailLoss::SurvivedWhereShown,
            },
        }
    }

    /// Whether counters go to files, of which some is written or removed when the process ends.
    pub fn counts_outside(&self) -> bool {
        self.counters.is_some() || self.counters_page != CountersPage::None
    }

    /// Whether words may be reached by GDRCopy, from both settings about it.
    pub fn may_use_gdrcopy(&self) -> bool {
        !self.disable_gdrcopy && matches!(self.words, WordsChoice::Auto | WordsChoice::Gdrcopy)
    }

    /// Whether words may be reached by a mapped dma-buf.
    pub fn may_map_dma_bufs(&self) -> bool {
        matches!(self.words, WordsChoice::Auto | WordsChoice::DmaBuf)
    }
}

/// Which rail an operation goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailBalance {
    /// The one that is expected to be done with it first.
    Rate,
    /// The next.
    RoundRobin,
}

/// Which operations are cut into segments for all rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StripeThreshold {
    /// Those for which it pays with the provider.
    Auto,
    /// None.
    Never,
    /// Those with at least so many bytes.
    Bytes(u64),
}

/// How the signal of a put follows its data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignalChoice {
    /// The fastest that each put and the provider allow.
    Auto,
    /// Back to back with the data on one rail.
    Native,
    /// When its own data is delivered.
    Chained,
    /// In one message with small data.
    Eager,
    /// At once, for the target to count the data's segments.
    Counted,
}

/// Which CUDA context memory of devices is staged in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StagingChoice {
    /// One of the transport's own where that works.
    Auto,
    /// One of the transport's own.
    Own,
    /// The program's.
    Program,
}

/// How the CPU reaches words in memory of devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordsChoice {
    /// The first that works of the others.
    Auto,
    /// By GDRCopy.
    Gdrcopy,
    /// By a mapped dma-buf.
    DmaBuf,
    /// By the driver's streams.
    Stream,
}

/// How data that NICs have written to device memory is made visible to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConsistencyChoice {
    /// As the device's attributes ask for.
    Auto,
    /// Nothing is done.
    None,
    /// CUDA's flush call.
    Flush,
    /// A read through each rail.
    Read,
    /// A write, then a read, through each rail.
    WriteRead,
}

/// Where counters are published while the job runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CountersPage {
    /// Nowhere.
    None,
    /// In a directory of shared memory that is the user's.
    Auto,
    /// In this directory.
    In(PathBuf),
}

/// The signal at which counters are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountersSignal {
    /// None.
    None,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

/// When an idle progress call gives up its core.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum YieldWhen {
    /// When the host is short of cores.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
