//! Bulk connections of a rail, each driven by a thread of its own.
//!
//! If a provider copies with the CPU, and only while it is polled, one thread copies the bytes of
//! all rails. So such a rail gets further domains on the same device, each with an endpoint and a
//! thread that posts there, polls, and sleeps while nothing is due. The lane submits long transfers
//! to these and posts everything else itself; a peer's long transfers arrive there likewise.
//!
//! ```text
//! lane ── Request ──> bounded queue of each ──> thread: fi_write, fi_read, fi_cq_read
//! lane <── BulkEvent bounded queue of all  <── threads
//! ```
//!
//! The lane's completion queue includes those of the connections ([`MergedQueue`]). A region has
//! the same key on all connections of a rail, and their addresses are joined ([`addresses`]).
//!
//! Lane and threads never wait for each other: they retry if a queue is full. The domains are
//! opened with `FI_THREAD_SAFE`, so that the lane may insert addresses while a thread polls.

pub(crate) mod addresses;
mod connection;
mod merged_queue;
mod thread;

use std::collections::HashMap;
use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use crate::data_path::bulk::connection::{BulkOp, Connection, Request};
use crate::data_path::bulk::merged_queue::MergedQueue;
use crate::data_path::bulk::thread::Worker;
use crate::error::refused;
use crate::objects::contexts::Contexts;
use crate::objects::domain::Domain;
use crate::objects::endpoint::Endpoint;
use crate::objects::endpoint::queue::QueueOps;
use engine::ids::WrId;
use engine::port::{Direction, Failure, Local, Operation, PeerAddr, PortError, Posted, Transfer};

/// Maximum number of bulk connections of a rail: one message carries their addresses.
pub(crate) const MAX_CONNECTIONS: usize = 6;

/// Entries of a connection's completion queue beyond those for its own transfers.
const QUEUE_MARGIN: usize = 256;

#[derive(Debug)]
pub(crate) struct BulkConfig<'a> {
    /// Domain and thread name of each connection.
    pub(crate) threads: &'a [(Arc<Domain>, String)],
    /// Maximum number of operations of the rail in flight.
    pub(crate) depth: u32,
    pub(crate) peers: usize,
    /// The NIC, to whose CPUs the threads are bound.
    pub(crate) near: Option<&'a Path>,
}

/// Bulk connections of one rail, on the lane's side.
#[derive(Debug)]
pub(crate) struct Bulk {
    links: Vec<BulkLink>,
    merged: MergedQueue,
    /// Index of the connection considered first, so that equally loaded ones alternate.
    next_link: usize,
}

/// A bulk connection, on the lane's side.
#[derive(Debug)]
struct BulkLink {
    // Dropped first: the thread closes the endpoint when it ends.
    endpoint: Arc<Endpoint>,
    worker: Worker,
    /// Routes to peers, by the rail's address of the peer.
    routes: HashMap<PeerAddr, Route>,
}

#[derive(Clone, Copy, Debug)]
struct Route {
    to: PeerAddr,
    state: RouteState,
}

/// State of the connection to a peer.
///
/// Connecting takes a while, or forever if the peer is stopped. Until then the rail itself takes
/// the transfers, so that they do not wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RouteState {
    Unconnected,
    /// A probe is in flight.
    Connecting,
    Connected,
}

impl Bulk {
    /// Opens connections with a thread each; [`Bulk::queue`] replaces the rail's own queue.
    pub(crate) fn open(
        plan: &BulkConfig<'_>,
        contexts: &Arc<Contexts>,
        own: QueueOps,
    ) -> Result<Self, PortError> {
        let depth = plan.depth as usize;
        let (merged, sender) = MergedQueue::new(own, plan.threads.len(), depth);
        let mut links = Vec::with_capacity(plan.threads.len());
        for (at, (domain, name)) in plan.threads.iter().enumerate() {
            let endpoint = Endpoint::open(domain, depth + QUEUE_MARGIN, plan.peers, true)?;
            // A provider that cannot wake a thread refuses this now.
            endpoint.descriptor()?;
            let endpoint = Arc::new(endpoint);
            let (connection, requests) =
                Connection::new(&endpoint, contexts, name, depth, sender.for_connection(at))?;
            let worker = Worker::start(connection, requests, name, plan.near)
                .map_err(|error| refused("starting a thread for bulk", error.to_string()))?;
            links.push(BulkLink { endpoint, worker, routes: HashMap::new() });
        }
        Ok(Self { links, merged, next_link: 0 })
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn queue(&self) -> QueueOps {
        self.merged.queue_ops()
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &[u8]> {
        self.links.iter().map(|link| &link.endpoint.address[..])
    }

    /// Inserts peers: the rail's address of each, with the addresses of its bulk connections, or of
    /// its rail if it has none.
    pub(crate) fn insert(&mut self, peers: &[(PeerAddr, Vec<&[u8]>)]) -> Result<(), PortError> {
        for (at, link) in self.links.iter_mut().enumerate() {
            let places: Vec<&[u8]> =
                peers.iter().map(|(_, places)| places[at % places.len()]).collect();
            let inserted = link.endpoint.insert(&places)?;
            let routes =
                inserted.into_iter().map(|to| Route { to, state: RouteState::Unconnected });
            link.routes.extend(peers.iter().map(|(rail, _)| *rail).zip(routes));
        }
        Ok(())
    }

    /// Submits a transfer to the least loaded connection that is connected to the peer. Returns
    /// None if there is none. Starts connecting those that are not.
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
        while let Some((at, peer, made)) = self.merged.next_probed() {
            if let Some(route) = self.links[at].routes.get_mut(&peer) {
                route.state = if made { RouteState::Connected } else { RouteState::Unconnected };
            }
        }
        let Transfer { len, remote, key, .. } = *transfer;
        let context = context as usize;
        let request = |what, to| Request { what, to, wr_id, context, addr, len, remote, key };
        let count = self.links.len();
        let mut best = None;
        for at in (0..count).map(|step| (self.next_link + step) % count) {
            let BulkLink { worker, routes, .. } = &mut self.links[at];
            let Some(route) = routes.get_mut(&to) else { continue };
            match route.state {
                RouteState::Connected => {
                    let in_flight = self.merged.in_flight(at);
                    if best.is_none_or(|(_, least, _)| in_flight < least) {
                        best = Some((at, in_flight, route.to));
                    }
                }
                RouteState::Connecting => {}
                RouteState::Unconnected => {
                    if worker.submit(request(BulkOp::Probe(to), route.to))? == Posted::Yes {
                        route.state = RouteState::Connecting;
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
        let posted = self.links[at].worker.submit(request(what, route))?;
        if posted == Posted::Yes {
            self.merged.count_posted(at);
            self.next_link = at + 1;
        }
        Ok(Some(posted))
    }

    #[cold]
    pub(crate) fn take_failure(&mut self) -> Option<Failure> {
        self.merged.take_failure()
    }
}
