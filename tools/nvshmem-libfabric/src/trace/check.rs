//! `trace check`: what is found in the recordings of a job, in words.

use serde::Serialize;

use super::job::{CallId, Job, name};
use super::order::{Missing, Unordered, unordered_reads};
use super::plan::Plan;
use super::replay::{self, Broken, Signals};
use crate::error::ToolError;
use crate::info::json;
use crate::options::TraceCheckOptions;

/// Most findings of a kind that are told.
const MOST_TOLD: usize = 5;

/// How often a job is replayed unless the user says.
const SEEDS: u64 = 16;

/// Work after which no further replay begins then: some ten seconds. Who has made a file does not decide how long it takes to
/// check it.
const MOST_WORK: u64 = 100_000;

/// How often to replay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seeds {
    most: u64,
    /// Not after so much work.
    work: Option<u64>,
}

impl Seeds {
    /// What the user wants, if anything.
    fn of(wanted: Option<u64>) -> Self {
        match wanted {
            Some(most) => Self { most, work: None },
            None => Self { most: SEEDS, work: Some(MOST_WORK) },
        }
    }
}

/// Most PEs that are replayed together: each has a thread.
const MOST_PES: u32 = 64;

/// Whose mistake it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// The program reads what nothing has ordered.
    Unordered,
    /// This transport does not keep order in the replay.
    Replay,
}

/// Something that is wrong.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) kind: Kind,
    pub(super) text: String,
}

/// What was looked at, and what is wrong.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pes: u32,
    recordings: usize,
    calls: usize,
    /// Calls that were replayed, and with how many seeds.
    replayed: usize,
    seeds: u64,
    remarks: Vec<String>,
    pub(super) findings: Vec<Finding>,
    /// Beyond those that are told.
    untold: usize,
}

impl Report {
    /// Looks through a job.
    pub(super) fn of(job: &Job, seeds: Seeds, most: usize, signals: Signals) -> Self {
        let unordered = unordered_reads(job);
        let plan = Plan::of(job, most);
        let calls = job.pes.values().map(|recording| recording.records.len()).sum();
        let mut report = Self {
            pes: job.n_pes,
            recordings: job.pes.len(),
            calls,
            replayed: 0,
            seeds: 0,
            remarks: job.remarks(),
            findings: Vec::new(),
            untold: unordered.len().saturating_sub(MOST_TOLD),
        };
        for of in unordered.iter().take(MOST_TOLD) {
            let text = text_of_unordered(job, *of);
            report.findings.push(Finding { kind: Kind::Unordered, text });
        }
        if plan.n_pes > MOST_PES {
            let text = format!(
                "{} PEs are too many for a replay: name the recordings of fewer",
                plan.n_pes
            );
            report.remarks.push(text);
            return report;
        }
        if plan.left_out > 0 {
            let text = format!(
                "{} older calls were not replayed: --calls {most} of each thread were",
                plan.left_out
            );
            report.remarks.push(text);
        }
        report.replayed = plan.calls;
        report.replay(job, &plan, signals, seeds);
        report
    }

    /// Replays with every seed.
    fn replay(&mut self, job: &Job, plan: &Plan, signals: Signals, seeds: Seeds) {
        let mut broken: Option<(Broken, u64)> = None;
        let (mut times, mut work) = (0, 0);
        for seed in 1..=seeds.most {
            if seeds.work.is_some_and(|most| work > most) {
                self.remarks.push(format!(
                    "replayed {} times and not {}, as each takes long: --seeds {} does all",
                    self.seeds, seeds.most, seeds.most
                ));
                break;
            }
            let outcome = replay::run(plan, seed, signals);
            self.seeds = seed;
            work += outcome.work;
            if let Some(what) = outcome.broken {
                times += 1;
                broken.get_or_insert((what, seed));
            }
        }
        if let Some((what, seed)) = broken {
            let text = format!(
                "{}; with {times} of {} seeds, first with seed {seed}",
                text_of_broken(job, &what),
                self.seeds
            );
            self.findings.push(Finding { kind: Kind::Replay, text });
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![format!(
            "{} recordings of a job of {} PEs, {} records; {} calls replayed with {} seeds",
            self.recordings, self.pes, self.calls, self.replayed, self.seeds
        )];
        for finding in &self.findings {
            let kind = match finding.kind {
                Kind::Unordered => "program",
                Kind::Replay => "replay",
            };
            lines.push(format!("{kind}: {}", finding.text));
        }
        if self.untold > 0 {
            lines.push(format!("and {} more of the same", self.untold));
        }
        if self.findings.is_empty() {
            lines.push(String::from(
                "nothing was read that was not ordered, and what is ordered came in order",
            ));
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
    let report = Report::of(&job, Seeds::of(options.seeds), options.calls, Signals::AsTheyAre);
    if options.json {
        println!("{}", json(&report)?);
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

fn text_of_broken(job: &Job, broken: &Broken) -> String {
    match broken {
        Broken::Order { late, early, why } => format!(
            "data that was not there: {} took effect before {}, and {why}",
            text_of(job, *early),
            text_of(job, *late)
        ),
        Broken::Lost { call } => format!("{} had no effect", text_of(job, *call)),
        Broken::Failed { pe, why } => format!("the lane of PE {pe} has failed: {why}"),
    }
}

#[cfg(test)]
mod tests;
