//! Checks and measures the device channel on the machine's GPU.
//!
//! ```text
//! nvshmem-channel-check              all checks, then all measures, on the first GPU
//! nvshmem-channel-check --host       the same with CPU threads in the GPU's place
//! nvshmem-channel-check --checks     checks alone, for a sanitizer for one
//! nvshmem-channel-check --job        two PEs, a process each, over the fabric that the environment says
//! ```
//!
//! Needs CUDA's driver, and libfabric for `--job`. Without a GPU it says so and ends with status 0; when something is
//! wrong, with status 1.

use std::process::ExitCode;

use channel_check::checks;
use channel_check::gpu::{Gpu, NoGpu};
use channel_check::host::Host;
use channel_check::job;
use channel_check::machine::{Machine, MachineError};
use channel_check::measures::{self, Rate};
use clap::Parser;

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
    /// The whole way between two PEs: kernels, channels, fabric
    #[arg(long, conflicts_with_all = ["checks", "measures"])]
    job: bool,
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
    if options.job && job::this_pe().is_none() {
        return job::start(&std::env::args().skip(1).collect::<Vec<_>>());
    }
    let machine: Box<dyn Machine> = if options.host {
        Box::new(Host { threads: 12 })
    } else {
        match Gpu::open() {
            Ok(gpu) => Box::new(gpu),
            Err(NoGpu::Absent(reason)) if !options.require_gpu => {
                println!("skipped: no GPU to run on: {reason}");
                return Ok(());
            }
            Err(error) => return Err(MachineError(error.to_string())),
        }
    };
    if let (true, Some(pe)) = (options.job, job::this_pe()) {
        let (prefix, share) = if options.host { ("channel_host", 20) } else { ("channel_gpu", 1) };
        return machine.with_device(&mut || job::run(machine.as_ref(), pe, prefix, share));
    }
    println!("on {}", machine.name());
    if !options.measures {
        for repeat in 0..options.repeat {
            let seed = options.seed.wrapping_add(repeat * 1000);
            let count = checks::run_all(machine.as_ref(), seed)?;
            println!("{count} checks passed, seed {seed}");
        }
    }
    if !options.checks {
        measure(machine.as_ref(), options.host)?;
    }
    Ok(())
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
