//! `selftest`: all operations between PEs of this machine, on the plugin files that are installed, every byte checked.
//!
//! The PEs are processes of this program, driven as NVSHMEM drives the plugin; neither a GPU nor NVSHMEM is needed.

use std::path::PathBuf;
use std::time::Duration;

use nvshmem_sim::traffic::resident::RESIDENT;
use nvshmem_sim::{JobReport, JobSettings, Layout, MemoryKind, PeReport};
use serde::Serialize;

use crate::error::ToolError;
use crate::info::json;
use crate::options::{Memory, SelftestOptions};
use crate::plugins::Plugins;
use crate::probe::{self, Fabric};

/// The scenarios in turn, with the size that makes each some tenths of a second long.
const SCENARIOS: [(&str, &[(&str, u64)]); 5] = [
    ("operations", &[]),
    ("signals", &[("rounds", 60), ("most", 300_000)]),
    ("order", &[("rounds", 100)]),
    ("atomics", &[]),
    ("storm", &[("operations", 4_000)]),
];

/// What the scenarios need, in chunks that cut operations.
const HEAP: u64 = 64 << 20;
const CHUNK: u64 = 1 << 20;
/// Chunks of device memory are multiples of this.
const DEVICE_CHUNK: u64 = 2 << 20;

/// Lines of a PE that has failed that are shown.
const MOST_LINES: usize = 40;

/// One run.
#[derive(Debug, Serialize)]
pub(crate) struct Run {
    pub(crate) provider: String,
    /// The plugin file, by its number.
    pub(crate) file: String,
    pub(crate) scenario: &'static str,
    pub(crate) passed: bool,
    pub(crate) seconds: f64,
    /// How it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    /// What PE 0's transport said of what it had opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opened: Option<String>,
    /// All that PE 0 has said.
    #[serde(skip)]
    pub(crate) log: String,
}

/// What a self-test is without any option.
pub(crate) fn defaults(plugin_dir: Option<PathBuf>) -> SelftestOptions {
    SelftestOptions {
        plugin_dir,
        pes: 2,
        provider: Vec::new(),
        memory: Memory::Host,
        every_file: false,
        deadline: 120,
        json: false,
    }
}

/// Runs what the options say, and calls `told` with each run.
///
/// # Errors
/// There are no plugin files, or no provider.
pub(crate) fn runs(
    options: &SelftestOptions,
    told: &mut dyn FnMut(&Run),
) -> Result<Vec<Run>, ToolError> {
    let plugins = Plugins::find(options.plugin_dir.as_deref())?;
    let providers = match &options.provider[..] {
        [] => providers(&probe::fabric(options.memory == Memory::Gpu))?,
        named => named.to_vec(),
    };
    let mut runs = Vec::new();
    let newest = Layout::ALL[Layout::ALL.len() - 1];
    let layouts = Layout::ALL.into_iter().filter(|layout| options.every_file || *layout == newest);
    for layout in layouts {
        // A file that is missing is told before anything runs on the others.
        plugins.of(layout.major().number().unsigned_abs())?;
        for provider in &providers {
            for (scenario, parameters) in SCENARIOS {
                let run = one(options, &plugins, layout, provider, scenario, parameters)?;
                told(&run);
                runs.push(run);
            }
        }
    }
    Ok(runs)
}

/// The providers that PEs of this machine can use by themselves: what is chosen, and shared memory.
fn providers(fabric: &Fabric) -> Result<Vec<String>, ToolError> {
    let mut found: Vec<String> = fabric.one_host.provider.iter().cloned().collect();
    let local = fabric.providers.iter().filter(|choice| choice.asked == "shm");
    found.extend(
        local
            .filter_map(|choice| choice.provider.clone())
            .filter(|name| !found.contains(name))
            .collect::<Vec<_>>(),
    );
    if found.is_empty() {
        let message =
            fabric.error.clone().unwrap_or_else(|| String::from("no provider can be used here"));
        return Err(ToolError::new(message, "`nvshmem-libfabric doctor` says why"));
    }
    Ok(found)
}

fn one(
    options: &SelftestOptions,
    plugins: &Plugins,
    layout: Layout,
    provider: &str,
    scenario: &'static str,
    parameters: &[(&str, u64)],
) -> Result<Run, ToolError> {
    let deadline = Duration::from_secs(options.deadline);
    let mut job = JobSettings::new(scenario, options.pes, layout, &plugins.directory)
        .inherits_settings()
        .env("NVSHMEM_LIBFABRIC_PROVIDER", provider)
        .env("NVSHMEM_DEBUG", "INFO")
        .deadline(deadline)
        .step_deadline(deadline);
    job = match options.memory {
        Memory::Host => job.heap(HEAP, CHUNK),
        // With a kernel that stays on the GPU, which copies must not wait for.
        Memory::Gpu => {
            job.heap(HEAP, DEVICE_CHUNK).memory(MemoryKind::DeviceVmm).param(RESIDENT, true)
        }
    };
    for (name, value) in parameters {
        job = job.param(*name, *value);
    }
    let report = job.run().map_err(|error| {
        ToolError::new(
            format!("the PEs cannot be started: {error}"),
            "look at the temporary directory",
        )
    })?;
    Ok(Run {
        provider: provider.to_owned(),
        file: layout.soname().to_owned(),
        scenario,
        passed: report.succeeded(),
        seconds: report.elapsed.as_secs_f64(),
        failure: (!report.succeeded()).then(|| failure(&report)),
        opened: opened(&report),
        log: report.pes.first().map(PeReport::text).unwrap_or_default(),
    })
}

/// How the job has failed: what the launcher saw, and the PE that failed first.
fn failure(report: &JobReport) -> String {
    let mut text = report.cause.clone().unwrap_or_default();
    let first = report.first_failure.unwrap_or(0);
    for pe in report.pes.iter().filter(|pe| pe.pe == first) {
        text.push_str(&format!("\nPE {} {}", pe.pe, pe.outcome));
        let lines = &pe.output[pe.output.len().saturating_sub(MOST_LINES)..];
        for (_, line) in lines {
            text.push_str(&format!("\n  {line}"));
        }
    }
    text.trim_start().to_owned()
}

/// The line of the log with provider and rails.
fn opened(report: &JobReport) -> Option<String> {
    let mut lines = report.pes.first()?.output.iter().map(|(_, line)| line);
    let line = lines.find(|line| line.contains("rail(s)"))?;
    Some(line.split_once(" INFO ").map_or(line.as_str(), |(_, text)| text).to_owned())
}

/// A line for people.
pub(crate) fn line(run: &Run) -> String {
    let verdict = if run.passed { "ok" } else { "FAILED" };
    let mut text = format!(
        "{verdict:<6} {:<12} {:<34} {:<12} {:>6.2} s",
        run.provider, run.file, run.scenario, run.seconds
    );
    if let Some(failure) = &run.failure {
        text.push_str(&format!("\n{failure}"));
    }
    text
}

/// Runs, and prints. Whether all passed.
///
/// # Errors
/// See [`runs`].
pub(crate) fn run(options: &SelftestOptions) -> Result<bool, ToolError> {
    let runs = runs(options, &mut |run| {
        if !options.json {
            println!("{}", line(run));
        }
    })?;
    let passed = runs.iter().filter(|run| run.passed).count();
    if options.json {
        println!("{}", json(&runs)?);
    } else {
        println!("{passed} of {} passed, with {} PEs", runs.len(), options.pes);
    }
    Ok(passed == runs.len())
}
