//! Runs an experiment: for each run it makes the hosts, starts the PEs on them, lets happen what is
//! to happen, and collects what came of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nvshmem_abi::Layout;

use crate::error::LabError;
use crate::experiment::{Event, Experiment, Run, Workload};
use crate::network::{Carried, Network, nic};
use crate::workload::tally::{BYTES, FIRST, ROUND, SECONDS, WRONG};
use crate::{SCENARIO, raw, workload};
use nvshmem_sim::{JobReport, JobSettings, Told};

/// How long PEs may take to end when one has failed. What they wait for has failed as well.
const GRACE: Duration = Duration::from_secs(2);

/// What the lab tests.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The directory of the installed plugin.
    pub plugin_dir: PathBuf,
    /// The libfabric that it loads, if not the system's.
    pub libfabric: Option<PathBuf>,
    /// Environment of the PEs, on top of what experiments and runs say.
    pub env: BTreeMap<String, String>,
}

/// What came of a run.
#[derive(Clone, Default, Debug)]
pub struct Ran {
    /// The run's name.
    pub name: String,
    /// Why it counts as failed, if it does: the job did not end in order, or did not say what it
    /// should have said. Wrong bytes are counted by themselves.
    pub failure: Option<String>,
    /// Bytes that were not as they should be.
    pub wrong_bytes: u64,
    /// The first of them that was found.
    pub first_wrong: Option<String>,
    /// Payload of all PEs per second.
    pub goodput: Option<f64>,
    /// Of each host, by rail, during the whole job.
    pub carried: Vec<Vec<Carried>>,
    /// What has happened to links.
    pub happened: Vec<String>,
    /// Lines of the PEs that warn.
    pub warnings: Vec<String>,
    /// How long the job took, from start to end.
    pub elapsed: Duration,
    /// Everything the PEs have said.
    pub log: String,
}

impl Subject {
    /// Runs one of an experiment's runs, on hosts of its own.
    ///
    /// # Errors
    /// The lab itself fails. A job that fails is in the result.
    pub fn run(&self, experiment: &Experiment, text: &str, index: usize) -> Result<Ran, LabError> {
        let run = &experiment.runs[index];
        let network = Network::new(experiment.hosts, &experiment.rails)?;
        for event in &run.starts {
            network.change(event.link(), event.end, event.set)?;
        }
        let before = all_carried(&network)?;
        let mut script = Script::new(experiment, run, &network);
        let started = Instant::now();
        let job = self
            .job(experiment, run, &network)
            .param(workload::TEXT, text)
            .param(workload::RUN, index);
        let report = job
            .run_with(&mut |_, _, told| {
                if let Told::Value(name, _) = told {
                    script.take(name);
                }
            })
            .map_err(|e| LabError::text("the job", e.to_string()))?;
        let elapsed = started.elapsed();
        let carried = all_carried(&network)?;
        let carried = std::iter::zip(carried, before)
            .map(|(after, before)| std::iter::zip(after, before).map(difference).collect())
            .collect();
        let failure = script.failure(run, &report);
        let happened = script.happened;
        let warnings = warnings(&report).collect();
        Ok(Ran {
            name: run.name.clone(),
            failure,
            wrong_bytes: numbers(&report, WRONG).map(|wrong| wrong as u64).sum(),
            first_wrong: report.pes.iter().find_map(|pe| pe.value(FIRST)).map(str::to_owned),
            goodput: goodput(&report),
            carried,
            happened,
            warnings,
            elapsed,
            log: report.to_string(),
        })
    }

    fn job(&self, experiment: &Experiment, run: &Run, network: &Network) -> JobSettings {
        let devices: Vec<String> = (0..network.rails()).map(nic).collect();
        let (heap, chunk) = heap(experiment, run);
        let deadline = Duration::from_secs(experiment.deadline_seconds);
        let n_pes = experiment.n_pes();
        let mut job = JobSettings::new(SCENARIO, n_pes, Layout::V7, &self.plugin_dir)
            .pes_per_node(1)
            .heap(heap, chunk)
            .deadline(deadline)
            .step_deadline(deadline)
            .grace(GRACE)
            .env("NVSHMEM_DEBUG", "INFO")
            .env("NVSHMEM_LIBFABRIC_PROVIDER", "tcp")
            // The hosts share the cores of this machine, and the plugin knows of one host only.
            .env("NVSHMEM_LIBFABRIC_YIELD", "always")
            .env("NVSHMEM_LIBFABRIC_DEVICES", devices.join(","));
        if let Some(library) = &self.libfabric {
            job = job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.display());
        }
        for (name, value) in experiment.env.iter().chain(&run.env).chain(&self.env) {
            job = job.env(name, value);
        }
        let hosts = network.hosts();
        (0..).zip(hosts).fold(job, |job, (pe, host)| job.network_of_pe(pe, Arc::clone(host)))
    }

    /// Bytes per second of TCP by itself from the first host to the second: over each rail alone,
    /// and over all at once, which is what this machine can carry.
    ///
    /// # Errors
    /// The lab fails.
    pub fn raw_tcp(experiment: &Experiment) -> Result<(Vec<f64>, f64), LabError> {
        /// Long enough for TCP to be at its rate.
        const SECONDS: f64 = 0.2;
        let network = Network::new(experiment.hosts, &experiment.rails)?;
        let raw = |rail: usize| {
            let bytes = experiment.rails[rail].bytes_per_second() * SECONDS;
            raw::tcp(&network, rail, bytes as usize)
        };
        let alone = (0..network.rails()).map(raw).collect::<Result<_, _>>()?;
        let together = std::thread::scope(|scope| {
            let raw = &raw;
            let threads: Vec<_> =
                (0..network.rails()).map(|rail| scope.spawn(move || raw(rail))).collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(rate) => rate,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            joined.sum::<Result<f64, LabError>>()
        })?;
        Ok((alone, together))
    }
}

/// Reads an experiment, with its text, which the PEs are given.
///
/// # Errors
/// It cannot be read or makes no sense.
pub fn load(path: &Path) -> Result<(Experiment, String), LabError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|e| LabError::new(&name, e))?;
    let experiment = Experiment::parse(&text).map_err(|why| LabError::text(name, why))?;
    Ok((experiment, text))
}

/// What happens to links during a run.
struct Script<'a> {
    network: &'a Network,
    /// Rounds of all PEs.
    total: f64,
    /// Of those, how many have begun.
    begun: u32,
    /// What is still to come, the next one last.
    events: Vec<Event>,
    happened: Vec<String>,
    failure: Option<LabError>,
}

impl<'a> Script<'a> {
    fn new(experiment: &Experiment, run: &Run, network: &'a Network) -> Script<'a> {
        let rounds = match run.workload.unwrap_or(experiment.workload) {
            Workload::Storm { rounds } => rounds * u64::from(experiment.n_pes()),
            _ => 0,
        };
        let mut events = run.events.clone();
        // Those of one moment stay in their order.
        events.reverse();
        events.sort_by(|a, b| b.after.total_cmp(&a.after));
        let (happened, failure) = (Vec::new(), None);
        Script { network, total: rounds as f64, begun: 0, events, happened, failure }
    }

    /// Takes the name of a value that a PE has handed over.
    fn take(&mut self, name: &str) {
        if name != ROUND {
            return;
        }
        self.begun += 1;
        let part = f64::from(self.begun) / self.total;
        while let Some(event) = self.events.last().copied().filter(|event| event.after <= part) {
            self.events.pop();
            let Event { end, set, .. } = event;
            let far = if end == crate::End::Far { " from outside" } else { "" };
            self.happened.push(format!("{} {set}{far} at {:.0} %", event.link(), part * 100.0));
            if let Err(error) = self.network.change(event.link(), end, set) {
                self.failure.get_or_insert(error);
            }
        }
    }

    /// Why the run counts as failed.
    fn failure(&self, run: &Run, report: &JobReport) -> Option<String> {
        if let Some(error) = &self.failure {
            return Some(error.to_string());
        }
        if !report.succeeded() {
            let cause = report.cause.clone();
            return Some(cause.unwrap_or_else(|| "a PE did not end in order".into()));
        }
        if let Some(event) = self.events.last() {
            return Some(format!("it was over before {} was {}", event.link(), event.set));
        }
        let says = |line: &str, texts: &[String]| texts.iter().all(|text| has_word(line, text));
        let missing =
            run.warns.iter().find(|texts| !warnings(report).any(|line| says(&line, texts)));
        Some(format!("no PE has warned of {}", missing?.join(", ")))
    }
}

/// Whether a word is in a line, not as part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

fn warnings(report: &JobReport) -> impl Iterator<Item = String> {
    report.pes.iter().flat_map(|pe| {
        let lines = pe.output.iter().filter(|(_, line)| line.contains("WARN"));
        lines.map(|(_, line)| format!("PE {}: {line}", pe.pe))
    })
}

/// A number that PEs have handed over, of each that has.
fn numbers<'a>(report: &'a JobReport, name: &'a str) -> impl Iterator<Item = f64> + 'a {
    report.pes.iter().filter_map(move |pe| pe.value(name)?.parse().ok())
}

/// They begin together, so the slowest says how long it took.
fn goodput(report: &JobReport) -> Option<f64> {
    let seconds = numbers(report, SECONDS).max_by(f64::total_cmp)?;
    Some(numbers(report, BYTES).sum::<f64>() / seconds)
}

/// Bytes of the heap, and of its chunks. Streams have one chunk: operations are cut at its borders.
fn heap(experiment: &Experiment, run: &Run) -> (u64, u64) {
    const ROOM: u64 = 1 << 20;
    let n_pes = experiment.n_pes();
    match run.workload.unwrap_or(experiment.workload) {
        Workload::Stream { bytes, window, .. } => {
            let all = ((2 * bytes + 8) * window + ROOM).next_power_of_two();
            (all, all)
        }
        Workload::Storm { .. } => (workload::storm::heap(n_pes), 4 << 20),
        Workload::ManyToOne { bytes, second, window, .. } => {
            let all = (bytes + second) * window * u64::from(n_pes + 1) + ROOM;
            (all, all.next_power_of_two())
        }
    }
}

fn all_carried(network: &Network) -> Result<Vec<Vec<Carried>>, LabError> {
    (0..network.hosts().len()).map(|host| network.carried(host)).collect()
}

fn difference((after, before): (Carried, Carried)) -> Carried {
    Carried { sent: after.sent - before.sent, received: after.received - before.received }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_found_as_a_whole_word_only() {
        assert!(has_word("WARN rail rail1: gone", "rail1") && has_word("rail1", "rail1"));
        assert!(has_word("rail10, rail1", "rail1"));
        assert!(!has_word("WARN rail10", "rail1") && !has_word("monorail1", "rail1"));
    }
}
