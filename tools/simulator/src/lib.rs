//! A stand-in for NVSHMEM's host library that drives a remote transport plugin.
//!
//! It starts the PEs of a job as processes, gives them a bootstrap, loads the plugin by the name
//! under which NVSHMEM would open it, and calls it as the NVSHMEM of a chosen layout does: the
//! same fields, argument shapes, order and threads. No GPU and no NVSHMEM are needed.
//!
//! The symmetric heap is memory of the host, or of a device ([`JobSettings::memory`]): then each PE
//! loads CUDA's driver, and reads and writes its heap with the driver's copies alone. The driver
//! may be a stand-in ([`JobSettings::library_path`]).
//!
//! A program that launches jobs is also the program of their PEs: it is started again for each,
//! and [`pe_entry`] takes over there. So tests that use it have `harness = false`.
//!
//! Every wait has a deadline ([`JobSettings::deadline`], [`JobSettings::step_deadline`]). A PE that
//! fails, panics, exits, or is killed ends the others' collectives with an error at once, and
//! after [`JobSettings::grace`] the others themselves.

mod error;
mod host;
mod launch;
mod link;
mod memory;
mod pe;
mod settings;
pub mod traffic;

pub use error::{BoxError, Error, Result};
pub use host::Host;
pub use host::ops::{Amo, Ops, PlannedAmo};
pub use host::proxy::Proxy;
pub use host::regions::Piece;
pub use launch::report::{JobFailed, JobReport, Outcome, PeReport};
pub use launch::{Remote, Told};
pub use launcher::{PrivateDir, exports, shell, word};
pub use memory::address::{BufferId, Place, SymAddr};
pub use memory::device_memory::{MemoryKind, UserMapped};
pub use memory::local::Local;
pub use memory::pattern::Pattern;
pub use nvshmem_abi::Layout;
pub use pe::bootstrap::Bootstrap;
pub use pe::job::Job;
pub use pe::{Scenario, pe_entry, run_pe};
pub use settings::{JobSettings, is_setting};
