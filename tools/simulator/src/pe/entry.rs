//! The life of a PE's process: from [`pe_entry`] to its end.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::bootstrap::Bootstrap;
use super::job::Job;
use super::process::{die_with_launcher, exit_now, last_panic, note_panics, payload_text};
use crate::error::BoxError;
use crate::settings::PeSettings;
use crate::wire::FromPe;

/// What a PE does. Every PE of a job runs the same one.
pub type Scenario = fn(&mut Job) -> Result<(), BoxError>;

/// Runs the job's scenario and ends the process when this process is a PE; else returns.
///
/// Call it first in `main` of every program that launches jobs: the PEs are the same program.
pub fn pe_entry(scenarios: &[(&str, Scenario)]) {
    let settings = match PeSettings::from_env() {
        Ok(None) => return,
        Ok(Some(settings)) => settings,
        Err(text) => {
            eprintln!("nvshmem-sim: {text}");
            exit_now(2);
        }
    };
    die_with_launcher();
    let bootstrap = Bootstrap::connect(
        &settings.socket,
        settings.pe,
        settings.n_pes,
        settings.nodes.of(settings.pe),
        settings.step_deadline,
    );
    let bootstrap = match bootstrap {
        Ok(bootstrap) => bootstrap,
        Err(e) => {
            eprintln!("nvshmem-sim: {e}");
            exit_now(2);
        }
    };
    let scenario = scenarios.iter().find(|(name, _)| *name == settings.scenario).map(|(_, f)| *f);
    note_panics();
    let mut job = Job { settings, bootstrap };
    let last = match scenario {
        Some(scenario) => run(scenario, &mut job),
        None => FromPe::Failed(format!("no scenario is named {:?}", job.settings.scenario)),
    };
    // When the launcher is gone, the exit status still says how it ended.
    let told = job.bootstrap.tell(&last);
    if last == FromPe::Finished && told.is_ok() {
        // In order, with destructors: what the plugin does in them is part of the test.
        std::process::exit(0);
    }
    exit_now(1);
}

fn run(scenario: Scenario, job: &mut Job) -> FromPe {
    match catch_unwind(AssertUnwindSafe(|| scenario(job))) {
        Ok(Ok(())) => FromPe::Finished,
        Ok(Err(e)) => FromPe::Failed(describe(e.as_ref())),
        Err(payload) => {
            FromPe::Panicked(last_panic().unwrap_or_else(|| payload_text(payload.as_ref())))
        }
    }
}

/// The error and everything below it.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}
