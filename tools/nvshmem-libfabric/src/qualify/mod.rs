//! `qualify`: everything that this transport does, tried on the fabric at hand in under ten
//! minutes, with a verdict for each row and one file to send.
//!
//! It is for hardware that this project has not seen. Rows run by the machinery of `selftest`, and
//! figures are those of `perf`. A row that fails or hangs ends by its deadline and keeps no other
//! from being tried.

mod file;
mod look;
mod rows;
mod verdict;

use std::env;
use std::io::{self, IsTerminal, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nvshmem_bench::BySize;
use nvshmem_sim::{JobFailed, JobReport, JobSettings, Layout};

use self::file::{Done, Report};
use self::look::Found;
use self::rows::{On, Pes, ROWS, Rails, Row, Traffic, Tries};
use self::verdict::{Seen, Verdict};
use crate::error::ToolError;
use crate::info::check_settings;
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, QualifyOptions};
use crate::perf::table::Figure;
use crate::selftest::PROVIDER;
use crate::selftest::hosts::Host;
use crate::selftest::job::{Place, Trial, failure, opened};
use crate::selftest::named::Named;

/// Most lines that are kept of the beginning of a PE's log, which says what was opened, and of its
/// end, which says how it went.
const MOST_LINES: usize = 100;

/// Seconds that a wait in the transport has at least: what is much slower than rails are given.
const LEAST_TIMEOUT: u64 = 20;

/// Jobs in succession that may fail before they have opened anything; the rest would, too.
const MOST_UNOPENED: u32 = 2;

/// Most PEs of a job, and so most hosts: two PEs are on each in some rows.
const MOST_PES: usize = 64;
const MOST_HOSTS: usize = MOST_PES / 2;

/// PEs of a host that many PEs are tried with, if the user has not said: at least and at most.
const MANY: (usize, usize) = (4, 8);

/// Tries all, prints a line for each row, and writes the file. Whether no row has failed.
///
/// # Errors
/// There are no plugin files, or a host cannot take part, or the file cannot be written.
pub(crate) fn run(options: &QualifyOptions) -> Result<bool, ToolError> {
    let path = options.out.clone();
    let path = path.unwrap_or_else(|| PathBuf::from("nvshmem-libfabric-qualify.txt"));
    check_names(&options.only)?;
    check_settings(options.provider.as_deref().map(|_| PROVIDER))?;
    if options.reach.hosts.len() > MOST_HOSTS {
        let message = format!("{} hosts are more than {MOST_HOSTS}", options.reach.hosts.len());
        return Err(ToolError::new(message, "two tell most of what is to be known"));
    }
    let plugins = Plugins::find(options.r#where.plugin_dir.as_deref())?;
    let layout = Layout::ALL[Layout::ALL.len() - 1];
    let number = layout.major().number().unsigned_abs();
    plugins.of(number)?;
    let names = options.reach.hosts.iter().map(Named::name);
    let mut report = Report::new(&path, names)?;
    match Found::look(options, number, &mut report) {
        Ok(found) => found.run(options, layout, &plugins, &mut report)?,
        Err(error) => {
            report.discard();
            return Err(error);
        }
    }
    report.write(None)?;
    println!("\n{}", report.summary());
    println!("{}: read it before you send it", path.display());
    Ok(report.count("FAILED") == 0)
}

/// That rows which were named are there.
fn check_names(only: &[String]) -> Result<(), ToolError> {
    match only.iter().find(|name| !ROWS.iter().any(|row| row.name.starts_with(name.as_str()))) {
        None => Ok(()),
        Some(name) => {
            let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            let message = format!("no row is named `{name}`");
            Err(ToolError::new(message, format!("there are {}", names.join(", "))))
        }
    }
}

impl Found {
    /// Tries row after row.
    fn run(
        &self,
        options: &QualifyOptions,
        layout: Layout,
        plugins: &Plugins,
        report: &mut Report,
    ) -> Result<(), ToolError> {
        let (began, time) = (Instant::now(), Duration::from_secs(60 * options.minutes));
        let (mut seen, mut unopened) = (Seen::default(), 0);
        let wanted = |row: &&Row| {
            options.only.is_empty()
                || options.only.iter().any(|name| row.name.starts_with(name.as_str()))
        };
        for row in ROWS.iter().filter(wanted) {
            report.write(Some(row.name))?;
            show(Some(row.name));
            let started = Instant::now();
            let rails = match row.tries {
                Tries::Figures(rails) => Some(rails),
                Tries::Traffic(_) => None,
            };
            let refused = self.facts.refuses(row.on, rails).or_else(|| {
                (unopened >= MOST_UNOPENED).then(|| String::from("nothing could be opened before"))
            });
            let late = || {
                (began.elapsed() > time)
                    .then(|| format!("{} minutes are over (--minutes)", options.minutes))
            };
            let tried = match refused.or_else(late) {
                Some(why) => Outcome::of(Verdict::skipped(why)),
                None => {
                    let trial = Trial {
                        plugins,
                        layout,
                        provider: &self.provider,
                        memory: if row.on == On::Host { Memory::Host } else { Memory::Gpu },
                        deadline: Duration::from_secs(options.deadline),
                    };
                    let tried = match &row.tries {
                        Tries::Traffic(traffic) => {
                            self.traffic(row, traffic, &trial, options.short, &mut seen)
                        }
                        Tries::Figures(rails) => {
                            self.figures(row, *rails, &trial, options.short, &mut seen)
                        }
                    };
                    unopened = if tried.opened { 0 } else { unopened + 1 };
                    tried
                }
            };
            let Outcome { verdict, figures, log, .. } = tried;
            let seconds = started.elapsed().as_secs_f64();
            let Row { name, what, .. } = *row;
            let what = what.to_owned();
            let done = Done { name, what, verdict, seconds, figures, log };
            show(None);
            println!("{}", done.line());
            report.rows.push(done);
        }
        Ok(())
    }

    fn traffic(
        &self,
        row: &Row,
        traffic: &Traffic,
        trial: &Trial<'_>,
        short: bool,
        seen: &mut Seen,
    ) -> Outcome {
        let place = self.place(traffic.pes);
        let mut job = settings(row.on, trial.job(traffic.scenario, &place), trial.deadline);
        // Each PE has its own memory twice for each other, four times over, beside the load.
        let pes = u64::from(place.pes);
        let heap = job
            .heap_bytes
            .max((1 << 20) + pes * (8 * (traffic.most + 128) + traffic.load) + traffic.load);
        let chunk = job.chunk_bytes;
        job = job.heap(heap.next_multiple_of(chunk), chunk);
        job =
            job.param("only", traffic.only).param("most", traffic.most).param("load", traffic.load);
        job = job.param("to_first", traffic.to_first);
        if let Some((name, times)) = traffic.times {
            let times = match traffic.load {
                0 => times,
                load if traffic.to_first => seen.rounds(pes * load, times),
                load => seen.rounds(pes * pes * load, times),
            };
            job = job.param(name, if short { (times / 10).max(5) } else { times });
        }
        if let Some(way) = traffic.signals {
            job = job.debug("signals", way);
            if way == "counted" {
                job = job.env("NVSHMEM_LIBFABRIC_RAIL_TIMEOUT", 0);
            }
        }
        // The host shares its NICs out to many PEs; few have all of them.
        if traffic.pes == Pes::Few {
            job = job.leaves_nics();
        }
        match job.run() {
            Ok(report) if report.succeeded() => {
                let verdict = self.facts.of_traffic(row.on, traffic.signals, &report, seen);
                Outcome { verdict, figures: Vec::new(), log: log(&report), opened: true }
            }
            Ok(report) => self.failed(row, &place, &report),
            Err(error) => Outcome::not_started(&error),
        }
    }

    fn figures(
        &self,
        row: &Row,
        rails: Rails,
        trial: &Trial<'_>,
        short: bool,
        seen: &mut Seen,
    ) -> Outcome {
        let place = self.place(Pes::Few);
        let place = Place { pes: 2, hosts: place.hosts.into_iter().take(2).collect() };
        let (most, time) = if short { (64 << 10, 2) } else { (4 << 20, 30) };
        let made = |job: JobSettings| {
            let job = settings(row.on, trial.on(job, &place), trial.deadline).leaves_nics();
            match rails {
                Rails::One => job.env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", 1),
                Rails::All => job,
            }
        };
        let what = BySize { most, of_rails: false };
        let time = Duration::from_millis(time);
        let measured = what.run(
            trial.layout,
            &trial.plugins.directory,
            time,
            Some(trial.deadline),
            &made,
            &mut || {},
        );
        match measured {
            Ok(measured) => {
                let verdict = self.facts.of_figures(row.on, rails, &measured.rows, seen);
                let figures = measured.rows.iter().map(Figure::from).collect();
                Outcome { verdict, figures, log: log(&measured.report), opened: true }
            }
            Err(error) => match error.downcast_ref::<JobFailed>() {
                Some(JobFailed(report)) => self.failed(row, &place, report),
                None => Outcome::not_started(&*error),
            },
        }
    }

    /// The PEs, on this host or on all that were named.
    fn place(&self, pes: Pes) -> Place<'_> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let many = cores.clamp(MANY.0, MANY.1).min(MOST_PES / self.hosts.len().max(1)) as u32;
        let (alone, each) = match pes {
            Pes::Few => (2, 1),
            Pes::More => (4, 2),
            Pes::Many => (many, many),
        };
        let hosts = self.hosts.iter().map(|host| {
            let here = if self.hosts.len() == 1 { alone } else { each };
            (host, if pes == Pes::Many && host.slots > 1 { host.slots } else { here })
        });
        let hosts: Vec<(&Host, u32)> = hosts.collect();
        let pes = if hosts.is_empty() { alone } else { hosts.iter().map(|(_, pes)| pes).sum() };
        Place { pes, hosts }
    }

    fn failed(&self, row: &Row, place: &Place<'_>, report: &JobReport) -> Outcome {
        let opened = opened(report).is_some();
        let why = failure(report);
        let hint = if opened { String::new() } else { place.hint() };
        let remedy = format!(
            "--only {} tries it alone; what its PEs have logged is in the file{}",
            row.name,
            hint.replace("\nhint: ", "; ")
        );
        let verdict = Verdict::Failed { why, remedy };
        Outcome { verdict, figures: Vec::new(), log: log(report), opened }
    }
}

/// What has become of a row.
struct Outcome {
    verdict: Verdict,
    figures: Vec<Figure>,
    log: String,
    /// Whether the transport has opened its rails.
    opened: bool,
}

impl Outcome {
    fn of(verdict: Verdict) -> Self {
        Self { verdict, figures: Vec::new(), log: String::new(), opened: true }
    }

    fn not_started(error: &dyn std::error::Error) -> Self {
        let why = format!("the PEs cannot be started: {error}");
        let remedy = String::from("look at the temporary directory");
        Self { opened: false, ..Self::of(Verdict::Failed { why, remedy }) }
    }
}

/// A job with the row's memory, and the debug keys of the environment, to which rows add theirs.
fn settings(on: On, job: JobSettings, deadline: Duration) -> JobSettings {
    const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";
    const DIRECT: &str = "NVSHMEM_LIBFABRIC_GPU_DIRECT";
    const TIMEOUT: &str = "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS";
    let mut job = job;
    if let Ok(keys) = env::var(DEBUG) {
        job = job.env(DEBUG, keys);
    }
    // So that a wait is explained by the transport before the row is killed.
    let before = deadline.as_secs() * 2 / 3;
    if before >= LEAST_TIMEOUT && env::var_os(TIMEOUT).is_none() {
        job = job.env(TIMEOUT, before);
    }
    match on {
        On::Host | On::Gpu => job,
        // Between PEs of one host, too, by the fabric.
        On::Staged => job.env(DIRECT, "never").debug("share_bounce", 0),
        On::Direct => job.env(DIRECT, "always"),
    }
}

/// What the PEs have printed: PE 0, the first one that has failed, and of those as much as is of
/// use.
fn log(report: &JobReport) -> String {
    let mut text = String::new();
    let told = [Some(0), report.first_failure.filter(|pe| *pe > 0)];
    for pe in told.into_iter().flatten().filter_map(|pe| report.pes.get(pe as usize)) {
        text.push_str(&format!("PE {} {}\n", pe.pe, pe.outcome));
        let lines: Vec<&String> = pe.output.iter().map(|(_, line)| line).collect();
        let (first, rest) = lines.split_at(lines.len().min(MOST_LINES));
        let (left_out, last) = rest.split_at(rest.len().saturating_sub(MOST_LINES));
        first.iter().for_each(|line| text.push_str(&format!("{line}\n")));
        if !left_out.is_empty() {
            text.push_str(&format!("... {} lines are left out\n", left_out.len()));
        }
        last.iter().for_each(|line| text.push_str(&format!("{line}\n")));
    }
    text
}

/// Says on a terminal what is tried, and takes it away again.
fn show(name: Option<&str>) {
    if io::stderr().is_terminal() {
        match name {
            Some(name) => eprint!("\r         {name} ..."),
            None => eprint!("\r{:40}\r", ""),
        }
        // What cannot be shown is no error.
        let _ = io::stderr().flush();
    }
}
