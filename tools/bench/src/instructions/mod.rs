//! Instructions per operation: in the plugin, and in the device channel's proxy.

mod channel;
mod null;
mod peers;
mod puts;
mod signals;

use std::env;
use std::path::PathBuf;
use std::process::Command;

use nvshmem_sim::{BoxError, Scenario};

use crate::callgrind::{Callgrind, Cost, is_plugin};
use crate::harness::fabric::{Fabric, Provider, absolute};
use crate::harness::launch::{ALLOWANCE, WorkDir, run};
use crate::harness::report::{Report, breakdown};
use crate::suites::channel::PART;
use crate::suites::signals::State;
use crate::times::case::Shape;

pub(crate) use channel::{NAME as CHANNEL, process as channel_process};
pub(crate) use peers::{NAME as PEERS, process as peers_process};

/// The provider under which instructions are counted. Our code is the same for all. Not shm: its
/// 1.17 leaves some of a window of puts undelivered until their sender polls, so that there is no
/// moment at which all completions are known to be there.
const PROVIDER: Provider = Provider::Rxm;

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
    /// Keep callgrind's files in DIR, for callgrind_annotate
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    keep: Option<PathBuf>,
}

/// What can be counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum What {
    /// Puts, gets, quiet and progress
    Puts,
    /// Puts with signal, at both ends
    Signals,
    /// What the device channel adds to a put
    Channel,
    /// Progress, fence and quiet with few peers and with many
    Peers,
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

    fn files(&self, dir: &WorkDir) -> PathBuf {
        self.keep.clone().unwrap_or_else(|| dir.path().to_owned())
    }
}

/// Counts what is asked for, and keeps the figures.
///
/// # Errors
/// No valgrind, a job that failed, files that are not understood.
pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    if options.wants(What::Puts) {
        for rails in puts::RAILS {
            println!("\ninstructions per operation, {rails} rail(s)");
            job(options, report, puts::SCENARIO, rails, vec![puts::counted(rails)])?;
        }
    }
    if options.wants(What::Signals) {
        println!("\ninstructions per 8-byte put_signal, 1 rail");
        let ends = job(options, report, signals::SCENARIO, 1, signals::counted())?;
        let both = ends.iter().map(|cost| cost.ours).sum();
        report.push(String::from("put_signal_instructions"), both, "instructions");
    }
    if options.wants(What::Channel) {
        println!("\ninstructions per 8-byte put, over a fabric that does nothing");
        channel::measure(options, report)?;
    }
    if options.wants(What::Peers) {
        println!("\ninstructions per call, over a fabric that does nothing");
        peers::measure(options, report)?;
    }
    Ok(())
}

/// Counts in a process that is no job of the simulator: this program, as the part with this name.
fn process(options: &Options, dir: &WorkDir, part: &str) -> Result<Callgrind, BoxError> {
    let callgrind = Callgrind::new(&options.files(dir), part)?;
    let prefix = callgrind.prefix();
    let status = Command::new(&prefix[0])
        .args(&prefix[1..])
        .arg(env::current_exe()?)
        .env(PART, part)
        .status()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !status.success() {
        return Err(format!("counting {part}: {status}").into());
    }
    Ok(callgrind)
}

/// Counts in a job of two PEs: for each PE that is counted, what it has counted.
fn job(
    options: &Options,
    report: &mut Report,
    scenario: &str,
    rails: usize,
    counted: Vec<Vec<Counted>>,
) -> Result<Vec<Cost>, BoxError> {
    let plugin_dir = options.plugin_dir.clone();
    let plugin_dir = plugin_dir.ok_or("counting in the plugin needs --plugin-dir DIR")?;
    let fabric = Fabric { plugin_dir, libfabric2: None, settings: Vec::new() };
    let dir = WorkDir::create()?;
    let mut job = State::job(fabric.job(scenario, PROVIDER, Shape { peers: 1, rails })?);
    let mut processes = Vec::new();
    for (pe, counted) in (0..).zip(counted) {
        let name = format!("{scenario}.{rails}-rails.pe-{pe}");
        let callgrind = Callgrind::new(&options.files(&dir), &name)?;
        job.prefix_of_pe.insert(pe, callgrind.prefix());
        processes.push((callgrind, counted));
    }
    run(job, &dir, ALLOWANCE)?;
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
