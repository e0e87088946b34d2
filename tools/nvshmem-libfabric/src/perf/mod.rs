//! `perf`: the plugin measured between two PEs, of this machine or of two, by the benches' rounds,
//! in the layout of NVSHMEM's perftests.

mod plot;
mod report;
pub(crate) mod table;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvshmem_bench::{Beside, BySize, Compared, MeasuredBySize, unfit};
use nvshmem_sim::{BoxError, JobReport, JobSettings};
use nvshmem_transport_libfabric::settings::Settings;

use crate::error::ToolError;
use crate::info::{check_settings, print_json};
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, PerfOptions};
use crate::probe;
use crate::selftest::PROVIDER;
use crate::selftest::hosts;
use crate::selftest::job::{Place, Trial, why};
use report::Measured;
use table::{Figure, headline, print_machine_readable, print_tables, warnings};

/// PEs that figures are between.
const PES: u32 = 2;

/// Jobs, and most rounds of each side in each of them, beside raw libfabric.
const BESIDE: (u32, u32) = (2, 8);

/// Measures, and prints.
///
/// # Errors
/// There are no plugin files, no provider or no GPU, a host cannot take part, or the report cannot
/// be written.
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
    // Made first: it is a pity when all has been measured and then cannot be written.
    let page = options.report.as_deref().map(NewFile::make).transpose()?;
    let trial = Trial {
        plugins: &plugins,
        layout: options.layout,
        provider: &provider,
        memory: options.memory,
        deadline: Duration::ZERO,
    };
    match measured(options, &trial, &place, page) {
        Ok(()) => Ok(true),
        Err(error) => {
            eprintln!("nvshmem-libfabric: {}{}", why(&error), place.hint());
            Ok(false)
        }
    }
}

/// A file that is gone again unless it is written.
struct NewFile<'a> {
    path: &'a Path,
    file: File,
    is_written: bool,
}

impl<'a> NewFile<'a> {
    fn make(path: &'a Path) -> Result<Self, ToolError> {
        let file = File::create_new(path).map_err(|error| {
            ToolError::file(
                path,
                "cannot be made",
                error,
                "name another file with --report; none is overwritten",
            )
        })?;
        Ok(Self { path, file, is_written: false })
    }

    fn write(mut self, text: &str) -> io::Result<()> {
        self.file.write_all(text.as_bytes())?;
        self.is_written = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_written {
            // Half a page is none.
            let _ = fs::remove_file(self.path);
        }
    }
}

fn measured(
    options: &PerfOptions,
    trial: &Trial<'_>,
    place: &Place<'_>,
    page: Option<NewFile<'_>>,
) -> Result<(), BoxError> {
    let all = BySize { most: options.max, of_rails: false };
    let MeasuredBySize { report, rows, compared, busy } = job(options, trial, place, all, None)?;
    let on = on(options.memory, place);
    let mut warnings = warnings(&rows, busy.as_deref());
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
    let Some(page) = page else { return Ok(()) };
    let opened = said(&report).into_iter().find(|line| line.contains(", provider "));
    let opened = opened.ok_or("the log of PE 0 does not say what was opened")?;
    let mut by_rails = Vec::new();
    let of_rails = BySize { of_rails: true, ..all };
    for rails in fewer(rails_of(&opened)) {
        let MeasuredBySize { rows, busy, .. } = job(options, trial, place, of_rails, Some(rails))?;
        if warnings.is_empty() {
            warnings.extend(busy.as_deref().map(unfit));
        }
        by_rails.push((rails, rows));
    }
    let beside = match options.memory == Memory::Host && place.hosts.is_empty() {
        true => beside(&opened, trial.plugins, options.milliseconds)?,
        false => Err(String::from(
            "raw libfabric is measured between PEs of one host, on memory of the host",
        )),
    };
    let text = Measured { on, opened, warnings, rows, by_rails, beside }.page()?;
    let path = page.path;
    page.write(&text).map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
    if !options.json {
        println!("{}: open it in a browser; it needs nothing else", path.display());
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

/// One job, on so many rails at most.
fn job(
    options: &PerfOptions,
    trial: &Trial<'_>,
    place: &Place<'_>,
    what: BySize,
    rails: Option<u32>,
) -> Result<MeasuredBySize, BoxError> {
    let settings = [
        ("NVSHMEM_LIBFABRIC_DEVICES", options.devices.clone()),
        ("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", rails.map(|rails| rails.to_string())),
    ];
    let settings: Vec<_> =
        settings.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let time = Duration::from_millis(options.milliseconds);
    let mut progress = Progress::new(what.len());
    let made = |job: JobSettings| {
        let job = trial.on(job, place);
        settings.iter().fold(job, |job, (name, value)| job.env(*name, value))
    };
    let directory = &trial.plugins.directory;
    let measured = what.run(options.layout, directory, time, None, &made, &mut || {
        progress.step();
    });
    progress.end();
    measured
}

/// The rails in the line of the log about them.
fn rails_of(opened: &str) -> u32 {
    let before = opened.split(" rail(s)").next().unwrap_or_default();
    before.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(1)
}

/// The provider in the same line.
fn provider_of(opened: &str) -> &str {
    let behind = opened.split_once(", provider ").map_or("", |(_, behind)| behind);
    behind.split_once("; asked").map_or(behind, |(provider, _)| provider)
}

/// Doubled from one on, and all.
fn fewer(all: u32) -> Vec<u32> {
    let doubled = std::iter::successors(Some(1_u32), |rails| Some(rails * 2));
    doubled.take_while(|rails| *rails < all).chain([all]).collect()
}

/// Beside raw libfabric, on the provider that was taken: each side of a case for about so many
/// milliseconds in a job. The inner error is why there is nothing to compare.
fn beside(
    opened: &str,
    plugins: &Plugins,
    milliseconds: u64,
) -> Result<Result<Vec<Compared>, String>, BoxError> {
    let provider = provider_of(opened);
    if !Beside::knows(provider) {
        return Ok(Err(format!(
            "{provider} is not compared: raw libfabric is measured on tcp, tcp;ofi_rxm and shm, which need no hardware"
        )));
    }
    let (settings, _) = Settings::from_env()?;
    let (jobs, most) = BESIDE;
    let round_ms = milliseconds.min(Beside::ROUND_MS);
    let rounds = (milliseconds / round_ms).clamp(2, most.into()) as u32;
    let library = Some(PathBuf::from(settings.library));
    let compared =
        Beside { plugin_dir: plugins.directory.clone(), library, jobs, rounds, round_ms };
    compared.run(provider).map(Ok)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn provider_and_rails_are_read_from_the_line_of_the_log() {
        let line = "libfabric 1.17 (libfabric.so.1), provider tcp;ofi_rxm; asked for auto, got progress manual (not automatic: \
                    rxm), threading safe; immediate data: yes (x); 12 rail(s): a (depth 9)";
        assert_eq!((provider_of(line), rails_of(line)), ("tcp;ofi_rxm", 12));
        assert_eq!((provider_of(""), rails_of("")), ("", 1));
        assert_eq!([1, 2, 3, 8].map(fewer), [vec![1], vec![1, 2], vec![1, 2, 3], vec![1, 2, 4, 8]]);
    }
}
