//! Measures the plugin between the PEs of a job: the part that `nvshmem-libfabric perf` and the
//! bench of this project's developers (`nvshmem-bench`, `src/main.rs`) share.

mod control;
mod pe;
mod perf;
mod plan;
mod raw;
mod rounds;

pub use control::nvshmem_bench_mark;
pub use pe::{SCENARIO, SECTIONS};
pub use perf::{Figure, measure_by_size};
pub use plan::{ALLOWANCE, Case, Op, Plan, Side, run};
pub use raw::RawOptions;
pub use rounds::{Rounds, Schedule, Spread, ratios};
