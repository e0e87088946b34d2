//! The bench by itself. `docs/performance.md` explains the figures.

use std::process::ExitCode;

use clap::Parser;
use nvshmem_bench::{SCENARIOS, eprintln, part, run};

/// What the plugin costs: beside raw libfabric, and in instructions
#[derive(Debug, Parser)]
#[command(name = "nvshmem-bench")]
struct CommandLine {
    #[command(flatten)]
    options: nvshmem_bench::Options,
}

fn main() -> ExitCode {
    let ended = match part() {
        Some(ended) => ended,
        None => {
            nvshmem_sim::pe_entry(SCENARIOS);
            run(&CommandLine::parse().options)
        }
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
