//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Parser, ValueEnum};

/// Runs programs of NVSHMEM, or of NCCL's RMA and GIN, through this transport and reports.
#[derive(Debug, Parser)]
#[command(version, group = ArgGroup::new("library").required(true).args(["nvshmem", "nccl"]))]
pub(crate) struct Options {
    /// The NVSHMEM: a directory with include and lib. With pip it is nvidia/nvshmem in
    /// site-packages.
    #[arg(long)]
    pub(crate) nvshmem: Option<PathBuf>,
    /// NCCL, likewise; with pip it is nvidia/nccl. What is in --programs runs as its ranks.
    #[arg(long, conflicts_with_all = ["perftests", "examples", "pplx"])]
    pub(crate) nccl: Option<PathBuf>,
    /// The directory with this project's nvshmem_transport_libfabric.so.N, or
    /// libnccl-rma-nvshmem-libfabric.so.
    #[arg(long)]
    pub(crate) plugin_dir: PathBuf,
    /// The directory with the programs, built for this NVSHMEM or NCCL.
    #[arg(long)]
    pub(crate) programs: Option<PathBuf>,
    /// The directory with NVSHMEM's perftests, built for this NVSHMEM.
    #[arg(long)]
    pub(crate) perftests: Option<PathBuf>,
    /// The directory with NVSHMEM's examples, built for this NVSHMEM.
    #[arg(long)]
    pub(crate) examples: Option<PathBuf>,
    /// The directory with pplx-kernels' test and bench, built for this NVSHMEM.
    #[arg(long)]
    pub(crate) pplx: Option<PathBuf>,
    /// Only programs whose name has one of these in it.
    #[arg(long, value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Arguments for our programs, such as "--rounds 1000"; to be used with --only.
    #[arg(long, default_value = "", allow_hyphen_values = true, requires = "only")]
    pub(crate) args: String,
    /// The libfabric to use, a file. Without it, the system's.
    #[arg(long)]
    pub(crate) libfabric: Option<PathBuf>,
    /// The providers to run over.
    #[arg(long, value_delimiter = ',', default_values_t = [String::from("tcp"), String::from("shm")])]
    pub(crate) providers: Vec<String>,
    /// PEs of each job. Perftests run with two, and so do NVIDIA's examples, but for one.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64))]
    pub(crate) pes: u32,
    /// Whether kernels of several PEs on one GPU may run at a time.
    #[arg(long, value_enum, default_value_t = MpsChoice::Auto)]
    pub(crate) mps: MpsChoice,
    /// Seconds after which a job is killed. Without it, 120, and more for whole suites of others.
    #[arg(long)]
    pub(crate) deadline: Option<u64>,
    /// Where the output of every PE stays. Without it, nothing does.
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
}

/// Whether CUDA's multi-process service is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum MpsChoice {
    /// Where it starts.
    Auto,
    /// It must start.
    On,
    /// No.
    Off,
}
