//! `perf`: the plugin measured between two PEs, of this machine or of two, by the benches' rounds,
//! in the layout of NVSHMEM's perftests.

pub(crate) mod table;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use nvshmem_bench::{BySize, MeasuredBySize};
use nvshmem_sim::{BoxError, JobReport, JobSettings};

use crate::error::ToolError;
use crate::info::{check_settings, print_json};
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, PerfOptions};
use crate::probe;
use crate::selftest::PROVIDER;
use crate::selftest::hosts;
use crate::selftest::job::{Place, Trial, why};
use table::{Figure, headline, print_machine_readable, print_tables, warnings};

/// PEs that figures are between.
const PES: u32 = 2;

/// Measures, and prints.
///
/// # Errors
/// There are no plugin files, no provider or no GPU, or a host cannot take part.
pub(crate) fn run(options: &PerfOptions) -> Result<bool, ToolError> {
    check_settings(options.provider.as_deref().map(|_| PROVIDER))?;
    let plugins = Plugins::find(options.plugin_dir.as_deref())?;
    let number = options.layout.major().number().unsigned_abs();
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
        layout: options.layout,
        provider: &provider,
        memory: options.memory,
        deadline: Duration::ZERO,
    };
    match measured(options, &trial, &place) {
        Ok(()) => Ok(true),
        Err(error) => {
            eprintln!("nvshmem-libfabric: {}{}", why(&error), place.hint());
            Ok(false)
        }
    }
}

fn measured(options: &PerfOptions, trial: &Trial<'_>, place: &Place<'_>) -> Result<(), BoxError> {
    let MeasuredBySize { report, rows, compared, busy } = job(options, trial, place)?;
    let on = on(options.memory, place);
    let warnings = warnings(&rows, busy.as_deref());
    if options.json {
        print_json(&rows.iter().map(Figure::from).collect::<Vec<_>>())?;
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    } else {
        println!("{}", headline(&rows));
        warnings.iter().for_each(|warning| println!("warning  {warning}"));
        println!(
            "{on}; {}; NVSHMEM's interface in layout {} ({})",
            trial.plugins.directory.join(options.layout.soname()).display(),
            options.layout,
            options.layout.releases().join(", "),
        );
        for line in said(&report) {
            println!("{line}");
        }
        print_tables(&rows);
        print_machine_readable(&rows);
        println!("\nEvery byte arrived as it was sent: {compared} bytes compared, 0 wrong.");
    }
    Ok(())
}

/// What the PEs are on.
fn on(memory: Memory, place: &Place<'_>) -> String {
    let memory = match memory {
        Memory::Host => "memory of the host",
        Memory::Gpu => "memory of GPUs",
    };
    let hosts = match place.hosts.len() {
        0 | 1 => "one host",
        _ => "two hosts",
    };
    format!("two PEs on {hosts}, {memory}")
}

/// The job, with a bar of how far it is.
fn job(
    options: &PerfOptions,
    trial: &Trial<'_>,
    place: &Place<'_>,
) -> Result<MeasuredBySize, BoxError> {
    let what = BySize { most: options.max, of_rails: false };
    let time = Duration::from_millis(options.milliseconds);
    let mut progress = Progress::new(what.len());
    let made = |job: JobSettings| {
        let job = trial.on(job, place);
        let devices = options.devices.iter();
        devices.fold(job, |job, devices| job.env("NVSHMEM_LIBFABRIC_DEVICES", devices))
    };
    let directory = &trial.plugins.directory;
    let measured = what.run(options.layout, directory, time, None, &made, &mut || {
        progress.step();
    });
    progress.end();
    measured
}

/// What PE 0's plugin logged about provider, progress and rails.
fn said(report: &JobReport) -> Vec<String> {
    let lines = report.pes[0].output.iter().map(|(_, line)| line);
    lines
        .filter(|line| line.contains("rail(s)"))
        .map(|line| line.split_once(" INFO ").map_or(line.as_str(), |(_, text)| text).to_owned())
        .collect()
}

/// A bar on the standard error stream, where that is a terminal.
struct Progress {
    shown: bool,
    done: usize,
    all: usize,
}

impl Progress {
    const WIDTH: usize = 40;

    fn new(all: usize) -> Self {
        Self { shown: io::stderr().is_terminal(), done: 0, all }
    }

    fn step(&mut self) {
        self.done += 1;
        if self.shown {
            let full = (self.done * Self::WIDTH / self.all.max(1)).min(Self::WIDTH);
            let (full, rest) = ("#".repeat(full), " ".repeat(Self::WIDTH - full));
            eprint!("\r[{full}{rest}] {} of {} rows", self.done, self.all);
            // A bar that cannot be shown is no error.
            let _ = io::stderr().flush();
        }
    }

    fn end(&self) {
        if self.shown {
            eprint!("\r{:width$}\r", "", width = Self::WIDTH + 30);
        }
    }
}
