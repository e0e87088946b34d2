//! `perf`: the plugin measured between two PEs, of this machine or of two, in the layout of
//! NVSHMEM's perftests.

use std::time::Duration;

use nvshmem_bench::{Row, TESTS, measure_by_size};
use nvshmem_sim::{BoxError, JobSettings};
use serde::{Deserialize, Serialize};

use crate::error::ToolError;
use crate::info::{check_settings, print_json};
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, PerfOptions};
use crate::probe;
use crate::selftest::job::{Place, Trial, why};
use crate::selftest::{NEWEST, PROVIDER, hosts};

const PES: u32 = 2;

pub(crate) fn run(options: &PerfOptions) -> Result<bool, ToolError> {
    check_settings(options.provider.as_deref().map(|_| PROVIDER))?;
    let plugins = Plugins::find(options.plugin_dir.as_deref())?;
    let number = NEWEST.major().number().unsigned_abs();
    plugins.of(number)?;
    let hosts = match options.reach.hosts.is_empty() {
        true => Vec::new(),
        false => hosts::find(&options.reach, options.plugin_dir.as_deref(), &[number])?,
    };
    let place = Place { pes: PES, hosts: hosts.iter().map(|host| (host, host.slots)).collect() };
    let slots: u32 = hosts.iter().map(|host| host.slots).sum();
    if !hosts.is_empty() && slots != PES {
        let message = format!("the hosts take {slots} PE(s), and {PES} are measured");
        return Err(ToolError::new(message, "name two hosts, or one for both: --hosts a:2"));
    }
    hosts::check_memory(options.memory, &hosts)?;
    let named = options.provider.as_slice();
    let provider = if hosts.is_empty() {
        let fabric = probe::fabric(options.memory == Memory::Gpu);
        let provider = options.provider.clone().unwrap_or(fabric.one_host.asked.clone());
        hosts::check_here(&fabric, std::slice::from_ref(&provider))?;
        provider
    } else {
        hosts::providers(&hosts, named)?.swap_remove(0)
    };
    let trial = Trial {
        plugins: &plugins,
        layout: NEWEST,
        provider: &provider,
        memory: options.memory,
        deadline: Duration::ZERO,
    };
    match measured(options, &trial, &place) {
        Ok(()) => Ok(true),
        Err(error) => {
            let error = ToolError::new(why(&error), place.hint());
            error.print_json();
            eprintln!("nvshmem-libfabric: {error}{}", error.hint);
            Ok(false)
        }
    }
}

fn measured(options: &PerfOptions, trial: &Trial<'_>, place: &Place<'_>) -> Result<(), BoxError> {
    let made = |job: JobSettings| {
        let devices = options.devices.iter();
        devices.fold(trial.on(job, place), |job, devices| {
            job.env("NVSHMEM_LIBFABRIC_DEVICES", devices)
        })
    };
    let (directory, time) = (&trial.plugins.directory, Duration::from_millis(options.milliseconds));
    let (report, rows) = measure_by_size(options.max, NEWEST, directory, time, None, &made)?;
    let uneven = rows.iter().filter(|row| row.spread.1 > 2.0 * row.spread.0).count();
    if uneven > 0 {
        let all = rows.len();
        eprintln!(
            "warning: {uneven} of {all} rows differ by more than a factor of two in their rounds"
        );
    }
    if options.json {
        print_json(&rows.iter().map(Figure::from).collect::<Vec<_>>())?;
        return Ok(());
    }
    let hosts = if place.hosts.len() > 1 { "two hosts" } else { "one host" };
    let memory = match options.memory {
        Memory::Host => "memory of the host",
        Memory::Gpu => "memory of GPUs",
    };
    println!("two PEs on {hosts}, {memory}; {}", directory.join(NEWEST.soname()).display(),);
    // What PE 0's plugin has logged about provider, progress and rails.
    for (_, line) in report.pes[0].output.iter().filter(|(_, line)| line.contains("rail(s)")) {
        println!("{}", line.split_once(" INFO ").map_or(line.as_str(), |(_, text)| text));
    }
    for test in &TESTS {
        let head = format!("{} ({})", test.metric, test.unit);
        println!(
            "\n#{}\n{:<12}{:<8}{head:<18}p10..p90 of the rounds",
            test.name, "size(B)", "scope"
        );
        for Row { size, value, spread: (p10, p90), .. } in rows.iter().filter(|r| r.test == test) {
            println!("{size:<12}{:<8}{value:<18.6}{p10:.6}..{p90:.6}", "host");
        }
    }
    println!("\nEvery byte of each row was compared: 0 wrong.");
    Ok(())
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) test: String,
    pub(crate) bytes: u64,
    pub(crate) value: f64,
    /// A tenth of the rounds is below, and a tenth above.
    pub(crate) p10: f64,
    pub(crate) p90: f64,
    pub(crate) unit: String,
    pub(crate) more_is_better: bool,
}

impl From<&Row> for Figure {
    fn from(&Row { test, size: bytes, value, spread: (p10, p90) }: &Row) -> Self {
        let more_is_better = test.metric != "latency";
        let (test, unit) = (String::from(test.name), String::from(test.unit));
        Self { test, bytes, value, p10, p90, unit, more_is_better }
    }
}
