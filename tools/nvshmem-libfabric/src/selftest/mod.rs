//! `selftest`: all operations between PEs of this machine or of several, on the plugin files that
//! are installed, every byte checked.
//!
//! The PEs are processes of this program, driven as NVSHMEM drives the plugin; neither a GPU nor
//! NVSHMEM is needed. Over more than two hosts each pair is tried by itself first, so that who does
//! not reach whom is told, and then all together.

pub(crate) mod hosts;
pub(crate) mod job;
pub(crate) mod named;

use std::time::Duration;

use nvshmem_sim::traffic::RESIDENT;
use nvshmem_sim::{JobSettings, Layout};
use serde::{Deserialize, Serialize};

use crate::error::ToolError;
use crate::info::{check_settings, print_json};
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, SelftestOptions};
use crate::probe::{self, Fabric};
use hosts::Host;
use job::{Place, failure, log_of_failure, opened};

pub(crate) const PROVIDER: &str = "NVSHMEM_LIBFABRIC_PROVIDER";

/// The layout of the newest NVSHMEM.
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
    /// Where the PEs were, if not all on this machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<String>,
    pub(crate) passed: bool,
    pub(crate) seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure_log: Option<String>,
    /// What PE 0's transport said of what it had opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) opened: Option<String>,
}

/// Runs what the options say, and prints. Whether all passed.
///
/// # Errors
/// There are no plugin files, or no provider, or a host cannot take part.
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
