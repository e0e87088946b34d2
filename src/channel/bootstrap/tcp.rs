//! A bootstrap over TCP: PE 0 listens, the others connect to it.
//!
//! PEs may start in any order. Whoever connects to the port and is no PE of the job is refused with a
//! reason and does not disturb the others.

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use log::{debug, warn};

use super::Bootstrap;
use super::error::BootstrapError;
use super::frame::{Deadline, GREETING, Greeting, Kind, read_exact, receive, send, write_all};
use super::star::Star;
use crate::logging;

/// Between two attempts to reach PE 0.
const RETRY: Duration = Duration::from_millis(50);

/// What a connection may take for its greeting, so that a silent one does not keep others waiting.
const GREET: Duration = Duration::from_secs(5);

/// Where and as whom a PE joins.
#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// HOST:PORT of PE 0. It listens on that port of all its interfaces, unless the host is a loopback
    /// address.
    pub address: String,
    /// This PE.
    pub me: u32,
    /// Number of PEs.
    pub n_pes: u32,
    /// The same number on all PEs of a job, and another in other jobs. It keeps apart jobs that were given
    /// the same port by mistake.
    pub job: u64,
    /// How long a collective, joining among them, waits for the other PEs.
    pub patience: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct TcpBootstrap {
    options: TcpOptions,
    star: Star,
    /// Of the next collective.
    number: u32,
}

impl TcpBootstrap {
    /// Joins the job: returns when all PEs have.
    ///
    /// # Errors
    /// Who has not come in time, or what is wrong with the address, the port or what answers there.
    pub fn join(options: TcpOptions) -> Result<Self, BootstrapError> {
        let TcpOptions { me, n_pes, .. } = options;
        if me >= n_pes {
            return Err(BootstrapError::Shape { me, n_pes });
        }
        let deadline = Deadline::within(options.patience);
        let star = match (me, n_pes) {
            (_, 1) => Star::Center(Vec::new()),
            (0, _) => Star::Center(gather(&options, listen(&options)?, &deadline)?),
            _ => Star::Ray(connect(&options, &deadline)?),
        };
        Ok(Self { options, star, number: 0 })
    }

    /// As [`TcpBootstrap::join`], for PE 0 on a socket that listens already: whoever starts the PEs chose a free
    /// port by it, and nobody else can have taken that since.
    ///
    /// # Errors
    /// As there.
    pub fn center(options: TcpOptions, listener: TcpListener) -> Result<Self, BootstrapError> {
        let deadline = Deadline::within(options.patience);
        let star = Star::Center(gather(&options, listener, &deadline)?);
        Ok(Self { options, star, number: 0 })
    }
}

impl Bootstrap for TcpBootstrap {
    fn n_pes(&self) -> u32 {
        self.options.n_pes
    }

    fn me(&self) -> u32 {
        self.options.me
    }

    fn allgather(&mut self, mine: &[u8]) -> Result<Vec<u8>, BootstrapError> {
        let deadline = Deadline::within(self.options.patience);
        let number = self.number;
        self.number = number.wrapping_add(1);
        self.star.allgather(mine, self.options.n_pes, number, &deadline)
    }
}

/// The address as the system resolves it.
fn resolve(text: &str) -> Result<SocketAddr, BootstrapError> {
    let refused = |why: String| BootstrapError::Address { text: text.to_owned(), why };
    let mut found = text.to_socket_addrs().map_err(|error| refused(error.to_string()))?;
    found.next().ok_or_else(|| refused(String::from("the name has no address")))
}

fn listen(options: &TcpOptions) -> Result<TcpListener, BootstrapError> {
    let named = resolve(&options.address)?;
    // The name may be one of several that this host has.
    let at = match named.ip() {
        ip if ip.is_loopback() => named,
        IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], named.port())),
        IpAddr::V6(_) => SocketAddr::from(([0u16; 8], named.port())),
    };
    TcpListener::bind(at).map_err(|error| BootstrapError::Listen { at: at.to_string(), error })
}

/// Takes the connections of all other PEs.
fn gather(
    options: &TcpOptions,
    listener: TcpListener,
    deadline: &Deadline,
) -> Result<Vec<TcpStream>, BootstrapError> {
    let failed = |error| BootstrapError::Listen { at: options.address.clone(), error };
    let at = listener.local_addr().map_err(failed)?;
    // So that the deadline holds also when nobody comes.
    listener.set_nonblocking(true).map_err(failed)?;
    let mut rays: Vec<Option<TcpStream>> = (1..options.n_pes).map(|_| None).collect();
    while rays.iter().any(Option::is_none) {
        if deadline.left().is_none() {
            let missing = (1..).zip(&rays).filter(|(_, ray)| ray.is_none());
            let missing = ranks(missing.map(|(pe, _)| pe));
            return Err(BootstrapError::Missing { at, waited: deadline.waited(), missing });
        }
        match listener.accept() {
            Ok((stream, from)) => match greet(stream, options, &rays, deadline) {
                Ok((pe, stream)) => rays[pe as usize - 1] = Some(stream),
                Err(why) => warn!(
                    target: logging::INIT,
                    "a connection from {from} to the bootstrap's port is no PE of this job: {why}"
                ),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(RETRY / 10),
            Err(error) => debug!(target: logging::INIT, "accepting at {at}: {error}"),
        }
    }
    let mut all = Vec::with_capacity(rays.len());
    for (pe, mut ray) in (1..).zip(rays.into_iter().flatten()) {
        let welcomed = send(&mut ray, Kind::Welcome, 0, &[], deadline);
        welcomed.map_err(|error| BootstrapError::Lost { call: "joining", pe, error })?;
        all.push(ray);
    }
    Ok(all)
}

/// Exchanges greetings with who has connected; the error is why it is no PE of ours, which it is told too.
fn greet(
    mut stream: TcpStream,
    options: &TcpOptions,
    rays: &[Option<TcpStream>],
    deadline: &Deadline,
) -> Result<(u32, TcpStream), String> {
    let text = |error: io::Error| error.to_string();
    // A socket that was accepted may have taken over that accepting does not block.
    stream.set_nonblocking(false).map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let soon = Deadline::within(deadline.left().unwrap_or_default().min(GREET));
    let mut bytes = [0; GREETING];
    read_exact(&mut stream, &mut bytes, &soon).map_err(text)?;
    let greeting = Greeting::decode(&bytes)?;
    let Greeting { me: pe, n_pes, job } = greeting;
    let place = (pe as usize).checked_sub(1).and_then(|at| rays.get(at));
    let why = if n_pes != options.n_pes {
        Some(format!("it is of a job of {n_pes} PEs, and this one has {}", options.n_pes))
    } else if job != options.job {
        Some(String::from("it is of another job"))
    } else {
        match place {
            Some(None) => None,
            Some(Some(_)) => Some(format!("there is a PE {pe} already")),
            None => Some(format!("there is no PE {pe} besides PE 0")),
        }
    };
    let mine = Greeting { me: 0, n_pes: options.n_pes, job: options.job };
    write_all(&mut stream, &mine.encode(), &soon).map_err(text)?;
    match why {
        None => Ok((pe, stream)),
        Some(why) => {
            let _ = send(&mut stream, Kind::Refusal, 0, why.as_bytes(), &soon);
            let _ = stream.shutdown(Shutdown::Write);
            Err(why)
        }
    }
}

/// Connects to PE 0, as often as it takes.
fn connect(options: &TcpOptions, deadline: &Deadline) -> Result<TcpStream, BootstrapError> {
    let me = options.me;
    let mut last = io::Error::new(io::ErrorKind::TimedOut, "it was not tried");
    while let Some(left) = deadline.left() {
        // Resolved anew: names of hosts that are starting may not be known at first.
        match resolve(&options.address) {
            Ok(at) => match TcpStream::connect_timeout(&at, left.min(GREET)) {
                Ok(stream) => match join(stream, at, options, deadline) {
                    Ok(joined) => return Ok(joined),
                    // PE 0 may be starting behind something that closes connections.
                    Err(BootstrapError::Lost { error, .. }) => last = error,
                    Err(refused) => return Err(refused),
                },
                Err(error) => last = error,
            },
            Err(BootstrapError::Address { text, why }) => {
                if !text.contains(':') {
                    return Err(BootstrapError::Address { text, why });
                }
                last = io::Error::other(why);
            }
            Err(other) => return Err(other),
        }
        thread::sleep(RETRY.min(left));
    }
    let (at, waited) = (options.address.clone(), deadline.waited());
    Err(BootstrapError::Connect { me, at, waited, error: last })
}

/// Exchanges greetings with PE 0, and waits until all PEs have come.
fn join(
    mut stream: TcpStream,
    at: SocketAddr,
    options: &TcpOptions,
    deadline: &Deadline,
) -> Result<TcpStream, BootstrapError> {
    let TcpOptions { me, n_pes, job, .. } = *options;
    let lost = |error| BootstrapError::Lost { call: "joining", pe: 0, error };
    stream.set_nodelay(true).map_err(lost)?;
    write_all(&mut stream, &Greeting { me, n_pes, job }.encode(), deadline).map_err(lost)?;
    let mut bytes = [0; GREETING];
    read_exact(&mut stream, &mut bytes, deadline).map_err(lost)?;
    let protocol = |why| BootstrapError::Protocol { at, why };
    Greeting::decode(&bytes).map_err(protocol)?;
    let frame = receive(&mut stream, deadline).map_err(lost)?;
    match frame.kind {
        Kind::Welcome => Ok(stream),
        Kind::Refusal => {
            let why = String::from_utf8_lossy(&frame.bytes).into_owned();
            Err(BootstrapError::Refused { at, me, why })
        }
        Kind::Gather => Err(protocol(String::from("it is in the middle of a collective"))),
    }
}

/// PEs for people, runs as such: "1, 3 to 6".
fn ranks(pes: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for pe in pes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == pe => *last = pe,
            _ => runs.push((pe, pe)),
        }
    }
    let shown = runs.iter().map(|(first, last)| match last - first {
        0 => format!("PE {first}"),
        1 => format!("PE {first}, PE {last}"),
        _ => format!("PEs {first} to {last}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
