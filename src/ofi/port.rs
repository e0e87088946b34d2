//! The data path of one lane over libfabric.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL, fi_cq_entry};
use log::warn;

use super::completion::Entries;
use super::context::Contexts;
use super::domain::Gate;
use super::endpoint::{Direct, Rma};
use super::error::{port_error, refused};
use super::rail::Rail;
use crate::engine::ids::{RailId, Token};
use crate::engine::port::{
    Direction, Failure, Local, POLL_BATCH, PeerAddr, Polled, Port, PortError, Posted, RailLimits,
    Transfer,
};

/// The rails of one lane.
///
/// Posting and polling allocate nothing and format nothing unless they fail, and lock only where
/// the provider demands it.
#[derive(Debug)]
pub struct OfiPort {
    rails: Box<[PortRail]>,
    contexts: Arc<Contexts>,
    limits: Box<[RailLimits]>,
    start: Instant,
}

// Ports are made on one thread and used on others, a lane at a time.
const _: () = {
    const fn assert_send<T: Send>() {}
    assert_send::<OfiPort>();
};

/// A rail, with what posting needs of it at hand.
#[derive(Debug)]
struct PortRail {
    rail: Arc<Rail>,
    gate: Gate,
    /// The short way to post, where nothing is gated.
    direct: Option<Direct>,
    /// Descriptor of the values of inline writes.
    values_desc: usize,
}

impl OfiPort {
    pub(super) fn new(rails: &[Arc<Rail>], contexts: Arc<Contexts>) -> Self {
        let port_rail = |rail: &Arc<Rail>| PortRail {
            rail: Arc::clone(rail),
            gate: rail.domain().gate().clone(),
            direct: rail.endpoint().direct().filter(|_| rail.domain().gate().is_open()),
            values_desc: rail.values_desc().0,
        };
        Self {
            rails: rails.iter().map(port_rail).collect(),
            contexts,
            limits: rails.iter().map(|rail| rail.limits()).collect(),
            start: Instant::now(),
        }
    }

    /// The number of rails.
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// Tokens are below this.
    pub fn token_capacity(&self) -> usize {
        self.contexts.capacity()
    }

    /// A rail's own address, for peers to insert. Empty for a rail that does not exist.
    pub fn address(&self, rail: RailId) -> &[u8] {
        match self.rails.get(rail.index()) {
            Some(rail) => rail.rail.endpoint().address(),
            None => &[],
        }
    }

    /// Inserts the addresses of peers' rails into one rail's address vector, in one call, and
    /// gives what to post to, in the same order.
    ///
    /// # Errors
    /// What libfabric refused; addresses by their place in `addresses`.
    pub fn insert<A: AsRef<[u8]>>(
        &mut self,
        rail: RailId,
        addresses: &[A],
    ) -> Result<Vec<PeerAddr>, PortError> {
        let rail = self.rails.get(rail.index()).ok_or_else(|| no_such_rail(rail))?;
        let endpoint = rail.rail.endpoint();
        endpoint.vector().insert(addresses, endpoint.address().len()).map_err(|mut error| {
            error.text = format!("rail {}: {}", rail.rail.name(), error.text);
            error
        })
    }
}

impl Port for OfiPort {
    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, rail: RailId) -> &str {
        self.rails.get(rail.index()).map_or("?", |rail| rail.rail.name())
    }

    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        let Some(port_rail) = self.rails.get(rail.index()) else { return Err(no_such_rail(rail)) };
        let Some(context) = self.contexts.context(token) else { return Err(no_such_token(token)) };
        let (buf, desc) = match transfer.local {
            Local::Memory { addr, desc } => (addr as *mut c_void, desc.0),
            Local::Inline(value) => {
                if transfer.len > size_of::<u64>() || transfer.direction == Direction::Read {
                    return Err(not_inline(transfer));
                }
                // SAFETY: `&mut self` makes this the only thread, and the token is not in use.
                match unsafe { self.contexts.set_value(token, value) } {
                    Some(place) => (place, port_rail.values_desc),
                    None => return Err(no_such_token(token)),
                }
            }
        };
        let op = Rma {
            buf,
            len: transfer.len,
            desc: desc as *mut c_void,
            peer: to.0,
            remote: transfer.remote,
            key: transfer.key,
            context,
        };
        let endpoint = port_rail.rail.endpoint();
        let gate = port_rail.gate.enter();
        // SAFETY: `&mut self` makes this the lane's only thread, and the gate is entered. The
        // context and inline values live as long as the rail. Other memory is what the engine
        // registered and keeps until the token comes back, as `Local::Memory` demands.
        let code = unsafe {
            match transfer.direction {
                Direction::Write => endpoint.write(&op),
                Direction::Read => endpoint.read(&op),
            }
        };
        drop(gate);
        if code == 0 {
            Ok(Posted::Yes)
        } else if code == -(FI_EAGAIN as isize) {
            Ok(Posted::Again)
        } else {
            Err(post_failed(port_rail, transfer.direction, code))
        }
    }

    #[inline(always)]
    fn post_at_once(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> bool {
        let Some(port_rail) = self.rails.get(rail.index()) else { return false };
        let Some(context) = self.contexts.context(token) else { return false };
        let Some(direct) = &port_rail.direct else { return false };
        let (buf, desc) = match transfer.local {
            Local::Memory { addr, desc } => (addr as *mut c_void, desc.0),
            Local::Inline(value) => {
                if transfer.len > size_of::<u64>() || transfer.direction == Direction::Read {
                    return false;
                }
                // SAFETY: `&mut self` makes this the only thread, and the token is not in use.
                match unsafe { self.contexts.set_value(token, value) } {
                    Some(place) => (place, port_rail.values_desc),
                    None => return false,
                }
            }
        };
        let op = Rma {
            buf,
            len: transfer.len,
            desc: desc as *mut c_void,
            peer: to.0,
            remote: transfer.remote,
            key: transfer.key,
            context,
        };
        // SAFETY: as in `post`; without a mutex there is no gate to enter. The rail beside it keeps
        // the endpoint open.
        let code = unsafe {
            match transfer.direction {
                Direction::Write => direct.write(&op),
                Direction::Read => direct.read(&op),
            }
        };
        code == 0
    }

    #[inline]
    fn poll(&mut self, rail: RailId, done: &mut [Token; POLL_BATCH]) -> Polled {
        let Some(port_rail) = self.rails.get(rail.index()) else {
            return Polled::Failed(Failure { token: None, error: no_such_rail(rail) });
        };
        let mut entries: Entries = [const { MaybeUninit::uninit() }; POLL_BATCH];
        let gate = port_rail.gate.enter();
        // SAFETY: `&mut self` makes this the lane's only thread, and the gate is entered.
        let code = unsafe { port_rail.rail.endpoint().queue().read(&mut entries) };
        drop(gate);
        if code > 0 {
            // SAFETY: libfabric has written so many entries, at most as many as it was given room.
            let entries = unsafe {
                std::slice::from_raw_parts(entries.as_ptr().cast::<fi_cq_entry>(), code as usize)
            };
            let mut count = 0;
            for (entry, done) in entries.iter().zip(done.iter_mut()) {
                match self.contexts.token(entry.op_context) {
                    Some(token) => *done = token,
                    None => return self.stranger(port_rail),
                }
                count += 1;
            }
            Polled::Completed(count)
        } else if code == -(FI_EAGAIN as isize) || code == 0 {
            Polled::Empty
        } else {
            self.poll_failed(port_rail, code)
        }
    }

    #[inline]
    fn now(&mut self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    #[inline]
    fn relax(&mut self) {
        thread::yield_now();
    }
}

impl OfiPort {
    /// A poll that answered with an error.
    #[cold]
    fn poll_failed(&self, port_rail: &PortRail, code: isize) -> Polled {
        let rail = &port_rail.rail;
        if code != -(FI_EAVAIL as isize) {
            let error = port_error(rail.domain().library(), "fi_cq_read", code as i64);
            return Polled::Failed(Failure { token: None, error });
        }
        let gate = port_rail.gate.enter();
        // SAFETY: called from `poll` only, which has the port for itself; the gate is entered.
        let entry = unsafe { rail.endpoint().queue().read_error() };
        drop(gate);
        match entry {
            None => Polled::Empty,
            Some(entry) => Polled::Failed(Failure {
                token: self.contexts.token(entry.op_context),
                error: entry.error,
            }),
        }
    }

    /// A completion of nothing that was posted: the provider's books are wrong, and tokens read
    /// beside it cannot be trusted.
    #[cold]
    fn stranger(&self, port_rail: &PortRail) -> Polled {
        warn!("rail {} completed an operation that nobody posted", port_rail.rail.name());
        let error = refused("fi_cq_read", String::from("completion with an unknown context"));
        Polled::Failed(Failure { token: None, error })
    }
}

#[cold]
fn post_failed(port_rail: &PortRail, direction: Direction, code: isize) -> PortError {
    let call = match direction {
        Direction::Write => "fi_write",
        Direction::Read => "fi_read",
    };
    port_error(port_rail.rail.domain().library(), call, code as i64)
}

#[cold]
fn no_such_rail(rail: RailId) -> PortError {
    refused("choosing a rail", format!("{rail} does not exist"))
}

#[cold]
fn no_such_token(token: Token) -> PortError {
    refused("posting", format!("token {} is beyond the port's capacity", token.0))
}

#[cold]
fn not_inline(transfer: &Transfer) -> PortError {
    refused("posting", format!("{} bytes cannot be an inline write", transfer.len))
}
