//! A PE's view of the job it belongs to.

use std::str::FromStr;

use super::bootstrap::Bootstrap;
use crate::error::{Result, error};
use crate::link::FromPe;
use crate::settings::JobSettings;

#[derive(Debug)]
pub struct Job {
    pub pe: u32,
    pub settings: JobSettings,
    /// The collectives, which work without the plugin.
    pub bootstrap: Bootstrap,
}

impl Job {
    pub fn n_pes(&self) -> u32 {
        self.settings.n_pes
    }

    pub fn param<T: FromStr>(&self, name: &str) -> Result<T> {
        let Some(value) = self.settings.params.get(name) else {
            return Err(error!("the scenario needs a parameter {name}"));
        };
        value.parse().map_err(|_| error!("cannot read {name}={value}"))
    }

    pub fn param_or<T: FromStr>(&self, name: &str, default: T) -> Result<T> {
        if self.settings.params.contains_key(name) { self.param(name) } else { Ok(default) }
    }

    pub fn report(&self, name: &str, value: impl ToString) -> Result<()> {
        self.bootstrap.tell(&FromPe::Value(name.to_string(), value.to_string()))
    }
}
