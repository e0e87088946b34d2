//! Scenarios of traffic between all PEs, every byte and word checked: what tests and self-tests
//! run. Each is for any number of PEs, layout, heap and provider.

mod atomics;
mod operations;
mod signals;

use crate::error::BoxError;
use crate::host::Host;
use crate::memory::spin::Spinner;
use crate::pe::Scenario;
use crate::pe::job::Job;

/// The scenarios by name, for [`crate::pe_entry`].
///
/// | scenario | what it does | parameters |
/// |---|---|---|
/// | `operations` | put, get, P and G of all sizes and alignments, from both kinds of threads | |
/// | `order` | what is behind a fence comes after what is before it | `rounds` |
/// | `storm` | very many small operations at once | `operations` |
/// | `signals` | puts with signal, small and large | `rounds`; `most`, bytes |
/// | `atomics` | atomics of each width under contention | |
///
/// All have the parameter [`RESIDENT`].
pub const SCENARIOS: [(&str, Scenario); 5] = [
    ("operations", operations::scenario),
    ("order", signals::order),
    ("storm", operations::storm),
    ("signals", signals::signals),
    ("atomics", atomics::scenario),
];

/// The parameter of a job whose PEs have a kernel on their devices while the scenario runs.
pub const RESIDENT: &str = "resident";

/// Brings the plugin up for `traffic`, and ends it in order; with a kernel on the device meanwhile,
/// if the job asks for one and the PE has a device.
pub fn with_host(
    job: &Job,
    traffic: impl FnOnce(&Host<'_>) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    let host = job.init()?;
    let kernel = if job.param_or(RESIDENT, false)? { host.spin()? } else { None };
    traffic(&host)?;
    // Before the host's memory is given back, which waits for kernels.
    kernel.map_or(Ok(()), Spinner::stop)?;
    Ok(host.finalize()?)
}
