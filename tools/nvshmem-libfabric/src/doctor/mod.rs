//! `doctor`: checks of this machine that change nothing but files of ended processes, each with a
//! verdict, the reason, and what helps.

mod fabric;
pub(crate) mod gpus;
pub(crate) mod host;
mod versions;

use std::cmp::Reverse;

use serde::{Deserialize, Serialize};

use crate::error::ToolError;
use crate::info::{Info, VERSION, print_json};
use crate::options::DoctorOptions;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
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
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Check {
    /// For programs; it stays the same between versions.
    pub(crate) id: &'static str,
    pub(crate) verdict: Verdict,
    /// What was found, and why that is well or not.
    pub(crate) reason: String,
    /// What helps; none where nothing is to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) remedy: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) details: Vec<String>,
}

impl Check {
    fn new(id: &'static str, verdict: Verdict, reason: impl Into<String>) -> Self {
        Self { id, verdict, reason: reason.into(), remedy: None, details: Vec::new() }
    }

    fn ok(id: &'static str, reason: impl Into<String>) -> Self {
        Self::new(id, Verdict::Ok, reason)
    }

    fn note(id: &'static str, reason: impl Into<String>) -> Self {
        Self::new(id, Verdict::Note, reason)
    }

    fn warning(id: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(id, Verdict::Warning, reason).remedy(remedy)
    }

    fn error(id: &'static str, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(id, Verdict::Error, reason).remedy(remedy)
    }

    fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    fn details(self, details: Vec<String>) -> Self {
        Self { details, ..self }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Diagnosis {
    pub(crate) version: &'static str,
    pub(crate) usable: bool,
    pub(crate) summary: String,
    pub(crate) checks: Vec<Check>,
}

impl Diagnosis {
    pub(crate) fn of(info: &Info) -> Self {
        let mut checks = versions::checks(info);
        checks.extend(fabric::checks(info));
        checks.extend(gpus::checks(info));
        checks.extend(host::checks(info));
        let usable = checks.iter().all(|check| check.verdict < Verdict::Error);
        let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let (errors, warnings) = (count(Verdict::Error), count(Verdict::Warning));
        let provider = info.fabric.as_ref().and_then(|fabric| {
            let across = fabric.across_hosts.provider.as_deref();
            across.map(|name| (name, "")).or_else(|| {
                fabric.one_host.provider.as_deref().map(|name| (name, " on this host alone"))
            })
        });
        let plural = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            _ => format!("{count} {what}s"),
        };
        let summary = match (usable, provider) {
            (true, Some((provider, extent))) => {
                format!("usable with {provider}{extent}; {}", plural(warnings, "warning"))
            }
            _ => {
                format!("not usable; {}, {}", plural(errors, "error"), plural(warnings, "warning"))
            }
        };
        Self { version: VERSION, usable, summary, checks }
    }

    pub(crate) fn text(&self, all: bool) -> String {
        let mut text = format!("nvshmem-libfabric {}: {}\n\n", self.version, self.summary);
        let mut checks: Vec<&Check> = self.checks.iter().collect();
        checks.sort_by_key(|check| Reverse(check.verdict));
        for check in checks {
            let (verdict, id) = (check.verdict.name(), check.id);
            text.push_str(&format!("{verdict:<8} {id:<20} {}\n", check.reason));
            if all || check.verdict > Verdict::Ok {
                for detail in &check.details {
                    text.push_str(&format!("           {detail}\n"));
                }
            }
            if let Some(remedy) = &check.remedy {
                text.push_str(&format!("         -> {remedy}\n"));
            }
        }
        let is_short = |check: &Check| check.verdict == Verdict::Ok && !check.details.is_empty();
        if !all && self.checks.iter().any(is_short) {
            text.push_str("\n-v has the details of what is ok\n");
        }
        text
    }
}

/// Checks, and prints. Whether the transport works here; and with `--strict`, whether nothing is in
/// its way.
pub(crate) fn run(options: &DoctorOptions) -> Result<bool, ToolError> {
    // Before libfabric is asked, which wants space for its own.
    let (files, bytes) = ofi::remove_left_behind();
    let mut diagnosis = Diagnosis::of(&Info::gather(&options.r#where, &[])?);
    let left = diagnosis.checks.iter_mut().find(|check| check.id == host::LEFT_BEHIND);
    if let Some(check) = left.filter(|_| files > 0) {
        let removed = format!("; removed: {files} of your ended processes, {} MiB", bytes >> 20);
        check.reason.push_str(&removed);
    }
    if options.json {
        print_json(&diagnosis)?;
    } else {
        print!("{}", diagnosis.text(options.verbose));
    }
    let most = if options.strict { Verdict::Note } else { Verdict::Warning };
    Ok(diagnosis.checks.iter().all(|check| check.verdict <= most))
}
