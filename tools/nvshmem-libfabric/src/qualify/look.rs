//! What there is to try things on: hosts, provider, rails, GPUs. It is told in the file, and in the
//! first rows as `doctor` judges it.

use std::time::Instant;

use serde::Deserialize;

use super::file::{Done, Report};
use super::verdict::{Facts, Verdict};
use crate::doctor::{self, Diagnosis};
use crate::error::ToolError;
use crate::info::{Info, json};
use crate::options::QualifyOptions;
use crate::probe::Choice;
use crate::report;
use crate::selftest::hosts::{self, Host};

/// What was found.
pub(super) struct Found {
    /// The hosts that were named.
    pub(super) hosts: Vec<Host>,
    pub(super) provider: String,
    pub(super) facts: Facts,
}

/// What `doctor --json` says.
#[derive(Debug, Deserialize)]
struct Said {
    summary: String,
    checks: Vec<Check>,
}

#[derive(Debug, Deserialize)]
struct Check {
    id: String,
    verdict: doctor::Verdict,
    reason: String,
    remedy: Option<String>,
}

impl Found {
    /// Looks. Plugin files of that number are needed on every host.
    ///
    /// # Errors
    /// A host cannot take part, or there is no provider.
    pub(super) fn look(
        options: &QualifyOptions,
        number: u32,
        report: &mut Report,
    ) -> Result<Self, ToolError> {
        let named = options.provider.iter().filter(|name| !name.eq_ignore_ascii_case("auto"));
        let named: Vec<String> = named.cloned().collect();
        let plugin_dir = options.r#where.plugin_dir.as_deref();
        let hosts = match options.reach.hosts.is_empty() {
            true => Vec::new(),
            false => hosts::find(&options.reach, plugin_dir, &[number])?,
        };
        let info = Info::gather(&options.r#where, &[])?;
        let fabric = info.fabric.clone().unwrap_or_default();
        let (provider, no_gpus) = if hosts.is_empty() {
            let gpus = info.gpus.as_ref().map_or(0, |gpus| gpus.devices.len());
            let taken = fabric.across_hosts.provider.as_ref().or(fabric.one_host.provider.as_ref());
            let none = (gpus == 0).then(|| String::from("CUDA's driver shows no GPU here"));
            (named.first().or(taken).cloned(), none)
        } else {
            let without = hosts.iter().position(|host| host.gpus == 0);
            let none = without.map(|at| format!("CUDA's driver shows no GPU on host {}", at + 1));
            (hosts::providers(&hosts, &named)?.into_iter().next(), none)
        };
        if hosts.is_empty() {
            hosts::check_here(&fabric, &named)?;
        }
        let provider = provider.ok_or_else(|| {
            let why = fabric.error.clone();
            let why = why.unwrap_or_else(|| String::from("no provider can be used here"));
            ToolError::new(why, "`nvshmem-libfabric doctor` says why")
        })?;
        // What PEs of this host take among themselves may be other rails of the same provider.
        let here = [&fabric.one_host].into_iter().chain(&fabric.providers);
        let all: Vec<Vec<&Choice>> = match hosts.is_empty() {
            true => vec![here.collect()],
            false => hosts.iter().map(|host| host.choices().collect()).collect(),
        };
        let is_taken = |choice: &&&Choice| {
            let asked = choice.asked.eq_ignore_ascii_case(&provider);
            choice.provider.as_ref().is_some_and(|taken| asked || *taken == provider)
        };
        let taken = all.iter().filter_map(|all| all.iter().find(is_taken));
        let taken: Vec<&Choice> = taken.copied().collect();
        let facts = Facts::new(&provider, &taken, no_gpus, all.len());
        report.head = head(options, &provider, &facts);
        println!("{}\n", report.head);
        if hosts.is_empty() {
            tell(report, "this host", None, &info)?;
        }
        for (at, host) in hosts.iter().enumerate() {
            tell(report, &format!("host {}", at + 1), Some(host), &info)?;
        }
        Ok(Self { hosts, provider, facts })
    }
}

/// What is tried, in one line.
fn head(options: &QualifyOptions, provider: &str, facts: &Facts) -> String {
    let rail = |rail: &crate::probe::Rail| match rail.link_speed {
        Some(mbit) => format!("{} ({} Gbit/s)", rail.name, f64::from(mbit) / 1e3),
        None => rail.name.clone(),
    };
    let rails: Vec<String> = facts.rails.iter().map(rail).collect();
    let hosts = match facts.hosts {
        1 => String::from("one host"),
        hosts => format!("{hosts} hosts"),
    };
    let short = if options.short { ", short" } else { "" };
    format!("{provider}, {hosts}{short}; rails: {}", rails.join(", "))
}

/// Tells what a host is like, and how `doctor` judges it. The information is this host's.
fn tell(
    report: &mut Report,
    name: &str,
    host: Option<&Host>,
    info: &Info,
) -> Result<(), ToolError> {
    let began = Instant::now();
    let ask = |question| host.and_then(|host| host.ask(question));
    let there = match ask("report --no-selftest --out -") {
        Some(Ok(said)) => said,
        Some(Err(why)) => format!("it does not say: {why}"),
        None => report::what_is_there(info)?,
    };
    // Its heads become heads within that of the host.
    report::section(&mut report.there, name, &format!("\n{there}").replace("\n==== ", "\n== "));
    let said = match ask("doctor --json") {
        Some(said) => said,
        None => Ok(json(&Diagnosis::of(info))?),
    };
    let said = said.and_then(|said| {
        serde_json::from_str(&said).map_err(|error| format!("doctor's answer: {error}"))
    });
    let verdict = match said {
        Ok(said) => judge(&said),
        Err(why) => {
            let remedy = String::from("run `nvshmem-libfabric doctor` on that host");
            Verdict::Failed { why, remedy }
        }
    };
    let done = Done {
        name: "machine",
        what: format!("what doctor says of {name}"),
        verdict,
        seconds: began.elapsed().as_secs_f64(),
        figures: Vec::new(),
        log: String::new(),
    };
    println!("{}", done.line());
    report.rows.push(done);
    Ok(())
}

fn judge(said: &Said) -> Verdict {
    let lines = |verdict| {
        let of = said.checks.iter().filter(|check| check.verdict == verdict);
        let line = |check: &Check| {
            let remedy = check.remedy.as_deref().map(|remedy| format!("; {remedy}"));
            format!("{}: {}{}", check.id, check.reason, remedy.unwrap_or_default())
        };
        of.map(line).collect::<Vec<_>>().join("\n")
    };
    match (lines(doctor::Verdict::Error), lines(doctor::Verdict::Warning)) {
        (why, _) if !why.is_empty() => {
            Verdict::Failed { why, remedy: String::from("docs/errors.md says more of errors") }
        }
        (_, why) if !why.is_empty() => Verdict::Slow { why },
        _ => Verdict::ok(&said.summary),
    }
}
