use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use ofi::Provider;

use crate::info::build;
use crate::probe::Subject;
use crate::selftest::hosts::Named;

/// NVSHMEM's transport over libfabric: what is there, what is loaded, what is wrong
#[derive(Debug, Parser)]
#[command(name = "nvshmem-libfabric", version, max_term_width = 100)]
#[command(long_version = &*build().leak())]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Say what is there: NVSHMEM and the plugin file it would load, libfabric, GPUs, settings
    Info(InfoOptions),
    /// Check this machine: what is well, what is not and what helps
    Doctor(DoctorOptions),
    /// Put all files into a prefix
    Install(InstallOptions),
    /// Undo what `install` has done
    Uninstall(UninstallOptions),
    /// Run all operations between PEs of this machine, or of several, every byte checked
    ///
    /// Neither a GPU nor NVSHMEM is needed: the PEs drive the plugin as NVSHMEM does.
    Selftest(SelftestOptions),
    /// Try everything on this machine's fabric in ten minutes, and write one file to send
    ///
    /// For machines that this project cannot see: what is there, and row by row what works and how
    /// fast. The file has no names of users and hosts, no paths and no addresses.
    Qualify(QualifyOptions),
    /// Measure bandwidth, latency and message rate between two PEs, of this machine or of two
    ///
    /// In the layout of NVSHMEM's perftests. Bytes are compared.
    Perf(PerfOptions),
    /// Start a program with this transport in front of NVSHMEM's own
    ///
    /// Any command line will do: the program, or python, torchrun, mpirun or srun with theirs.
    Run(RunOptions),
    /// Ask libfabric or CUDA's driver in a process of its own
    #[command(hide = true)]
    Probe { subject: Subject },
}

/// Which NVSHMEM, and which files of ours.
#[derive(Debug, Args)]
pub(crate) struct Where {
    /// The NVSHMEM: libnvshmem_host.so.3, or the directory above its lib
    #[arg(long, value_name = "PATH")]
    pub(crate) nvshmem: Option<PathBuf>,
    /// The directory with this project's nvshmem_transport_libfabric.so.N
    #[arg(long, value_name = "DIR")]
    pub(crate) plugin_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct InfoOptions {
    #[command(flatten)]
    pub(crate) r#where: Where,
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    pub(crate) only: Vec<Part>,
    /// With settings at their defaults, and each provider by itself
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Part {
    Plugins,
    Nvshmem,
    Fabric,
    Gpus,
    Settings,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    #[command(flatten)]
    pub(crate) r#where: Where,
    /// Warnings count as errors do
    #[arg(long)]
    pub(crate) strict: bool,
    /// The details of what is well, too
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InstallOptions {
    /// A directory with bin, lib, include and share, such as /usr/local
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix: PathBuf,
    /// The directory with this project's nvshmem_transport_libfabric.so.N
    #[arg(long, value_name = "DIR")]
    pub(crate) plugin_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallOptions {
    /// The directory that `install` was given
    #[arg(long, value_name = "DIR")]
    pub(crate) prefix: PathBuf,
}

/// Which hosts, and how they are reached.
#[derive(Debug, Default, Args)]
pub(crate) struct Reach {
    /// The hosts, and how many PEs each takes if more than one; localhost is this one
    #[arg(long, value_delimiter = ',', value_name = "HOST[:PES]", value_parser = Named::parse)]
    pub(crate) hosts: Vec<Named>,
    /// The command that starts a shell on a host, whose name goes behind it or in place of {host}
    #[arg(long, value_name = "COMMAND", default_value = SSH, requires = "hosts")]
    pub(crate) ssh: String,
    /// Where this tool is installed on the other hosts [default: at the same path as here]
    #[arg(long, value_name = "DIR", requires = "hosts")]
    pub(crate) prefix: Option<PathBuf>,
}

/// Where the PEs of a job are, and on what memory.
#[derive(Debug, Args)]
pub(crate) struct JobOptions {
    /// The directory with this project's nvshmem_transport_libfabric.so.N
    #[arg(long, value_name = "DIR")]
    pub(crate) plugin_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// What the symmetric heap is made of
    #[arg(long, value_enum, default_value_t = Memory::Host)]
    pub(crate) memory: Memory,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SelftestOptions {
    #[command(flatten)]
    pub(crate) job: JobOptions,
    /// PEs of each job
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..=64), conflicts_with = "hosts")]
    pub(crate) pes: u32,
    /// The providers [default: what the transport would take on one host, and shm]
    #[arg(long, value_delimiter = ',', value_parser = provider(), ignore_case = true)]
    pub(crate) provider: Vec<String>,
    /// The plugin file of every NVSHMEM, not of the newest alone
    #[arg(long)]
    pub(crate) every_file: bool,
    /// Seconds after which a job is killed
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) deadline: u64,
    /// With what a PE that failed has logged
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Args)]
pub(crate) struct QualifyOptions {
    #[command(flatten)]
    pub(crate) r#where: Where,
    #[command(flatten)]
    pub(crate) reach: Reach,
    /// The provider [default: as the environment has it, else what a job over several hosts takes]
    #[arg(long, value_parser = provider(), ignore_case = true)]
    pub(crate) provider: Option<String>,
    /// Only these parts
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    pub(crate) only: Vec<Tried>,
    /// Short measurements up to 64 KiB: a minute
    #[arg(long)]
    pub(crate) short: bool,
    /// Seconds after which a row is killed
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) deadline: u64,
    /// The file to write [default: nvshmem-libfabric-qualify.txt]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print the file without running anything, and write none
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// A part of what `qualify` tries: a self-test and a measurement with the same settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Tried {
    /// Memory of the host, over one NIC for each PE.
    OneNic,
    /// Memory of the host, over all NICs.
    AllNics,
    /// Memory of GPUs, copied through memory of the host.
    Staged,
    /// Memory of GPUs, accessed by the NICs themselves.
    Direct,
}

#[derive(Debug, Args)]
pub(crate) struct PerfOptions {
    #[command(flatten)]
    pub(crate) job: JobOptions,
    /// The provider [default: as the environment has it, else what the transport takes]
    #[arg(long, value_parser = provider(), ignore_case = true)]
    pub(crate) provider: Option<String>,
    /// The rails, as NVSHMEM_LIBFABRIC_DEVICES names them
    #[arg(long)]
    pub(crate) devices: Option<String>,
    /// Milliseconds to measure each row for, in rounds of 12 of which the median counts
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) milliseconds: u64,
    /// Largest transfer in bytes
    #[arg(long, default_value_t = 4 << 20, value_parser = clap::value_parser!(u64).range(8..=1 << 28))]
    pub(crate) max: u64,
}

/// What starts a shell on another host: it asks nobody, and gives up soon.
pub(crate) const SSH: &str = "ssh -o BatchMode=yes -o ConnectTimeout=10";

/// What memory operations are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub(crate) enum Memory {
    /// Memory of the host.
    Host,
    /// Memory of GPUs, with a kernel that stays on them.
    Gpu,
}

#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    #[command(flatten)]
    pub(crate) r#where: Where,
    /// Have a file ready for every NVSHMEM, without looking which one the program uses
    #[arg(long, conflicts_with = "nvshmem")]
    pub(crate) any_nvshmem: bool,
    /// Have NCCL's device API and its puts and signals go by this transport, in place of NVSHMEM
    #[arg(long, conflicts_with_all = ["nvshmem", "any_nvshmem"])]
    pub(crate) nccl: bool,
    /// The libfabric provider: auto, efa, cxi, verbs, tcp, shm
    #[arg(long, value_parser = provider(), ignore_case = true)]
    pub(crate) provider: Option<String>,
    /// The libfabric to use
    #[arg(long, value_name = "FILE")]
    pub(crate) libfabric: Option<PathBuf>,
    /// Print what would be done, as lines of shell with the reasons
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// The program with its arguments; `--` may stand in front of it
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}

fn provider() -> PossibleValuesParser {
    Provider::NAMES.iter().map(|&(name, _)| name).into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn lines(page: &str) -> Vec<Vec<String>> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
        let text = std::fs::read_to_string(&path).expect("a page");
        let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
        let line = |line: &str| -> Option<Vec<String>> {
            let line = line.split(" #").next()?;
            let words = shlex::split(line)?;
            let at = words.iter().position(|word| word == "nvshmem-libfabric")?;
            Some(words[at..].iter().take_while(|word| *word != ">").cloned().collect())
        };
        blocks.flat_map(str::lines).filter_map(line).collect()
    }

    #[test]
    fn documented_commands_parse() {
        for (page, least) in [
            ("docs/tool.md", 25),
            ("README.md", 3),
            ("docs/pytorch.md", 1),
            ("docs/tuning.md", 3),
            ("docs/install.md", 7),
        ] {
            let lines = lines(page);
            assert!(lines.len() >= least, "{page}: {lines:?}");
            for line in lines {
                let parsed = Options::try_parse_from(&line);
                assert!(parsed.is_ok(), "{page}: {}: {parsed:?}", line.join(" "));
            }
        }
    }
}
