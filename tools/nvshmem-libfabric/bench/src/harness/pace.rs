//! The pace of a run: providers, jobs and rounds.

use std::time::Duration;

use super::fabric::Provider;

/// How often a case is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Jobs on each provider: connections of their own, whose luck differs.
    pub(crate) jobs: u32,
    /// Rounds of each side of each case in each job.
    pub(crate) rounds: u32,
}

/// Which providers are measured, and how much.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Rates {
    /// These providers alone
    #[arg(long, value_enum, value_name = "PROVIDER", value_delimiter = ',')]
    only: Vec<Provider>,
    #[command(flatten)]
    pace: Pace,
}

/// How much is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Pace {
    /// Jobs per provider
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Rounds per job, case and side
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Least time of a round in milliseconds: above what a scheduler's time slice can distort
    #[arg(long, value_name = "N", default_value_t = 12)]
    round_ms: u64,
    /// 2 jobs, 10 rounds
    #[arg(long, conflicts_with_all = ["jobs", "rounds"])]
    quick: bool,
    /// Also print the time of every round
    #[arg(long)]
    pub(crate) samples: bool,
}

impl std::ops::Deref for Rates {
    type Target = Pace;

    fn deref(&self) -> &Pace {
        &self.pace
    }
}

impl Rates {
    pub(crate) fn providers(&self) -> Vec<Provider> {
        if self.only.is_empty() { Provider::ALL.to_vec() } else { self.only.clone() }
    }
}

impl Pace {
    /// Least time of a round.
    pub(crate) fn round(&self) -> Duration {
        Duration::from_millis(self.round_ms)
    }

    /// What is asked for, or else what the suite is measured with.
    pub(crate) fn effort(&self, usual: Effort) -> Effort {
        let usual = if self.quick { Effort { jobs: 2, rounds: 10 } } else { usual };
        Effort {
            jobs: self.jobs.unwrap_or(usual.jobs),
            rounds: self.rounds.unwrap_or(usual.rounds),
        }
    }
}
