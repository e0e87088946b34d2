//! A job of this program: once for each PE, each told its place, and where PE 0 can be found: a
//! socket that PE 0 is started with, as its standard input, and whose port the others are told.
//!
//! So no port is free for a moment, for another job to take.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

use crate::run::{Ended, Limits, run};

/// A PE's number, how many there are, and PE 0's port.
const PE: &str = "LAUNCHER_PE";
const PES: &str = "LAUNCHER_PES";
const PORT: &str = "LAUNCHER_PORT";

/// Runs a job of so many PEs, each by a command that `with` completes. A PE that fails is no error.
pub fn run_job(
    n_pes: u32,
    limits: Limits,
    with: impl Fn(u32, &mut Command) -> io::Result<()>,
) -> io::Result<Vec<Ended>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    let program = env::current_exe()?;
    let command = |pe: u32| {
        let mut command = Command::new(&program);
        command.env(PE, pe.to_string()).env(PES, n_pes.to_string()).env(PORT, port.to_string());
        command.stdin(match pe {
            0 => OwnedFd::from(listener.try_clone()?).into(),
            _ => Stdio::null(),
        });
        with(pe, &mut command)?;
        Ok(command)
    };
    let commands = (0..n_pes).map(command).collect::<io::Result<Vec<_>>>()?;
    // With PE 0's end the port is closed, and whoever still wants to connect is told.
    drop(listener);
    run(commands, limits, || Ok(()))
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    pub me: u32,
    pub n_pes: u32,
    /// Where PE 0 listens.
    pub address: String,
}

impl Place {
    /// This process's place, if it is one of a job.
    pub fn of_process() -> Option<Self> {
        let number = |name| env::var(name).ok()?.parse::<u32>().ok();
        let (me, n_pes, port) = (number(PE)?, number(PES)?, number(PORT)?);
        Some(Self { me, n_pes, address: format!("127.0.0.1:{port}") })
    }

    pub fn listener(&self) -> io::Result<TcpListener> {
        Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
    }
}
