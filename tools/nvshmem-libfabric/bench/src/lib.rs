//! Measures the plugin between the PEs of a job: the part that `nvshmem-libfabric perf` and the
//! bench of this project's developers (`nvshmem-bench`, `src/main.rs`) share.
//!
//! ```text
//! case     what is measured: an operation, its size, the sides that are timed in turn
//! rounds   the alternation of the sides, and the statistics
//! job      the launcher: starts a job for a list of cases and reads what it has measured
//! pe       one PE: PE 0 measures the cases, the others serve it
//! control  PE 0's commands to the others
//! raw      libfabric alone, for comparison
//! perf     every size through the plugin alone
//! ```

mod case;
mod control;
mod job;
mod pe;
mod perf;
mod raw;
mod rounds;

pub use case::{Case, Op, Side};
pub use control::nvshmem_bench_mark;
pub use job::{ALLOWANCE, Plan, run};
pub use pe::{SCENARIO, SECTIONS};
pub use perf::{Row, Test, measure_by_size};
pub use raw::RawOptions;
pub use rounds::{Rounds, Schedule, Spread, ratios};
