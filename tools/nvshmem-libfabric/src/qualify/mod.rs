//! `qualify`: everything that this transport does, tried on the fabric at hand in under ten
//! minutes, with a verdict for each row and one file to send.
//!
//! It is for hardware that this project has not seen. Rows are jobs of `selftest`'s and figures of
//! `perf`'s, and hosts are described as `report` does. A row that fails or hangs ends by its
//! deadline and keeps no other from being tried.

mod file;
mod look;
mod rows;
mod verdict;

use std::env;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nvshmem_bench::measure_by_size;
use nvshmem_sim::{BoxError, JobFailed, JobReport, JobSettings, Layout};

use self::file::{Done, Report};
use self::rows::{On, Pes, ROWS, Rails, Row, Traffic, Tries};
use self::verdict::{Facts, Judged, Seen, Verdict};
use crate::error::ToolError;
use crate::info::check_settings;
use crate::libraries::plugins::Plugins;
use crate::options::{Memory, QualifyOptions};
use crate::perf::Figure;
use crate::selftest::PROVIDER;
use crate::selftest::hosts::Host;
use crate::selftest::job::{Place, Trial, log_of_failure, opened, why};
use crate::selftest::named::Named;

/// Most lines of a log that are kept.
const MOST_LINES: usize = 200;

/// Seconds that a wait in the transport has at least: what is much slower than rails are given.
const LEAST_TIMEOUT: u64 = 20;

/// Jobs in succession that may fail before they have opened anything; the rest would, too.
const MOST_UNOPENED: u32 = 2;

/// Most PEs of a job, and so most hosts: two PEs are on each in some rows.
const MOST_PES: usize = 64;
const MOST_HOSTS: usize = MOST_PES / 2;

/// PEs of a host that many PEs are tried with, if the user has not said: at least and at most.
const MANY: (usize, usize) = (4, 8);

/// Longest put with signal.
const MOST: u64 = 300_000;

/// Tries all, prints a line for each row, and writes the file. Whether no row has failed.
///
/// # Errors
/// There are no plugin files, or a host cannot take part, or the file cannot be written.
pub(crate) fn run(options: &QualifyOptions) -> Result<bool, ToolError> {
    let path = options.out.clone();
    let path = path.unwrap_or_else(|| PathBuf::from("nvshmem-libfabric-qualify.txt"));
    let is_named = |row: &Row, name: &String| row.name.starts_with(name.as_str());
    if let Some(name) = options.only.iter().find(|name| !ROWS.iter().any(|row| is_named(row, name)))
    {
        let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
        let message = format!("no row is named `{name}`");
        return Err(ToolError::new(message, format!("there are {}", names.join(", "))));
    }
    check_settings(options.provider.as_deref().map(|_| PROVIDER))?;
    if options.reach.hosts.len() > MOST_HOSTS {
        let message = format!("{} hosts are more than {MOST_HOSTS}", options.reach.hosts.len());
        return Err(ToolError::new(message, "two tell most of what is to be known"));
    }
    let plugins = Plugins::find(options.r#where.plugin_dir.as_deref())?;
    let layout = Layout::ALL[Layout::ALL.len() - 1];
    let number = layout.major().number().unsigned_abs();
    plugins.of(number)?;
    let mut report = Report::new(&path, options.reach.hosts.iter().map(Named::name))?;
    let (hosts, facts) = match look::look(options, number, &mut report) {
        Ok(found) => found,
        Err(error) => {
            report.discard();
            return Err(error);
        }
    };
    let deadline = Duration::from_secs(options.deadline);
    let mut bed =
        Bed { options, plugins, layout, deadline, facts, seen: Seen::default(), unopened: 0 };
    let began = Instant::now();
    for row in ROWS {
        if !options.only.is_empty() && !options.only.iter().any(|name| is_named(row, name)) {
            continue;
        }
        report.write(Some(row.name))?;
        let started = Instant::now();
        let late = began.elapsed() > Duration::from_secs(60 * options.minutes);
        let late = late.then(|| format!("{} minutes are over (--minutes)", options.minutes));
        let ((verdict, reason), figures, log) = match bed.refuses(row).or(late) {
            Some(why) => ((Verdict::Skipped, why), Vec::new(), String::new()),
            None => bed.tries(row, &hosts),
        };
        let seconds = started.elapsed().as_secs_f64();
        report.add(Done { name: row.name, verdict, reason, seconds, figures, log });
    }
    report.write(None)?;
    println!("\n{}", report.summary());
    println!("{}: read it before you send it", path.display());
    Ok(report.count(Verdict::Failed) == 0)
}

/// What rows are tried on, and what has come of those before.
struct Bed<'a> {
    options: &'a QualifyOptions,
    plugins: Plugins,
    layout: Layout,
    deadline: Duration,
    facts: Facts,
    seen: Seen,
    /// Rows in succession that have opened nothing.
    unopened: u32,
}

impl Bed<'_> {
    /// Why a row is not tried.
    fn refuses(&self, row: &Row) -> Option<String> {
        let rails = match row.tries {
            Tries::Figures(rails) => Some(rails),
            Tries::Traffic(_) => None,
        };
        let unopened = || String::from("nothing could be opened before");
        let refused = self.facts.refuses(row.on, rails);
        refused.or_else(|| (self.unopened >= MOST_UNOPENED).then(unopened))
    }

    /// The verdict, figures, and what PEs have logged, on the hosts that were named.
    fn tries(&mut self, row: &Row, hosts: &[Host]) -> (Judged, Vec<Figure>, String) {
        let (pes, most_hosts) = match row.tries {
            Tries::Traffic(traffic) => (traffic.pes, MOST_HOSTS),
            Tries::Figures(_) => (Pes::Few, 2),
        };
        let place = place(&hosts[..hosts.len().min(most_hosts)], pes);
        let tried = match row.tries {
            Tries::Traffic(traffic) => self.traffic(row.on, &traffic, &place),
            Tries::Figures(rails) => self.figures(row.on, rails, &place),
        };
        let error = match tried {
            Ok((judged, figures, report)) => {
                self.unopened = 0;
                return (judged, figures, log(&report));
            }
            Err(error) => error,
        };
        let report = error.downcast_ref::<JobFailed>().map(|JobFailed(report)| report);
        let has_opened = report.is_some_and(|report| opened(report).is_some());
        self.unopened = if has_opened { 0 } else { self.unopened + 1 };
        let why = why(&error);
        let hint = if has_opened { String::new() } else { place.hint().replace("\nhint: ", "; ") };
        let reason = format!(
            "{why}\n-> --only {} tries it alone; what its PEs have logged is in the file{hint}",
            row.name
        );
        let log = report.map(|report| log(report)).unwrap_or_default();
        ((Verdict::Failed, reason), Vec::new(), log)
    }

    fn trial(&self, on: On) -> Trial<'_> {
        Trial {
            plugins: &self.plugins,
            layout: self.layout,
            provider: &self.facts.provider,
            memory: if on == On::Host { Memory::Host } else { Memory::Gpu },
            deadline: self.deadline,
        }
    }

    fn traffic(&mut self, on: On, traffic: &Traffic, place: &Place<'_>) -> Tried {
        let (pes, load) = (u64::from(place.pes), traffic.pes.load());
        let mut job = settings(on, self.trial(on).job(traffic.scenario, place), self.deadline);
        // Each PE has its own memory twice for each other, four times over, beside the load.
        let heap = job.heap_bytes.max((1 << 20) + pes * (8 * (MOST + 128) + load) + load);
        let chunk = job.chunk_bytes;
        job = job.heap(heap.next_multiple_of(chunk), chunk);
        let to_first = traffic.pes == Pes::Many;
        job = job.param("only", traffic.only).param("most", MOST);
        job = job.param("load", load).param("to_first", to_first);
        if let Some((name, times)) = traffic.times {
            let times = match load {
                0 => times,
                load if to_first => self.seen.rounds(pes * load, times),
                load => self.seen.rounds(pes * pes * load, times),
            };
            job = job.param(name, if self.options.short { (times / 10).max(5) } else { times });
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
        let report = job.run()?;
        if !report.succeeded() {
            return Err(JobFailed(Box::new(report)).into());
        }
        let judged = self.facts.of_traffic(on, traffic.signals, &report, &mut self.seen);
        Ok((judged, Vec::new(), report))
    }

    fn figures(&mut self, on: On, rails: Rails, place: &Place<'_>) -> Tried {
        let (most, time) = if self.options.short { (64 << 10, 2) } else { (4 << 20, 30) };
        let trial = self.trial(on);
        let made = |job: JobSettings| {
            let job = settings(on, trial.on(job, place), self.deadline).leaves_nics();
            match rails {
                Rails::One => job.env("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", 1),
                Rails::All => job,
            }
        };
        let (directory, time) = (&self.plugins.directory, Duration::from_millis(time));
        let deadline = Some(self.deadline);
        let (report, rows) = measure_by_size(most, self.layout, directory, time, deadline, &made)?;
        let judged = self.facts.of_figures(on, rails, &rows, &mut self.seen);
        Ok((judged, rows.iter().map(Figure::from).collect(), report))
    }
}

/// What has come of a row whose job went well.
type Tried = Result<(Judged, Vec<Figure>, JobReport), BoxError>;

/// The PEs, on this host or on all that were named.
fn place(hosts: &[Host], pes: Pes) -> Place<'_> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let many = cores.clamp(MANY.0, MANY.1).min(MOST_PES / hosts.len().max(1)) as u32;
    let (alone, each) = match pes {
        Pes::Few => (2, 1),
        Pes::More => (4, 2),
        Pes::Many => (many, many),
    };
    let here = if hosts.len() == 1 { alone } else { each };
    let slots = |host: &Host| if pes == Pes::Many && host.slots > 1 { host.slots } else { here };
    let hosts: Vec<(&Host, u32)> = hosts.iter().map(|host| (host, slots(host))).collect();
    let pes = if hosts.is_empty() { alone } else { hosts.iter().map(|(_, pes)| pes).sum() };
    Place { pes, hosts }
}

/// A job with the row's memory, and the debug keys of the environment, to which rows add theirs.
fn settings(on: On, mut job: JobSettings, deadline: Duration) -> JobSettings {
    const DEBUG: &str = "NVSHMEM_LIBFABRIC_DEBUG";
    const DIRECT: &str = "NVSHMEM_LIBFABRIC_GPU_DIRECT";
    const TIMEOUT: &str = "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS";
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

/// What PE 0 has printed, to which what was opened belongs, and the end of what one that has failed
/// has.
fn log(report: &JobReport) -> String {
    let lines = report.pes.first().into_iter().flat_map(|pe| &pe.output);
    let lines: String = lines.take(MOST_LINES).map(|(_, line)| format!("{line}\n")).collect();
    match report.first_failure {
        Some(pe) => {
            format!("{lines}PE {pe}, which failed first, in the end:\n{}", log_of_failure(report))
        }
        None => lines,
    }
}
