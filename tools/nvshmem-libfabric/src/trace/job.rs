//! The recordings of a job's PEs, brought to one clock.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use engine::atomic::AtomicOp;
use nvshmem_recording::{Kind, Record, Recording};

use crate::error::ToolError;

/// How one gets them.
const HOW: &str =
    "`run --record FILE-%p` has each PE of a job record its calls in a file of its own";

/// A call of a PE, by its place in what is kept of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct CallId {
    pub(super) pe: u32,
    pub(super) at: usize,
}

/// The recordings of one job.
#[derive(Debug, Default)]
pub(super) struct Job {
    /// By PE.
    pub(super) pes: BTreeMap<u32, Recording>,
    /// How many PEs the job has.
    pub(super) n_pes: u32,
    /// The calendar less the clock, of each start of a machine.
    clocks: BTreeMap<String, i128>,
}

impl Job {
    /// Reads files of one job.
    ///
    /// # Errors
    /// One cannot be read, or two are not of one job.
    pub(super) fn read(files: &[PathBuf]) -> Result<Self, ToolError> {
        let mut job = Self::default();
        for file in files {
            let bytes = fs::read(file)
                .map_err(|error| ToolError::file(file, "cannot be read", error, HOW))?;
            let recording = Recording::decode(&bytes)
                .map_err(|error| ToolError::file(file, "cannot be read", error, HOW))?;
            job.add(recording)
                .map_err(|why| ToolError::file(file, "does not belong to the others", why, HOW))?;
        }
        Ok(job)
    }

    pub(super) fn add(&mut self, recording: Recording) -> Result<(), String> {
        let Recording { pe, n_pes, .. } = recording;
        if !self.pes.is_empty() && n_pes != self.n_pes {
            return Err(format!("it is of a job of {n_pes} PEs, and those of {}", self.n_pes));
        }
        if self.pes.contains_key(&pe) {
            return Err(format!("there is one of PE {pe} already"));
        }
        self.n_pes = n_pes;
        let clock = i128::from(recording.began_real) - i128::from(recording.began);
        self.clocks.entry(recording.boot.clone()).or_insert(clock);
        self.pes.insert(pe, recording);
        Ok(())
    }

    /// One of its calls.
    pub(super) fn record(&self, call: CallId) -> &Record {
        &self.pes[&call.pe].records[call.at]
    }

    /// What is not said by what is found.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let missing = self.n_pes as usize - self.pes.len();
        if missing > 0 {
            remarks.push(format!(
                "of {} PEs {missing} have no recording here: what they called is not known",
                self.n_pes
            ));
        }
        if self.clocks.len() > 1 {
            remarks.push(String::from(
                "the PEs ran on several machines: what happened first is known as well as their calendars agree",
            ));
        }
        for (pe, recording) in &self.pes {
            let Recording { overwritten, torn, regions_left_out, ended, .. } = recording;
            if *overwritten > 0 {
                remarks.push(format!(
                    "PE {pe}: {overwritten} older records were overwritten; NVSHMEM_RECORDER_RECORDS keeps more"
                ));
            }
            if *regions_left_out > 0 {
                remarks.push(format!("PE {pe}: {regions_left_out} regions were not noted"));
            }
            if *torn > 0 {
                remarks.push(format!("PE {pe}: {torn} records were not written to their end"));
            }
            if ended.is_none() {
                remarks.push(format!("PE {pe} has not finalized the transport"));
            }
        }
        remarks
    }

    /// A moment of a PE in nanoseconds since 1970.
    pub(super) fn moment(&self, pe: u32, time: u64) -> i128 {
        let clock = self.pes.get(&pe).and_then(|recording| self.clocks.get(&recording.boot));
        i128::from(time) + clock.copied().unwrap_or(0)
    }

    /// Whether two PEs have the same clock.
    pub(super) fn share_a_clock(&self, one: u32, other: u32) -> bool {
        let boot = |pe| self.pes.get(&pe).map(|recording| &recording.boot);
        boot(one).is_some() && boot(one) == boot(other)
    }

    /// The beginning of all of them.
    pub(super) fn began(&self) -> i128 {
        let began = |(pe, recording): (&u32, &Recording)| self.moment(*pe, recording.began);
        self.pes.iter().map(began).min().unwrap_or(0)
    }

    /// An address of a PE as a place in what it has registered.
    pub(super) fn place(&self, pe: u32, address: u64, by: u32, time: u64) -> String {
        let found = self.pes.get(&pe).and_then(|recording| {
            // Another PE's time, by this one's clock.
            let shift = self.moment(by, time) - self.moment(pe, 0);
            recording.place(address, u64::try_from(shift).unwrap_or(u64::MAX))
        });
        match found {
            Some((region, offset)) => format!("region {region} + {offset:#x}"),
            None => format!("{address:#x}"),
        }
    }
}

/// The name of a call, with its operation.
pub(super) fn name(record: &Record) -> String {
    let kind = record.kind.name();
    if !matches!(record.kind, Kind::Amo | Kind::PutSignal) {
        return String::from(kind);
    }
    match AtomicOp::from_code(record.op.into()) {
        Some(op) => format!("{kind} {op:?}"),
        None => format!("{kind} of operation {}", record.op),
    }
}
