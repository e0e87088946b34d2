//! Checks and measures the device channel on the machine's GPU.
//!
//! ```text
//! nvshmem-channel-check                  all checks, then all measures, on the first GPU
//! nvshmem-channel-check --host           the same with CPU threads in the GPU's place
//! nvshmem-channel-check --checks         checks alone, for a sanitizer for one
//! nvshmem-channel-check --memory device  with the kernels' heap in memory of the GPU alone; else
//!                                        both there and on the host
//! nvshmem-channel-check --job            several PEs, a process each, over the fabric that the
//!                                        environment says: every kernel, then measures between
//!                                        two; the n-th PE on the n-th GPU, or the last
//! nvshmem-channel-check --job --experts  tokens to experts and back between two PEs, and how fast
//! ```
//!
//! Needs CUDA's driver, and libfabric for `--job`. Without a GPU it says so and ends with status 0;
//! when something is wrong, with status 1.

use std::process::ExitCode;

use channel_check::bed::HeapAt;
use channel_check::checks;
use channel_check::image::PES;
use channel_check::job::experts::{self, Size};
use channel_check::job::launch::start;
use channel_check::job::measures::Naming;
use channel_check::job::pe::Job;
use channel_check::job::{checks as job_checks, measures as job_measures};
use channel_check::machines::gpu::{Gpu, NoGpu};
use channel_check::machines::host::Host;
use channel_check::machines::machine::{Machine, MachineError};
use channel_check::measures::{self, Rate};
use clap::{Parser, ValueEnum};
use launcher::Place;
use nvshmem_transport_libfabric::channel::MemoryLocation;

/// Checks and measures the device channel.
#[derive(Parser, Debug)]
#[command(name = "nvshmem-channel-check", version)]
struct Options {
    /// With CPU threads instead of a GPU
    #[arg(long)]
    host: bool,
    /// Checks, and no measures
    #[arg(long)]
    checks: bool,
    /// Measures, and no checks
    #[arg(long, conflicts_with = "checks")]
    measures: bool,
    /// Where the kernels' heap is; host memory alone with --host
    #[arg(long, value_enum)]
    memory: Option<Where>,
    /// The whole way between PEs: kernels, channels, fabric
    #[arg(long)]
    job: bool,
    /// Tokens to experts and back, between two PEs, in place of checks and measures
    #[arg(long, requires = "job", conflicts_with_all = ["checks", "measures"])]
    experts: bool,
    /// Tokens of each PE, with --experts
    #[arg(long, default_value_t = 128, requires = "experts", value_parser = clap::value_parser!(u32).range(1..=4096))]
    tokens: u32,
    /// Providers to run jobs over, one after the other, separated by commas
    #[arg(long, requires = "job", value_delimiter = ',')]
    providers: Vec<String>,
    /// Decides in which order operations are delivered
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Times that each check is run, with other seeds
    #[arg(long, default_value_t = 3)]
    repeat: u64,
    /// Fail unless there is a GPU
    #[arg(long)]
    require_gpu: bool,
}

/// Where heaps are.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
enum Where {
    Host,
    Device,
    Both,
}

impl Options {
    fn memory(&self) -> &'static [MemoryLocation] {
        let default = if self.host { Where::Host } else { Where::Both };
        match self.memory.unwrap_or(default) {
            Where::Host => &[MemoryLocation::Host],
            Where::Device => &[MemoryLocation::Device],
            Where::Both => &[MemoryLocation::Host, MemoryLocation::Device],
        }
    }
}

/// The variable that names the provider.
const PROVIDER: &str = "NVSHMEM_LIBFABRIC_PROVIDER";

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-channel-check: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), MachineError> {
    let place = if options.job { Place::of_process() } else { None };
    if options.job && place.is_none() {
        return start_jobs(options);
    }
    let machine: Box<dyn Machine> = if options.host {
        Box::new(Host { threads: 12 })
    } else {
        match Gpu::open(place.as_ref().map_or(0, |place| place.me)) {
            Ok(gpu) => Box::new(gpu),
            Err(NoGpu::Absent(reason)) if !options.require_gpu => {
                println!("skipped: no GPU to run on: {reason}");
                return Ok(());
            }
            Err(error) => return Err(MachineError(error.to_string())),
        }
    };
    if let Some(place) = place {
        return machine.with_device(&mut || pe(options, machine.as_ref(), &place));
    }
    println!("on {}", machine.name());
    if !options.measures {
        for location in options.memory() {
            let heap = match location {
                MemoryLocation::Device => HeapAt::Device,
                MemoryLocation::Host => HeapAt::Host,
            };
            for repeat in 0..options.repeat {
                let seed = options.seed.wrapping_add(repeat * 1000);
                let count = checks::run_all(machine.as_ref(), heap, seed)?;
                println!("{count} checks passed, heap on {location:?}, seed {seed}");
            }
        }
    }
    if !options.checks {
        measure(machine.as_ref(), options.host)?;
    }
    Ok(())
}

/// Starts a job for checks, and one for measures, over each provider.
fn start_jobs(options: &Options) -> Result<(), MachineError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let with = |flag: &str| arguments.iter().cloned().chain([flag.to_owned()]).collect::<Vec<_>>();
    let given: Vec<Vec<(&str, String)>> = match options.providers.as_slice() {
        [] => vec![Vec::new()],
        named => named.iter().map(|provider| vec![(PROVIDER, provider.clone())]).collect(),
    };
    for variables in given {
        if options.checks {
            start(PES, &arguments, &variables)?;
        } else if options.measures || options.experts {
            start(2, &arguments, &variables)?;
        } else {
            start(PES, &with("--checks"), &variables)?;
            start(2, &with("--measures"), &variables)?;
        }
    }
    Ok(())
}

/// A PE's part of a job.
fn pe(options: &Options, machine: &dyn Machine, place: &Place) -> Result<(), MachineError> {
    let job = Job::new(machine, place)?;
    let provider = std::env::var(PROVIDER).unwrap_or_else(|_| String::from("auto"));
    let says = place.me == 0;
    if says {
        println!("channel of {} PEs over {provider} on {}", place.n_pes, machine.name());
    }
    for location in options.memory() {
        if options.checks {
            for _ in 0..options.repeat {
                let count = job_checks::run(&job, *location)?;
                if says {
                    println!("{count} kernels checked over {provider}, heaps on {location:?}");
                }
            }
        } else {
            let (prefix, share) =
                if options.host { ("channel_host", 20) } else { ("channel_gpu", 1) };
            let naming = Naming { prefix, provider: &provider.replace(';', "_"), share };
            if options.experts {
                let size = size(options);
                experts::run(&job, *location, naming, &size)?;
            } else {
                job_measures::run(&job, *location, naming)?;
            }
        }
    }
    Ok(())
}

/// What experts have to do: tokens as those of a large model on a GPU, and less by CPU threads.
fn size(options: &Options) -> Size {
    let tokens = options.tokens as usize;
    if options.host {
        Size { tokens: tokens.min(16), values: 256, rounds: 2, shape: (4, 1) }
    } else {
        Size { tokens, values: 7168, rounds: 10, shape: (32, 256) }
    }
}

/// Threads, rings and CPU threads that take.
const SHAPES: [(u32, u32, u32); 19] = [
    (1, 1, 1),
    (32, 1, 1),
    (64, 1, 1),
    (128, 1, 1),
    (256, 1, 1),
    (1024, 1, 1),
    (64, 2, 1),
    (256, 2, 1),
    (1024, 2, 1),
    (128, 4, 1),
    (256, 4, 1),
    (512, 4, 1),
    (1024, 4, 1),
    (256, 4, 2),
    (1024, 4, 2),
    (1024, 4, 4),
    (256, 8, 1),
    (1024, 8, 1),
    (1024, 8, 4),
];

fn measure(machine: &dyn Machine, is_host: bool) -> Result<(), MachineError> {
    if !is_host {
        for fence in [true, false] {
            let latency = measures::latency(machine, 2000, fence)?;
            let fence = if fence { "" } else { "_no_fence" };
            println!("MEASURE channel_echo{fence}_ns {:.0}", latency.echo);
            println!("MEASURE channel_echo{fence}_p99_ns {:.0}", latency.echo_p99);
            println!("MEASURE channel_echo{fence}_least_ns {:.0}", latency.echo_least);
            println!("MEASURE channel_look{fence}_ns {:.0}", latency.look);
            println!("MEASURE channel_push{fence}_ns {:.0}", latency.push);
            println!("MEASURE channel_seen{fence}_ns {:.0}", latency.seen());
        }
    }
    for fence in [true, false] {
        for (threads, rings, consumers) in SHAPES {
            if is_host && threads > 64 {
                continue;
            }
            let total = (100_000 * u64::from(threads)).min(4_000_000);
            let shape = Rate { threads, rings, consumers, fence, total };
            // The first one loads code and wakes the device.
            let mut rates = Vec::new();
            for _ in 0..3 {
                rates.push(measures::rate(machine, &shape)?);
            }
            rates.sort_by(f64::total_cmp);
            let fence = if fence { "" } else { "_no_fence" };
            println!(
                "MEASURE channel_pushes_{threads}_threads_{rings}_rings_{consumers}_consumers{fence} \
                 {:.0}",
                rates[1]
            );
        }
    }
    Ok(())
}
