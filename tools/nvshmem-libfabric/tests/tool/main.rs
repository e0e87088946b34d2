//! The tool itself, run as its users run it, on NVSHMEMs in scratch places.

mod bed;
mod browser;
mod docs;
mod doctor;
mod hosts;
mod info;
mod install;
mod packages;
mod perf;
mod report;
mod run;
mod selftest;
mod top;
mod trace;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use nvshmem_sim::traffic;

fn main() -> ExitCode {
    // A process that was started as a PE ends in here.
    let own: [(&str, nvshmem_sim::Scenario); 3] =
        [("hold", top::hold), ("trace", trace::program), ("careless", trace::careless)];
    nvshmem_sim::pe_entry(&[&own[..], &traffic::SCENARIOS[..]].concat());
    let mut trials: Vec<Trial> = Vec::new();
    trials.extend(info::trials());
    trials.extend(install::trials());
    trials.extend(run::trials());
    trials.extend(doctor::trials());
    trials.extend(selftest::trials());
    trials.extend(hosts::trials());
    trials.extend(perf::trials());
    trials.extend(report::trials());
    trials.extend(top::trials());
    trials.extend(trace::trials());
    trials.extend(docs::trials());
    trials.extend(packages::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
