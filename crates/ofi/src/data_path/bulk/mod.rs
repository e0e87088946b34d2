//! Connections of a rail for bytes in bulk, each moved by a thread of its own.
//!
//! Where a provider moves bytes by the processor, and only while somebody polls, one thread moves
//! all that goes over all rails. So such a rail gets further domains, each with an endpoint of its
//! own on the same device, and with a thread that posts there, polls, and sleeps while there is
//! nothing to move. The lane hands long transfers over to these and keeps everything else; a
//! peer's long transfers come in there likewise.
//!
//! ```text
//! lane ── Request ──> bounded queue ──> thread: fi_write, fi_read, fi_cq_read
//! lane <── Done ───── bounded queue <── thread
//! ```
//!
//! The lane's queue of completions has the others' behind its own ([`Merged`]), so a rail is polled
//! as ever. Peers name memory by the same key on all connections of a rail, and know their
//! addresses as one ([`addresses`]).
//!
//! # Why it cannot deadlock
//! A thread is waited for only while PEs connect: for a lock that it holds during one turn, and
//! does not take again while somebody wants it. The thread waits for nobody: a queue that is full
//! is tried again.

pub(crate) mod addresses;
mod connection;
mod done;
mod merged;
mod thread;

use std::collections::HashMap;
use std::ffi::c_void;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::data_path::bulk::connection::{Connection, Request, What};
use crate::data_path::bulk::merged::Merged;
use crate::data_path::bulk::thread::Worker;
use crate::error::refused;
use crate::objects::completion_queue::DirectQueue;
use crate::objects::contexts::Contexts;
use crate::objects::domain::Domain;
use engine::ids::WrId;
use engine::port::{Direction, Failure, Local, Operation, PeerAddr, PortError, Posted, Transfer};

/// Most connections for bulk of one rail: their addresses are told in one message.
pub(crate) const MOST: usize = 6;

/// What a connection is opened for.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Its thread's name.
    pub(crate) name: &'a str,
    /// Operations that the rail has under way at most.
    pub(crate) depth: u32,
    pub(crate) peers: usize,
    /// What comes in and cannot be received is of that alone.
    pub(crate) outlives_receives: bool,
    /// The NIC, whose CPUs the thread keeps to.
    pub(crate) near: Option<&'a Path>,
}

/// The connections for bulk of one rail, as its lane has them.
#[derive(Debug)]
pub(crate) struct Bulk {
    /// Each with what the lane has given it and not got back, and its addresses of peers by the
    /// rail's.
    connections: Vec<Served>,
    merged: Merged,
    /// The connection that is looked at first, so that equals take turns.
    turn: usize,
}

#[derive(Debug)]
struct Served {
    worker: Worker,
    routes: HashMap<PeerAddr, Route>,
}

#[derive(Clone, Copy, Debug)]
struct Route {
    to: PeerAddr,
    reach: Reach,
}

/// Whether the connection to a peer is made.
///
/// That takes a while, and may take for ever if the peer is stopped. Until then the rail itself
/// takes what goes there, and its rate is not that of making connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    Unknown,
    /// A byte is read from there.
    Tried,
    Made,
}

impl Bulk {
    /// Opens connections in these domains, one in each, with a thread each. The rail's own queue is
    /// read through them from here on: see [`Bulk::queue`].
    ///
    /// # Errors
    /// What libfabric refused, or the system a thread.
    pub(crate) fn open(
        domains: &[Arc<Domain>],
        plans: &[Plan<'_>],
        contexts: &Arc<Contexts>,
        own: DirectQueue,
    ) -> Result<Self, PortError> {
        let (merged, news) = Merged::new(own);
        let mut bulk = Self { connections: Vec::with_capacity(domains.len()), merged, turn: 0 };
        for (domain, plan) in domains.iter().zip(plans) {
            let (connection, ends) = Connection::open(domain, plan, contexts, &news)?;
            bulk.merged.add(ends.done);
            let worker = Worker::start(connection, ends.requests, plan.name, plan.near)
                .map_err(|error| no_thread(&error))?;
            bulk.connections.push(Served { worker, routes: HashMap::new() });
        }
        Ok(bulk)
    }

    pub(crate) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn queue(&self) -> DirectQueue {
        self.merged.direct()
    }

    /// Where they are.
    ///
    /// # Errors
    /// A thread has ended.
    pub(crate) fn addresses(&self) -> Result<Vec<Vec<u8>>, PortError> {
        self.connections.iter().map(|link| link.worker.with(Connection::address)).collect()
    }

    /// Makes peers known: their rails by what the rail has them by, and where each of them has
    /// connections for bulk, or else the rail itself.
    ///
    /// # Errors
    /// What libfabric refused.
    pub(crate) fn insert(&mut self, peers: &[(PeerAddr, Vec<&[u8]>)]) -> Result<(), PortError> {
        for (at, link) in self.connections.iter_mut().enumerate() {
            let places: Vec<&[u8]> =
                peers.iter().map(|(_, places)| places[at % places.len()]).collect();
            let inserted = link.worker.with(|connection| connection.insert(&places))??;
            let routes = inserted.into_iter().map(|to| Route { to, reach: Reach::Unknown });
            link.routes.extend(peers.iter().map(|(rail, _)| *rail).zip(routes));
        }
        Ok(())
    }

    /// Hands a transfer over to the connection with the least under way of those that reach the
    /// peer. None if there is none; then those that were not tried are.
    ///
    /// # Errors
    /// The connection's thread has ended.
    pub(crate) fn post(
        &mut self,
        to: PeerAddr,
        wr_id: WrId,
        context: *mut c_void,
        operation: Operation<'_>,
        transfer: &Transfer,
    ) -> Result<Option<Posted>, PortError> {
        let Local::Memory { addr, .. } = transfer.local else { return Ok(None) };
        while let Some((at, peer, made)) = self.merged.next_reached() {
            self.reached(at, peer, made);
        }
        let Transfer { len, remote, key, .. } = *transfer;
        let request = |what, to| Request {
            what,
            to,
            wr_id,
            context: context as usize,
            addr,
            len,
            remote,
            key,
        };
        let count = self.connections.len();
        let mut best = None;
        for at in (0..count).map(|step| (self.turn + step) % count) {
            let Served { worker, routes } = &mut self.connections[at];
            let Some(route) = routes.get_mut(&to) else { continue };
            match route.reach {
                Reach::Made => {
                    let under_way = self.merged.under_way(at);
                    if best.is_none_or(|(_, least, _)| under_way < least) {
                        best = Some((at, under_way, route.to));
                    }
                }
                Reach::Tried => {}
                Reach::Unknown => {
                    if worker.give(request(What::Reach(to), route.to))? == Posted::Yes {
                        route.reach = Reach::Tried;
                    }
                }
            }
        }
        let Some((at, _, route)) = best else { return Ok(None) };
        let what = match (transfer.direction, operation) {
            (Direction::Read, _) => What::Read,
            (Direction::Write, Operation::WriteWithImmediate(_, data)) => What::WriteWithData(data),
            (Direction::Write, _) => What::Write,
        };
        let posted = self.connections[at].worker.give(request(what, route))?;
        if posted == Posted::Yes {
            self.merged.gave(at);
            self.turn = at + 1;
        }
        Ok(Some(posted))
    }

    #[cold]
    fn reached(&mut self, at: usize, peer: PeerAddr, made: bool) {
        let route = self.connections.get_mut(at).and_then(|link| link.routes.get_mut(&peer));
        if let Some(route) = route {
            route.reach = if made { Reach::Made } else { Reach::Unknown };
        }
    }

    #[cold]
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.merged.take_failure()
    }
}

#[cold]
fn no_thread(error: &io::Error) -> PortError {
    refused("starting a thread for bulk", error.to_string())
}
