//! The command line.

use clap::{Parser, Subcommand};

use crate::harness::fabric::Fabric;
use crate::harness::pace::{Pace, Rates};
use crate::{instructions, suites};

/// What the plugin costs: beside raw libfabric, and in instructions
#[derive(Debug, Parser)]
#[command(name = "nvshmem-bench")]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) measured: Measured,
}

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Measured {
    /// Puts and gets, beside raw libfabric
    Puts {
        #[command(flatten)]
        fabric: Fabric,
        #[command(flatten)]
        rates: Rates,
    },
    /// Puts with signal, fences and fetching atomics, beside raw libfabric and a reference
    Signals {
        #[command(flatten)]
        fabric: Fabric,
        #[command(flatten)]
        rates: Rates,
    },
    /// Puts and gets of device memory that the fabric does not reach, beside host memory
    Staged {
        #[command(flatten)]
        fabric: Fabric,
        #[command(flatten)]
        rates: Rates,
        #[command(flatten)]
        staged: suites::staged::Options,
    },
    /// Connecting the endpoints of jobs of several sizes, and first contact
    Connect {
        #[command(flatten)]
        fabric: Fabric,
        #[command(flatten)]
        connect: suites::connect::Options,
    },
    /// The device channel, beside the engine called directly
    Channel(Pace),
    /// Instructions per operation
    Instructions(instructions::Options),
}
