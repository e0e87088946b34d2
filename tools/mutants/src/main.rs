//! The command `nvshmem-mutants`: counts which small changes of a part the tests notice.
//!
//! A *mutant* is one small change. All of a part's are built at once, each behind a condition that
//! one variable of the environment turns on; so trying one takes a run of the tests and no build.
//! `make` rewrites a copy of the part, builds its tests and collects a *kit*: the test programs and
//! the list of mutants. `run` tries the mutants of a kit, on any machine; it first looks which test
//! reaches which mutant, and runs no other.

mod error;
mod kit;
mod make;
mod mutant;
mod process;
mod reach;
mod report;
mod trials;

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(about)]
enum Command {
    /// Builds all mutants of a part, and collects a kit
    Make(make::Options),
    /// Tries the mutants of a kit
    Run(trials::Options),
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Make(options) => make::make(&options),
        Command::Run(options) => trials::run(&options),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
