//! The bench of the plugin: its rates beside those of raw libfabric in the same run, and its
//! instructions per operation. `docs/performance.md` explains the figures, and
//! `docs/adding-a-benchmark.md` how one is added.
//!
//! Ends with one line per figure, `MEASURE <name> <value> <unit>`. The exit status says whether
//! everything was right; how fast it was, only the figures say.

mod callgrind;
mod harness;
mod instructions;
mod options;
mod pe;
mod raw;
mod suites;
mod times;

use std::process::ExitCode;

use clap::Parser;
use nvshmem_sim::{BoxError, Scenario, pe_entry};

use harness::launch::measure;
use harness::report::Report;
use harness::scenario::scenario;
use harness::suite::Suite;
use options::{Measured, Options};
use suites::puts::Puts;
use suites::signals::Signals;
use suites::staged::Staged;
use suites::{channel, connect, staged};

/// The scenarios of all jobs.
const SCENARIOS: [(&str, Scenario); 4] = [
    (Puts::NAME, scenario::<Puts>),
    (Signals::NAME, scenario::<Signals>),
    (Staged::NAME, scenario::<Staged>),
    (connect::NAME, connect::scenario),
];

fn main() -> ExitCode {
    if let Ok(part) = std::env::var(channel::PART) {
        return ended(match part.as_str() {
            instructions::CHANNEL => instructions::channel_process(),
            instructions::PEERS => instructions::peers_process(),
            instructions::LOCAL => instructions::local_process(),
            part => channel::process(part),
        });
    }
    pe_entry(&[&SCENARIOS[..], &instructions::SCENARIOS].concat());
    ended(measured(Options::parse().measured).map(|report| report.print_measures()))
}

fn ended(result: Result<(), BoxError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nvshmem-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measured(what: Measured) -> Result<Report, BoxError> {
    let mut report = Report::default();
    match what {
        Measured::Puts { fabric, rates } => {
            measure(Puts, &fabric, &rates, &mut report)?;
        }
        Measured::Signals { fabric, rates } => {
            measure(Signals, &fabric, &rates, &mut report)?;
        }
        Measured::Staged { fabric, rates, staged } => {
            staged::measure(staged, &fabric, &rates, &mut report)?;
        }
        Measured::Connect { fabric, connect } => {
            connect::measure(&connect, &fabric, &mut report)?;
        }
        Measured::Channel(pace) => channel::measure(&pace, &mut report)?,
        Measured::Instructions(options) => instructions::measure(&options, &mut report)?,
    }
    Ok(report)
}
