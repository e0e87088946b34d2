//! `perf`: the plugin measured between two PEs of this machine the way NVSHMEM's perftests do, in their layout, with
//! every byte checked.

mod measure;
mod table;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use nvshmem_sim::{BoxError, JobReport, JobSettings, Layout, PeReport, Scenario, Told};

use crate::error::ToolError;
use crate::info::json;
use crate::options::PerfOptions;
use crate::plugins::Plugins;
use table::{Figure, Row, print_machine_readable, print_tables};

/// The scenario of the PEs, by its name.
pub(crate) const SCENARIO: (&str, Scenario) = ("measure", measure::scenario);

/// Longest time of a whole run.
const DEADLINE: Duration = Duration::from_secs(1800);

/// Measures, and prints.
///
/// # Errors
/// There are no plugin files, a PE failed, or a byte was wrong.
pub(crate) fn run(options: &PerfOptions) -> Result<bool, ToolError> {
    let plugins = Plugins::find(options.plugin_dir.as_deref())?;
    plugins.of(options.layout.major().number().unsigned_abs())?;
    match measured(options, &plugins) {
        Ok(()) => Ok(true),
        Err(error) => {
            eprintln!("nvshmem-libfabric: {error}");
            Ok(false)
        }
    }
}

fn measured(options: &PerfOptions, plugins: &Plugins) -> Result<(), BoxError> {
    let chunk = options.max.next_power_of_two().max(4096);
    let mut job = JobSettings::new(SCENARIO.0, 2, options.layout, &plugins.directory)
        .env("NVSHMEM_DEBUG", "INFO")
        .param("milliseconds", options.milliseconds)
        .param("max", options.max)
        .heap(4 * chunk, chunk)
        .deadline(DEADLINE)
        .inherits_settings();
    if let Some(provider) = &options.provider {
        job = job.env("NVSHMEM_LIBFABRIC_PROVIDER", provider);
    }
    if let Some(devices) = &options.devices {
        job = job.env("NVSHMEM_LIBFABRIC_DEVICES", devices);
    }
    let mut progress = Progress::new(measure::rows(options.max));
    let report = job.run_with(&mut |_, _, told| {
        if let Told::Value("row", _) = told {
            progress.step();
        }
    });
    progress.end();
    let report = report?.check()?;
    let rows = report.pes[0].values.iter().filter(|(name, _)| name == "row");
    let rows: Vec<Row> = rows.map(|(_, text)| text.parse()).collect::<Result<_, _>>()?;
    if options.json {
        println!("{}", json(&rows.iter().map(Figure::from).collect::<Vec<_>>())?);
        return Ok(());
    }
    println!(
        "2 PEs on this host; {}; NVSHMEM's interface in layout {} ({})",
        plugins.directory.join(options.layout.soname()).display(),
        options.layout,
        options.layout.releases().join(", "),
    );
    for line in said(&report) {
        println!("{line}");
    }
    print_tables(&rows);
    print_machine_readable(&rows);
    let verified = |pe: &PeReport| pe.value("verified")?.parse::<u64>().ok();
    let checked: u64 = report.pes.iter().filter_map(verified).sum();
    println!("\nEvery byte arrived as it was sent: {checked} bytes compared, 0 wrong.");
    Ok(())
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

/// A layout by its name, for the command line.
pub(crate) fn layout(name: &str) -> Result<Layout, String> {
    Layout::from_name(name)
        .ok_or_else(|| format!("{} are known", Layout::ALL.map(Layout::name).join(", ")))
}
