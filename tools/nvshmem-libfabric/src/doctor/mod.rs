//! `doctor`: checks of this machine that change nothing but files of ended processes, each with a
//! verdict, the reason, and what helps.

mod fabric;
pub(crate) mod gpus;
mod host;
mod recipes;
mod versions;

use std::cmp::Reverse;

use serde::Serialize;

use crate::error::ToolError;
use crate::info::{Info, VERSION, print_json};
use crate::options::DoctorOptions;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Ok,
    /// Nothing is wrong, and there is something to know.
    Note,
    /// It works, but slower, or not in every case.
    Warning,
    /// The transport does not work like this.
    Error,
}

impl Verdict {
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Check {
    /// For programs; it stays the same between versions.
    pub(crate) id: &'static str,
    pub(crate) verdict: Verdict,
    /// The finding, and why it is well or not.
    pub(crate) reason: String,
    /// None where nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<String>,
}

type Row = (&'static str, Check);

fn ok(reason: impl Into<String>) -> Check {
    let (id, verdict) = ("", Verdict::Ok);
    Check { id, verdict, reason: reason.into(), remedy: None, details: Vec::new() }
}

fn note(reason: impl Into<String>) -> Check {
    Check { verdict: Verdict::Note, ..ok(reason) }
}

fn warning(reason: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { verdict: Verdict::Warning, ..ok(reason) }.remedy(remedy)
}

fn error(reason: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { verdict: Verdict::Error, ..ok(reason) }.remedy(remedy)
}

impl Check {
    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    fn details(self, details: Vec<String>) -> Self {
        Self { details, ..self }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Diagnosis {
    version: &'static str,
    usable: bool,
    pub(crate) summary: String,
    pub(crate) checks: Vec<Check>,
}

impl Diagnosis {
    pub(crate) fn of(info: &Info) -> Self {
        let modules =
            [versions::checks, fabric::checks, recipes::checks, gpus::checks, host::checks];
        let rows = modules.into_iter().flat_map(|checks| checks(info));
        let checks: Vec<Check> = rows.map(|(id, check)| Check { id, ..check }).collect();
        let count = |verdict, what: &str| match checks
            .iter()
            .filter(|check| check.verdict == verdict)
            .count()
        {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let warnings = count(Verdict::Warning, "warning");
        let provider = info.fabric.as_ref().and_then(|fabric| {
            let across = fabric.across_hosts.provider.clone();
            let here = fabric.one_host.provider.as_ref();
            across.or_else(|| here.map(|name| format!("{name} on this host alone")))
        });
        let usable = checks.iter().all(|check| check.verdict < Verdict::Error);
        let summary = match provider.filter(|_| usable) {
            Some(provider) => format!("usable with {provider}; {warnings}"),
            None => format!("not usable; {}, {warnings}", count(Verdict::Error, "error")),
        };
        Self { version: VERSION, usable, summary, checks }
    }

    fn print(&self, all: bool) {
        println!("nvshmem-libfabric {}: {}\n", self.version, self.summary);
        let mut checks: Vec<&Check> = self.checks.iter().collect();
        checks.sort_by_key(|check| Reverse(check.verdict));
        let is_short = |check: &Check| check.verdict == Verdict::Ok && !all;
        for check in &checks {
            println!("{:<8} {:<20} {}", check.verdict.name(), check.id, check.reason);
            for detail in check.details.iter().filter(|_| !is_short(check)) {
                println!("           {detail}");
            }
            if let Some(remedy) = &check.remedy {
                println!("         -> {remedy}");
            }
        }
        if checks.iter().any(|check| is_short(check) && !check.details.is_empty()) {
            println!("\n-v has the details of what is ok");
        }
    }
}

/// Checks, and prints. Returns whether the transport works here; with `--strict`, whether nothing
/// is in its way.
pub(crate) fn run(options: &DoctorOptions) -> Result<bool, ToolError> {
    // Before libfabric is asked, which wants space for its own.
    let (files, bytes) = ofi::remove_left_behind();
    let mut diagnosis = Diagnosis::of(&Info::gather(&options.r#where, &[])?);
    let left = diagnosis.checks.iter_mut().find(|check| check.id == host::LEFT_BEHIND);
    if let Some(check) = left.filter(|_| files > 0) {
        let removed = format!("; removed: {files} of your ended processes, {} MiB", bytes >> 20);
        check.reason.push_str(&removed);
    }
    match options.json {
        true => print_json(&diagnosis)?,
        false => diagnosis.print(options.verbose),
    }
    let most = if options.strict { Verdict::Note } else { Verdict::Warning };
    Ok(diagnosis.checks.iter().all(|check| check.verdict <= most))
}
