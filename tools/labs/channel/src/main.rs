//! Checks the device channel's kernels on the machine's GPU.
//!
//! ```text
//! nvshmem-channel-check                  every kernel against its model, on the first GPU
//! nvshmem-channel-check --host           the same with CPU threads in the GPU's place
//! nvshmem-channel-check --memory device  with the kernels' heap in memory of the GPU alone; else
//!                                        both there and on the host
//! nvshmem-channel-check --job            three PEs, a process each, over the fabric that the
//!                                        environment or --providers says; the n-th PE on the n-th
//!                                        GPU, or the last
//! ```
//!
//! Needs CUDA's driver, and libfabric for `--job`. Without a GPU it says so and ends with status 0;
//! when something is wrong, with status 1. But for `--job` there is no fabric: this process stands
//! in for the peers.
//!
//! ```text
//! machines    where kernels run and their memory is: gpu, host
//! bed         a context with its rings and heaps; peers: what takes operations and executes them
//! checks      every kernel, against what must be in memory after it, as models say
//! job         PEs with channels, and a fabric between
//! ```

mod bed;
mod checks;
mod image;
mod job;
mod machines;
mod models;
mod peers;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use launcher::Place;
use nvshmem_transport_libfabric::channel::MemoryLocation;

use crate::bed::HeapAt;
use crate::job::Job;
use crate::machines::gpu::{Gpu, NoGpu};
use crate::machines::host::Host;
use crate::machines::machine::{Machine, MachineError};

#[derive(Parser, Debug)]
#[command(name = "nvshmem-channel-check", version)]
struct Options {
    /// With CPU threads instead of a GPU
    #[arg(long)]
    host: bool,
    /// Where the kernels' heap is; host memory alone with --host
    #[arg(long, value_enum)]
    memory: Option<Where>,
    /// The whole way between PEs: kernels, channels, fabric
    #[arg(long)]
    job: bool,
    /// Providers to run jobs over, one after the other, separated by commas
    #[arg(long, requires = "job", value_delimiter = ',')]
    providers: Vec<String>,
    /// Decides in which order operations are delivered
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[arg(long, default_value_t = 3)]
    repeat: u64,
    /// Fail unless there is a GPU
    #[arg(long)]
    require_gpu: bool,
}

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
        let named = options.providers.iter().map(|provider| Some((PROVIDER, provider.as_str())));
        let mut jobs: Vec<_> = named.collect();
        if jobs.is_empty() {
            jobs.push(None);
        }
        return jobs.into_iter().try_for_each(job::start);
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
            Err(NoGpu::Absent(reason) | NoGpu::Broken(reason)) => return Err(MachineError(reason)),
        }
    };
    if let Some(place) = place {
        return machine.with_device(&mut || pe(options, machine.as_ref(), &place));
    }
    println!("on {}", machine.name());
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
    Ok(())
}

fn pe(options: &Options, machine: &dyn Machine, place: &Place) -> Result<(), MachineError> {
    let job = Job::new(machine, place)?;
    let provider = std::env::var(PROVIDER).unwrap_or_else(|_| String::from("auto"));
    if place.me == 0 {
        println!("channel of {} PEs over {provider} on {}", place.n_pes, machine.name());
    }
    for location in options.memory() {
        for _ in 0..options.repeat {
            let count = job::checks::run(&job, *location)?;
            if place.me == 0 {
                println!("{count} kernels checked over {provider}, heaps on {location:?}");
            }
        }
    }
    Ok(())
}
