//! The bench of the plugin: its rates beside those of raw libfabric in the same run, and its
//! instructions per operation. `docs/performance.md` explains the figures, and
//! `docs/adding-a-benchmark.md` how one is added.
//!
//! Ends with one line per figure, `MEASURE <name> <value> <unit>`. The exit status says whether
//! everything was right; how fast it was, only the figures say.
//!
//! It is a program of its own, and `bench` and the report of `perf` of the tool for users, which is
//! built without a C++ compiler and so without what drives the device channel.
#![cfg_attr(not(feature = "channel"), allow(dead_code))]

// First: its macros are for the modules behind it.
#[macro_use]
pub mod output;

mod by_size;
mod callgrind;
mod harness;
#[cfg(feature = "channel")]
mod instructions;
mod options;
mod pe;
mod raw;
mod suites;
mod times;

use nvshmem_sim::{BoxError, Scenario};

pub use by_size::{BySize, MeasuredBySize, Row, Test};
use harness::launch::measure;
use harness::report::Report;
use harness::scenario::scenario;
use harness::suite::Suite;
use options::Measured;
pub use options::Options;
use suites::puts::Puts;
use suites::signals::Signals;
use suites::staged::Staged;
use suites::{connect, staged};

/// The scenarios of all jobs.
pub const SCENARIOS: &[(&str, Scenario)] = &[
    (Puts::NAME, scenario::<Puts>),
    (Signals::NAME, scenario::<Signals>),
    (Staged::NAME, scenario::<Staged>),
    (connect::NAME, connect::scenario),
    #[cfg(feature = "channel")]
    instructions::SCENARIOS[0],
    #[cfg(feature = "channel")]
    instructions::SCENARIOS[1],
];

/// What a process that was started as a part of a measurement does, and how it ended.
#[cfg(feature = "channel")]
pub fn part() -> Option<Result<(), BoxError>> {
    let part = std::env::var(suites::channel::PART).ok()?;
    let counted = instructions::PROCESSES.into_iter().find(|(name, _)| *name == part);
    Some(match counted {
        Some((_, process)) => process(),
        None => suites::channel::process(&part),
    })
}

/// The warning that figures carry where something took the processors of the PEs.
pub fn unfit(busy: &str) -> String {
    format!("{busy} while this was measured, so the figures are not of this transport alone")
}

/// Measures, and prints.
///
/// # Errors
/// Wrong bytes, a job that failed, or something that is missing.
pub fn run(options: &Options) -> Result<(), BoxError> {
    let mut report = Report::default();
    match &options.measured {
        Measured::Puts { fabric, rates } => {
            measure(Puts::BesideRaw, fabric, rates, &mut report)?;
        }
        Measured::Signals { fabric, rates } => {
            measure(Signals, fabric, rates, &mut report)?;
        }
        Measured::Staged { fabric, rates, staged } => {
            staged::measure(staged.clone(), fabric, rates, &mut report)?;
        }
        Measured::Bulk { fabric, bulk } => suites::bulk::measure(bulk, fabric, &mut report)?,
        Measured::Connect { fabric, connect } => {
            connect::measure(connect, fabric, &mut report)?;
        }
        #[cfg(feature = "channel")]
        Measured::Channel(pace) => suites::channel::measure(pace, &mut report)?,
        #[cfg(feature = "channel")]
        Measured::Instructions(options) => instructions::measure(options, &mut report)?,
    }
    report.print_measures()
}
