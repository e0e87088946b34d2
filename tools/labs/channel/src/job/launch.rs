//! The processes of a job: this program once for each PE.

use std::env;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nvshmem_transport_libfabric::channel::bootstrap::{TcpBootstrap, TcpOptions};

use crate::machines::machine::MachineError;

/// What a process of the job is told: its PE, how many there are, and PE 0's port.
const PE: &str = "CHANNEL_RUN_PE";
const PES: &str = "CHANNEL_RUN_PES";
const PORT: &str = "CHANNEL_RUN_PORT";

/// No job takes as long unless it is stuck.
const DEADLINE: Duration = Duration::from_secs(540);

/// This process' place in a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its PE.
    pub me: u32,
    /// Of how many.
    pub n_pes: u32,
}

/// This process' place, if it is one of a job.
pub fn this_pe() -> Option<Place> {
    let number = |name| env::var(name).ok()?.parse().ok();
    Some(Place { me: number(PE)?, n_pes: number(PES)? })
}

/// Starts this program once for each of `n_pes` PEs, with these arguments and variables, and waits for all.
///
/// # Errors
/// One does not end well.
pub fn start(
    n_pes: u32,
    arguments: &[String],
    variables: &[(&str, String)],
) -> Result<(), MachineError> {
    let io = |error: std::io::Error| MachineError(error.to_string());
    // PE 0 gets the socket itself, as its standard input.
    let listener = TcpListener::bind("127.0.0.1:0").map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let start = |pe: u32| {
        let mut command = Command::new(env::current_exe()?);
        command.args(arguments).envs(variables.iter().map(|(name, value)| (name, value)));
        command.env(PE, pe.to_string()).env(PES, n_pes.to_string()).env(PORT, port.to_string());
        let input =
            if pe == 0 { OwnedFd::from(listener.try_clone()?).into() } else { Stdio::null() };
        command.stdin(input).spawn()
    };
    let mut children: Vec<Child> = (0..n_pes).map(start).collect::<Result<_, _>>().map_err(io)?;
    let since = Instant::now();
    let mut failed = None;
    let mut ended = vec![false; n_pes as usize];
    while !ended.iter().all(|ended| *ended) {
        for (pe, child) in children.iter_mut().enumerate() {
            if ended[pe] {
                continue;
            }
            let status = child.try_wait().map_err(io)?;
            ended[pe] = status.is_some();
            if let Some(status) = status.filter(|status| !status.success()) {
                failed.get_or_insert(format!("PE {pe}: {status}"));
            }
            if !ended[pe] && (failed.is_some() || since.elapsed() > DEADLINE) {
                failed.get_or_insert(format!("PE {pe} does not end"));
                let _ = child.kill();
            }
        }
        thread::sleep(Duration::from_millis(10));
    }
    failed.map_or(Ok(()), |text| Err(MachineError(text)))
}

/// This PE's bootstrap.
///
/// # Errors
/// The PEs do not come together.
pub(crate) fn join(place: Place) -> Result<TcpBootstrap, MachineError> {
    let Place { me, n_pes } = place;
    let port = env::var(PORT).unwrap_or_default();
    let address = format!("127.0.0.1:{port}");
    let options = TcpOptions { address, me, n_pes, job: 1, patience: Duration::from_secs(60) };
    let joined = if me == 0 {
        let socket = std::io::stdin().as_fd().try_clone_to_owned();
        let socket = socket.map_err(|error| MachineError(error.to_string()))?;
        TcpBootstrap::center(options, socket.into())
    } else {
        TcpBootstrap::join(options)
    };
    joined.map_err(|error| MachineError(error.to_string()))
}
