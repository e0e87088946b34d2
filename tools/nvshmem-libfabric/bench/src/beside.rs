//! Puts and gets beside raw libfabric, for who wants the numbers and not a table.

use std::path::PathBuf;

use nvshmem_sim::BoxError;

use crate::harness::fabric::{Fabric, Provider};
use crate::harness::launch::{Ran, jobs};
use crate::harness::pace::Rates;
use crate::harness::suite::Suite;
use crate::suites::puts::Puts;
use crate::times::case::Side;
use crate::times::stats::{Spread, median};

/// What is compared.
#[derive(Clone, Debug)]
pub struct Beside {
    /// The directory of the plugin files.
    pub plugin_dir: PathBuf,
    /// A libfabric in place of the one that the dynamic linker finds.
    pub library: Option<PathBuf>,
    /// How many jobs, and rounds of each side in each of them.
    pub jobs: u32,
    /// See `jobs`.
    pub rounds: u32,
    /// Least time of a round in milliseconds, up to [`Beside::ROUND_MS`].
    pub round_ms: u64,
}

/// Seconds that an operation takes, and what that makes of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Compared {
    /// `put` or `get`.
    pub direction: String,
    /// Bytes of the operation.
    pub bytes: u64,
    /// By raw libfabric.
    pub raw: f64,
    /// By the plugin.
    pub plugin: f64,
    /// The plugin's rate over that of raw libfabric: the median of all rounds.
    pub ratio: f64,
    /// Where the median of more rounds would lie, in 95 of 100 cases.
    pub confidence: (f64, f64),
}

impl Beside {
    /// Least time of a round in milliseconds, as the bench has it.
    pub const ROUND_MS: u64 = 12;

    /// Whether a provider, by libfabric's name, can be compared: those that need no hardware.
    pub fn knows(provider: &str) -> bool {
        of(provider).is_some()
    }

    /// Measures.
    ///
    /// # Errors
    /// Wrong bytes, a job that failed, a provider that is not known.
    pub fn run(self, provider: &str) -> Result<Vec<Compared>, BoxError> {
        let Self { plugin_dir, library, jobs: n_jobs, rounds, round_ms } = self;
        let provider = of(provider).ok_or_else(|| format!("{provider} is not compared"))?;
        let fabric = Fabric {
            plugin_dir: Some(plugin_dir),
            libfabric2: None,
            library,
            settings: Vec::new(),
        };
        let rates = Rates::of(provider, n_jobs, rounds, round_ms.min(Self::ROUND_MS));
        let Ran { measured, .. } =
            jobs(&Puts::BesideRaw, &fabric, &rates, provider, Puts::SHAPES[0])?;
        let compared = measured.into_iter().map(|(case, jobs)| {
            let seconds = |side| {
                let all: Vec<f64> = jobs.iter().flat_map(|rounds| rounds.seconds(side)).collect();
                median(&all).ok_or_else(|| format!("{case}: no rounds"))
            };
            // The plugin's rate over the other: the other's time over its own.
            let ratios: Vec<f64> =
                jobs.iter().flat_map(|rounds| rounds.ratios(&[Side::Raw], Side::Plugin)).collect();
            let spread = Spread::of(&ratios).ok_or_else(|| format!("{case}: no rounds"))?;
            Ok(Compared {
                direction: case.direction.to_string(),
                bytes: case.bytes,
                raw: seconds(Side::Raw)?,
                plugin: seconds(Side::Plugin)?,
                ratio: spread.median,
                confidence: spread.confidence,
            })
        });
        compared.collect()
    }
}

fn of(name: &str) -> Option<Provider> {
    Provider::ALL.into_iter().find(|provider| provider.full_name() == name)
}
