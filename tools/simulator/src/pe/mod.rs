//! A PE's process: from [`pe_entry`] to its end, and what it has without a plugin.

pub(crate) mod bootstrap;
pub(crate) mod job;

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bootstrap::Bootstrap;
use job::Job;
use nvshmem_abi::Layout;

use crate::error::BoxError;
use crate::link::FromPe;
use crate::settings::JobSettings;

/// Marks a process as a PE and tells it its number, whether its host is another than the
/// launcher's, its layout's name, and its settings.
pub(crate) const ENV_PE: &str = "NVSHMEM_SIM_PE";

/// What a PE does. Every PE of a job runs the same one.
pub type Scenario = fn(&mut Job) -> Result<(), BoxError>;

/// Runs the job's scenario and ends the process when this process is a PE; else returns.
///
/// Call it first in `main` of every program that launches jobs: the PEs are the same program.
pub fn pe_entry(scenarios: &[(&str, Scenario)]) {
    run_pe(|job| match scenarios.iter().find(|(name, _)| *name == job.settings.scenario) {
        Some((_, scenario)) => scenario(job),
        None => Err(format!("no scenario is named {:?}", job.settings.scenario).into()),
    });
}

/// As [`pe_entry`], for a program that knows by itself what the scenario's name means.
pub fn run_pe(scenario: impl FnOnce(&mut Job) -> Result<(), BoxError>) {
    let Ok(text) = std::env::var(ENV_PE) else { return };
    let mut job = match start(&text) {
        Ok(job) => job,
        Err(error) => {
            eprintln!("nvshmem-sim: {error}");
            exit_now(2);
        }
    };
    let last = match catch_unwind(AssertUnwindSafe(|| scenario(&mut job))) {
        Ok(Ok(())) => FromPe::Finished,
        Ok(Err(error)) => FromPe::Failed(error.to_string()),
        Err(payload) => FromPe::Failed(format!("panic: {}", payload_text(payload.as_ref()))),
    };
    // When the launcher is gone, the exit status still says how it ended.
    let told = job.bootstrap.tell(&last);
    if last == FromPe::Finished && told.is_ok() {
        // In order, with destructors: what the plugin does in them is part of the test.
        std::process::exit(0);
    }
    exit_now(1);
}

fn start(text: &str) -> Result<Job, BoxError> {
    let (pe, is_remote, layout, mut settings): (_, _, String, JobSettings) =
        serde_json::from_str(text)?;
    settings.layout = Layout::from_name(&layout).ok_or("the layout has another name here")?;
    let bootstrap = Bootstrap::connect(pe, &settings, is_remote)?;
    Ok(Job { pe, settings, bootstrap })
}

pub(crate) fn payload_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

/// Ends the process without running destructors: a PE that has failed may hold a plugin that is
/// stuck, and NVSHMEM's host does not tidy up then either.
pub(crate) fn exit_now(status: i32) -> ! {
    // Nothing can be done about output that cannot be written.
    let _ = std::io::stdout().flush();
    // SAFETY: _exit has no precondition.
    unsafe { libc::_exit(status) }
}
