//! Connections of a rail for bytes in bulk, each moved by a thread of its own.
//!
//! Where a provider moves bytes by the processor, and only while somebody polls, one thread moves
//! all that goes over all rails. So such a rail gets further domains, each with an endpoint of its
//! own on the same device, and with a thread that posts there, polls, and sleeps while there is
//! nothing to move. The lane hands long transfers over to these and keeps everything else; a
//! peer's long transfers come in there likewise.
//!
//! ```text
//! lane ── Request ──> bounded queue of each ──> thread: fi_write, fi_read, fi_cq_read
//! lane <── Done ───── bounded queue of all  <── threads
//! ```
//!
//! The lane's queue of completions has the others' with its own ([`Merged`]). Peers name memory by
//! the same key on all connections of a rail, and know their addresses as one ([`addresses`]).
//!
//! Neither waits for the other: a queue that is full is tried again. The domains are opened with
//! `FI_THREAD_SAFE`, so that the lane may insert addresses beside a thread that polls.

pub(crate) mod addresses;
mod connection;
mod merged_queue;
mod thread;

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use crate::data_path::bulk::connection::{BulkOp, Connection, Request};
use crate::data_path::bulk::merged_queue::Merged;
use crate::data_path::bulk::thread::Worker;
use crate::error::refused;
use crate::objects::contexts::Contexts;
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::endpoint::queue::DirectQueue;
use engine::ids::WrId;
use engine::port::{Direction, Failure, Local, Operation, PeerAddr, PortError, Posted, Transfer};

/// Most connections for bulk of one rail: their addresses are told in one message.
pub(crate) const MOST: usize = 6;

/// Completions that a connection's queue has room for beyond the transfers of its own.
const QUEUE_MARGIN: usize = 256;

/// Connections to be opened for a rail.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Each in a domain, with the name of its thread.
    pub(crate) threads: &'a [(Arc<Domain>, String)],
    /// Operations that the rail has under way at most.
    pub(crate) depth: u32,
    pub(crate) peers: usize,
    /// The NIC, whose CPUs the threads keep to.
    pub(crate) near: Option<&'a Path>,
}

/// The connections for bulk of one rail, as its lane has them.
#[derive(Debug)]
pub(crate) struct Bulk {
    links: Vec<Link>,
    merged: Merged,
    /// The connection that is looked at first, so that equals take turns.
    turn: usize,
}

/// A connection as the lane has it.
#[derive(Debug)]
struct Link {
    // Given up first: the thread closes the endpoint at its end.
    endpoint: Arc<Endpoint>,
    worker: Worker,
    /// Its addresses of peers, by the rail's.
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
    /// Opens connections with a thread each; [`Bulk::queue`] replaces the rail's own queue.
    ///
    /// # Errors
    /// Libfabric's refusal, or the system's to make a thread.
    pub(crate) fn open(
        plan: &Plan<'_>,
        contexts: &Arc<Contexts>,
        own: DirectQueue,
    ) -> Result<Self, PortError> {
        let depth = plan.depth as usize;
        let (merged, tell) = Merged::new(own, plan.threads.len(), depth);
        let mut links = Vec::with_capacity(plan.threads.len());
        for (at, (domain, name)) in plan.threads.iter().enumerate() {
            let endpoint = Endpoint::open(domain, depth + QUEUE_MARGIN, plan.peers, true)?;
            // Answered by what cannot wake anybody, that is said now.
            endpoint.descriptor()?;
            let endpoint = Arc::new(endpoint);
            let (connection, requests) =
                Connection::new(&endpoint, contexts, name, depth, tell.for_connection(at))?;
            let worker = Worker::start(connection, requests, name, plan.near)
                .map_err(|error| refused("starting a thread for bulk", error.to_string()))?;
            links.push(Link { endpoint, worker, routes: HashMap::new() });
        }
        Ok(Self { links, merged, turn: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn queue(&self) -> DirectQueue {
        self.merged.direct()
    }

    /// Where they are.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &[u8]> {
        self.links.iter().map(|link| &link.endpoint.address[..])
    }

    /// Makes peers known: their rails by what the rail has them by, and where each of them has
    /// connections for bulk, or else the rail itself.
    ///
    /// # Errors
    /// Libfabric's refusal.
    pub(crate) fn insert(&mut self, peers: &[(PeerAddr, Vec<&[u8]>)]) -> Result<(), PortError> {
        for (at, link) in self.links.iter_mut().enumerate() {
            let places: Vec<&[u8]> =
                peers.iter().map(|(_, places)| places[at % places.len()]).collect();
            let inserted = link.endpoint.insert(&places)?;
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
            if let Some(route) = self.links[at].routes.get_mut(&peer) {
                route.reach = if made { Reach::Made } else { Reach::Unknown };
            }
        }
        let Transfer { len, remote, key, .. } = *transfer;
        let context = context as usize;
        let request = |what, to| Request { what, to, wr_id, context, addr, len, remote, key };
        let count = self.links.len();
        let mut best = None;
        for at in (0..count).map(|step| (self.turn + step) % count) {
            let Link { worker, routes, .. } = &mut self.links[at];
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
                    if worker.give(request(BulkOp::Reach(to), route.to))? == Posted::Yes {
                        route.reach = Reach::Tried;
                    }
                }
            }
        }
        let Some((at, _, route)) = best else { return Ok(None) };
        let what = match (transfer.direction, operation) {
            (Direction::Read, _) => BulkOp::Read,
            (Direction::Write, Operation::WriteWithImmediate(_, data)) => {
                BulkOp::WriteWithData(data)
            }
            (Direction::Write, _) => BulkOp::Write,
        };
        let posted = self.links[at].worker.give(request(what, route))?;
        if posted == Posted::Yes {
            self.merged.gave(at);
            self.turn = at + 1;
        }
        Ok(Some(posted))
    }

    #[cold]
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.merged.take_failure()
    }
}
