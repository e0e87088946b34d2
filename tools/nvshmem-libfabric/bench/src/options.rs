//! The command line.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::harness::fabric::Fabric;
#[cfg(feature = "channel")]
use crate::harness::pace::Pace;
use crate::harness::pace::Rates;
#[cfg(feature = "channel")]
use crate::instructions;
use crate::suites;

/// What to measure, and how.
#[derive(Debug, Args)]
pub struct Options {
    #[command(subcommand)]
    pub(crate) measured: Measured,
}

impl Options {
    /// Has the plugin files looked for where the command line does not say where they are.
    ///
    /// # Errors
    /// That of `find`.
    pub fn find_plugins<E>(&mut self, find: impl FnOnce() -> Result<PathBuf, E>) -> Result<(), E> {
        let fabric = match &mut self.measured {
            Measured::Puts { fabric, .. }
            | Measured::Signals { fabric, .. }
            | Measured::Staged { fabric, .. }
            | Measured::Bulk { fabric, .. }
            | Measured::Connect { fabric, .. } => fabric,
            #[cfg(feature = "channel")]
            Measured::Channel(_) | Measured::Instructions(_) => return Ok(()),
        };
        if fabric.plugin_dir.is_none() {
            fabric.plugin_dir = Some(find()?);
        }
        Ok(())
    }
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
    /// Long puts and gets over tcp, moved by threads of their own or not
    Bulk {
        #[command(flatten)]
        fabric: Fabric,
        #[command(flatten)]
        bulk: suites::bulk::Options,
    },
    /// Connecting the endpoints of jobs of several sizes, and first contact
    Connect {
        #[command(flatten)]
        fabric: Fabric,
        #[command(flatten)]
        connect: suites::connect::Options,
    },
    /// The device channel, beside the engine called directly
    #[cfg(feature = "channel")]
    Channel(Pace),
    /// Instructions per operation
    #[cfg(feature = "channel")]
    Instructions(instructions::Options),
}
