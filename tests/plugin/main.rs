//! The plugin, driven by the simulator as NVSHMEM drives it: separate processes, both kinds of
//! threads, every layout, real libfabric providers.
//!
//! The plugin is the one that was built with this program, with the engine's debug assertions, or
//! the one that `NVSHMEM_TEST_PLUGIN_DIR` names. Cases of a libfabric 2.x need
//! `NVSHMEM_TEST_LIBFABRIC2`. Cases on memory of devices have names with `staged`.

mod bad_input;
mod bulk;
mod counters;
mod cycles;
mod entry;
mod fabric;
mod faults;
mod life;
mod matrix;
mod namespaces;
mod peers;
mod rails;
mod smoke;
mod staged;
mod strangers;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Trial};
use nvshmem_sim::{Scenario, pe_entry, traffic};

fn main() -> ExitCode {
    let mut scenarios: Vec<(&str, Scenario)> = vec![
        ("cycles", cycles::scenario),
        ("smoke", smoke::scenario),
        ("entry", entry::scenario),
        ("bad_requests", bad_input::requests),
        ("leave", counters::leave),
        ("connect", peers::connect),
        ("wait_for_ever", peers::wait_for_the_dead),
        ("faults", faults::scenario),
        ("strangers", strangers::scenario),
    ];
    scenarios.extend(traffic::SCENARIOS);
    scenarios.extend(staged::SCENARIOS);
    // A process that the launcher started as a PE ends in here.
    pe_entry(&scenarios);
    if let Some(times) = test_support::seeds::campaign() {
        let strangers = strangers::campaign(times);
        let faults = faults::campaign(times);
        return if strangers == ExitCode::SUCCESS { faults } else { strangers };
    }
    let mut arguments = Arguments::from_args();
    // A job is several processes, which mostly wait for each other: two jobs keep two cores busy.
    arguments.test_threads.get_or_insert(2);
    let mut trials: Vec<Trial> = Vec::new();
    trials.extend(smoke::trials());
    trials.extend(matrix::trials());
    trials.extend(entry::trials());
    trials.extend(life::trials());
    trials.extend(bad_input::trials());
    trials.extend(peers::trials());
    trials.extend(rails::trials());
    trials.extend(faults::trials());
    trials.extend(strangers::trials());
    trials.extend(bulk::trials());
    trials.extend(staged::trials());
    trials.extend(counters::trials());
    trials.extend(namespaces::trials());
    libtest_mimic::run(&arguments, trials).exit_code()
}
