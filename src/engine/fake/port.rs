//! The fake's side of the engine's port traits.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use super::FakeFabric;
use super::copies::FakeCopies;
use super::world::{Done, Event, HOST, Mail, Target, Work, fault};
use crate::engine::atomic::Atomic;
use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::port::copies::{Bounce, Reach, Stager};
use crate::engine::port::fabric_atomic::FabricAtomic;
use crate::engine::port::{
    Access, Addressing, Context, Desc, Direction, Incoming, Local, MemoryPort, POLL_BATCH,
    PeerAddr, Polled, Port, PortError, Posted, RailLimits, Registered, Transfer,
};
use crate::engine::wire::message::{MAX_MESSAGE, Packet};

/// Nanoseconds that pass with each poll.
const POLL_TIME: u64 = 200;

/// A lane's port into the fake fabric.
#[derive(Debug)]
pub struct FakePort {
    fabric: FakeFabric,
    lane: usize,
    pe: Pe,
    limits: Vec<RailLimits>,
    names: Vec<String>,
    /// Tokens in flight on each rail, to catch a lane that uses one twice or exceeds the depth.
    tokens: Vec<HashSet<Token>>,
}

impl FakePort {
    pub(super) fn new(fabric: FakeFabric, pe: Pe, limits: Vec<RailLimits>) -> Self {
        let lane = fabric.lock().open_lane(pe, limits.len());
        let names = (0..limits.len()).map(|rail| format!("fake{rail}")).collect();
        let tokens = limits.iter().map(|_| HashSet::new()).collect();
        Self { fabric, lane, pe, limits, names, tokens }
    }

    /// Takes a segment, whose doorbell is still owed where there is one.
    fn take(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        data: Option<u32>,
    ) -> Result<Posted, PortError> {
        let limits = self.limits[rail.index()];
        assert!(transfer.len >= 1 && transfer.len <= limits.max_segment, "length of {transfer:?}");
        assert!(self.tokens.iter().all(|used| !used.contains(&token)), "{token:?} is in flight");
        let mut world = self.fabric.lock();
        if !world.has_room() {
            return Ok(Posted::Again);
        }
        let in_flight = &mut self.tokens[rail.index()];
        assert!(in_flight.len() < limits.depth as usize, "{rail} is over its depth");
        if let Local::Memory { addr, desc } = transfer.local {
            if !world.has_memory(self.pe, addr, transfer.len) {
                return Err(fault("post", 14, "local memory that does not exist"));
            }
            let by = (self.lane, self.pe, rail);
            if limits.needs_desc && !world.covers(desc.0 as u64, by, addr, transfer.len) {
                return Err(fault("post", 22, "the descriptor does not cover the local memory"));
            }
        }
        world.post(self.lane, self.pe, rail, target(to), token, Work::Transfer(*transfer, data));
        in_flight.insert(token);
        Ok(Posted::Yes)
    }

    /// Takes a segment, and rings the doorbell for it and those before it.
    fn take_and_ring(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        data: Option<u32>,
    ) -> Result<Posted, PortError> {
        let posted = self.take(rail, to, token, transfer, data);
        if matches!(posted, Ok(Posted::Yes)) {
            self.fabric.lock().ring(self.lane, rail, target(to).pe);
        }
        posted
    }
}

impl Port for FakePort {
    type Short = RailId;

    fn limits(&self) -> &[RailLimits] {
        &self.limits
    }

    fn rail_name(&self, rail: RailId) -> &str {
        &self.names[rail.index()]
    }

    fn post(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        self.take_and_ring(rail, to, token, transfer, None)
    }

    fn post_with_data(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
        data: u32,
    ) -> Result<Posted, PortError> {
        assert!(self.limits[rail.index()].remote_data, "{rail} carries no remote data");
        assert_eq!(transfer.direction, Direction::Write, "only writes carry remote data");
        self.take_and_ring(rail, to, token, transfer, Some(data))
    }

    fn batches(&self) -> bool {
        self.fabric.lock().has_doorbells()
    }

    fn post_more(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        transfer: &Transfer,
    ) -> Result<Posted, PortError> {
        assert_eq!(transfer.direction, Direction::Write, "only writes come in bursts");
        self.take(rail, to, token, transfer, None)
    }

    fn post_atomic(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        atomic: &FabricAtomic,
    ) -> Result<Posted, PortError> {
        assert!(self.tokens.iter().all(|used| !used.contains(&token)), "{token:?} is in flight");
        let mut world = self.fabric.lock();
        if !world.has_room() {
            return Ok(Posted::Again);
        }
        let in_flight = &mut self.tokens[rail.index()];
        let depth = self.limits[rail.index()].depth as usize;
        assert!(in_flight.len() < depth, "{rail} is over its depth");
        world.post(self.lane, self.pe, rail, target(to), token, Work::Atomic(*atomic));
        in_flight.insert(token);
        Ok(Posted::Yes)
    }

    fn fetched(&mut self, token: Token) -> u64 {
        self.fabric.lock().fetched(self.lane, token)
    }

    fn has_short(&self) -> bool {
        self.limits.iter().all(|limits| !limits.needs_desc)
    }

    fn short(&self, rail: RailId) -> RailId {
        rail
    }

    fn context(&self, token: Token) -> Context {
        Context(token.index())
    }

    fn post_short(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        _context: Context,
        transfer: &Transfer,
    ) -> bool {
        matches!(self.post(rail, to, token, transfer), Ok(Posted::Yes))
    }

    fn poll(&mut self, rail: RailId, done: &mut [Token; POLL_BATCH]) -> Polled {
        let mut world = self.fabric.lock();
        world.advance(POLL_TIME, false);
        let in_flight = &mut self.tokens[rail.index()];
        let mut count = 0;
        while count < POLL_BATCH {
            match world.next_done(self.lane, rail) {
                Some(Done::Token(token)) => {
                    in_flight.remove(&token);
                    done[count] = token;
                    count += 1;
                }
                Some(Done::Failure(failure)) if count == 0 => {
                    if let Some(token) = failure.token {
                        in_flight.remove(&token);
                    }
                    return Polled::Failed(failure);
                }
                // As libfabric does: an error entry is reported by a read of its own.
                Some(failure) => {
                    world.return_done(self.lane, rail, failure);
                    break;
                }
                None => break,
            }
        }
        if count == 0 { Polled::Empty } else { Polled::Completed(count) }
    }

    fn send(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        token: Token,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        assert!(bytes.len() <= MAX_MESSAGE, "a message of {} bytes", bytes.len());
        let ordered = self.limits[rail.index()].orders_messages;
        let mut world = self.fabric.lock();
        if !world.has_room() {
            return Ok(Posted::Again);
        }
        world.send((self.lane, self.pe, rail), target(to), token, bytes, ordered);
        Ok(Posted::Yes)
    }

    fn receive(&mut self, rail: RailId, into: &mut Packet) -> Incoming {
        match self.fabric.lock().take_mail(self.pe, rail) {
            Some(Mail::Message(bytes)) => {
                into.fill(&bytes);
                Incoming::Message
            }
            Some(Mail::RemoteData(data)) => Incoming::RemoteData(data),
            Some(Mail::Control(_)) | None => Incoming::Nothing,
        }
    }

    fn can_reset(&self, _rail: RailId) -> bool {
        true
    }

    fn reset_rail(&mut self, rail: RailId) -> Result<Vec<u8>, PortError> {
        let generation = self.fabric.lock().reset(self.lane, self.pe, rail)?;
        self.tokens[rail.index()].clear();
        let address = FakeFabric::address(self.pe, rail).0 | u64::from(generation) << 40;
        Ok(address.to_le_bytes().to_vec())
    }

    fn send_control(
        &mut self,
        rail: RailId,
        to: PeerAddr,
        bytes: &[u8],
    ) -> Result<Posted, PortError> {
        assert!(bytes.len() <= MAX_MESSAGE, "a message of {} bytes", bytes.len());
        let mut world = self.fabric.lock();
        if !world.has_room() {
            return Ok(Posted::Again);
        }
        world.send_control(self.pe, rail, target(to), bytes);
        Ok(Posted::Yes)
    }

    fn receive_control(&mut self, rail: RailId, into: &mut Packet) -> bool {
        match self.fabric.lock().take_control(self.pe, rail) {
            Some(bytes) => {
                into.fill(&bytes);
                true
            }
            None => false,
        }
    }

    fn insert_address(&mut self, _rail: RailId, address: &[u8]) -> Result<PeerAddr, PortError> {
        match address.try_into() {
            Ok(bytes) => Ok(PeerAddr(u64::from_le_bytes(bytes))),
            Err(_) => Err(fault("insert", 22, "no address of this fabric")),
        }
    }

    fn apply(&mut self, addr: usize, atomic: &Atomic) -> Result<u64, PortError> {
        let width = atomic.width.bytes();
        let mut world = self.fabric.lock();
        if addr % width != 0 || !world.has_memory(self.pe, addr, width) {
            return Err(fault("apply", 14, "no such word"));
        }
        let bytes = world.bytes_mut(self.pe, addr, width);
        let mut word = [0; 8];
        word[..width].copy_from_slice(bytes);
        let old = u64::from_le_bytes(word);
        bytes.copy_from_slice(&atomic.apply(old).to_le_bytes()[..width]);
        world.events.push(Event::Applied { pe: self.pe, addr });
        Ok(old)
    }

    fn load(&mut self, addr: usize, into: &mut [u8]) -> Result<(), PortError> {
        let mut world = self.fabric.lock();
        if !world.has_memory(self.pe, addr, into.len()) {
            return Err(fault("load", 14, "no such memory"));
        }
        into.copy_from_slice(world.bytes_mut(self.pe, addr, into.len()));
        Ok(())
    }

    fn store(&mut self, addr: usize, bytes: &[u8]) -> Result<(), PortError> {
        let mut world = self.fabric.lock();
        if !world.has_memory(self.pe, addr, bytes.len()) {
            return Err(fault("store", 14, "no such memory"));
        }
        world.bytes_mut(self.pe, addr, bytes.len()).copy_from_slice(bytes);
        world.events.push(Event::Applied { pe: self.pe, addr });
        Ok(())
    }

    fn store_flag(&mut self, addr: usize, flag: u64) -> Result<(), PortError> {
        self.store(addr, &flag.to_le_bytes())
    }

    fn now(&mut self) -> u64 {
        self.fabric.lock().now
    }

    fn relax(&mut self) {
        self.fabric.lock().advance(0, true);
        self.fabric.baton.pass();
    }
}

/// Whose rail an address is of, and in which generation.
fn target(to: PeerAddr) -> Target {
    Target { pe: Pe((to.0 >> 8) as u32), rail: RailId(to.0 as u8), generation: (to.0 >> 40) as u32 }
}

/// Registers memory of one PE with the fake fabric.
#[derive(Debug)]
pub struct FakeMemory {
    fabric: FakeFabric,
    pe: Pe,
    rails: u8,
    /// Chunk length and chunks each way, until they are given out.
    bounce: Mutex<Option<(usize, u16, u16)>>,
}

impl FakeMemory {
    pub(super) fn new(fabric: FakeFabric, pe: Pe, rails: u8) -> Self {
        Self { fabric, pe, rails, bounce: Mutex::new(Some((4096, 2, 2))) }
    }

    /// The same, with bounce memory of so many chunks for each direction.
    #[must_use]
    pub fn with_bounce(self, chunk_len: usize, out: u16, inward: u16) -> Self {
        Self { bounce: Mutex::new(Some((chunk_len, out, inward))), ..self }
    }
}

/// A registration with the fake fabric.
#[derive(Debug)]
pub struct FakeRegion {
    fabric: FakeFabric,
    keys: Vec<u64>,
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        let mut world = self.fabric.lock();
        for key in &self.keys {
            world.deregister(*key);
        }
    }
}

impl MemoryPort for FakeMemory {
    type Region = FakeRegion;

    fn register(
        &self,
        addr: usize,
        len: usize,
        access: Access,
    ) -> Result<Registered<FakeRegion>, PortError> {
        let mut world = self.fabric.lock();
        if !world.has_memory(self.pe, addr, len) {
            return Err(fault("register", 14, "memory that does not exist"));
        }
        if world.reach(self.pe, addr, len) == Some(Reach::Staged) {
            return Ok(Registered {
                owner: FakeRegion { fabric: self.fabric.clone(), keys: Vec::new() },
                keys: Vec::new(),
                proxy_descs: Vec::new(),
                host_descs: Vec::new(),
                addressing: Addressing::Offset,
                reach: Reach::Staged,
            });
        }
        let mut keys: Vec<u64> =
            (0..self.rails).map(|rail| world.register(self.pe, RailId(rail), addr, len)).collect();
        let proxy_descs = keys.iter().map(|key| Desc(*key as usize)).collect();
        let remote = keys.clone();
        if access == Access::Local {
            world.only_reads.extend(&keys);
        }
        let host = world.register(self.pe, HOST, addr, len);
        keys.push(host);
        Ok(Registered {
            owner: FakeRegion { fabric: self.fabric.clone(), keys },
            keys: remote,
            proxy_descs,
            host_descs: vec![Desc(host as usize)],
            addressing: Addressing::Offset,
            reach: Reach::Direct,
        })
    }

    fn take_stager(&self) -> Option<Stager> {
        let mut bounce = self.bounce.lock().unwrap_or_else(PoisonError::into_inner);
        let (chunk_len, out, inward) = bounce.take()?;
        let mut bounce = Bounce { addr: 0, chunk_len, out, inward };
        bounce.addr = self.fabric.alloc(self.pe, bounce.len());
        let copies = FakeCopies::new(self.fabric.clone(), self.pe, bounce);
        Some(Stager { copies: Box::new(copies), bounce })
    }
}
