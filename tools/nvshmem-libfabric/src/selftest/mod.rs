//! `selftest`: all operations between PEs of this machine or of several, on the plugin files that
//! are installed, every byte checked.
//!
//! Over more than two hosts each pair is tried by itself first, and then all together, so that the
//! tool can name a pair that has no connection.

pub(crate) mod hosts;

use std::time::Duration;

use nvshmem_sim::traffic::RESIDENT;
use nvshmem_sim::{BoxError, JobFailed, JobReport, JobSettings, Layout, MemoryKind, PeReport};
use serde::{Deserialize, Serialize};

use crate::error::ToolError;
use crate::info::{check_settings, print_json};
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, SelftestOptions};
use crate::probe::{self, Fabric};
use hosts::Host;

pub(crate) const PROVIDER: &str = "NVSHMEM_LIBFABRIC_PROVIDER";

pub(crate) const NEWEST: Layout = Layout::ALL[Layout::ALL.len() - 1];

/// The scenarios in turn, with the size that makes each some tenths of a second long.
pub(crate) const SCENARIOS: [(&str, &[(&str, u64)]); 5] = [
    ("operations", &[]),
    ("signals", &[("rounds", 60), ("most", 300_000)]),
    ("order", &[("rounds", 100)]),
    ("atomics", &[]),
    ("storm", &[("operations", 4_000)]),
];

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    provider: String,
    file: String,
    pub(crate) scenario: String,
    /// Hosts of the PEs, if not all were on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<String>,
    pub(crate) passed: bool,
    pub(crate) seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure_log: Option<String>,
    /// The line that PE 0's transport has logged of its rails; none if it has opened none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opened: Option<String>,
}

/// Runs what the options say, and prints. Returns whether all passed.
pub(crate) fn run(options: &SelftestOptions) -> Result<bool, ToolError> {
    check_settings((!options.provider.is_empty()).then_some(PROVIDER))?;
    let json = options.job.json;
    let plugins = Plugins::find(options.job.plugin_dir.as_deref())?;
    let layouts: Vec<Layout> =
        Layout::ALL.into_iter().filter(|layout| options.every_file || *layout == NEWEST).collect();
    let numbers: Vec<u32> =
        layouts.iter().map(|layout| layout.major().number().unsigned_abs()).collect();
    // A file that is missing is told before anything runs on the others.
    numbers.iter().try_for_each(|number| plugins.of(*number).map(drop))?;
    let hosts = hosts::find(&options.job, &numbers)?;
    let all = Place::on(&hosts, options.pes);
    if !(2..=64).contains(&all.pes) {
        let message = format!("the hosts take {} PE(s), and a self-test has 2 to 64", all.pes);
        let hint = "name more hosts, or how many PEs one takes: --hosts a:2";
        return Err(ToolError::new(message, hint));
    }
    let providers = if hosts.is_empty() {
        providers(&probe::fabric(options.job.memory == Memory::Gpu), &options.provider)?
    } else {
        hosts::providers(&hosts, &options.provider)?
    };
    if !hosts.is_empty() && !json {
        println!("{}\n", hosts::table(&hosts));
    }
    let mut runs: Vec<Run> = Vec::new();
    // Whether it passed, and whether the transport had opened anything.
    let mut run = |place: &Place<'_>,
                   layout: Layout,
                   provider: &str,
                   (scenario, parameters): (&str, &[(&str, u64)])|
     -> Result<(bool, bool), ToolError> {
        let (memory, deadline) = (options.job.memory, Duration::from_secs(options.deadline));
        let job = JobSettings::new(scenario, place.pes, layout, &plugins.directory)
            .deadline(deadline)
            .step_deadline(deadline)
            .heap(64 << 20, 1 << 20)
            // With a kernel that stays on the GPU, which copies must not wait for.
            .param(RESIDENT, memory == Memory::Gpu);
        let job = place.put(job, provider, memory);
        let job = parameters.iter().fold(job, |job, (name, value)| job.param(*name, *value));
        let report = job.run().map_err(|error| {
            let message = format!("the PEs cannot be started: {error}");
            ToolError::new(message, "look at the temporary directory")
        })?;
        let passed = report.succeeded();
        let run = Run {
            provider: provider.to_owned(),
            file: layout.soname().to_owned(),
            scenario: scenario.to_owned(),
            hosts: place.hosts.iter().map(|(host, _)| host.name.clone()).collect(),
            passed,
            seconds: report.elapsed.as_secs_f64(),
            failure: (!passed).then(|| failure(&report) + &place.hint()),
            failure_log: (!passed).then(|| log_of_failure(&report)),
            opened: opened(&report),
        };
        if !json {
            println!("{}", line(&run, options.verbose));
        }
        let went = (passed, run.opened.is_some());
        runs.push(run);
        Ok(went)
    };
    let (mut reached, mut left) = (true, layouts.len() * providers.len() * SCENARIOS.len());
    for provider in &providers {
        for place in pairs(&hosts) {
            reached &= run(&place, NEWEST, provider, SCENARIOS[0])?.0;
        }
    }
    // Where two do not reach each other, all together would only take until a deadline.
    if reached {
        for layout in layouts {
            for provider in &providers {
                for scenario in SCENARIOS {
                    left -= 1;
                    // Where nothing could be opened the others would say the same.
                    if run(&all, layout, provider, scenario)? == (false, false) {
                        break;
                    }
                }
            }
        }
    }
    let passed = runs.iter().filter(|run| run.passed).count();
    if json {
        print_json(&runs)?;
    } else {
        let pes = match hosts.is_empty() {
            true => format!("{} PEs", options.pes),
            false => String::from("PEs on these hosts"),
        };
        let is_short = passed < runs.len() && !options.verbose;
        let log = if is_short { "; -v shows what was logged" } else { "" };
        let left = if left > 0 { format!(", {left} not run") } else { String::new() };
        println!("{passed} of {} passed{left}, with {pes}{log}", runs.len());
    }
    Ok(passed == runs.len())
}

fn pairs(hosts: &[Host]) -> impl Iterator<Item = Place<'_>> {
    let firsts = hosts.iter().enumerate().filter(|_| hosts.len() > 2);
    firsts.flat_map(|(at, first)| {
        let seconds = hosts[at + 1..].iter();
        seconds.map(move |second| Place { pes: 2, hosts: vec![(first, 1), (second, 1)] })
    })
}

/// Returns the providers that were named, or what the transport would take here, and shm.
fn providers(fabric: &Fabric, named: &[String]) -> Result<Vec<String>, ToolError> {
    if !named.is_empty() {
        return hosts::check_here(fabric, named).map(|()| named.to_vec());
    }
    let shm = fabric.providers.iter().filter(|choice| choice.asked == "shm");
    let all = [&fabric.one_host].into_iter().chain(shm);
    let mut found: Vec<String> = all.filter_map(|choice| choice.provider.clone()).collect();
    found.dedup();
    if !found.is_empty() {
        return Ok(found);
    }
    let message = fabric.error.as_deref().unwrap_or("no provider can be used here");
    Err(ToolError::new(message, "`nvshmem-libfabric doctor` says why"))
}

fn line(run: &Run, all: bool) -> String {
    let verdict = if run.passed { "ok" } else { "FAILED" };
    let mut text = format!(
        "{verdict:<6} {:<12} {:<34} {:<12} {:>6.2} s  {}",
        run.provider,
        run.file,
        run.scenario,
        run.seconds,
        run.hosts.join(", ")
    );
    text.truncate(text.trim_end().len());
    if let Some(failure) = &run.failure {
        text.push_str(&format!("\n{failure}"));
    }
    if let Some(log) = run.failure_log.as_ref().filter(|_| all) {
        text.push_str(&format!("\n{log}"));
    }
    text
}

/// Granularity of a driver's allocations.
const DEVICE_CHUNK: u64 = 2 << 20;

const MAX_LINES: usize = 40;

/// The PEs of a job, and on which hosts they are: so many on each, or all on this machine where
/// none is named.
pub(crate) struct Place<'a> {
    pub(crate) pes: u32,
    pub(crate) hosts: Vec<(&'a Host, u32)>,
}

impl<'a> Place<'a> {
    pub(crate) fn on(hosts: &'a [Host], here: u32) -> Self {
        let pes = hosts.iter().map(|host| host.slots).sum();
        let pes = if hosts.is_empty() { here } else { pes };
        Self { pes, hosts: hosts.iter().map(|host| (host, host.slots)).collect() }
    }

    pub(crate) fn put(&self, job: JobSettings, provider: &str, memory: Memory) -> JobSettings {
        let mut job = job
            .inherits_settings()
            .env("NVSHMEM_LIBFABRIC_PROVIDER", provider)
            .env("NVSHMEM_DEBUG", "INFO");
        if memory == Memory::Gpu {
            let whole = |bytes: u64| bytes.next_multiple_of(DEVICE_CHUNK);
            let (heap, chunk) = (whole(job.heap_bytes), whole(job.chunk_bytes));
            job = job.memory(MemoryKind::DeviceVmm).heap(heap, chunk);
        }
        let mut first = 0;
        for (host, pes) in &self.hosts {
            job = job.host(first, *pes, host.remote.clone());
            first += pes;
        }
        job
    }

    pub(crate) fn hint(&self) -> String {
        let rails: Vec<String> = self.hosts.iter().map(|(host, _)| host.rails()).collect();
        if rails.is_empty() {
            return String::new();
        }
        format!(
            "\nhint: no way between their rails is likely: {}. NVSHMEM_LIBFABRIC_DEVICES names rails of a network that all are on; \
             a firewall, too, may stand between them",
            rails.join("; ")
        )
    }
}

pub(crate) fn failure(report: &JobReport) -> String {
    let mut text = report.cause.clone().unwrap_or_default();
    if let Some(pe) = failed_first(report) {
        let outcome = pe.outcome.to_string();
        if !text.contains(&outcome) {
            text.push_str(&format!("\nPE {} {outcome}", pe.pe));
        }
        if let Some(error) = first_error(pe) {
            // What a call has returned says less.
            match text.find(" failed: ") {
                Some(at) => text.replace_range(at.., &format!(": {error}")),
                None => text.push_str(&format!("\n{error}")),
            }
        }
    }
    text.trim_start().to_owned()
}

pub(crate) fn why(error: &BoxError) -> String {
    match error.downcast_ref::<JobFailed>() {
        Some(JobFailed(report)) => failure(report),
        None => error.to_string(),
    }
}

pub(crate) fn log_of_failure(report: &JobReport) -> String {
    let output = failed_first(report).map_or(&[][..], |pe| &pe.output);
    let last = &output[output.len().saturating_sub(MAX_LINES)..];
    last.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

fn failed_first(report: &JobReport) -> Option<&PeReport> {
    report.pes.iter().find(|pe| pe.pe == report.first_failure.unwrap_or(0))
}

fn first_error(pe: &PeReport) -> Option<String> {
    let mut lines = pe.output.iter().map(String::as_str);
    let error = lines.by_ref().find_map(|line| Some(line.split_once(" NVSHMEM ERROR ")?.1))?;
    let error = match error.split_once(": ") {
        Some((call, error)) if call.starts_with("nvshmemt_") => error,
        _ => error,
    };
    let more = lines.take_while(|line| line.starts_with("  "));
    Some([error].into_iter().chain(more).collect::<Vec<_>>().join("\n"))
}

pub(crate) fn opened(report: &JobReport) -> Option<String> {
    let line = report.pes.first()?.output.iter().find(|line| line.contains("rail(s)"))?;
    Some(line.split_once(" INFO ").map_or(line.as_str(), |(_, text)| text).to_owned())
}
