//! The place where the PEs of a job of the device channel find one another: a socket that PE 0 is
//! started with, as its standard input, and whose port the others are told.
//!
//! So no port is free for a moment, for another job to take.

use std::env;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};

/// What a PE is told: its number, how many there are, and PE 0's port.
const PE: &str = "LAUNCHER_PE";
const PES: &str = "LAUNCHER_PES";
const PORT: &str = "LAUNCHER_PORT";

/// The launcher's side. When it is dropped and PE 0 has ended, who still wants to connect is
/// refused.
#[derive(Debug)]
pub struct Meeting {
    listener: TcpListener,
    n_pes: u32,
}

impl Meeting {
    /// A meeting of so many PEs on this host.
    ///
    /// # Errors
    /// There is no socket.
    pub fn new(n_pes: u32) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind("127.0.0.1:0")?, n_pes })
    }

    /// Has a command start a PE.
    ///
    /// # Errors
    /// The socket cannot be handed over.
    pub fn take_in(&self, pe: u32, command: &mut Command) -> io::Result<()> {
        let port = self.listener.local_addr()?.port();
        command.env(PE, pe.to_string()).env(PES, self.n_pes.to_string());
        command.env(PORT, port.to_string());
        command.stdin(match pe {
            0 => OwnedFd::from(self.listener.try_clone()?).into(),
            _ => Stdio::null(),
        });
        Ok(())
    }
}

/// A process's place in a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its PE.
    pub me: u32,
    /// Of how many.
    pub n_pes: u32,
    /// Where PE 0 listens.
    pub address: String,
}

impl Place {
    /// That of this process, if it is one of a job.
    pub fn of_process() -> Option<Self> {
        let number = |name| env::var(name).ok()?.parse::<u32>().ok();
        let (me, n_pes, port) = (number(PE)?, number(PES)?, number(PORT)?);
        Some(Self { me, n_pes, address: format!("127.0.0.1:{port}") })
    }

    /// The socket that PE 0 was started with.
    ///
    /// # Errors
    /// There is no standard input.
    pub fn listener(&self) -> io::Result<TcpListener> {
        Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
    }
}
