//! Instructions per operation: in the plugin, and in the device channel's proxy.

mod channel;
mod crowd;
mod efa;
mod local;
mod nccl;
mod null;
mod peers;
mod puts;
mod signals;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use nvshmem_sim::{BoxError, Scenario};

use crate::callgrind::{Callgrind, Cost, is_plugin, nvshmem_bench_mark};
use crate::harness::fabric::{Fabric, Provider, absolute};
use crate::harness::launch::{ALLOWANCE, run};
use crate::harness::report::{Report, breakdown};
use crate::suites::channel::PART;
use crate::suites::signals::State;
use crate::times::case::Shape;
use nvshmem_sim::PrivateDir;

/// What a process that is counted does.
pub(crate) type Process = fn() -> Result<(), BoxError>;

/// Those that are no jobs of the simulator, by what [`PART`] says to them.
pub(crate) const PROCESSES: [(&str, Process); 5] = [
    (channel::NAME, channel::process),
    (peers::NAME, peers::process),
    (crowd::NAME, crowd::process),
    (local::NAME, local::process),
    (nccl::NAME, nccl::process),
];

/// The provider under which instructions are counted. Our code is the same for all. Not shm: its
/// 1.17 leaves some of a window of puts undelivered until their sender polls, so that there is no
/// moment at which all completions are known to be there.
const PROVIDER: Provider = Provider::Rxm;

/// What the names of figures end in that are of processes with CUDA.
const CUDA: &str = "_cuda";

/// The put over efa-direct, one rail, without CUDA: of ours alone.
const OF_OURS: &str = "efa_direct_put_instructions_of_ours";

/// Scenarios of jobs that are counted.
pub(crate) const SCENARIOS: [(&str, Scenario); 2] =
    [(puts::SCENARIO, puts::scenario), (signals::SCENARIO, signals::scenario)];

/// What is counted, and how much is told.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Options {
    /// What to count; everything unless named
    #[arg(value_enum)]
    what: Vec<What>,
    /// The installed plugins, for puts and signals
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Count in processes with CUDA as well: the libcuda.so.1 in DIR, a stand-in, is the driver
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    cuda_driver: Option<PathBuf>,
    #[command(flatten)]
    efa: efa::Options,
    /// Keep callgrind's files in DIR, for callgrind_annotate
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    keep: Option<PathBuf>,
}

/// What can be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum What {
    /// Puts, gets, quiet and progress
    Puts,
    /// Puts with signal, and signals alone, at both ends
    Signals,
    /// What the device channel adds to a put
    Channel,
    /// Progress, fence and quiet with few peers and with many
    Peers,
    /// What the engine does for a put and a get, by what local memory it is
    Local,
    /// What NCCL's calls cost
    Nccl,
}

/// The job in which is counted.
#[derive(Clone, Copy)]
struct Setting<'a> {
    rails: usize,
    /// The stand-in for CUDA's driver, in processes with CUDA.
    driver: Option<&'a Path>,
    /// In place of [`PROVIDER`].
    efa: Option<efa::Efa<'a>>,
    /// The engine for puts with signal that are too long for one message.
    long: Option<&'static str>,
}

impl<'a> Setting<'a> {
    /// One rail of [`PROVIDER`], without CUDA.
    const PLAIN: Self = Self { rails: 1, driver: None, efa: None, long: None };

    /// What the names of its figures end in.
    fn suffix(&self) -> String {
        let rails = match self.rails {
            1 => String::new(),
            rails => format!("_{rails}_rails"),
        };
        let efa = self.efa.map_or("", |efa| efa.suffix);
        let cuda = if self.driver.is_some() { CUDA } else { "" };
        let long = self.long.map_or(String::new(), |engine| format!("_long_{engine}"));
        format!("{rails}{efa}{cuda}{long}")
    }

    fn describe(&self) -> String {
        let rails = format!("{} rail(s)", self.rails);
        let efa = self.efa.map(|efa| format!("fabric {} of efa, on a stand-in", efa.fabric));
        let cuda = self.driver.map(|_| String::from("on host memory, in processes with CUDA"));
        let long = self.long.map(|engine| format!("{} bytes, {engine}", signals::LONG));
        let parts: Vec<String> = [Some(rails), efa, cuda, long].into_iter().flatten().collect();
        parts.join(", ")
    }

    /// Puts with signal that are too long for one message, by each engine that efa-direct has for
    /// them.
    fn long(options: &'a Options) -> impl Iterator<Item = Self> {
        let direct = options.efa.fabrics().into_iter().filter(efa::Efa::is_direct);
        direct.flat_map(|efa| {
            ["counted", "chained"].map(|engine| Self {
                efa: Some(efa),
                long: Some(engine),
                ..Self::PLAIN
            })
        })
    }

    /// One rail, with and without CUDA where there is a driver, on [`PROVIDER`] and the fabrics of
    /// efa.
    fn all(options: &'a Options) -> Vec<Self> {
        let drivers = [None, options.cuda_driver.as_deref()];
        let drivers = &drivers[..1 + usize::from(options.cuda_driver.is_some())];
        let efa = options.efa.fabrics().into_iter().map(Some);
        let fabrics: Vec<_> = [None].into_iter().chain(efa).collect();
        let with = |efa| drivers.iter().map(move |&driver| Self { driver, efa, ..Self::PLAIN });
        fabrics.into_iter().flat_map(with).collect()
    }
}

/// A figure: two sections of a process, a short one and the long one behind it.
struct Counted {
    /// For people.
    what: String,
    name: String,
    /// Number of the process's short section.
    section: usize,
    /// Operations of the two.
    lengths: [u64; 2],
    /// Whether its breakdown is of interest without being asked for.
    broken_down: bool,
}

impl Options {
    fn wants(&self, what: What) -> bool {
        self.what.is_empty() || self.what.contains(&what)
    }

    fn files(&self, dir: &PrivateDir) -> PathBuf {
        self.keep.clone().unwrap_or_else(|| dir.path().to_owned())
    }
}

/// Counts what is asked for, and keeps the figures.
///
/// # Errors
/// No valgrind, a job that failed, files that are not understood.
pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    if options.wants(What::Puts) {
        let more = puts::RAILS.into_iter().filter(|rails| *rails > 1);
        let more = more.map(|rails| Setting { rails, ..Setting::PLAIN });
        for setting in Setting::all(options).into_iter().chain(more) {
            println!("\ninstructions per operation, {}", setting.describe());
            let counted = vec![puts::counted(&setting.suffix(), setting.rails == 1)];
            let costs = job(options, report, puts::SCENARIO, setting, counted)?;
            if let ([put, ..], Some(true), None) =
                (&costs[..], setting.efa.as_ref().map(efa::Efa::is_direct), setting.driver)
            {
                report.push(OF_OURS.to_owned(), put.ours, "instructions");
            }
        }
    }
    if options.wants(What::Signals) {
        for setting in Setting::all(options).into_iter().chain(Setting::long(options)) {
            println!("\ninstructions per put_signal and per signal, {}", setting.describe());
            signals(options, report, setting)?;
        }
    }
    if options.wants(What::Channel) {
        println!("\ninstructions per 8-byte put, over a fabric that does nothing");
        channel::measure(options, report)?;
    }
    if options.wants(What::Peers) {
        println!("\ninstructions per call, over a fabric that does nothing");
        peers::measure(options, report)?;
        crowd::measure(options, report)?;
    }
    if options.wants(What::Local) {
        println!("\ninstructions of the engine, over a fabric that does nothing");
        local::measure(options, report)?;
    }
    if options.wants(What::Nccl) {
        println!("\ninstructions per call of NCCL's, over {}", PROVIDER.name());
        nccl::measure(options, report)?;
    }
    Ok(())
}

/// Two sections of a process, of so many repeats each.
fn sections(
    lengths: [u64; 2],
    mut repeat: impl FnMut(u64) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    for length in lengths {
        nvshmem_bench_mark();
        repeat(length)?;
        nvshmem_bench_mark();
    }
    Ok(())
}

/// Counts in a process that is no job of the simulator: this program, as the part with this name.
fn process(options: &Options, dir: &PrivateDir, part: &str) -> Result<Callgrind, BoxError> {
    process_with(options, dir, part, &[])
}

/// The same, with more in its environment.
fn process_with(
    options: &Options,
    dir: &PrivateDir,
    part: &str,
    environment: &[(&str, &str)],
) -> Result<Callgrind, BoxError> {
    let callgrind = Callgrind::new(&options.files(dir), part)?;
    let prefix = callgrind.prefix();
    let status = Command::new(&prefix[0])
        .args(&prefix[1..])
        .arg(env::current_exe()?)
        .env(PART, part)
        .envs(environment.iter().copied())
        .status()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !status.success() {
        return Err(format!("counting {part}: {status}").into());
    }
    Ok(callgrind)
}

/// Counts puts with signal and signals, at both ends.
fn signals(options: &Options, report: &mut Report, setting: Setting<'_>) -> Result<(), BoxError> {
    let suffix = setting.suffix();
    let counted = signals::counted(&suffix, setting.long.is_some());
    let counted_kinds = counted.first().map_or(1, Vec::len);
    let costs = job(options, report, signals::SCENARIO, setting, counted)?;
    for kind in signals::Kind::ALL.into_iter().take(counted_kinds) {
        let both = costs.iter().skip(kind as usize).step_by(counted_kinds);
        let name = format!("{}_instructions{suffix}", kind.name());
        report.push(name, both.map(|cost| cost.ours).sum(), "instructions");
    }
    Ok(())
}

/// Counts in a job of two PEs, which have a device where a stand-in for its driver is given: for
/// each PE that is counted, what it has counted.
fn job(
    options: &Options,
    report: &mut Report,
    scenario: &str,
    setting: Setting<'_>,
    counted: Vec<Vec<Counted>>,
) -> Result<Vec<Cost>, BoxError> {
    let plugin_dir = options.plugin_dir.clone();
    let plugin_dir = Some(plugin_dir.ok_or("counting in the plugin needs --plugin-dir DIR")?);
    let fabric = Fabric { plugin_dir, libfabric2: None, settings: Vec::new() };
    let dir = PrivateDir::new("nvshmem-bench")?;
    let job = fabric.job(scenario, PROVIDER, Shape { peers: 1, rails: setting.rails })?;
    let job = match setting.efa {
        Some(efa) => efa.on(job, &dir)?,
        None => job,
    };
    let job = match setting.long {
        Some(engine) => job.param(signals::BYTES, signals::LONG).debug("signals", engine),
        None => job,
    };
    let mut job = match setting.driver {
        Some(driver) => State::job_with_device(job, driver),
        None => State::job(job),
    };
    let mut processes = Vec::new();
    for (pe, counted) in (0..).zip(counted) {
        let name = format!("{scenario}{}.pe-{pe}", setting.suffix());
        let callgrind = Callgrind::new(&options.files(&dir), &name)?;
        job.prefix_of_pe.insert(pe, callgrind.prefix());
        processes.push((callgrind, counted));
    }
    run(job, &dir, ALLOWANCE, &mut |_| {})?;
    let mut costs = Vec::new();
    for (callgrind, counted) in processes {
        costs.extend(figures(report, &callgrind, counted)?);
    }
    Ok(costs)
}

/// Makes figures of what a process has counted.
fn figures(
    report: &mut Report,
    callgrind: &Callgrind,
    counted: Vec<Counted>,
) -> Result<Vec<Cost>, BoxError> {
    let mut costs = Vec::new();
    for Counted { what, name, section, lengths, .. } in &counted {
        let cost = callgrind.cost(*section, *lengths, is_plugin);
        let cost = cost.map_err(|e| format!("{what}: {e}"))?;
        report.counted(what, name.clone(), &cost);
        costs.push(cost);
    }
    for (Counted { what, broken_down, .. }, cost) in counted.iter().zip(&costs) {
        if *broken_down {
            breakdown(what, cost);
        }
    }
    Ok(costs)
}
