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
mod sweep;

use std::env;
use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Parser;
use clap::error::{ContextKind, ContextValue};
use nvshmem_sim::traffic;

use crate::error::ToolError;
use crate::options::{Command, Options};
use crate::sweep::Sweeper;

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
    // Without it files stay until the next job.
    let stops = matches!(command, Command::Selftest(_) | Command::Perf(_));
    let _sweeper = stops.then(Sweeper::start).and_then(Result::ok);
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
        Command::Sweep { pid } => own(sweep::serve(pid)),
        Command::Probe { subject } => own(probe::answer(subject)),
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

/// The end of a command that the tool starts itself.
fn own<E: Display>(done: Result<(), E>) -> Result<bool, ToolError> {
    let failed = |error: E| ToolError::new(error.to_string(), "this is for the tool itself");
    done.map(|()| true).map_err(failed)
}

/// Commands and options of before, and what is used in their place.
const GONE: [(&str, &str); 5] = [
    (
        "top",
        "`top` is gone: NVSHMEM_LIBFABRIC_COUNTERS=FILE-%p has each PE write its counters at the end",
    ),
    ("trace", "`trace` is gone: NVSHMEM_DEBUG=TRACE logs what the transport does"),
    (
        "report",
        "`report` is gone: `qualify` writes the file to send, and `qualify --dry-run` prints it",
    ),
    (
        "--nvshmem",
        "`--nvshmem` is gone here: use `nvshmem-libfabric run -- PROGRAM`, or the two variables of `run --dry-run`",
    ),
    ("--record", "`run --record` is gone: NVSHMEM_DEBUG=TRACE logs what the transport does"),
];

fn in_place_of(answer: &clap::Error) -> Option<&'static str> {
    let kinds = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg];
    kinds.into_iter().filter_map(|kind| answer.get(kind)).find_map(|named| {
        let ContextValue::String(named) = named else { return None };
        GONE.iter().find(|(name, _)| name == named).map(|(_, now)| *now)
    })
}

fn answered(answer: &clap::Error) -> ExitCode {
    const HINT: &str = "`nvshmem-libfabric COMMAND --help` has its options";
    if let Some(now) = in_place_of(answer) {
        eprintln!("nvshmem-libfabric: {now}");
    } else {
        let printed = answer.print().and_then(|()| io::stdout().flush());
        if answer.use_stderr() {
            let said = answer.to_string();
            let first = said.lines().next().unwrap_or_default();
            ToolError::new(first.trim_start_matches("error: "), HINT).print_json();
            eprintln!("hint: {HINT}");
        } else if let Err(error) = printed {
            output::unsaid(&error);
        }
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
