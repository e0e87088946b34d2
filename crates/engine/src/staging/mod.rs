//! Staging: transfers of memory that the fabric does not reach, through bounce buffers.
//!
//! `docs/architecture.md` has the path of the bytes and the states of transfers. Where messages are
//! long enough, the one that announces bytes also carries them.
//!
//! # Order
//! A put counts as a write of its peer until its message leaves, and as that message from then on,
//! as a waiting signal does. The mark of the message keeps it after earlier ones.
//!
//! Decision 64 says why nothing deadlocks.

mod batcher;
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

use std::collections::VecDeque;
use std::sync::Arc;

use crate::core::{Core, StagingEvent};
use crate::error::EngineError;
use crate::group::{Class, CompletionId, OrderGroup};
use crate::ids::Pe;
use crate::op::Outcome;
use crate::port::copies::{Bounce, CopyDirection, CopyPort, OrderedStep, TaggedCopy};
use crate::port::{Port, PortError};
use crate::rails::counters::StagedCounters;
use crate::regions::{Region, RegisteredStager};
use crate::staging::batcher::Batcher;
use crate::staging::bounce::{BounceBuffer, Pool};
use crate::staging::get::StagedGet;
use crate::staging::receive::StagedReceive;
use crate::staging::records::Record;
use crate::staging::send::StagedSend;
pub(crate) use crate::staging::values::Joined;
use crate::staging::values::ValueRuns;
use crate::wire::message::Seq;

/// Maximum number of transfers of this lane with one peer in flight.
const MAX_IN_FLIGHT: u32 = 64;

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
            Token::Send(index) => 4 * index,
            Token::Receive(index) => 4 * index + 1,
            Token::Get(index) => 4 * index + 2,
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
        let index = self.free.pop().unwrap_or(self.entries.len() as u32);
        if index as usize == self.entries.len() {
            self.entries.push(None);
        }
        self.entries[index as usize] = Some(entry);
        index
    }

    fn get(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    fn remove(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.entries.len()
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.entries).filter_map(|(index, entry)| Some((index, entry.as_ref()?)))
    }

    fn find(&self, is: impl Fn(&T) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, entry)| is(entry)).map(|(index, _)| index).collect()
    }
}

/// Groups that count a transfer of this lane until it ends or its message takes over the count.
#[derive(Clone, Copy, Debug)]
struct GroupCounts {
    group: OrderGroup,
    completion: CompletionId,
}

impl GroupCounts {
    /// For transfers requested by a peer.
    const NONE: Self = Self { group: OrderGroup::NONE, completion: CompletionId::NONE };
}

#[derive(Debug, Default)]
struct PeerTransfers {
    in_flight: u32,
    /// Gets requested by the peer whose reply has not ended.
    gets_unanswered: u32,
    /// The send that later puts may join.
    joinable: Option<u32>,
    /// The get, not requested yet, that later ones may join.
    joinable_get: Option<u32>,
    /// Whether that get is held back, and not among the outgoing transfers.
    holds_get: bool,
    /// Receives that wait for earlier messages, by number.
    waiting: Vec<(Seq, u32)>,
    /// First missing and first unexecuted message at the last check of `waiting`.
    checked: Option<(Seq, Seq)>,
}

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
    copying: u32,
    /// Sends to failed peers, which may still read the buffers.
    quarantined: u32,
    /// Whether a write was deferred since the last executed message was noted.
    has_deferred: bool,
    /// Whether writes to words of this PE are deferred for this lane.
    has_own: bool,
    /// Error of a flush that was forced early, until it is reported.
    flush_error: Option<PortError>,
    /// Executed messages whose deferred writes may not be complete.
    unflushed: Vec<(Pe, Seq)>,
    /// Receives whose signal words are among the deferred writes.
    signalled: Vec<u32>,
    batch: Vec<TaggedCopy>,
    steps: Vec<OrderedStep>,
    /// Lists of transfers that have ended, for the next ones.
    spare: Vec<Vec<Record>>,
    batcher: Batcher,
    values: ValueRuns,
    last_progress: u32,
    counters: StagedCounters,
}

fn missing() -> PortError {
    let text = String::from("this lane has nothing that copies");
    PortError { call: "reaching staged memory", code: 0, text }
}

impl Staging {
    pub(crate) fn new(longest_message: usize) -> Self {
        Self { longest_message, ..Self::default() }
    }

    fn peer(&mut self, pe: Pe) -> &mut PeerTransfers {
        if self.peers.len() <= pe.index() {
            self.peers.resize_with(pe.index() + 1, PeerTransfers::default);
        }
        &mut self.peers[pe.index()]
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

    /// Returns true if there is bounce memory; else requests it, for unregistered local memory.
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
                Token::Send(index) => self.write_completed(core, index),
                Token::Receive(index) => self.read_completed(core, index),
                Token::Get(_) => {}
            },
            StagingEvent::Message { token, ok } => {
                if let Token::Send(index) = Token::of(token) {
                    self.message_ended(core, index, ok);
                }
            }
            StagingEvent::Advanced { pe } => self.readmit(core, pe),
            StagingEvent::Acknowledged { pe, before } => self.release_quarantined(core, pe, before),
            StagingEvent::Refused { pe } => self.drop_receives(core, pe),
            StagingEvent::Failed { pe } => {
                self.drop_sends(core, pe);
                self.drop_receives(core, pe);
                self.drop_gets(core, pe);
            }
        }
    }

    fn assign_buffers<P: Port>(&mut self, core: &mut Core<P>, direction: CopyDirection) {
        loop {
            let Self { stager: Some(stager), sends, .. } = self else { return };
            // While the device takes no copy, waiting puts stay open for more to join.
            let is_out = direction == CopyDirection::Out;
            if !stager.pool(direction).is_waited_for()
                || is_out && stager.copies.capacity(direction) == 0
            {
                return;
            }
            // So do lists that begin with a signal, until the writes before it have left.
            let may = |pe: Pe, token| {
                let Token::Send(index) = Token::of(token) else { return true };
                let Some(send) = sends.get(index).filter(|send| send.starts_with_signal()) else {
                    return true;
                };
                let order = &mut core.peers.get_mut(pe).order;
                order.settle();
                order.is_written(send.fence)
            };
            let Some((token, buffer)) = stager.pool(direction).next(may) else { return };
            match Token::of(token) {
                Token::Send(index) => self.gather(core, index, buffer),
                Token::Receive(index) => self.start_read(index, buffer),
                Token::Get(_) => {}
            }
        }
    }

    fn reuse(&mut self, mut list: Vec<Record>) {
        if self.spare.len() < MAX_IN_FLIGHT as usize {
            list.clear();
            self.spare.push(list);
        }
    }

    fn release_buffer(&mut self, pe: Pe, direction: CopyDirection, buffer: Option<BounceBuffer>) {
        if let (Some(buffer), Some(stager)) = (buffer, &mut self.stager) {
            stager.pool(direction).release(pe, buffer);
        }
    }

    fn pe_of(&mut self, token: Token) -> Option<Pe> {
        match token {
            Token::Send(index) => self.sends.get(index).map(|send| send.pe),
            Token::Receive(index) => self.receives.get(index).map(|receive| receive.pe),
            Token::Get(index) => self.gets.get(index).map(|get| get.pe),
        }
    }

    pub(crate) fn has_outgoing(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Posts and sends outgoing transfers until a few were refused. Returns whether anything moved.
    pub(crate) fn post_outgoing<P: Port>(&mut self, core: &mut Core<P>) -> bool {
        let (mut moved, mut refused) = (false, 0);
        for _ in 0..self.outgoing.len() {
            let Some(token) = self.outgoing.pop_front() else { break };
            if self.pe_of(token).is_some_and(|pe| core.peers.get(pe).error.is_some()) {
                // The event that ends it is queued.
                continue;
            }
            let outcome = match token {
                Token::Send(index) => self.post_send(core, index, &mut moved),
                Token::Receive(index) => self.post_read(core, index, &mut moved),
                Token::Get(index) => self.send_get_request(core, index),
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
        core.take_turn(moved);
        moved
    }

    fn begin_transfer<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        class: Class,
        completion: CompletionId,
    ) -> GroupCounts {
        self.peer(pe).in_flight += 1;
        core.groups.begin(completion);
        let peer = core.peers.get_mut(pe);
        peer.is_staging = true;
        let group = peer.order.begin_last(class);
        GroupCounts { group, completion }
    }

    fn uncount<P: Port>(&mut self, core: &mut Core<P>, pe: Pe, counts: GroupCounts) {
        self.last_progress = core.watchdog.time();
        // Not called for a send whose message has left: the message took over its count.
        core.end_in_group(counts.completion);
        let peer = core.peers.get_mut(pe);
        if peer.error.is_none() && counts.group != OrderGroup::NONE {
            peer.order.end(counts.group, 1);
            core.settle_later(pe);
        }
    }

    fn end_transfer<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        self.last_progress = core.watchdog.time();
        let in_flight = &mut self.peer(pe).in_flight;
        *in_flight -= 1;
        let is_staging = *in_flight > 0;
        let peer = core.peers.get_mut(pe);
        peer.is_staging = is_staging;
        if !peer.queue.is_empty() {
            // The queue may have waited for fewer transfers.
            core.make_ready(pe);
        }
    }

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
            || self.quarantined > 0
            || !self.outgoing.is_empty()
            || !self.gets.is_empty()
            || self.stager.as_ref().is_some_and(is_waited_for)
            || self.ready.iter().any(|ready| !ready.is_empty())
    }

    pub(crate) fn is_copying(&self) -> bool {
        self.copying != 0
    }

    #[inline]
    pub(crate) fn is_collecting(&mut self, now: impl FnOnce() -> u64) -> bool {
        self.batcher.keep_collecting(now)
    }

    /// Returns the time of the last progress, in the watchdog's units.
    pub(crate) fn last_progress(&self) -> u32 {
        self.last_progress
    }

    /// Iterates over the local memory that transfers access: peer, name of the operation, address
    /// and length. Copies in progress are in [`Core::copies`].
    pub(crate) fn memory(&self) -> impl Iterator<Item = (Pe, &'static str, (usize, usize))> + '_ {
        let sends = self.sends.iter().flat_map(|(_, send)| send.memory());
        let receives = self.receives.iter().flat_map(|(_, receive)| receive.memory());
        let gets = self.gets.iter().flat_map(|(_, get)| {
            get.records.iter().map(|record| (get.pe, "get", (record.memory, record.len)))
        });
        sends.chain(receives).chain(gets)
    }

    pub(crate) fn counters(&self) -> StagedCounters {
        let by_cpu = self.stager.as_ref().map_or(0, |stager| stager.copies.bytes_by_cpu());
        StagedCounters { by_cpu, ..self.counters }
    }
}

fn failed((what, pe): (&'static str, Pe), len: usize, error: PortError) -> EngineError {
    EngineError::Staging { what, pe, len, error }
}
