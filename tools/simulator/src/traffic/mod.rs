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

use crate::pe::entry::Scenario;

/// The scenarios by name, for [`crate::pe_entry`].
///
/// | scenario | what it does | parameters |
/// |---|---|---|
/// | `operations` | put, get, P and G of all sizes and alignments, from both kinds of threads | `descriptors`: buffers that nobody registered are refused |
/// | `largest` | a put and a get of a chunk of 64 MiB | |
/// | `order` | what is behind a fence comes after what is before it | `rounds` |
/// | `storm` | very many small operations of all kinds at once | `operations` |
/// | `signals` | puts with signal, small and large | `rounds`; `most`, bytes |
/// | `atomics` | every atomic, of every width, under contention | |
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
