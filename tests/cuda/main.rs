//! The CUDA layer against the fake driver, and against a real one where there is a GPU.
//!
//! Every case runs in a process of its own: it has the driver it names loaded by the dynamic
//! loader, as a program with CUDA has, or none; it may crash, and it is ended when it hangs.
//!
//! The fake driver is built beside this program. Cases for a GPU look for `libcuda.so.1` and are
//! skipped, with the reason, where there is none that has a device. They need nothing but this
//! file: on a machine with a GPU, `cuda-HASH gpu::` runs them.

mod bed;
mod coexistence;
mod copies;
mod devices;
mod direct;
mod driver;
mod memory;
mod pointers;
mod prelude;
mod staging;
mod words;

use std::num::NonZero;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};

use bed::case::{self, Case};

/// Counts what this program allocates, thread by thread. The fake driver has an allocator of its
/// own, so what is counted is the layer's and the test's.
#[global_allocator]
static ALLOCATOR: bed::Counting = bed::Counting;

fn main() -> ExitCode {
    let cases: Vec<Case> = [
        driver::cases(),
        pointers::cases(),
        devices::cases(),
        direct::cases(),
        memory::cases(),
        copies::cases(),
        coexistence::cases(),
        words::cases(),
        staging::cases(),
        staging::model::cases(),
        staging::words::cases(),
        staging::failures::cases(),
        staging::same_host::cases(),
        staging::short::cases(),
        staging::together::cases(),
        staging::resident::cases(),
    ]
    .into_iter()
    .flatten()
    .collect();
    // A process that runs one case ends in here.
    case::run_child(&cases);
    let mut arguments = Arguments::from_args();
    // Each case on a GPU has a context, and with 16 at once a driver ran out of memory.
    let cores = std::thread::available_parallelism().map_or(2, NonZero::get);
    arguments.test_threads.get_or_insert(cores.min(4));
    let mut trials: Vec<Trial> = cases.iter().filter_map(Case::trial).collect();
    trials.extend(case::gpu_trials(&cases));
    libtest_mimic::run(&arguments, trials).exit_code()
}
