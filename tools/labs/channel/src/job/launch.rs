//! The processes of a job: this program once for each PE.

use std::io;
use std::time::Duration;

use launcher::{End, Limits, Place};
use nvshmem_transport_libfabric::bootstrap::{TcpBootstrap, TcpOptions};

use crate::machines::machine::MachineError;

/// No job takes as long unless it is stuck. Once a PE has failed, the others wait in vain.
const LIMITS: Limits = Limits { deadline: Duration::from_secs(540), grace: Duration::ZERO };

impl From<io::Error> for MachineError {
    fn from(error: io::Error) -> Self {
        Self(error.to_string())
    }
}

/// Starts this program once for each of `n_pes` PEs, with these arguments and variables, and waits
/// for all.
///
/// # Errors
/// One does not end well.
pub fn start(
    n_pes: u32,
    arguments: &[String],
    variables: &[(&str, String)],
) -> Result<(), MachineError> {
    let ended = launcher::run_job(n_pes, LIMITS, |_, command| {
        command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
        Ok(())
    })?;
    let bad = || ended.iter().enumerate().filter(|(_, pe)| !pe.end.is_success());
    // The one that failed by itself says more than those killed because of it.
    let first = bad().find(|(_, pe)| pe.end != End::Killed).or_else(|| bad().next());
    first.map_or(Ok(()), |(pe, ended)| Err(MachineError(format!("PE {pe} {}", ended.end))))
}

/// This PE's bootstrap.
///
/// # Errors
/// The PEs do not come together.
pub(crate) fn join(place: &Place) -> Result<TcpBootstrap, MachineError> {
    let Place { me, n_pes, address } = place.clone();
    let options = TcpOptions { address, me, n_pes, job: 1, patience: Duration::from_secs(60) };
    let joined = match me {
        0 => TcpBootstrap::center(options, place.listener()?),
        _ => TcpBootstrap::join(options),
    };
    joined.map_err(|error| MachineError(error.to_string()))
}
