//! The whole way: kernels of several PEs, each in a process of its own, with their channels and a
//! fabric between.
//!
//! Several PEs may be on one GPU. Then their kernels take turns, unless CUDA's multi-process
//! service runs.

pub(crate) mod checks;
mod pe;

use std::time::Duration;

use launcher::{End, Limits};

pub(crate) use pe::Job;

use crate::image::PES;
use crate::machines::machine::MachineError;

/// No job takes as long unless it is stuck. Once a PE has failed, the others wait in vain.
const LIMITS: Limits = Limits { deadline: Duration::from_secs(540), grace: Duration::ZERO };

/// Starts this program once for each PE, with its own arguments and perhaps a variable, and waits
/// for all.
pub(crate) fn start(variable: Option<(&str, &str)>) -> Result<(), MachineError> {
    let ended = launcher::run_job(PES, LIMITS, |_, command| {
        command.args(std::env::args_os().skip(1)).envs(variable);
        Ok(())
    });
    let ended = ended.map_err(|error| MachineError(error.to_string()))?;
    let bad = || ended.iter().enumerate().filter(|(_, pe)| !pe.end.is_success());
    // The one that failed by itself says more than those killed because of it.
    let first = bad().find(|(_, pe)| pe.end != End::Killed).or_else(|| bad().next());
    first.map_or(Ok(()), |(pe, ended)| Err(MachineError(format!("PE {pe} {}", ended.end))))
}
