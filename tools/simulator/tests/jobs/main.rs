//! The simulator against plugins that are wrong: each trial is named after what is wrong with one,
//! and requires that the job fails with words that tell of it. A plugin that is right goes first.

mod device;
mod traffic;

use std::sync::Arc;
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use nvshmem_sim::{JobReport, JobSettings, Layout, Outcome, Remote, Scenario, pe_entry};
use test_support::built::directory;

const SCENARIOS: &[(&str, Scenario)] =
    &[("traffic", traffic::traffic), ("device", device::scenario)];

/// What is wrong with a plugin, and the error of a PE that tells of it.
const WRONG: [(&str, &str); 18] = [
    ("init fails", "nvshmemt_init with api_version 70000 returned 3 (not supported)"),
    ("reaches nobody", "PE 0 is not accessible"),
    ("connect fails", "connect_endpoints returned 7 (internal error)"),
    ("registration fails", "get_mem_handle for 131072 bytes"),
    ("empty handles", "a handle that is all zero means none"),
    ("no quiet", "quiet is NULL"),
    ("operations fail", "rma(PUT) of 40001 bytes for PE"),
    ("short puts", "put by the user"),
    ("long puts", "behind the put of the user"),
    ("quiet early", "put by the user"),
    ("uninitialised offset", "rma(PUT) of 40001 bytes for PE"),
    ("keeps a value's address", "value by the user"),
    ("loses atomics", "the sum is 0"),
    ("fetches the new value", "fetched 8, not 7"),
    ("flag before value", "fetched 0, not 7"),
    ("signal before data", "data behind its signal"),
    ("hangs", "the proxy thread did not complete a quiet within 1s; it is in quiet for PE 0"),
    ("finalize fails", "finalize returned 7 (internal error)"),
];

fn main() {
    pe_entry(SCENARIOS);
    let mut trials = vec![
        trial("a plugin that is right", || right(job("traffic", 2))),
        trial("a plugin that is right, 4 PEs, a heap that grows", || {
            right(job("traffic", 4).heap_grows())
        }),
        trial("a plugin that is right, with a PE that a shell of another host becomes", || {
            let job = job("traffic", 3);
            let remote = Remote {
                host: String::from("another"),
                agent: vec!["/usr/bin/env".into()],
                program: std::env::current_exe()?,
                plugin_dir: job.plugin_dir.clone(),
            };
            right(job.host(0, 1, None).host(1, 1, Some(Arc::new(remote))).host(2, 1, None))
        }),
        trial("reads behind a value", || {
            ends(with("reads behind a value"), &Outcome::Signal(libc::SIGSEGV))
        }),
        trial("exits", || ends(with("exits"), &Outcome::Exited(3))),
        trial("dies", || ends(with("dies"), &Outcome::Signal(libc::SIGKILL))),
        trial("leaves shared memory", || {
            let report = with("leaves shared memory").run()?;
            let found = report.leftovers.len() == 2;
            expect(&report, found && report.leftovers.iter().all(|path| !path.exists()))
        }),
    ];
    for (what, words) in WRONG {
        trials.push(trial(what, move || {
            let report = with(what).run()?;
            let told = report
                .pes
                .iter()
                .any(|pe| matches!(&pe.outcome, Outcome::Failed(found) if found.contains(words)));
            expect(&report, told && !report.succeeded())
        }));
    }
    device::add_trials(&mut trials);
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trial(name: &str, run: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    Trial::test(name, run)
}

/// Settings with which nothing can take long.
fn job(scenario: &str, n_pes: u32) -> JobSettings {
    let soname = Layout::V7.soname();
    let dir = directory("plugin-of-the-simulator", &[("libnvshmem_sim_test_plugin.so", soname)]);
    JobSettings::new(scenario, n_pes, Layout::V7, dir)
        .heap(2 << 20, 128 << 10)
        .deadline(Duration::from_secs(60))
        .step_deadline(Duration::from_secs(30))
}

/// A job whose plugin is wrong.
fn with(what: &str) -> JobSettings {
    let job = job("traffic", 2).env("TEST_PLUGIN_WRONG", what).grace(Duration::from_millis(500));
    if what == "hangs" { job.step_deadline(Duration::from_secs(1)) } else { job }
}

/// Requires that every PE finishes and leaves nothing behind.
fn right(settings: JobSettings) -> Result<(), Failed> {
    let report = settings.run()?;
    expect(&report, report.succeeded() && report.leftovers.is_empty())
}

/// Requires that a PE ends in that way.
fn ends(settings: JobSettings, outcome: &Outcome) -> Result<(), Failed> {
    let report = settings.run()?;
    expect(&report, report.pes.iter().any(|pe| pe.outcome == *outcome) && !report.succeeded())
}

fn expect(report: &JobReport, found: bool) -> Result<(), Failed> {
    if found { Ok(()) } else { Err(format!("not as expected:\n{report}").into()) }
}
