//! What there is to try things on: hosts, provider, rails, GPUs. The file has what `report` says of
//! each host, and the first rows what `doctor` says there.

use super::file::{Done, Report};
use super::verdict::{Facts, Verdict};
use crate::error::ToolError;
use crate::info::Info;
use crate::options::QualifyOptions;
use crate::probe::{Choice, Rail};
use crate::report;
use crate::selftest::hosts::{self, Host};

/// Looks. Plugin files of that number are needed on every host.
///
/// # Errors
/// A host cannot take part, or there is no provider.
pub(super) fn look(
    options: &QualifyOptions,
    number: u32,
    report: &mut Report,
) -> Result<(Vec<Host>, Facts), ToolError> {
    let named = options.provider.iter().filter(|name| !name.eq_ignore_ascii_case("auto"));
    let named: Vec<String> = named.cloned().collect();
    let plugin_dir = options.r#where.plugin_dir.as_deref();
    let hosts = match options.reach.hosts.is_empty() {
        true => Vec::new(),
        false => hosts::find(&options.reach, plugin_dir, &[number])?,
    };
    let info = Info::gather(&options.r#where, &[])?;
    let fabric = info.fabric.clone().unwrap_or_default();
    let gpus = info.gpus.as_ref().map_or(0, |gpus| gpus.devices.len());
    let (provider, gpus, all): (_, _, Vec<Vec<&Choice>>) = if hosts.is_empty() {
        hosts::check_here(&fabric, &named)?;
        let taken = fabric.across_hosts.provider.as_ref().or(fabric.one_host.provider.as_ref());
        // What PEs of this host take among themselves may be other rails of the same provider.
        let choices = [&fabric.one_host].into_iter().chain(&fabric.providers).collect();
        (named.first().or(taken).cloned(), gpus, vec![choices])
    } else {
        let provider = hosts::providers(&hosts, &named)?.into_iter().next();
        let gpus = hosts.iter().map(|host| host.gpus).min().unwrap_or(0);
        (provider, gpus, hosts.iter().map(|host| host.choices().collect()).collect())
    };
    let provider = provider.ok_or_else(|| {
        let why = fabric.error.clone();
        let why = why.unwrap_or_else(|| String::from("no provider can be used here"));
        ToolError::new(why, "`nvshmem-libfabric doctor` says why")
    })?;
    let is_taken = |choice: &&&Choice| {
        let asked = choice.asked.eq_ignore_ascii_case(&provider);
        choice.provider.as_ref().is_some_and(|taken| asked || *taken == provider)
    };
    let taken: Vec<&Choice> =
        all.iter().filter_map(|all| all.iter().find(is_taken)).copied().collect();
    let facts = Facts {
        rails: taken.first().map(|choice| choice.rails.clone()).unwrap_or_default(),
        reaches_gpus: !taken.is_empty() && taken.iter().all(|choice| choice.reaches_gpus),
        gpus,
        hosts: all.len(),
        provider,
    };
    report.head = head(options, &facts);
    println!("{}\n", report.head);
    if hosts.is_empty() {
        tell(report, String::from("this host"), Ok(report::what_is_there(&info)?));
    }
    for (at, host) in hosts.iter().enumerate() {
        let there = host.ask("report --no-selftest --out -");
        let there = there.map_or_else(|| report::what_is_there(&info).map(Ok), Ok)?;
        tell(report, format!("host {}", at + 1), there);
    }
    Ok((hosts, facts))
}

/// What is tried, in one line.
fn head(options: &QualifyOptions, facts: &Facts) -> String {
    let rail = |rail: &Rail| match rail.link_speed {
        Some(mbit) => format!("{} ({} Gbit/s)", rail.name, f64::from(mbit) / 1e3),
        None => rail.name.clone(),
    };
    let rails: Vec<String> = facts.rails.iter().map(rail).collect();
    let hosts = match facts.hosts {
        1 => String::from("one host"),
        hosts => format!("{hosts} hosts"),
    };
    let short = if options.short { ", short" } else { "" };
    format!("{}, {hosts}{short}; rails: {}", facts.provider, rails.join(", "))
}

/// Tells what a host has said it is like, and makes a row of what its `doctor` finds wrong.
fn tell(report: &mut Report, name: String, there: Result<String, String>) {
    let there = there.unwrap_or_else(|why| format!("it does not say: {why}"));
    let (_, doctor) = there.split_once("==== doctor\n").unwrap_or(("", &there));
    let (summary, checks) = doctor.split_once("\n\n").unwrap_or((doctor, ""));
    // The worst come first.
    let is_wrong = |line: &&str| !line.starts_with("note ") && !line.starts_with("ok ");
    let wrong: Vec<&str> = checks.lines().take_while(is_wrong).collect();
    let (verdict, reason) = match wrong.first() {
        Some(first) if first.starts_with("warning ") => (Verdict::Slow, wrong.join("\n")),
        Some(_) => (Verdict::Failed, wrong.join("\n")),
        None if checks.is_empty() => (Verdict::Failed, doctor.to_owned()),
        None => (Verdict::Ok, summary.to_owned()),
    };
    // Its heads become heads within that of the host.
    report::section(&mut report.there, &name, &format!("\n{there}").replace("\n==== ", "\n== "));
    let reason = format!("{name}: {reason}");
    let (figures, log) = (Vec::new(), String::new());
    report.add(Done { name: "machine", verdict, reason, seconds: 0.0, figures, log });
}
