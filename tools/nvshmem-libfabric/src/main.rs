//! `nvshmem-libfabric`: what is there, what NVSHMEM would load, what is wrong, and programs started
//! through this project's transport.
//!
//! `docs/tool.md` is for its users. Exit status: 0 when what was asked for was done and is well, 1
//! when it is not well, 2 when it could not be done. `run` ends as the program that it becomes, or
//! with 125 to 127 when it has not become it.
#![forbid(unsafe_code)]

// First: its macros are for the modules behind it.
#[macro_use]
mod output;

mod child;
mod doctor;
mod error;
mod info;
mod install;
mod libraries;
mod options;
mod perf;
mod probe;
mod qualify;
mod run;
mod selftest;

use std::env;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use nvshmem_sim::traffic;

use crate::error::ToolError;
use crate::options::{Command, Options};

const NOT_WELL: u8 = 1;
const NOT_DONE: u8 = 2;

fn main() -> ExitCode {
    launcher::keep_ends_of_processes();
    // A process that was started as a PE ends in here.
    nvshmem_sim::pe_entry(&[&traffic::SCENARIOS[..], &[nvshmem_bench::SCENARIO]].concat());
    let command = match Options::try_parse() {
        Ok(options) => options.command,
        Err(answer) => return answered(&answer),
    };
    let done: Result<bool, ToolError> = match command {
        Command::Info(options) => info::show(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Install(options) => install::install(&options).map(|()| true),
        Command::Uninstall(options) => install::uninstall(&options).map(|()| true),
        Command::Run(options) => match run::run(&options) {
            Ok(()) => Ok(true),
            Err((error, status)) => {
                error.print();
                return ExitCode::from(status);
            }
        },
        Command::Selftest(options) => selftest::run(&options),
        Command::Qualify(options) => qualify::run(&options),
        Command::Perf(options) => perf::run(&options),
        Command::Probe { subject } => probe::answer(subject).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_WELL),
        Err(error) => {
            error.print();
            ExitCode::from(NOT_DONE)
        }
    }
}

fn answered(answer: &clap::Error) -> ExitCode {
    const HINT: &str = "`nvshmem-libfabric COMMAND --help` has its options";
    let printed = answer.print().and_then(|()| io::stdout().flush());
    if answer.use_stderr() {
        let said = answer.to_string();
        let first = said.lines().next().unwrap_or_default();
        ToolError::new(first.trim_start_matches("error: "), HINT).print_json();
        eprintln!("hint: {HINT}");
    } else if let Err(error) = printed {
        output::unsaid(&error);
    }
    match answer.exit_code() {
        0 => ExitCode::SUCCESS,
        // Any other status may be the program's.
        _ if env::args_os().nth(1).is_some_and(|command| command == "run") => {
            ExitCode::from(run::FAILED)
        }
        _ => ExitCode::from(NOT_DONE),
    }
}
