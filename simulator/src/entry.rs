//! The life of a PE's process: from [`pe_entry`] to its end.

use std::any::Any;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use nvshmem_abi::Layout;

use crate::bootstrap::Bootstrap;
use crate::device_memory::MemoryKind;
use crate::error::{BoxError, Error, Result};
use crate::gpu::Gpu;
use crate::host::Host;
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
        settings.pes_per_node,
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
            let noted = PANIC.lock().unwrap_or_else(PoisonError::into_inner).take();
            FromPe::Panicked(noted.unwrap_or_else(|| payload_text(payload.as_ref())))
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

/// The last panic of this process, with the place where it happened.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

fn note_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(|l| format!(" at {l}")).unwrap_or_default();
        let text = format!("{}{place}", payload_text(info.payload()));
        *PANIC.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        default(info);
    }));
}

pub(crate) fn payload_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| s.to_string());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_string())
}

/// Ends the process without running destructors: a PE that has failed may hold a plugin that is
/// stuck, and NVSHMEM's host does not tidy up then either.
pub(crate) fn exit_now(status: i32) -> ! {
    // Nothing can be done about output that cannot be written.
    let _ = std::io::stdout().flush();
    // SAFETY: _exit has no precondition.
    unsafe { libc::_exit(status) }
}

/// A launcher that is killed takes its PEs along.
fn die_with_launcher() {
    // SAFETY: PR_SET_PDEATHSIG takes a signal number and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// One PE's view of the job it belongs to.
#[derive(Debug)]
pub struct Job {
    pub(crate) settings: PeSettings,
    pub(crate) bootstrap: Bootstrap,
}

impl Job {
    /// This PE.
    pub fn pe(&self) -> u32 {
        self.settings.pe
    }

    /// Number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.settings.n_pes
    }

    /// The layout of the host library this job stands in for.
    pub fn layout(&self) -> Layout {
        self.settings.layout
    }

    /// The collectives, which work without the plugin.
    pub fn bootstrap(&self) -> &Bootstrap {
        &self.bootstrap
    }

    /// All values given to the job for its scenario.
    pub fn params(&self) -> &BTreeMap<String, String> {
        &self.settings.params
    }

    /// A value given to the job for its scenario.
    ///
    /// # Errors
    /// It is not there or is not of that type.
    pub fn param<T: FromStr>(&self, name: &str) -> Result<T> {
        let Some(value) = self.settings.params.get(name) else {
            return Err(Error::Usage(format!("the scenario needs a parameter {name}")));
        };
        value.parse().map_err(|_| Error::Usage(format!("cannot read {name}={value}")))
    }

    /// As [`Job::param`], with a value for when it is not given.
    ///
    /// # Errors
    /// It is not of that type.
    pub fn param_or<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        if self.settings.params.contains_key(name) { self.param(name) } else { Ok(default) }
    }

    /// Loads CUDA's driver, if this PE is to have device memory, and gives the name and number of its
    /// device.
    ///
    /// # Errors
    /// There is no driver or no device, or the PE has memory of the host only.
    pub fn device(&self) -> Result<String> {
        if self.settings.memory == MemoryKind::Host {
            return Err(Error::Usage("this PE has memory of the host only".into()));
        }
        Gpu::of_process(self.settings.pe).map(Gpu::describe)
    }

    /// Hands a value to the launcher, for the report.
    ///
    /// # Errors
    /// The launcher is gone.
    pub fn report(&self, name: &str, value: impl ToString) -> Result<()> {
        self.bootstrap.tell(&FromPe::Value(name.to_string(), value.to_string()))
    }

    /// Loads the plugin and brings it up as NVSHMEM's initialisation does. Collective. May be done
    /// again after [`Host::finalize`].
    ///
    /// # Errors
    /// What failed, on this PE or on another.
    pub fn init(&self) -> Result<Host<'_>> {
        Host::init(self)
    }
}
