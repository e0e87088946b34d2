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
use nvshmem_sim::{BoxError, JobSettings, Layout, Scenario};
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
    fn memory(&self) -> &'static str {
        let default = if self.host { Where::Host } else { Where::Both };
        match self.memory.unwrap_or(default) {
            Where::Host => "host",
            Where::Device => "device",
            Where::Both => "both",
        }
    }
}

const PROVIDER: &str = "NVSHMEM_LIBFABRIC_PROVIDER";

/// Longer than any job takes.
const DEADLINE: Duration = Duration::from_secs(540);

const CHECK: (&str, Scenario) = ("check", pe);

fn main() -> ExitCode {
    nvshmem_sim::pe_entry(&[CHECK]);
    match start(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-channel-check: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the jobs, one after the other.
fn start(options: &Options) -> Result<(), BoxError> {
    // A GPU is looked for here, as a PE that finds none would end the job with an error.
    match machine(options.host, 0) {
        Ok(machine) => println!("on {}", machine.name()),
        Err(NoGpu::Absent(reason)) if !options.require_gpu => {
            println!("skipped: no GPU to run on: {reason}");
            return Ok(());
        }
        Err(error) => return Err(MachineError::from(error).into()),
    }
    if options.providers.is_empty() {
        return run_job(options, None);
    }
    options.providers.iter().try_for_each(|provider| run_job(options, Some(provider)))
}

/// Starts this program once for each PE, waits for all, and prints what PE 0 has printed.
fn run_job(options: &Options, provider: Option<&str>) -> Result<(), BoxError> {
    let job = JobSettings::new(CHECK.0, PES, Layout::V7, "")
        .inherits_settings()
        .deadline(DEADLINE)
        // Once a PE has failed, the others wait in vain.
        .grace(Duration::ZERO)
        .param("host", options.host)
        .param("memory", options.memory())
        .param("repeat", options.repeat);
    let job = provider.into_iter().fold(job, |job, provider| job.env(PROVIDER, provider));
    print!("{}", job.run()?.check()?.pes[0].text());
    Ok(())
}

fn machine(on_host: bool, pe: u32) -> Result<Box<dyn Machine>, NoGpu> {
    if on_host {
        return Ok(Box::new(Host { threads: 12 }));
    }
    Ok(Box::new(Gpu::open(pe)?))
}

fn pe(pe: &mut nvshmem_sim::Job) -> Result<(), BoxError> {
    let machine = machine(pe.param("host")?, pe.pe).map_err(MachineError::from)?;
    let locations: &[_] = match pe.param::<String>("memory")?.as_str() {
        "host" => &[MemoryLocation::Host],
        "device" => &[MemoryLocation::Device],
        _ => &[MemoryLocation::Host, MemoryLocation::Device],
    };
    let repeat: u64 = pe.param("repeat")?;
    machine.with_device(&mut || {
        let job = Job::new(machine.as_ref(), pe)?;
        let provider = std::env::var(PROVIDER).unwrap_or_else(|_| String::from("auto"));
        for location in locations {
            for _ in 0..repeat {
                let count = checks::run_all(&job, *location)?;
                if job.me == 0 {
                    println!("{count} kernels checked over {provider}, heaps on {location:?}");
                }
            }
        }
        Ok(())
    })?;
    Ok(())
}
