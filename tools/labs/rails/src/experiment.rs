//! Experiments as data: what the hosts are, what the PEs do, what happens meanwhile, and what is
//! measured and must hold.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{self, Deserializer};

use crate::network::{Change, End, Link};
use crate::rate::Rate;

/// A file of `tests/lab`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// One line for people.
    pub title: String,
    /// Number of hosts, with a PE on each.
    pub hosts: usize,
    /// A rail for each rate.
    pub rails: Vec<Rate>,
    /// Environment of the PEs, the plugin's settings among it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What the PEs do, in runs that do not say otherwise.
    pub workload: Workload,
    /// How long one run may take. A job that hangs is ended then.
    #[serde(default = "a_minute")]
    pub deadline_seconds: u64,
    /// The runs, in order. Each has hosts and processes of its own.
    #[serde(rename = "run")]
    pub runs: Vec<Run>,
    /// What is made of them.
    #[serde(default, rename = "measure")]
    pub measures: Vec<Measure>,
}

/// One job.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Names it among the runs of its file.
    pub name: String,
    /// On top of the experiment's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Instead of the experiment's.
    pub workload: Option<Workload>,
    /// What is so before the PEs start; `after` is of no account.
    #[serde(default, rename = "start")]
    pub starts: Vec<Event>,
    /// What happens to links.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// Texts, such as the name of a rail, that must be together in one warning of some PE; for each
    /// list there must be one. A word is only found whole.
    #[serde(default)]
    pub warns: Vec<Vec<String>>,
    /// Whether it is one of the tests as well. Tests look at what is wrong, not at what is slow.
    #[serde(default)]
    pub tested: bool,
    /// Whether it is a test only where all are wanted (`NVSHMEM_TEST_FULL`): it takes long.
    #[serde(default)]
    pub long: bool,
}

/// Something that happens to a link.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When that part of all PEs' rounds has begun, from 0 to 1.
    #[serde(default)]
    pub after: f64,
    /// Of the link.
    pub host: usize,
    /// Of the link.
    pub rail: usize,
    /// At which end it is taken down or up.
    #[serde(default)]
    pub end: End,
    /// What happens.
    pub set: Change,
}

impl Event {
    /// The link it happens to.
    pub fn link(&self) -> Link {
        Link { host: self.host, rail: self.rail }
    }
}

/// What the PEs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "kind")]
pub enum Workload {
    /// PE 0 works on PE 1; see `stream.rs`.
    Stream {
        /// Which operation.
        op: StreamOp,
        /// Bytes of each.
        bytes: u64,
        /// Operations before each quiet.
        window: u64,
        /// Windows that are timed.
        windows: u64,
    },
    /// Everybody works on everybody; see `storm.rs`.
    Storm {
        /// Rounds of each PE, of some 2 MiB and 90 operations to each other PE.
        rounds: u64,
    },
    /// All PEs put to PE 0; see `many_to_one.rs`.
    ManyToOne {
        /// Bytes of each put.
        bytes: u64,
        /// Bytes of a second put after each, none if 0: operations of different size in turn.
        #[serde(default)]
        second: u64,
        /// Puts, or pairs of them, before each quiet.
        window: u64,
        /// Windows of each sender.
        windows: u64,
    },
}

/// The operation of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamOp {
    /// Write.
    Put,
    /// Write, and add to a signal behind it.
    PutSignal,
    /// Read.
    Get,
}

/// A figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// As in the MEASURE line.
    pub name: String,
    /// Which figure of the runs.
    pub of: Figure,
    /// The runs it is of; all, if none is named.
    #[serde(default)]
    pub run: Vec<String>,
    /// For a ratio: the runs whose sum is its denominator.
    #[serde(default)]
    pub over: Vec<String>,
    /// What it should be at least. Less is slow, not wrong.
    pub at_least: Option<f64>,
    /// What it should be at most.
    pub at_most: Option<f64>,
}

/// What a measure is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// Payload per second over that of other runs.
    Ratio,
    /// Bytes that were not as they should be.
    WrongBytes,
    /// How far apart the first host's rails are in the bytes they have received: the difference
    /// between most and least, over the mean. The largest of the runs.
    Imbalance,
}

impl Experiment {
    /// Reads a text.
    ///
    /// # Errors
    /// Where and why it does not make sense.
    pub fn parse(text: &str) -> Result<Experiment, String> {
        let experiment: Experiment = toml::from_str(text).map_err(|e| e.to_string())?;
        experiment.check()?;
        Ok(experiment)
    }

    /// Number of PEs.
    pub fn n_pes(&self) -> u32 {
        self.hosts as u32
    }

    fn check(&self) -> Result<(), String> {
        if self.runs.is_empty() {
            return Err("there is at least one run".into());
        }
        for run in &self.runs {
            if self.runs.iter().filter(|other| other.name == run.name).count() > 1 {
                return Err(format!("two runs are named {:?}", run.name));
            }
            let workload = run.workload.unwrap_or(self.workload);
            if !run.events.is_empty() && !matches!(workload, Workload::Storm { .. }) {
                return Err(format!("run {:?}: events happen in storms only", run.name));
            }
            for event in run.events.iter().chain(&run.starts) {
                if event.host >= self.hosts || event.rail >= self.rails.len() {
                    return Err(format!("run {:?}: there is no {}", run.name, event.link()));
                }
                if !(0.0..=1.0).contains(&event.after) {
                    return Err(format!("run {:?}: {} is no part", run.name, event.after));
                }
            }
        }
        for measure in &self.measures {
            let known = |name: &&String| self.runs.iter().any(|run| run.name == **name);
            if let Some(name) = measure.run.iter().chain(&measure.over).find(|name| !known(name)) {
                return Err(format!("{}: there is no run {name:?}", measure.name));
            }
            if (measure.of == Figure::Ratio) == measure.over.is_empty() {
                return Err(format!("{}: a ratio is over something", measure.name));
            }
        }
        Ok(())
    }
}

fn a_minute() -> u64 {
    60
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Rate, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Change {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Change, D::Error> {
        match String::deserialize(from)?.as_str() {
            "down" => Ok(Change::Down),
            "up" => Ok(Change::Up),
            rate => rate.parse().map(Change::Rate).map_err(de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        title = "text"
        hosts = 3
        rails = ["400mbit", "40mbit"]
        workload = { kind = "storm", rounds = 4 }
        [[run]]
        name = "a"
        event = [{ after = 0.5, host = 2, rail = 1, end = "far", set = "down" }]
        [[measure]]
        name = "wrong"
        of = "wrong_bytes"
    "#;

    #[test]
    fn an_experiment_is_read() {
        let read = Experiment::parse(TEXT).unwrap();
        assert_eq!((read.n_pes(), read.rails.len()), (3, 2));
        assert_eq!(read.workload, Workload::Storm { rounds: 4 });
        let event = read.runs[0].events[0];
        assert_eq!((event.link().to_string(), event.end), ("host2/rail1".into(), End::Far));
        assert_eq!(event.set, Change::Down);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        let refused = |from: &str, to: &str, why: &str| {
            assert!(TEXT.contains(from));
            let error = Experiment::parse(&TEXT.replace(from, to)).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused("host = 2", "host = 3", "there is no host3/rail1");
        refused("rail = 1", "rail = 2", "there is no host2/rail2");
        refused("after = 0.5", "after = 1.5", "1.5 is no part");
        refused("\"down\"", "\"gone\"", "a rate is a number");
        refused("rounds", "round", "round");
        refused("of = \"wrong_bytes\"", "of = \"ratio\"", "over something");
        refused("of = \"wrong_bytes\"", "of = \"wrong_bytes\"\nrun = [\"b\"]", "no run \"b\"");
        refused("kind = \"storm\", rounds = 4", STREAM, "in storms only");
    }

    const STREAM: &str = "kind = \"stream\", op = \"put\", bytes = 8, window = 1, windows = 1";
}
