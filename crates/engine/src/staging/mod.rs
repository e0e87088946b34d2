//! Staging: transfers of memory that the fabric does not reach, through bounce buffers.
//!
//! # Path of the bytes
//! A staged put is a list of [records](records::Record), at least one. The sender gathers them into
//! a buffer of its own and sends one message; the target reads the buffer through the fabric into
//! one of its own, or finds it in a neighbour's bounce memory, scatters it, changes the words of
//! signals, and has then executed the message. The acknowledgement returns the sender's buffer.
//! Until a put has its buffer, later ones to the peer add records to it.
//!
//! - Registered host memory needs no buffer at the sender: the target reads from it.
//! - Where messages are long enough, the one that announces bytes also carries them.
//! - A *get* requests a put into the requester's memory, and ends with it.
//! - Between staged memory here and memory that the fabric reaches at the peer, this lane alone
//!   writes or reads the buffer.
//! - A few bytes travel in one message each way, without a buffer.
//!
//! # Order
//! A put counts as a write of its peer until its message leaves, and as that message from then on,
//! as a held signal does. The mark of the message keeps it after earlier ones.
//!
//! # Why it cannot deadlock
//! An inbound buffer is taken when all messages before the mark have arrived and the bytes can be
//! read; then a read, the end of earlier messages, and a copy are all that it waits for. An
//! outbound buffer is held until the target has executed the message, for which the target needs at
//! most an inbound buffer. The two kinds are never exchanged. Requests for gets are executed when
//! they arrive, so no message follows the buffer that their answer needs.

mod bounce;
mod copies;
mod get;
mod memory;
mod receive;
mod records;
mod same_host;
mod send;
mod submit;
mod values;
mod window;

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::{Core, StagingEvent};
use crate::error::EngineError;
use crate::group::{Class, GroupId, GroupRef};
use crate::ids::Pe;
use crate::op::Outcome;
use crate::port::copies::{Bounce, CopyDirection, CopyPort, OrderedStep, TaggedCopy};
use crate::port::{Port, PortError};
use crate::rails::counters::StagedCounters;
use crate::regions::{Region, RegisteredStager};
use crate::staging::bounce::{BounceBuffer, Pool};
use crate::staging::get::StagedGet;
use crate::staging::receive::StagedReceive;
use crate::staging::send::StagedSend;
pub(crate) use crate::staging::values::Joined;
use crate::staging::values::ValueRuns;
use crate::staging::window::BatchWindow;
use crate::wire::message::Seq;

/// Maximum number of transfers of this lane with one peer in flight.
const MAX_UNDER_WAY: u32 = 64;

/// Copy port and bounce memory of the lane.
#[derive(Debug)]
struct LaneStager {
    copies: Box<dyn CopyPort>,
    bounce: Bounce,
    region: Arc<Region>,
    out: Pool,
    inward: Pool,
}

impl LaneStager {
    fn pool(&mut self, direction: CopyDirection) -> &mut Pool {
        match direction {
            CopyDirection::Out => &mut self.out,
            CopyDirection::In => &mut self.inward,
        }
    }
}

/// Name of a transfer in segments, messages and copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    Send(u32),
    Receive(u32),
    Get(u32),
}

impl Token {
    fn bits(self) -> u32 {
        match self {
            Token::Send(at) => 4 * at,
            Token::Receive(at) => 4 * at + 1,
            Token::Get(at) => 4 * at + 2,
        }
    }

    fn of(bits: u32) -> Self {
        let at = bits / 4;
        match bits % 4 {
            0 => Token::Send(at),
            1 => Token::Receive(at),
            _ => Token::Get(at),
        }
    }
}

/// A table whose entries keep their index.
#[derive(Debug)]
struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    fn add(&mut self, entry: T) -> u32 {
        let at = self.free.pop().unwrap_or(self.entries.len() as u32);
        if at as usize == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[at as usize] = Some(entry);
        at
    }

    fn get(&mut self, at: u32) -> Option<&mut T> {
        self.entries.get_mut(at as usize)?.as_mut()
    }

    fn remove(&mut self, at: u32) -> Option<T> {
        let entry = self.entries.get_mut(at as usize)?.take()?;
        self.free.push(at);
        Some(entry)
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(at, entry)| Some((at, entry.as_ref()?)))
    }

    fn find(&self, is: impl Fn(&T) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, entry)| is(entry)).map(|(at, _)| at).collect()
    }
}

/// Groups that count a transfer of this lane until it ends or its message takes over the count.
#[derive(Clone, Copy, Debug)]
struct GroupCounts {
    group: GroupRef,
    completion: GroupId,
}

impl GroupCounts {
    /// For transfers requested by a peer.
    const NONE: Self = Self { group: GroupRef::NONE, completion: GroupId::NONE };
}

/// Transfers with one peer.
#[derive(Debug, Default)]
struct PeerTransfers {
    /// Transfers of this lane in flight.
    under_way: u32,
    /// Gets requested by the peer and not answered.
    gets_unanswered: u32,
    /// The send that later puts may join.
    joinable: Option<u32>,
    /// Receives that wait for earlier messages, by number.
    behind: Vec<(Seq, u32)>,
    /// First missing and first unexecuted message at the last check of `behind`.
    checked: Option<(Seq, Seq)>,
}

/// Staging of a lane.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    longest_message: usize,
    stager: Option<LaneStager>,
    sends: Slab<StagedSend>,
    receives: Slab<StagedReceive>,
    gets: Slab<StagedGet>,
    /// Indexed by peer.
    peers: Vec<PeerTransfers>,
    /// Transfers that wait only for capacity of the fabric.
    outgoing: VecDeque<Token>,
    /// Transfers whose copies wait only for the copy port, out and in.
    ready: [VecDeque<Token>; 2],
    /// Number of transfers being copied.
    copying: u32,
    /// Sends whose failed peer may still read their buffers.
    kept: u32,
    /// Whether a write was deferred since the last executed message was noted.
    has_deferred: bool,
    /// Error of a flush that was forced early, until it is reported.
    flush_error: Option<PortError>,
    /// Executed messages whose deferred writes may not be complete.
    unflushed: Vec<(u32, Seq)>,
    /// Receives whose signal words are among the deferred writes.
    signalled: Vec<u32>,
    batch: Vec<TaggedCopy>,
    steps: Vec<OrderedStep>,
    window: BatchWindow,
    values: ValueRuns,
    moved: u32,
    counters: StagedCounters,
}

fn missing() -> PortError {
    let text = String::from("this lane has nothing that copies");
    PortError { call: "reaching staged memory", code: 0, text }
}

impl Staging {
    /// Creates the state for messages of at most `longest_message` bytes.
    pub(crate) fn new(longest_message: usize) -> Self {
        Self { longest_message, ..Self::default() }
    }

    fn peer(&mut self, at: u32) -> &mut PeerTransfers {
        let at = at as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, PeerTransfers::default);
        }
        &mut self.peers[at]
    }

    fn ready(&mut self, direction: CopyDirection) -> &mut VecDeque<Token> {
        &mut self.ready[direction as usize]
    }

    /// Takes over changed regions, and a new stager.
    fn sync<P: Port>(&mut self, core: &mut Core<P>) {
        core.regions.sync();
        let Some(stager) = core.regions.take_stager() else { return };
        let RegisteredStager { mut copies, bounce, region } = stager;
        let Bounce { bounce_len, out, inward, .. } = bounce;
        // From now on peers may name offsets of their bounce memory.
        copies.announce();
        let first = usize::from(out) * bounce_len;
        let (out, inward) = (Pool::new(0, bounce_len, out), Pool::new(first, bounce_len, inward));
        self.stager = Some(LaneStager { copies, bounce, region, out, inward });
    }

    /// Returns true if there is bounce memory. Otherwise requests it for unregistered local memory;
    /// another thread may still be making it.
    fn has_buffers<P: Port>(
        &mut self,
        core: &mut Core<P>,
        memory: (usize, usize),
    ) -> Result<bool, EngineError> {
        if self.stager.is_none() {
            core.regions.provide_stager(memory)?;
            self.sync(core);
        }
        Ok(self.stager.is_some())
    }

    /// Advances transfers. Returns whether anything moved.
    #[cold]
    pub(crate) fn progress<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let mut moved = false;
        while let Some(event) = core.staging_events.pop_front() {
            self.handle_event(core, event);
            moved = true;
        }
        // Polling the port may be a call to the driver.
        while self.copying > 0 {
            let Some(copied) = self.stager.as_mut().and_then(|b| b.copies.poll()) else { break };
            self.copy_completed(core, copied);
            moved = true;
        }
        self.end_signalled(core);
        self.start(core) || moved
    }

    /// Starts whatever can start. Returns whether anything did.
    fn start<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        self.assign_buffers(core, CopyDirection::Out);
        self.assign_buffers(core, CopyDirection::In);
        let mut moved = self.post_outgoing(core);
        moved |= self.start_copies(core, CopyDirection::Out);
        moved | self.start_copies(core, CopyDirection::In)
    }

    fn handle_event<P: Port>(&mut self, core: &mut Core<P>, event: StagingEvent) {
        match event {
            StagingEvent::Segment { token } => match Token::of(token) {
                Token::Send(at) => self.write_completed(core, at),
                Token::Receive(at) => self.read_completed(core, at),
                Token::Get(_) => {}
            },
            StagingEvent::Message { token, ok } => {
                if let Token::Send(at) = Token::of(token) {
                    self.message_ended(core, at, ok);
                }
            }
            StagingEvent::Advanced { peer } => self.readmit(core, peer),
            StagingEvent::Acknowledged { peer, before } => self.release_kept(core, peer, before),
            StagingEvent::Refused { peer } => self.drop_receives(core, peer),
            StagingEvent::Failed { peer } => {
                self.drop_sends(core, peer);
                self.drop_receives(core, peer);
                self.drop_gets(core, peer);
            }
        }
    }

    fn assign_buffers<P: Port>(&mut self, core: &mut Core<P>, direction: CopyDirection) {
        loop {
            let Some(stager) = &mut self.stager else { return };
            // While the device takes no copy, waiting puts stay open for more to join.
            let is_out = direction == CopyDirection::Out;
            if !stager.pool(direction).is_waited_for()
                || is_out && stager.copies.room(direction) == 0
            {
                return;
            }
            let Some((token, buffer)) = stager.pool(direction).next() else { return };
            match Token::of(token) {
                Token::Send(at) => self.gather(core, at, buffer),
                Token::Receive(at) => self.read_into(at, buffer),
                Token::Get(_) => {}
            }
        }
    }

    fn release_buffer(&mut self, at: u32, direction: CopyDirection, buffer: Option<BounceBuffer>) {
        if let (Some(buffer), Some(stager)) = (buffer, &mut self.stager) {
            stager.pool(direction).release(at, buffer);
        }
    }

    fn peer_of(&mut self, token: Token) -> Option<u32> {
        match token {
            Token::Send(at) => self.sends.get(at).map(|send| send.peer),
            Token::Receive(at) => self.receives.get(at).map(|receive| receive.peer),
            Token::Get(at) => self.gets.get(at).map(|get| get.peer),
        }
    }

    /// Posts and sends outgoing transfers until a few were refused. Returns whether anything moved.
    fn post_outgoing<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let (mut moved, mut refused) = (false, 0);
        for _ in 0..self.outgoing.len() {
            let Some(token) = self.outgoing.pop_front() else { break };
            if self.peer_of(token).is_some_and(|peer| core.peers.get(peer).error.is_some()) {
                // The event that ends it is queued.
                continue;
            }
            let outcome = match token {
                Token::Send(at) => self.post_send(core, at, &mut moved),
                Token::Receive(at) => self.post_read(core, at, &mut moved),
                Token::Get(at) => self.send_get_request(core, at),
            };
            // An error has failed the peer, which ends the transfer as well.
            if let Ok(Outcome::Done) | Err(_) = outcome {
                moved = true;
                continue;
            }
            self.outgoing.push_back(token);
            refused += 1;
            if refused == crate::core::send::ATTEMPTS {
                break;
            }
        }
        moved
    }

    /// Starts counting a transfer of this lane.
    fn begin<P: Port>(
        &mut self,
        core: &mut Core<P>,
        at: u32,
        class: Class,
        completion: GroupId,
    ) -> GroupCounts {
        self.peer(at).under_way += 1;
        core.groups.begin(completion);
        let group = core.peers.get_mut(at).order.begin_last(class);
        GroupCounts { group, completion }
    }

    fn end<P: Port>(&mut self, core: &mut Core<P>, at: u32, counts: GroupCounts) {
        self.moved = core.watchdog.stamp();
        // Not called for a send whose message has left: the message took over its count.
        core.end_in_group(counts.completion);
        let peer = core.peers.get_mut(at);
        if peer.error.is_none() && counts.group != GroupRef::NONE {
            peer.order.end(counts.group, 1);
            core.settle_later(at);
        }
    }

    fn end_transfer<P: Port>(&mut self, core: &mut Core<P>, at: u32) {
        self.moved = core.watchdog.stamp();
        self.peer(at).under_way -= 1;
        // The queue may have waited for fewer transfers.
        core.make_ready(at);
    }

    /// Returns true if the lane has to iterate for staging.
    #[inline(always)]
    pub(crate) fn has_work(&self) -> bool {
        self.is_in_use() && self.is_busy()
    }

    /// Returns true if anything was ever staged: peers have no state before their first transfer.
    #[inline(always)]
    pub(crate) fn is_in_use(&self) -> bool {
        !self.peers.is_empty()
    }

    fn is_busy(&self) -> bool {
        let is_waited_for =
            |stager: &LaneStager| stager.out.is_waited_for() || stager.inward.is_waited_for();
        self.copying > 0
            || self.kept > 0
            || !self.outgoing.is_empty()
            || !self.gets.is_empty()
            || self.stager.as_ref().is_some_and(is_waited_for)
            || self.ready.iter().any(|ready| !ready.is_empty())
    }

    pub(crate) fn is_copying(&self) -> bool {
        self.copying != 0
    }

    /// Returns true if the next iteration should wait, so that more short operations share a copy.
    #[inline]
    pub(crate) fn is_collecting(&mut self) -> bool {
        self.window.keep_collecting()
    }

    /// Returns the time of the last progress, in the watchdog's units.
    pub(crate) fn moved(&self) -> u32 {
        self.moved
    }

    /// Iterates over the local memory that transfers access: peer, name of the operation, address
    /// and length. Copies in progress are in [`Core::copies`].
    pub(crate) fn memory(&self) -> impl Iterator<Item = (u32, &'static str, (usize, usize))> + '_ {
        let sends = self.sends.iter().flat_map(|(_, send)| send.memory());
        let receives = self.receives.iter().flat_map(|(_, receive)| receive.memory());
        let gets = self.gets.iter().map(|(_, get)| (get.peer, "get", (get.memory, get.len)));
        sends.chain(receives).chain(gets)
    }

    pub(crate) fn counters(&self) -> StagedCounters {
        let by_cpu = self.stager.as_ref().map_or(0, |stager| stager.copies.bytes_by_cpu());
        StagedCounters { by_cpu, ..self.counters }
    }
}

fn failed((what, at): (&'static str, u32), len: usize, error: PortError) -> EngineError {
    EngineError::Staging { what, pe: Pe(at), len, error }
}
