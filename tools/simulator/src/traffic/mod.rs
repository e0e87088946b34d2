//! Scenarios of traffic between all PEs, every byte and word checked: what tests and self-tests
//! run.
//!
//! Each is for any number of PEs, layout, heap and provider.

mod atomics;
mod operations;
mod order;
pub mod resident;
mod signals;
mod storm;

use crate::error::BoxError;
use crate::pe::Scenario;
use crate::pe::job::Job;

/// The scenarios by name, for [`crate::pe_entry`].
///
/// | scenario | what it does | parameters |
/// |---|---|---|
/// | `operations` | put, get, P and G of all sizes and alignments, from both kinds of threads | `only`: `put`, `get`, `p` |
/// | `largest` | a put and a get of a chunk of 64 MiB | |
/// | `order` | what is behind a fence comes after what is before it | `only`: `fence`, `quiet`; `rounds` |
/// | `storm` | very many small operations of all kinds at once | `operations` |
/// | `signals` | puts with signal, small and large | `rounds`; `most`, bytes; `load`, bytes of plain puts beside each; `to_first`: to PE 0 alone |
/// | `atomics` | every atomic, of every width, under contention | `only`: `sums`, `bits`, `fetches`, `swaps` |
///
/// All have the parameter [`resident::RESIDENT`].
pub const SCENARIOS: [(&str, Scenario); 6] = [
    ("operations", operations::scenario),
    ("largest", operations::largest),
    ("order", order::scenario),
    ("storm", storm::scenario),
    ("signals", signals::scenario),
    ("atomics", atomics::scenario),
];

/// Whether a step of a scenario is done: unless the job's parameter `only` names another.
fn wanted(job: &Job, step: &str) -> Result<bool, BoxError> {
    let only = job.param_or("only", String::new())?;
    Ok(only.is_empty() || only == step)
}
