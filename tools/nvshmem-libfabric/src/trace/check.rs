//! `trace check`: what is found in the recordings of a job, in words.

use serde::Serialize;

use super::job::{CallId, Job, name};
use super::order::{Missing, Unordered, unordered_reads};
use crate::error::ToolError;
use crate::info::print_json;
use crate::options::TraceCheckOptions;

/// Most findings of a kind that are told.
const MOST_TOLD: usize = 5;

/// What was looked at, and what is wrong.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pes: u32,
    recordings: usize,
    calls: usize,
    remarks: Vec<String>,
    /// Reads that nothing had ordered, in words.
    pub(super) findings: Vec<String>,
    /// Beyond those that are told.
    untold: usize,
}

impl Report {
    /// Looks through a job.
    pub(super) fn of(job: &Job) -> Self {
        let unordered = unordered_reads(job);
        let told = unordered.iter().take(MOST_TOLD);
        Self {
            pes: job.n_pes,
            recordings: job.pes.len(),
            calls: job.pes.values().map(|recording| recording.records.len()).sum(),
            remarks: job.remarks(),
            findings: told.map(|of| text_of_unordered(job, *of)).collect(),
            untold: unordered.len().saturating_sub(MOST_TOLD),
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![format!(
            "{} recordings of a job of {} PEs, {} records",
            self.recordings, self.pes, self.calls
        )];
        lines.extend(self.findings.iter().cloned());
        if self.untold > 0 {
            lines.push(format!("and {} more of the same", self.untold));
        }
        if self.findings.is_empty() {
            lines.push(String::from("nothing was read that was not ordered"));
        }
        lines.join("\n")
    }
}

/// Checks. Whether nothing was found.
///
/// # Errors
/// Recordings cannot be read.
pub(super) fn run(options: &TraceCheckOptions) -> Result<bool, ToolError> {
    let job = Job::read(&options.files)?;
    let report = Report::of(&job);
    if options.json {
        print_json(&report)?;
    } else {
        println!("{}", report.text());
        report.remarks.iter().for_each(|remark| eprintln!("{remark}"));
    }
    Ok(report.findings.is_empty())
}

/// A call, as one finds it in a timeline.
fn text_of(job: &Job, call: CallId) -> String {
    let record = job.record(call);
    let recording = &job.pes[&call.pe];
    let number = call.at as u64 + recording.overwritten;
    let after = (job.moment(call.pe, record.time) - job.began()) as f64 / 1e6;
    let by = (call.pe, record.time);
    let remote = job.place(record.pe, record.remote, by.0, by.1);
    let what = name(record);
    let bytes = record.bytes;
    let word = match record.signal {
        0 => String::new(),
        signal => format!(", signal at {}", job.place(record.pe, signal, by.0, by.1)),
    };
    format!(
        "PE {}'s {what} (record {number}, {after:.3} ms; {bytes} bytes at PE {}, {remote}{word})",
        call.pe, record.pe
    )
}

fn text_of_unordered(job: &Job, of: Unordered) -> String {
    let (write, read) = (text_of(job, of.write), text_of(job, of.read));
    match of.missing {
        Missing::QuietBeforeGet => {
            format!(
                "a missing quiet: {read} reads what {write} writes, and no quiet is between them"
            )
        }
        Missing::QuietAfterGet => {
            format!(
                "a missing quiet: {read} sends what {write} fetches, and no quiet is between them"
            )
        }
        Missing::Anything => format!(
            "{read} reads what {write} writes, and nothing had ordered it: no quiet had returned, and neither a signal \
             nor anything behind a fence had been sent"
        ),
    }
}

#[cfg(test)]
mod tests;
