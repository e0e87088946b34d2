//! The command `nvshmem-gpu-run`.

use std::process::ExitCode;

use clap::Parser;
use nvshmem_gpu_run::{options::Options, run};

fn main() -> ExitCode {
    match run::all(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
