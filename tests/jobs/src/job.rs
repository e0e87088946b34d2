//! A job: what runs in its processes, and how they are to end.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use nvshmem_sim::{Bootstrap, JobSettings, Layout, Outcome, run_pe};
use test_support::built::fake_cuda_dir;
use test_support::{full, needs, seeds};

use crate::memory::MEMORY;
use test_support::fabric::Fabric;

const SEED: &str = "TEST_JOB_SEED";
const SEEDS: &str = "TEST_JOB_SEEDS";

/// With it, PEs print what they hold after some cycles.
const CYCLES: &str = "NVSHMEM_TEST_CYCLES";

/// Ends a job that hangs. Most take seconds; a machine with many other things to do takes minutes.
const DEADLINE: Duration = Duration::from_secs(600);

const LONG: Duration = Duration::from_secs(3600);

const GRACE: Duration = Duration::from_secs(10);

/// How a PE ends that has found something wrong: as a program does that panics.
pub const FAILED: i32 = 101;

#[derive(Clone, Debug)]
pub struct Place {
    pub me: u32,
    pub n_pes: u32,
    pub(crate) bootstrap: Bootstrap,
}

pub type Scenario = fn(&Place);

/// In a process of a job: runs its scenario, and ends.
pub fn pe_entry(scenarios: &[(&str, Scenario)]) {
    run_pe(|job| {
        let scenario = scenarios.iter().find(|(known, _)| *known == job.settings.scenario);
        let (_, scenario) = scenario.expect("a scenario of this program");
        let (me, n_pes, bootstrap) = (job.pe, job.n_pes(), job.bootstrap.clone());
        scenario(&Place { me, n_pes, bootstrap });
        Ok(())
    });
}

pub fn is_pe() -> bool {
    std::env::var_os(SEED).is_some()
}

static NOW: AtomicU32 = AtomicU32::new(0);

pub fn seed_that_runs() -> u32 {
    NOW.load(Ordering::Relaxed)
}

pub fn seeds_of_process() -> impl Iterator<Item = u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    let (first, count) = (number(SEED).unwrap_or(1), number(SEEDS).unwrap_or(1));
    (0..count).map(move |at| {
        let seed = first.wrapping_add(at).max(1);
        NOW.store(seed, Ordering::Relaxed);
        u64::from(seed)
    })
}

#[derive(Clone, Debug)]
pub struct Job {
    scenario: &'static str,
    fabric: Fabric,
    n_pes: u32,
    /// Where its memory is, where that matters: with a driver for memory on devices.
    memory: Option<&'static str>,
    /// Seeds that it runs; the full tier has ten times as many.
    seeds: Option<u32>,
    /// What is special about it, at the end of its name.
    variant: String,
    env: Vec<(&'static str, String)>,
    dies: Option<(u32, Outcome)>,
}

impl Job {
    pub fn new(scenario: &'static str, fabric: Fabric, n_pes: u32) -> Self {
        let (variant, env) = (String::new(), Vec::new());
        Self { scenario, fabric, n_pes, memory: None, seeds: None, variant, env, dies: None }
    }

    #[must_use]
    pub fn on(self, memory: impl Into<Option<&'static str>>) -> Self {
        Self { memory: memory.into(), ..self }
    }

    #[must_use]
    pub fn seeds(self, count: u32) -> Self {
        Self { seeds: Some(count), ..self }
    }

    #[must_use]
    pub fn env(mut self, name: &'static str, value: impl ToString) -> Self {
        self.env.push((name, value.to_string()));
        self
    }

    #[must_use]
    pub fn with(mut self, variant: &str, env: &[(&'static str, &str)]) -> Self {
        self.variant += &format!("_{variant}");
        env.iter().fold(self, |job, (name, value)| job.env(name, value))
    }

    #[must_use]
    pub fn dies(self, pe: u32, outcome: Outcome) -> Self {
        Self { dies: Some((pe, outcome)), ..self }
    }

    pub fn trial(self) -> Trial {
        needs::trial(self.name(), self.fabric.library(), move |library| self.run(library))
    }

    /// The tests of a run: jobs of every run, and others in the full tier and where a user filters.
    pub fn trials(always: Vec<Self>, others: Vec<Self>, filtered: bool) -> Vec<Trial> {
        let others = others.into_iter().filter(|_| full() || filtered);
        always.into_iter().chain(others).map(Self::trial).collect()
    }

    pub fn name(&self) -> String {
        let Self { scenario, fabric, n_pes, memory, variant, .. } = self;
        let memory = memory.map_or(String::new(), |memory| format!("_{memory}"));
        format!("{scenario}::{fabric:?}_{n_pes}_pes{memory}{variant}").to_lowercase()
    }

    pub fn run(&self, library: Option<PathBuf>) -> Result<(), Failed> {
        let (first, count) = match (seeds::single(), self.seeds) {
            (Some(seed), _) => (seed, 1),
            (None, count) => (seeds::draw(), count.unwrap_or(1) * if full() { 10 } else { 1 }),
        };
        if self.seeds.is_some() {
            eprintln!("{}: {count} seeds from {first} on", self.name());
        }
        let is_long = count > 100 || needs::is_set(CYCLES);
        let deadline = if is_long { LONG } else { DEADLINE };
        // What becomes of the others when one ends is for them to show.
        let grace = if self.dies.is_some() { deadline } else { GRACE };
        let mut job = JobSettings::new(self.scenario, self.n_pes, Layout::V7, "")
            .deadline(deadline)
            .grace(grace)
            .env("RUST_BACKTRACE", 0)
            .env(SEED, first)
            .env(SEEDS, count)
            .env("NVSHMEM_LIBFABRIC_PROVIDER", self.fabric.provider());
        if let Some(memory) = self.memory {
            job = job.env(MEMORY, memory).env("LD_LIBRARY_PATH", fake_cuda_dir().display());
        }
        if let Some(library) = &library {
            job = job.env("NVSHMEM_LIBFABRIC_LIBRARY", library.display());
        }
        let report = self.env.iter().fold(job, |job, (name, value)| job.env(*name, value)).run()?;
        let right = report.pes.iter().all(|pe| match &self.dies {
            Some((who, outcome)) if *who == pe.pe => pe.outcome == *outcome,
            _ => pe.outcome == Outcome::Finished,
        });
        if needs::is_set(CYCLES) {
            println!("{report}");
        }
        if right { Ok(()) } else { Err(report.to_string().into()) }
    }
}
