//! The data path of one lane over libfabric.

mod operations;

use std::iter;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use crate::data_path::bulk::{Bulk, BulkConfig, addresses};
use crate::data_path::host_memory;
use crate::data_path::messages::{Messages, too_long};
use crate::data_path::rail::Rail;
use crate::error::{on_rail, refused};
use crate::objects::contexts::Contexts;
use crate::objects::endpoint::EndpointOps;
use crate::objects::endpoint::queue::{Entries, QueueOps};
use crate::objects::object::Gate;
use engine::atomic::Atomic;
use engine::ids::{Pe, RailId, WrId};
use engine::port::packet::{LongPacket, MAX_MESSAGE};
use engine::port::{
    Clock, Incoming, LocalMemory, Messaging, PeerAddr, PortError, Posted, RailLimits, Tail,
};

/// What the fast path needs of a rail.
#[derive(Clone, Copy, Debug)]
pub struct FastRail {
    ops: EndpointOps,
    /// Address of the lane's contexts.
    contexts: usize,
}

/// The rails of one lane.
///
/// Posting, polling and messages neither allocate nor format unless they fail, and lock only if the
/// provider requires it.
#[derive(Debug)]
pub struct OfiPort {
    rails: Box<[PortRail]>,
    contexts: Arc<Contexts>,
    limits: Box<[RailLimits]>,
    start: Instant,
    entries: Entries,
    /// Answer of the last poll until [`DataPath::drain`] takes it; 0 for none.
    fetched: isize,
    /// Whether rails may have bulk connections, here or at peers: addresses are then [`addresses`].
    joins_addresses: bool,
    /// Processes of peers on this host that have not ended at the last check.
    processes: Vec<(Pe, OwnedFd)>,
}

// Ports are created on one thread and used on others.
const _: () = {
    const fn assert_send<T: Send>() {}
    assert_send::<OfiPort>();
};

#[derive(Debug)]
struct PortRail {
    rail: Arc<Rail>,
    gate: Gate,
    values_desc: usize,
    messages: Messages,
    queue: QueueOps,
    /// Bulk connections, whose completions `queue` includes.
    bulk: Option<Box<Bulk>>,
    address: Vec<u8>,
}

impl OfiPort {
    pub(crate) fn new(rails: &[Arc<Rail>], contexts: Arc<Contexts>) -> Result<Self, PortError> {
        let port_rail = |rail: &Arc<Rail>| {
            let gate = rail.domain.gate.clone();
            let mut messages = Messages::new(rail);
            messages.repost(rail, &gate).map_err(|error| on_rail(&rail.name, error))?;
            Ok(PortRail {
                rail: Arc::clone(rail),
                queue: rail.endpoint.queue()?,
                gate,
                values_desc: rail.values_desc().0,
                messages,
                bulk: None,
                address: rail.endpoint.address.to_vec(),
            })
        };
        Ok(Self {
            rails: rails.iter().map(port_rail).collect::<Result<_, PortError>>()?,
            contexts,
            limits: rails.iter().map(|rail| rail.limits).collect(),
            start: Instant::now(),
            entries: Entries::new(),
            fetched: 0,
            joins_addresses: false,
            processes: Vec::new(),
        })
    }

    pub(crate) fn with_joined_addresses(mut self) -> Self {
        self.joins_addresses = true;
        for PortRail { rail, address, .. } in &mut self.rails {
            *address = addresses::join(&rail.endpoint.address, iter::empty());
        }
        self
    }

    pub(crate) fn open_bulk(&mut self, at: usize, plan: &BulkConfig<'_>) -> Result<(), PortError> {
        let PortRail { rail, queue, bulk, address, .. } = &mut self.rails[at];
        let opened = Bulk::open(plan, &self.contexts, *queue)?;
        *address = addresses::join(&rail.endpoint.address, opened.addresses());
        *queue = opened.queue();
        self.limits[at].bulk = opened.len() as u8;
        *bulk = Some(Box::new(opened));
        Ok(())
    }

    /// Sets the processes of peers, as pidfds, whose ends the lane is to detect.
    pub fn watch_processes(&mut self, processes: Vec<(Pe, OwnedFd)>) {
        self.processes = processes;
    }

    /// Returns a rail's own address, for peers to insert; empty if the rail does not exist.
    pub fn address(&self, rail: RailId) -> &[u8] {
        match self.rails.get(rail.index()) {
            Some(rail) => &rail.address,
            None => &[],
        }
    }

    /// Inserts the addresses of peers' rails into one rail's address vector, in one call. Returns
    /// the handles to post to, in the same order.
    ///
    /// # Errors
    /// Libfabric's refusal, which names addresses by their index.
    pub fn insert<A: AsRef<[u8]>>(
        &mut self,
        rail: RailId,
        addresses: &[A],
    ) -> Result<Vec<PeerAddr>, PortError> {
        let port_rail = self.rails.get_mut(rail.index()).ok_or_else(|| no_such_rail(rail))?;
        let PortRail { rail, bulk, .. } = port_rail;
        let on_rail = |error| on_rail(&rail.name, error);
        let plain: Vec<&[u8]> = addresses.iter().map(AsRef::as_ref).collect();
        if !self.joins_addresses {
            return rail.endpoint.insert(&plain).map_err(on_rail);
        }
        let split = |(at, address)| {
            let why =
                || refused("inserting an address", format!("that of peer {at} cannot be read"));
            addresses::split(address).ok_or_else(why)
        };
        let joined = plain.into_iter().enumerate().map(split);
        let joined = joined.collect::<Result<Vec<Vec<&[u8]>>, PortError>>()?;
        let own: Vec<&[u8]> = joined.iter().map(|parts| parts[0]).collect();
        let peers = rail.endpoint.insert(&own).map_err(on_rail)?;
        if let Some(bulk) = bulk {
            let places = joined.into_iter().map(|mut parts| match parts.len() {
                1 => parts,
                _ => parts.split_off(1),
            });
            let peers: Vec<(PeerAddr, Vec<&[u8]>)> = peers.iter().copied().zip(places).collect();
            bulk.insert(&peers).map_err(on_rail)?;
        }
        Ok(peers)
    }
}

impl Messaging for OfiPort {
    #[inline]
    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        let Some(port_rail) = self.rails.get_mut(rail.index()) else {
            return Err(no_such_rail(rail));
        };
        if bytes.len() > MAX_MESSAGE {
            return Err(too_long(bytes.len(), MAX_MESSAGE));
        }
        let PortRail { rail, gate, messages, .. } = port_rail;
        messages.send(rail, gate, to, wr_id, bytes)
    }

    fn send_with_tail(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        head: &[u8],
        tail: Tail,
    ) -> Result<Posted, PortError> {
        let port_rail = self.rails.get_mut(rail.index()).ok_or_else(|| no_such_rail(rail))?;
        let PortRail { rail, gate, messages, .. } = port_rail;
        // SAFETY: the tail is the local side of a put, whose caller keeps it valid until the put
        // ends.
        unsafe { messages.send_with_tail(rail, gate, to, wr_id, head, tail) }
    }

    #[inline(always)]
    fn try_send(
        &mut self,
        fast: FastRail,
        rail: RailId,
        to: PeerAddr,
        wr_id: WrId,
        bytes: &[u8],
    ) -> bool {
        if bytes.len() <= fast.ops.inject_size {
            // SAFETY: `&mut self` makes this the lane's only thread, and `fast` refuses if a gate
            // has a mutex. It is of a rail of this port, as the trait demands, which keeps the
            // endpoint open. The length is checked.
            return unsafe { fast.ops.inject(bytes, to.0) } == 0;
        }
        matches!(self.send(rail, to, wr_id, bytes), Ok(Posted::Yes))
    }

    #[inline(always)]
    fn has_message(&self, rail: RailId) -> bool {
        self.rails.get(rail.index()).is_some_and(|rail| rail.messages.has_arrived())
    }

    #[inline(always)]
    fn receive(&mut self, rail: RailId, into: &mut LongPacket) -> Incoming {
        let Some(port_rail) = self.rails.get_mut(rail.index()) else { return Incoming::Nothing };
        let PortRail { rail, gate, messages, .. } = port_rail;
        messages.receive(rail, gate, into)
    }
}

impl LocalMemory for OfiPort {
    #[inline(always)]
    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        check_word(addr, atomic.width.bytes())?;
        // SAFETY: the engine has checked that the word is in a registered region, whose owner keeps
        // the memory valid. It is aligned, as just checked.
        Ok(unsafe { host_memory::apply(addr, atomic) })
    }

    #[inline]
    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        // SAFETY: the bytes are the local side of a put, whose caller keeps them valid until it
        // ends.
        unsafe { host_memory::load(addr, into) };
        Ok(())
    }

    #[inline]
    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        // SAFETY: the engine has checked that the bytes are in a registered region, or they are the
        // result that the caller of a fetch has named.
        unsafe { host_memory::store(addr, bytes) };
        Ok(())
    }

    #[inline]
    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        check_word(addr, size_of::<u64>())?;
        // SAFETY: as for `store`; the word is aligned, as just checked.
        unsafe { host_memory::store_flag(addr, flag) };
        Ok(())
    }
}

impl Clock for OfiPort {
    #[inline]
    fn now(&mut self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    #[inline]
    fn relax(&mut self) {
        thread::yield_now();
    }
}

#[cold]
fn no_such_rail(rail: RailId) -> PortError {
    refused("choosing a rail", format!("{rail} does not exist"))
}

/// Checks that a word is aligned, as atomic instructions require.
#[inline]
fn check_word(addr: usize, width: usize) -> Result<(), PortError> {
    if addr != 0 && addr % width == 0 { Ok(()) } else { Err(no_word(addr, width)) }
}

#[cold]
fn no_word(addr: usize, width: usize) -> PortError {
    refused("accessing memory", format!("{addr:#x} is no place for a word of {width} bytes"))
}

#[cfg(test)]
mod tests;
