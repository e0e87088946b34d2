//! What the plugin costs: beside raw libfabric, and in instructions. `docs/performance.md` explains
//! the figures.

mod channel;
mod instructions;
mod nccl;
mod report;
mod suites;

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use libfabric_sys::DEFAULT_LIBRARY;
use nvshmem_bench::{Plan, RawOptions, SCENARIO, Schedule};
use nvshmem_sim::{BoxError, JobSettings, Layout, MemoryKind, UserMapped};

use report::Report;

const SUITES: [&str; 7] =
    ["puts", "signal", "staged", "channel", "connect", "instructions", "nccl"];

#[derive(Debug, Parser)]
#[command(name = "nvshmem-bench")]
struct Options {
    #[arg(required = true, value_parser = SUITES)]
    suites: Vec<String>,
    /// The installed plugins (nvshmem_transport_libfabric.so.N)
    #[arg(long, value_name = "DIR", default_value = "target/install/lib")]
    plugin_dir: PathBuf,
    /// A libfabric 2.x, for the native tcp provider
    #[arg(long, value_name = "FILE", value_parser = absolute)]
    libfabric2: Option<PathBuf>,
    /// A stand-in for CUDA's driver, for staged and instructions: the libcuda.so.1 in DIR. Without
    /// it staged uses the machine's own
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    cuda_driver: Option<PathBuf>,
    #[arg(long, value_enum, value_delimiter = ',', default_value = "tcp,rxm,shm")]
    only: Vec<Provider>,
    /// Jobs of each kind: connections of their own, whose luck differs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Least time of a round in milliseconds: above what a scheduler's time slice can distort
    #[arg(long, value_name = "N", default_value_t = 12)]
    round_ms: u64,
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "2,4,8,16,32,64")]
    pes: Vec<u32>,
    #[arg(long, value_name = "DIR", value_parser = absolute)]
    keep: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Provider {
    /// libfabric's own tcp, with reliable datagram endpoints: libfabric 2.x
    Tcp,
    /// `tcp;ofi_rxm` of the installed libfabric
    Rxm,
    /// Shared memory, of the installed libfabric
    Shm,
}

impl Provider {
    fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Provider::Tcp => ("tcp", "tcp", "127.0.0.1"),
            Provider::Rxm => ("rxm", "tcp;ofi_rxm", "127.0.0.1"),
            Provider::Shm => ("shm", "shm", ""),
        }
    }
}

impl Options {
    fn schedule(&self) -> Schedule {
        Schedule { rounds: self.rounds, least: Duration::from_millis(self.round_ms) }
    }

    fn library(&self, provider: Provider) -> Result<String, BoxError> {
        if provider != Provider::Tcp {
            return Ok(DEFAULT_LIBRARY.to_owned());
        }
        let path =
            self.libfabric2.as_ref().ok_or("tcp needs --libfabric2 FILE, or --only rxm,shm")?;
        Ok(path.to_string_lossy().into_owned())
    }

    fn raw(&self, provider: Provider, delivered: bool) -> Result<RawOptions, BoxError> {
        let (_, name, source) = provider.names();
        let library = self.library(provider)?;
        Ok(RawOptions { library, provider: name.to_owned(), source: source.to_owned(), delivered })
    }

    fn on(
        &self,
        job: JobSettings,
        provider: Provider,
        rails: usize,
    ) -> Result<JobSettings, BoxError> {
        let devices: Vec<String> = match provider {
            // A device named twice is two rails.
            Provider::Shm => vec![String::from("shm"); rails],
            Provider::Tcp | Provider::Rxm => (1..=rails).map(|n| format!("127.0.0.{n}")).collect(),
        };
        Ok(job
            .env("NVSHMEM_LIBFABRIC_PROVIDER", provider.names().1)
            .env("NVSHMEM_LIBFABRIC_DEVICES", devices.join(","))
            .env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", rails)
            .env("NVSHMEM_LIBFABRIC_LIBRARY", self.library(provider)?)
            // As the raw side does, whatever the number of cores.
            .env("NVSHMEM_LIBFABRIC_YIELD", "always")
            .env("NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS", 60))
    }

    fn job(&self, plan: &Plan, provider: Provider, rails: usize) -> Result<JobSettings, BoxError> {
        let job = self.on(plan.job(Layout::V7, &self.plugin_dir)?, provider, rails)?;
        if plan.chunks < 2 {
            return Ok(job);
        }
        let job = job
            .env("NVSHMEM_LIBFABRIC_GPU_DIRECT", "never")
            .memory(MemoryKind::DeviceVmm)
            .user_mapped(UserMapped::HostNuma);
        Ok(match &self.cuda_driver {
            Some(directory) => job.library_path(directory),
            None => job,
        })
    }
}

fn absolute(path: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(path)
}

const PART: &str = "NVSHMEM_BENCH_PART";

fn part(prefix: Vec<std::ffi::OsString>, name: &str) -> Result<Command, BoxError> {
    let mut words = prefix.into_iter().chain([env::current_exe()?.into_os_string()]);
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).env(PART, name);
    Ok(command)
}

fn run() -> Result<(), BoxError> {
    if let Ok(part) = env::var(PART) {
        let is_nccl = part.starts_with(nccl::PART);
        return if is_nccl { nccl::process(&part) } else { channel::process(&part) };
    }
    nvshmem_sim::pe_entry(&[SCENARIO, suites::CONNECT]);
    let options = Options::parse();
    let mut report = Report::default();
    for suite in &options.suites {
        match suite.as_str() {
            "puts" => suites::puts(&options, &mut report),
            "signal" => suites::signal(&options, &mut report),
            "staged" => suites::staged(&options, &mut report),
            "channel" => channel::measure(&options, &mut report),
            "connect" => suites::connect(&options, &mut report),
            "instructions" => instructions::measure(&options, &mut report),
            _ => nccl::measure(&options, &mut report),
        }?;
    }
    report.print()
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
