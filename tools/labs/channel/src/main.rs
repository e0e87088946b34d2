//! Checks the device channel's kernels: three PEs, a process each, run every kernel over a fabric,
//! and the memory of all is compared with a model of the kernel.
//!
//! ```text
//! nvshmem-channel-check                  the n-th PE on the n-th GPU, or the last
//! nvshmem-channel-check --host           with CPU threads in the GPUs' place
//! nvshmem-channel-check --memory device  with heaps in memory of the GPUs alone; else both there
//!                                        and on the host
//! nvshmem-channel-check --providers tcp  over this provider; else over the one that the
//!                                        environment says
//! ```
//!
//! Needs libfabric, and CUDA's driver unless with `--host`. Without a GPU it says so and ends with
//! status 0; when something is wrong, with status 1. PEs on one GPU take turns there, unless CUDA's
//! multi-process service runs.

mod checks;
mod image;
mod job;
mod machines;
mod models;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use launcher::{End, Limits, Place};
use nvshmem_transport_libfabric::channel::MemoryLocation;

use crate::image::PES;
use crate::job::Job;
use crate::machines::gpu::{Gpu, NoGpu};
use crate::machines::host::Host;
use crate::machines::{Machine, MachineError};

#[derive(Parser, Debug)]
#[command(name = "nvshmem-channel-check", version)]
struct Options {
    /// With CPU threads instead of GPUs
    #[arg(long)]
    host: bool,
    /// Where heaps are; host memory alone with --host
    #[arg(long, value_enum)]
    memory: Option<Where>,
    /// Providers to run over, one after the other, separated by commas
    #[arg(long, value_delimiter = ',')]
    providers: Vec<String>,
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

/// Longer than any job takes. Once a PE has failed, the others wait in vain.
const LIMITS: Limits = Limits { deadline: Duration::from_secs(540), grace: Duration::ZERO };

fn main() -> ExitCode {
    let options = Options::parse();
    let place = Place::of_process();
    match place.map_or_else(|| start(&options), |place| pe(&options, &place)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-channel-check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the jobs, one after the other.
fn start(options: &Options) -> Result<(), MachineError> {
    // A GPU is looked for here, as a PE that finds none would end the job with an error.
    match machine(options, 0) {
        Ok(machine) => println!("on {}", machine.name()),
        Err(NoGpu::Absent(reason)) if !options.require_gpu => {
            println!("skipped: no GPU to run on: {reason}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    }
    if options.providers.is_empty() {
        return run_job(None);
    }
    options.providers.iter().try_for_each(|provider| run_job(Some((PROVIDER, provider))))
}

/// Starts this program once for each PE, with its own arguments, and waits for all.
fn run_job(variable: Option<(&str, &str)>) -> Result<(), MachineError> {
    let ended = launcher::run_job(PES, LIMITS, |_, command| {
        command.args(std::env::args_os().skip(1)).envs(variable);
        Ok(())
    });
    let ended = ended.map_err(|error| MachineError(error.to_string()))?;
    let bad = || ended.iter().enumerate().filter(|(_, pe)| !pe.end.is_success());
    // The one that failed by itself says more than those killed because of it.
    let first = bad().find(|(_, pe)| pe.end != End::Killed).or_else(|| bad().next());
    first.map_or(Ok(()), |(pe, ended)| Err(MachineError(format!("PE {pe} {}", ended.end))))
}

fn machine(options: &Options, pe: u32) -> Result<Box<dyn Machine>, NoGpu> {
    if options.host {
        return Ok(Box::new(Host { threads: 12 }));
    }
    Ok(Box::new(Gpu::open(pe)?))
}

fn pe(options: &Options, place: &Place) -> Result<(), MachineError> {
    let machine = machine(options, place.me)?;
    machine.with_device(&mut || {
        let job = Job::new(machine.as_ref(), place)?;
        let provider = std::env::var(PROVIDER).unwrap_or_else(|_| String::from("auto"));
        for location in options.memory() {
            for _ in 0..options.repeat {
                let count = checks::run_all(&job, *location)?;
                if place.me == 0 {
                    println!("{count} kernels checked over {provider}, heaps on {location:?}");
                }
            }
        }
        Ok(())
    })
}
