//! `nvshmem-gpu-run`: starts programs of NVSHMEM and NCCL on this machine's GPUs with every PE's
//! traffic going through the transport that is tested, and prints what became of each, with its
//! figures. PEs are started without MPI and without a process manager.

mod case;
mod counters;
mod launch;
mod library;
mod mps;
mod options;
mod pmi;
mod programs;
mod run;

use std::process::ExitCode;

use clap::Parser;

use crate::options::Options;

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
