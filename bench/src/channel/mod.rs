//! The device channel: what a descriptor costs on its way from a ring to the engine.

mod count;
mod null;
mod rate;

use nvshmem_sim::BoxError;

use crate::options::Options;
use crate::report::Report;

/// Which part of a measurement a process is.
pub(crate) const PART: &str = "NVSHMEM_BENCH_CHANNEL";

/// In a process that this module has started: does its part, and ends.
pub(crate) fn part_entry() {
    let Ok(part) = std::env::var(PART) else { return };
    let done = match part.as_str() {
        "count" => count::part(),
        part => rate::part(part),
    };
    if let Err(error) = done {
        eprintln!("nvshmem-bench: {part}: {error}");
        std::process::exit(1);
    }
    std::process::exit(0);
}

/// Measures the channel.
///
/// # Errors
/// A process that failed, or what it has said was not understood.
pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<(), BoxError> {
    if !options.profile {
        rate::measure(options, report)?;
    }
    if options.count {
        count::measure(options, report)?;
    }
    Ok(())
}
