//! What the plugin costs: its rates beside those of raw libfabric in the same run, and its
//! instructions per operation. `docs/performance.md` explains the figures.
//!
//! Ends with one line per figure, `MEASURE <name> <value> <unit>`. The exit status says whether
//! everything was right; how fast it was, only the figures say.

mod area;
mod callgrind;
mod case;
mod channel;
mod command;
mod compare;
mod control;
mod cores;
mod count;
mod instructions;
mod launch;
mod options;
mod provider;
mod raw;
mod report;
mod rounds;
mod serve;
mod setup;
mod signals;
mod staged;
mod stats;
mod target;

use std::process::ExitCode;

use nvshmem_sim::{BoxError, pe_entry};

use options::{Options, USAGE};
use report::Report;

/// Rails of the two counts of instructions.
const RAILS: [usize; 2] = [1, 4];

fn main() -> ExitCode {
    channel::part_entry();
    pe_entry(&[
        (compare::SCENARIO, compare::scenario),
        (count::SCENARIO, count::scenario),
        (signals::scenario::SCENARIO, signals::scenario::scenario),
        (signals::count::SCENARIO, signals::count::scenario),
        (staged::scenario::SCENARIO, staged::scenario::scenario),
    ]);
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(text) => {
            eprint!("nvshmem-bench: {text}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match measure(&options) {
        Ok(report) => {
            report.print_measures();
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("nvshmem-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<Report, BoxError> {
    let mut report = Report::default();
    if options.channel {
        channel::measure(options, &mut report)?;
        return Ok(report);
    }
    if let Some(device) = &options.staged {
        staged::launch::measure(device, options, &mut report)?;
        return Ok(report);
    }
    if options.signals {
        for &provider in &options.providers {
            signals::launch::compare(provider, options, &mut report)?;
        }
        if options.count {
            signals::launch::count(options, &mut report)?;
        }
        return Ok(report);
    }
    for &provider in &options.providers {
        let compared = launch::compare(provider, options)?;
        report.compared(provider, &compared)?;
        if options.samples {
            for (case, jobs) in &compared.cases {
                report::print_samples(&case.to_string(), &["raw", "plugin"], jobs);
            }
        }
    }
    if options.count {
        for rails in RAILS {
            report.counted(rails, &instructions::count(rails, options)?, options.profile);
        }
    }
    Ok(report)
}
