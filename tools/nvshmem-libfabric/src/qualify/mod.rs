//! `qualify`: everything that this transport does, tried on a machine that this project cannot see,
//! with a verdict for each row and one file to send.
//!
//! Rows are the tool's own `selftest` and `perf`, as processes with settings of their own. The file
//! is private by construction: of what processes print, only figures, verdicts, and texts of
//! `docs/errors.md` get there.

mod known;
mod machine;

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use serde::de::DeserializeOwned;

use self::known::known;
use self::machine::section;
use crate::child;
use crate::error::ToolError;
use crate::info::{Info, build, check_settings};
use crate::libraries::plugins::Plugins;
use crate::options::{QualifyOptions, Tried};
use crate::probe::Choice;
use crate::selftest::hosts::check_here;
use crate::selftest::{PROVIDER, Run, SCENARIOS};
use nvshmem_bench::Figure;

/// Verdicts: right; right and slower than it could be; wrong, or it did not end; not tried.
const OK: &str = "ok";
const SLOW: &str = "slow";
const FAILED: &str = "FAILED";
const NOT_RUN: &str = "not run";

const MAX_TIME: Duration = Duration::from_secs(540);

/// Fraction of the link's rate, and of one NIC's times the NICs, that must be reached.
const ENOUGH: f64 = 0.7;

/// Tries all, prints a line for each row, and writes the file. Returns whether no row has failed.
pub(crate) fn run(options: &QualifyOptions) -> Result<bool, ToolError> {
    check_settings(options.provider.as_deref().map(|_| PROVIDER))?;
    if options.reach.hosts.len() > 2 {
        return Err(ToolError::new("--hosts names more than two", "`selftest` tries more"));
    }
    let plugins = Plugins::find(options.r#where.plugin_dir.as_deref())?;
    let info = Info::gather(&options.r#where, &[])?;
    if options.dry_run {
        print!("{}", machine::there(&info));
        return Ok(true);
    }
    let bed = Bed::new(options, plugins, &info)?;
    let path = options.out.clone().unwrap_or_else(|| "nvshmem-libfabric-qualify.txt".into());
    let mut report = Report::new(path.clone(), bed.head(), machine::there(&info))?;
    println!("{}\n", bed.head());
    let (began, mut seen) = (Instant::now(), Seen::default());
    for &tried in Tried::value_variants() {
        let part = tried.to_possible_value();
        let part = part.as_ref().map_or("", |part| part.get_name());
        report.write(Some(part))?;
        let late = began.elapsed() > MAX_TIME;
        match bed.refuses(tried, &seen).or(late.then_some("ten minutes are over")) {
            None => bed.tries(tried, part, &mut seen, &mut report),
            Some(why) => report.add(part, NOT_RUN, why, 0.0, ""),
        }
    }
    report.write(None)?;
    println!("\n{}\n{}: the file to send", report.summary(), path.display());
    Ok(report.count(FAILED) == 0)
}

#[derive(Debug, Default)]
struct Seen {
    nothing_opened: bool,
    /// GB/s of puts.
    one_nic: f64,
    staged: f64,
}

struct Bed<'a> {
    options: &'a QualifyOptions,
    plugins: PathBuf,
    /// The provider by the name that options take, with the rails that a job has on this host.
    taken: Choice,
    has_gpus: bool,
}

impl<'a> Bed<'a> {
    fn new(options: &'a QualifyOptions, plugins: Plugins, info: &Info) -> Result<Self, ToolError> {
        let fabric = info.fabric.clone().unwrap_or_default();
        check_here(&fabric, options.provider.as_slice())?;
        let named = options.provider.as_ref().filter(|name| !name.eq_ignore_ascii_case("auto"));
        let across = &fabric.across_hosts;
        let provider = named.or(across.provider.as_ref()).or(fabric.one_host.provider.as_ref());
        let is_taken = |choice: &&Choice| {
            let asked = provider.is_some_and(|name| choice.asked.eq_ignore_ascii_case(name));
            choice.provider.is_some() && (asked || choice.provider.as_ref() == provider)
        };
        let mut taken = fabric.providers.iter().find(is_taken).cloned().ok_or_else(|| {
            ToolError::new("no provider can be used here", "`nvshmem-libfabric doctor` says why")
        })?;
        if !options.reach.hosts.is_empty() && across.provider == taken.provider {
            taken.rails.clone_from(&across.rails);
        }
        let has_gpus = info.gpus.as_ref().is_some_and(|gpus| !gpus.devices.is_empty());
        Ok(Self { options, plugins: plugins.directory, taken, has_gpus })
    }

    fn head(&self) -> String {
        let hosts = self.options.reach.hosts.len().max(1);
        let short = if self.options.short { ", short" } else { "" };
        let Choice { asked, rails, .. } = &self.taken;
        format!("{asked}, {hosts} host(s){short}, {}", machine::speeds(rails))
    }

    fn refuses(&self, tried: Tried, seen: &Seen) -> Option<&'static str> {
        let only = &self.options.only;
        match tried {
            _ if !only.is_empty() && !only.contains(&tried) => Some("left out by --only"),
            _ if seen.nothing_opened => Some("nothing could be opened before"),
            Tried::AllNics if self.taken.rails.len() < 2 => Some("there is one NIC: see one-nic"),
            Tried::Staged | Tried::Direct if !self.has_gpus => Some("CUDA's driver shows no GPU"),
            Tried::Direct if !self.taken.reaches_gpus => Some(
                "refused, or by `auto` not asked for: NVSHMEM_LIBFABRIC_GPU_DIRECT=always asks",
            ),
            _ => None,
        }
    }

    fn settings(&self, tried: Tried) -> Vec<(&'static str, String)> {
        const DEVICES: &str = "NVSHMEM_LIBFABRIC_DEVICES";
        const DIRECT: &str = "NVSHMEM_LIBFABRIC_GPU_DIRECT";
        const TIMEOUT: &str = "NVSHMEM_LIBFABRIC_TIMEOUT_SECONDS";
        let is_set = |name: &str| env::var_os(name).is_some();
        let mut settings = match tried {
            Tried::OneNic => vec![("NVSHMEM_LIBFABRIC_MAX_NIC_PER_PE", String::from("1"))],
            // NICs that are not named are shared out to the PEs of a host.
            Tried::AllNics if self.options.reach.hosts.is_empty() && !is_set(DEVICES) => {
                let names = self.taken.rails.iter().map(|rail| rail.name.as_str());
                vec![(DEVICES, names.collect::<Vec<_>>().join(","))]
            }
            Tried::AllNics => Vec::new(),
            // Between PEs of one host, too, by the fabric.
            Tried::Staged => vec![
                (DIRECT, String::from("never")),
                ("NVSHMEM_LIBFABRIC_DEBUG", String::from("share_bounce=0")),
            ],
            Tried::Direct => vec![(DIRECT, String::from("always"))],
        };
        // So that the transport explains a wait before the row is killed.
        if !is_set(TIMEOUT) {
            settings.push((TIMEOUT, (self.options.deadline * 2 / 3).max(1).to_string()));
        }
        settings
    }

    /// Runs the tool with the settings of a part, for the rows that it prints as JSON.
    fn ask<T: DeserializeOwned>(
        &self,
        tried: Tried,
        words: &[&str],
        patience: u64,
    ) -> Result<Vec<T>, String> {
        let mut command = Command::new(env::current_exe().map_err(|error| error.to_string())?);
        command.args(words).args(["--json", "--provider", &self.taken.asked, "--plugin-dir"]);
        let memory = if matches!(tried, Tried::Staged | Tried::Direct) { "gpu" } else { "host" };
        command.arg(&self.plugins).args(["--memory", memory]);
        let reach = &self.options.reach;
        if !reach.hosts.is_empty() {
            let slots = 2 / reach.hosts.len() as u32;
            let hosts: Vec<String> = reach.hosts.iter().map(|host| host.with(slots)).collect();
            command.args(["--hosts", &hosts.join(","), "--ssh", &reach.ssh]);
            let prefix = reach.prefix.iter();
            command.args(prefix.flat_map(|at| ["--prefix".as_ref(), at.as_os_str()]));
        }
        command.envs(self.settings(tried));
        let ended = child::ask(command, "", Duration::from_secs(patience))?;
        // What fails prints its list as well.
        serde_json::from_str(&ended.out).map_err(|_| format!("it {}\n{}", ended.end, ended.err))
    }

    fn tries(&self, tried: Tried, part: &str, seen: &mut Seen, report: &mut Report) {
        let deadline = self.options.deadline;
        let row = |name: &str| format!("{part}/{name}");
        let words = ["selftest", "--deadline", &deadline.to_string()];
        let patience = SCENARIOS.len() as u64 * (deadline + 10);
        let runs: Vec<Run> = self.ask(tried, &words, patience).unwrap_or_else(|why| {
            report.add(&row("selftest"), FAILED, &known(&why), 0.0, &why);
            Vec::new()
        });
        for (name, _) in SCENARIOS {
            let Some(ran) = runs.iter().find(|ran| ran.scenario == name) else {
                report.add(&row(name), NOT_RUN, "see the row before", 0.0, "");
                continue;
            };
            let said = [&ran.failure, &ran.failure_log].map(|said| said.as_deref().unwrap_or(""));
            let said = said.join("\n");
            let verdict = if ran.passed { OK } else { FAILED };
            report.add(&row(name), verdict, &known(&said), ran.seconds, said.trim());
        }
        let perf = row("perf");
        if runs.iter().all(|ran| ran.opened.is_none()) {
            seen.nothing_opened = tried == Tried::OneNic;
            return report.add(&perf, NOT_RUN, "nothing was opened", 0.0, "");
        }
        let (most, time) = if self.options.short { ("65536", "2") } else { ("4194304", "30") };
        let (words, began) = (["perf", "--max", most, "--milliseconds", time], Instant::now());
        let figures = self.ask::<Figure>(tried, &words, 2 * deadline);
        let seconds = began.elapsed().as_secs_f64();
        match figures {
            Err(why) => report.add(&perf, FAILED, &known(&why), seconds, &why),
            Ok(figures) => {
                let (verdict, said) = self.judge(tried, &figures, seen);
                report.add(&perf, verdict, &said, seconds, "");
                report.add_figures(part, &figures);
            }
        }
    }

    fn judge(&self, tried: Tried, figures: &[Figure], seen: &mut Seen) -> (&'static str, String) {
        let of = |test: &'static str| figures.iter().filter(move |figure| figure.test == test);
        let most = |test| of(test).map(|figure| figure.value).fold(0.0, f64::max);
        let first =
            |test| of(test).min_by_key(|figure| figure.bytes).map_or(0.0, |figure| figure.value);
        let put = most("put_bw");
        let said = format!(
            "put {put:.2} GB/s, get {:.2} GB/s; 8 bytes: put {:.1} us, get {:.1} us, {:.2} million puts/s",
            most("get_bw"),
            first("put_latency"),
            first("get_latency"),
            first("put_message_rate"),
        );
        let rails = &self.taken.rails;
        let link = rails.first().and_then(|rail| rail.link_speed);
        let link = link.map_or(0.0, |mbit| f64::from(mbit) / 8e3);
        let (all, staged) = (rails.len() as f64 * seen.one_nic, seen.staged);
        let slow = match tried {
            Tried::OneNic if put < ENOUGH * link => format!("; the link has {link:.2} GB/s"),
            Tried::AllNics if put < ENOUGH * all => {
                format!("; {} NICs could carry {all:.2} GB/s", rails.len())
            }
            Tried::Direct if put < staged => format!("; staged is faster, at {staged:.2} GB/s"),
            _ => String::new(),
        };
        match tried {
            Tried::OneNic => seen.one_nic = put,
            Tried::Staged => seen.staged = put,
            Tried::AllNics | Tried::Direct => {}
        }
        (if slow.is_empty() { OK } else { SLOW }, said + &slow)
    }
}

/// The file to send: a verdict for each row, what there is, and the figures.
///
/// While rows are tried it is `FILE.part`, written anew before each part, so that a machine that
/// crashes leaves one that says how far it came. The next run replaces that.
#[derive(Default)]
struct Report {
    path: PathBuf,
    head: String,
    there: String,
    /// Verdict and line of each.
    rows: Vec<(&'static str, String)>,
    /// A line each: part, test, bytes, median, 10th and 90th percentile, unit.
    figures: Vec<String>,
}

impl Report {
    fn new(path: PathBuf, head: String, there: String) -> Result<Self, ToolError> {
        if path.symlink_metadata().is_ok() {
            let message = format!("{} is there already", path.display());
            return Err(ToolError::new(message, "name another with --out; none is overwritten"));
        }
        Ok(Self { path, head, there, ..Self::default() })
    }

    /// Prints a row and takes note of it. Its reason is nothing that this program has not composed;
    /// `more` is printed only.
    fn add(&mut self, name: &str, verdict: &'static str, reason: &str, seconds: f64, more: &str) {
        let line = format!("{verdict:<8} {name:<20} {seconds:>5.1} s  {reason}");
        println!("{}", line.trim_end());
        more.lines().for_each(|line| println!("         {line}"));
        self.rows.push((verdict, line));
    }

    fn add_figures(&mut self, part: &str, figures: &[Figure]) {
        self.figures.extend(figures.iter().map(
            |Figure { test, bytes, value, p10, p90, unit, .. }| {
                format!("{part} {test} {bytes} {value:.6} {p10:.6} {p90:.6} {unit}")
            },
        ));
    }

    fn count(&self, verdict: &str) -> usize {
        self.rows.iter().filter(|(is, _)| *is == verdict).count()
    }

    fn summary(&self) -> String {
        let counts = [OK, SLOW, FAILED, NOT_RUN].map(|is| format!("{} {is}", self.count(is)));
        counts.join(", ")
    }

    fn write(&self, next: Option<&str>) -> Result<(), ToolError> {
        let mut part = self.path.clone().into_os_string();
        part.push(".part");
        let write = || -> io::Result<()> {
            // Where it cannot be removed, it cannot be made anew.
            let _ = fs::remove_file(&part);
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o600).open(&part)?;
            file.write_all(self.text(next).as_bytes())?;
            if next.is_none() { fs::rename(&part, &self.path) } else { Ok(()) }
        };
        write().map_err(|error| {
            ToolError::file(&self.path, "cannot be written", error, "name another with --out")
        })
    }

    fn text(&self, next: Option<&str>) -> String {
        let next = next.map(|next| format!("NOT FINISHED: it ended while {next} was tried\n"));
        let rows: Vec<String> = self.rows.iter().map(|(_, line)| line.clone()).collect();
        let next = next.unwrap_or_default();
        format!("nvshmem-libfabric {} qualify: {}\n{next}", build(), self.head)
            + &section(&format!("rows: {}", self.summary()), &rows)
            + &self.there
            + &section("figures", &self.figures)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::options::{Command, Options};
    use crate::probe::Rail;

    #[test]
    fn figures_depend_on_link_and_staging() {
        let options = Options::try_parse_from(["nvshmem-libfabric", "qualify"]).unwrap();
        let Command::Qualify(options) = &options.command else { panic!("{options:?}") };
        let rail = Rail { link_speed: Some(100_000), ..Rail::default() };
        let taken = Choice { rails: vec![rail; 4], ..Choice::default() };
        let bed = Bed { options, plugins: PathBuf::new(), taken, has_gpus: true };
        let mut seen = Seen::default();
        let mut is = |tried, value, slow: &str| {
            let put = Figure { test: String::from("put_bw"), value, ..Figure::default() };
            let (verdict, said) = bed.judge(tried, &[put], &mut seen);
            let expected = if slow.is_empty() { OK } else { SLOW };
            assert!(verdict == expected && said.contains(slow), "{verdict:?}: {said}");
        };
        is(Tried::OneNic, 5.0, "the link has 12.50 GB/s");
        is(Tried::OneNic, 12.0, "");
        is(Tried::AllNics, 13.0, "4 NICs could carry 48.00");
        is(Tried::AllNics, 46.0, "");
        is(Tried::Staged, 47.0, "");
        is(Tried::Direct, 46.0, "staged is faster");
        is(Tried::Direct, 48.0, "");
    }
}
