//! A bootstrap over TCP: PE 0 listens, the others connect to it.
//!
//! PEs may start in any order. Each side of a connection proves that it knows the job's number,
//! which never crosses the network. Other connections are refused with a reason. Greetings are read
//! concurrently, so one that sends nothing delays no other.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, warn};

use super::Bootstrap;
use super::error::BootstrapError;
use super::frame::{
    Deadline, GREETING, Greeting, Handshake, Kind, PROOF, read_exact, receive, send, write_all,
};
use super::guesses::Guesses;
use super::star::Star;
use crate::logging;
use engine::ids::MAX_PES;
use engine::rate_limit::RateLimit;
use ofi::fork;

/// Time between two attempts to reach PE 0.
const RETRY: Duration = Duration::from_millis(50);

const LOOK: Duration = Duration::from_secs(1);

const GREET: Duration = Duration::from_secs(5);

const GREETINGS: usize = 64;

#[derive(Clone, Debug)]
pub struct TcpOptions {
    /// HOST:PORT of PE 0, or several separated by commas, of which one leads there. PE 0 listens at
    /// the first, or on its port of all interfaces if its system does not have the address.
    pub address: String,
    pub me: u32,
    pub n_pes: u32,
    /// Number of the job, without which nobody joins. It keeps apart jobs that were given the same
    /// port by mistake, and strangers if it is random and kept secret.
    pub job: u64,
    /// How long a collective, joining among them, waits for the other PEs.
    pub patience: Duration,
}

/// A bootstrap over TCP, after all PEs have joined.
#[derive(Debug)]
pub struct TcpBootstrap {
    options: TcpOptions,
    star: Star,
    number: u32,
}

impl TcpBootstrap {
    /// Joins the job: returns when all PEs have.
    ///
    /// # Errors
    /// PEs missing at the deadline, or a fault of the address, the port or what answers there.
    pub fn join(options: TcpOptions) -> Result<Self, BootstrapError> {
        let TcpOptions { me, n_pes, .. } = options;
        if me >= n_pes || n_pes > MAX_PES {
            return Err(BootstrapError::Shape { me, n_pes });
        }
        let deadline = Deadline::within(options.patience);
        let star = match (me, n_pes) {
            (_, 1) => Star::Center(Vec::new()),
            (0, _) => Star::Center(gather(&options, listen(&options)?, &deadline, &|_| true)?),
            _ => Star::Ray(connect(&options, &deadline, false)?),
        };
        Ok(Self { options, star, number: 0 })
    }

    /// [`TcpBootstrap::join`] of other PEs once PE 0 listens: if it refuses, it has ended.
    pub fn join_listening(options: TcpOptions) -> Result<Self, BootstrapError> {
        let deadline = Deadline::within(options.patience);
        let star = Star::Ray(connect(&options, &deadline, true)?);
        Ok(Self { options, star, number: 0 })
    }

    pub fn set_patience(&mut self, patience: Duration) {
        self.options.patience = patience;
    }

    /// As [`TcpBootstrap::join`], for PE 0 on a socket that listens already, so nobody takes its
    /// port. Waits for missing PEs as long as `is_there`, on another thread, finds them.
    pub fn center(
        options: TcpOptions,
        listener: TcpListener,
        is_there: &(dyn Fn(u32) -> bool + Sync),
    ) -> Result<Self, BootstrapError> {
        let deadline = Deadline::within(options.patience);
        let star = Star::Center(gather(&options, listener, &deadline, is_there)?);
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

fn resolve(text: &str) -> Result<Vec<SocketAddr>, BootstrapError> {
    let refused = |why: String| BootstrapError::Address { text: text.to_owned(), why };
    let first = |one: &str| {
        let mut found = one.to_socket_addrs().map_err(|error| refused(error.to_string()))?;
        found.next().ok_or_else(|| refused(String::from("the name has no address")))
    };
    text.split(',').map(first).collect()
}

fn listen(options: &TcpOptions) -> Result<TcpListener, BootstrapError> {
    // A split gives one part at least.
    let named = resolve(&options.address)?[0];
    let bind = |at: SocketAddr| {
        TcpListener::bind(at)
            .map_err(|error| (error.kind(), BootstrapError::Listen { at: at.to_string(), error }))
    };
    let anywhere = match named.ip() {
        IpAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], named.port())),
        IpAddr::V6(_) => SocketAddr::from(([0u16; 8], named.port())),
    };
    bind(named)
        .or_else(|(kind, error)| match kind {
            // Others may know this host by another address, as behind a translation.
            io::ErrorKind::AddrNotAvailable => bind(anywhere),
            _ => Err((kind, error)),
        })
        .map_err(|(_, error)| error)
}

/// The connections of the PEs that have joined so far.
struct Rays(Vec<Option<TcpStream>>);

impl Rays {
    /// Adds a PE, unless it has joined already and its connection is still open.
    fn take(&mut self, pe: u32, mut stream: TcpStream, deadline: &Deadline) -> Result<(), String> {
        let slot = (pe as usize).checked_sub(1).and_then(|at| self.0.get_mut(at));
        let why = match slot {
            Some(slot) if slot.as_ref().is_none_or(is_closed) => {
                *slot = Some(stream);
                return Ok(());
            }
            Some(_) => format!("there is a PE {pe} already"),
            None => format!("there is no PE {pe} besides PE 0"),
        };
        refuse(&mut stream, &why, deadline);
        Err(why)
    }

    fn missing(&self) -> Vec<u32> {
        let missing = (1..).zip(&self.0).filter(|(_, ray)| ray.is_none());
        missing.map(|(pe, _)| pe).collect()
    }

    fn are_all(&mut self) -> bool {
        if self.0.iter().any(Option::is_none) {
            return false;
        }
        for ray in &mut self.0 {
            *ray = ray.take().filter(|ray| !is_closed(ray));
        }
        self.0.iter().all(Option::is_some)
    }
}

fn is_closed(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let open = match peeked {
        Ok(count) => count > 0,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    };
    !open || stream.set_nonblocking(false).is_err()
}

fn gather(
    options: &TcpOptions,
    listener: TcpListener,
    deadline: &Deadline,
    is_there: &(dyn Fn(u32) -> bool + Sync),
) -> Result<Vec<TcpStream>, BootstrapError> {
    let failed = |error| BootstrapError::Listen { at: options.address.clone(), error };
    let at = listener.local_addr().map_err(failed)?;
    fork::register(at);
    // So that the deadline holds also when nobody comes.
    listener.set_nonblocking(true).map_err(failed)?;
    let mut rays = Rays((1..options.n_pes).map(|_| None).collect());
    let no_pe = |from: SocketAddr, why: &str| {
        static LIMIT: RateLimit = RateLimit::new(16, Duration::from_secs(10));
        let text = "a connection to the bootstrap's port is no PE of this job";
        if let Some(unsaid) = LIMIT.admit() {
            warn!(target: logging::INIT, "{text}: {from}: {why}{unsaid}");
        }
    };
    let over = AtomicBool::new(false);
    let gone = thread::scope(|scope| {
        let (came, comes) = mpsc::channel();
        // Connections in the greeting, oldest first.
        let mut greeting: VecDeque<(SocketAddr, TcpStream)> = VecDeque::new();
        let close = |(_, stream): (SocketAddr, TcpStream)| drop(stream.shutdown(Shutdown::Both));
        let mut guesses = Guesses::default();
        // Connections from networks that sent wrong proofs.
        let mut held: VecDeque<(TcpStream, SocketAddr)> = VecDeque::new();
        let mut missed = Missed::default();
        let mut gone = None;
        while !rays.are_all() && deadline.left().is_some() && gone.is_none() {
            gone = missed.look(scope, &rays, is_there, &over);
            let now = Instant::now();
            let ready = held.iter().position(|(_, from)| !guesses.pause(from.ip(), now));
            let accepted = match ready.and_then(|at| held.remove(at)) {
                Some(held) => Ok(held),
                None => listener.accept(),
            };
            let greeted = match accepted {
                Ok((stream, from)) if guesses.pause(from.ip(), now) => {
                    held.push_back((stream, from));
                    // Further connections are closed; PEs of the job try again.
                    held.truncate(GREETINGS);
                    Ok(None)
                }
                accepted => accepted.and_then(|(stream, from)| {
                    let clone = stream.try_clone()?;
                    let came = came.clone();
                    // The receiver is gone once all PEs have joined.
                    let greet = move || drop(came.send((from, greet(stream, options, deadline))));
                    let builder = thread::Builder::new();
                    #[cfg(test)]
                    let builder = tests::refuse_some(builder);
                    // If no thread can be made, the connection is closed, and a PE tries again.
                    builder.spawn_scoped(scope, greet)?;
                    Ok(Some((from, clone)))
                }),
            };
            match greeted {
                Ok(new) => {
                    greeting.extend(new);
                    if greeting.len() > GREETINGS {
                        greeting.pop_front().into_iter().for_each(close);
                    }
                }
                // Also if this process is out of file descriptors: other connections end.
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        debug!(target: logging::INIT, "accepting at {at}: {error}");
                    }
                    thread::sleep(RETRY / 10);
                }
            }
            for (from, greeted) in comes.try_iter() {
                greeting.retain(|(other, _)| *other != from);
                if greeted.as_ref().is_err_and(|no| no.is_unproven) {
                    guesses.wrong(from.ip(), Instant::now());
                }
                let taken = greeted
                    .map_err(|no| no.why)
                    .and_then(|(pe, stream)| rays.take(pe, stream, deadline));
                taken.unwrap_or_else(|why| no_pe(from, &why));
            }
        }
        // Connections still in the greeting are closed.
        greeting.into_iter().for_each(close);
        over.store(true, Ordering::Relaxed);
        gone
    });
    if let Some(pe) = gone {
        return Err(BootstrapError::Gone { pe });
    }
    let missing = ranks(rays.missing().into_iter());
    if !missing.is_empty() {
        return Err(BootstrapError::Missing { at, waited: deadline.waited(), missing });
    }
    let mut all = Vec::with_capacity(rays.0.len());
    for (pe, mut ray) in (1..).zip(rays.0.into_iter().flatten()) {
        let welcomed = send(&mut ray, Kind::Welcome, 0, &[], deadline);
        welcomed.map_err(|error| BootstrapError::Lost { call: "joining", pe, error })?;
        // By one end of the connection at least, wherever this listens.
        ray.local_addr().into_iter().for_each(fork::register);
        all.push(ray);
    }
    Ok(all)
}

/// Looks, on a thread of its own, whether the PEs that are missing are there.
#[derive(Default)]
struct Missed {
    since: Option<Instant>,
    look: Option<mpsc::Receiver<Vec<u32>>>,
    last: Vec<u32>,
}

impl Missed {
    fn look<'scope>(
        &mut self,
        scope: &'scope thread::Scope<'scope, '_>,
        rays: &Rays,
        is_there: &'scope (dyn Fn(u32) -> bool + Sync),
        over: &'scope AtomicBool,
    ) -> Option<u32> {
        if let Some(found) = self.look.as_ref().and_then(|look| look.try_recv().ok()) {
            let missing = rays.missing();
            let last = std::mem::replace(&mut self.last, found);
            let gone = self.last.iter().find(|pe| last.contains(pe) && missing.contains(pe));
            (self.look, self.since) = (None, Some(Instant::now()));
            return gone.copied();
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.look.is_none() && since.elapsed() > LOOK {
            let (tell, told) = mpsc::channel();
            let missing = rays.missing().into_iter();
            let is_gone = |pe: &u32| !over.load(Ordering::Relaxed) && !is_there(*pe);
            let look = move || drop(tell.send(missing.filter(is_gone).collect()));
            // Without a thread, the next call looks.
            self.look = thread::Builder::new().spawn_scoped(scope, look).ok().map(|_| told);
        }
        None
    }
}

/// A connection that is no PE's: whether it lacked the proof, and why.
struct NoPe {
    is_unproven: bool,
    why: String,
}

impl From<String> for NoPe {
    fn from(why: String) -> Self {
        Self { is_unproven: false, why }
    }
}

fn greet(
    mut stream: TcpStream,
    options: &TcpOptions,
    deadline: &Deadline,
) -> Result<(u32, TcpStream), NoPe> {
    let text = |error: io::Error| NoPe::from(error.to_string());
    // A socket that was accepted may have taken over that accepting does not block.
    stream.set_nonblocking(false).map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let soon = Deadline::within(deadline.left().unwrap_or_default().min(GREET));
    let mut bytes = [0; GREETING];
    read_exact(&mut stream, &mut bytes, &soon).map_err(text)?;
    let theirs = Greeting::decode(&bytes)?;
    let mine = Greeting::new(0, options.n_pes).map_err(text)?;
    write_all(&mut stream, &mine.encode(), &soon).map_err(text)?;
    let handshake = Handshake { greetings: [mine, theirs], job: options.job };
    let mut proof = [0; PROOF];
    read_exact(&mut stream, &mut proof, &soon).map_err(text)?;
    if !handshake.is_proven(false, &proof) {
        // A peer without proof is sent nothing that depends on the job's number.
        write_all(&mut stream, &[0; PROOF], &soon).map_err(text)?;
        let why = String::from("it is of another job");
        refuse(&mut stream, &why, &soon);
        return Err(NoPe { is_unproven: true, why });
    }
    write_all(&mut stream, &handshake.proof(true), &soon).map_err(text)?;
    if theirs.n_pes == options.n_pes {
        return Ok((theirs.me, stream));
    }
    let why = format!("it is of a job of {} PEs, and this one has {}", theirs.n_pes, options.n_pes);
    refuse(&mut stream, &why, &soon);
    Err(why.into())
}

fn refuse(stream: &mut TcpStream, why: &str, deadline: &Deadline) {
    let _ = send(stream, Kind::Refusal, 0, why.as_bytes(), deadline);
    let _ = stream.shutdown(Shutdown::Write);
}

/// Connects to PE 0, as often as it takes; if it `listens` already, until it refuses connections.
fn connect(
    options: &TcpOptions,
    deadline: &Deadline,
    listens: bool,
) -> Result<TcpStream, BootstrapError> {
    let me = options.me;
    let mut last = io::Error::new(io::ErrorKind::TimedOut, "it was not tried");
    let mut refused_since = None;
    while let Some(left) = deadline.left() {
        let mut all_refuse = listens;
        // Resolved anew: names of hosts that are starting may not be known at first.
        match resolve(&options.address) {
            Ok(all) => {
                // Another program may answer at one of several addresses.
                let mut refused = None;
                for at in all {
                    let connected = TcpStream::connect_timeout(&at, left.min(GREET));
                    all_refuse &= connected
                        .as_ref()
                        .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                    match connected {
                        Ok(stream) => match join(stream, at, options, deadline) {
                            Ok(joined) => {
                                fork::register(at);
                                return Ok(joined);
                            }
                            // PE 0 may be starting behind something that closes connections.
                            Err(BootstrapError::Lost { error, .. }) => last = error,
                            Err(other) => refused = Some(other),
                        },
                        Err(error) => last = error,
                    }
                }
                if let Some(refused) = refused {
                    return Err(refused);
                }
            }
            Err(BootstrapError::Address { text, why }) if text.contains(':') => {
                last = io::Error::other(why);
            }
            Err(other) => return Err(other),
        }
        let since = *refused_since.get_or_insert_with(Instant::now);
        if !all_refuse {
            refused_since = None;
        } else if since.elapsed() > LOOK {
            return Err(BootstrapError::Gone { pe: 0 });
        }
        deadline.after(GREET);
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
    let mine = Greeting::new(me, n_pes).map_err(lost)?;
    write_all(&mut stream, &mine.encode(), deadline).map_err(lost)?;
    let mut bytes = [0; GREETING];
    read_exact(&mut stream, &mut bytes, deadline).map_err(lost)?;
    let protocol = |why| BootstrapError::Protocol { at, why };
    let theirs = Greeting::decode(&bytes).map_err(protocol)?;
    let handshake = Handshake { greetings: [theirs, mine], job };
    write_all(&mut stream, &handshake.proof(false), deadline).map_err(lost)?;
    let mut proof = [0; PROOF];
    read_exact(&mut stream, &mut proof, deadline).map_err(lost)?;
    let frame = receive(&mut stream, deadline).map_err(lost)?;
    match frame.kind {
        Kind::Welcome if !handshake.is_proven(true, &proof) => {
            Err(protocol(String::from("it is of another job")))
        }
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
