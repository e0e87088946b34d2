//! The tool itself, run as its users run it, on NVSHMEMs in scratch places.

mod bed;
mod docs;
mod doctor;
mod hosts;
mod info;
mod install;
mod jobs;
mod packages;
mod qualify;
mod refused;
mod run;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use nvshmem_sim::traffic;

/// Makes trials of functions, named after their modules.
macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        vec![$($(Trial::test(
            concat!(stringify!($module), "::", stringify!($case)),
            $module::$case,
        )),*),*]
    };
}

fn main() -> ExitCode {
    // A process that was started as a PE ends in here.
    nvshmem_sim::pe_entry(&traffic::SCENARIOS);
    let mut trials = cases! {
        info: releases looked_for linker_rules settings text_for_people;
        install: prefix by_make update pages uninstall_keeps_others planted_links;
        run: command_lines own_options dry_run missing hangs nccl environment status;
        doctor: usable findings ignored_sigchld;
        jobs: selftest failed_selftest perf;
        qualify: shm tcp_without_private_text gpus failures stopped;
        refused: commands environment closed_output full_disk;
        docs: environments errors;
    };
    trials.extend(run::wheels());
    trials.extend(hosts::trials());
    trials.extend(docs::pages());
    trials.extend(packages::trials());
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
