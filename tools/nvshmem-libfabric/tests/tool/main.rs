//! The tool itself, run as its users run it, on NVSHMEMs in scratch places.

mod bed;
mod docs;
mod doctor;
mod info;
mod install;
mod jobs;
mod output;
mod packages;
mod refused;
mod run;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use nvshmem_sim::traffic;

fn main() -> ExitCode {
    // A process that was started as a PE ends in here.
    nvshmem_sim::pe_entry(&traffic::SCENARIOS);
    let mut trials: Vec<Trial> = Vec::new();
    trials.extend(info::trials());
    trials.extend(install::trials());
    trials.extend(run::trials());
    trials.extend(doctor::trials());
    trials.extend(jobs::trials());
    trials.extend(docs::trials());
    trials.extend(packages::trials());
    trials.extend(output::trials());
    trials.extend(refused::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
