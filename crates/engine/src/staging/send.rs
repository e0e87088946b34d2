//! Sending side of staging: puts, and replies to gets.

use std::sync::Arc;

use crate::core::Core;
use crate::core::send::OutgoingMessage;
use crate::group::{Class, Fence};
use crate::ids::Pe;
use crate::op::{Attempt, Outcome};
use crate::peers::Peer;
use crate::port::copies::{CopyDirection, Reach};
use crate::port::{Addressing, Direction, Local, Port, Tail};
use crate::regions::Region;
use crate::staging::bounce::BounceBuffer;
use crate::staging::records::{Record, Records, end_of_gets, place_get};
use crate::staging::{GroupCounts, MAX_IN_FLIGHT, Staging, Token, failed};
use crate::wire::handle::{HandleBytes, HandleView};
use crate::wire::message::{Body, RegionAddr, Seq, WINDOW};
use crate::wire::staging::{
    GetId, MAX_KEYS, MAX_PAYLOAD, Pull, PullSource, PullTarget, RECORD, max_pull_payload,
};

#[derive(Debug)]
pub(super) enum SendTarget {
    /// The records' own destinations at the peer.
    Records,
    /// A get of the peer, and the number of the message that requested it.
    Get(u32, Seq),
    /// Memory that the fabric reaches, starting at this address.
    Fabric(Arc<HandleBytes>, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SendState {
    Waiting,
    CopyingOut,
    /// In the queue `outgoing`: its message or writes are left to post. The number of bytes
    /// written so far; 0 for a message, whose bytes the peer reads.
    Outgoing(usize),
    Sent(Seq),
    /// The peer has failed, and may read the buffer until it acknowledges or refuses a message.
    Quarantined(Seq),
    Dropped,
}

/// Puts that leave in one message, or the reply to the gets of a request.
#[derive(Debug)]
pub(super) struct StagedSend {
    pub(super) pe: Pe,
    pub(super) to: SendTarget,
    pub(super) state: SendState,
    pub(super) records: Records,
    /// Bytes in the buffer.
    pub(super) len: usize,
    /// Region that the peer reads from instead of a buffer.
    pub(super) region: Option<Arc<Region>>,
    pub(super) buffer: Option<BounceBuffer>,
    pub(super) counts: GroupCounts,
    /// Last message that the target has to execute first.
    pub(super) after: Seq,
    /// Fence before its order group.
    pub(super) fence: Fence,
    /// Whether its message follows a fence, or one of its records does: it waits until all writes
    /// before `fence` are delivered or have left as messages, which the mark covers.
    pub(super) awaits_writes: bool,
    /// Number of the peer's fences before the last put.
    pub(super) fences: u32,
    /// Maximum bytes of list and payload.
    pub(super) max_bytes: usize,
    /// Number of segments in flight.
    pub(super) pending: u32,
    /// Bytes of the whole operation, by which rails are chosen.
    pub(super) op_len: usize,
}

impl StagedSend {
    /// Returns a send that waits for a buffer, in the peer's last order group.
    pub(super) fn new(peer: &Peer, to: SendTarget, records: Records, len: usize) -> Self {
        Self {
            pe: peer.pe,
            to,
            state: SendState::Waiting,
            records,
            len,
            region: None,
            buffer: None,
            counts: GroupCounts::NONE,
            after: Seq::NONE,
            fence: peer.order.last(),
            awaits_writes: false,
            fences: peer.fences,
            max_bytes: 0,
            pending: 0,
            op_len: len,
        }
    }

    /// Iterates over the local memory that the send still accesses.
    pub(super) fn memory(&self) -> impl Iterator<Item = (Pe, &'static str, (usize, usize))> + '_ {
        let touches = match self.state {
            SendState::Waiting | SendState::CopyingOut => true,
            // Copied out, the bytes are only in the buffer.
            SendState::Outgoing(_) | SendState::Sent(_) => self.buffer.is_none(),
            SendState::Quarantined(_) | SendState::Dropped => false,
        };
        let records = self.records.iter().filter(move |_| touches);
        let what = self.what();
        records.map(move |record| (self.pe, what, (record.memory, record.len)))
    }

    pub(super) fn what(&self) -> &'static str {
        if let SendTarget::Get(..) = self.to { "peer's get" } else { "put" }
    }

    pub(super) fn starts_with_signal(&self) -> bool {
        self.records.first().is_some_and(|record| record.len == 0)
    }

    fn is_own(&self) -> bool {
        !matches!(self.to, SendTarget::Get(..))
    }
}

impl Staging {
    /// Queues the reply to a peer's gets.
    ///
    /// # Errors
    /// A request that no correct peer makes.
    pub(crate) fn queue_reply<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        seq: Seq,
        asked: impl Iterator<Item = (RegionAddr, usize)>,
        get: u32,
    ) -> Result<(), String> {
        self.sync(core);
        let mut gets = self.spare.pop().unwrap_or_default();
        for (from, len) in asked {
            let location = core.regions.locate(from, len).map_err(|fault| fault.to_string())?;
            gets.push(place_get(&gets, Record::put(location.addr, len, from)));
        }
        let len = end_of_gets(&gets);
        // Replies that the peer has executed and not acknowledged add to its gets in flight.
        if self.peer(pe).gets_unanswered >= MAX_IN_FLIGHT + WINDOW as u32 {
            return Err(format!("a PE has at most {MAX_IN_FLIGHT} requests for gets"));
        }
        let max_len = self.stager.as_ref().map_or(0, |stager| stager.bounce.bounce_len);
        // Loading is a call of the driver for each get, copying one for all.
        let is_inline = len <= MAX_PAYLOAD && gets.len() == 1;
        if len > max_len && !is_inline {
            return Err(format!("{len} bytes at once, and bounce buffers have {max_len}"));
        }
        self.peer(pe).gets_unanswered += 1;
        let (to, records) = (SendTarget::Get(get, seq), Records::of_gets(gets));
        let state = if is_inline { SendState::Outgoing(0) } else { SendState::Waiting };
        self.add_send(StagedSend {
            state,
            ..StagedSend::new(core.peers.get(pe), to, records, len)
        });
        self.start(core);
        Ok(())
    }

    /// Gives a send its buffer: writes the list there, and makes the copies of its puts ready.
    pub(super) fn gather<P: Port>(&mut self, core: &mut Core<P>, index: u32, buffer: BounceBuffer) {
        let Some(send) = self.sends.get(index) else { return };
        let pe = send.pe;
        // No order group counts replies: the watchdog reads this while the buffer is in use.
        core.peers.get_mut(pe).replies_owed += u32::from(!send.is_own());
        if send.is_own() {
            send.len = send.records.arrange();
        }
        let has_bytes = send.records.iter().any(Record::has_bytes);
        (send.buffer, send.state) = (Some(buffer), SendState::CopyingOut);
        let mut list = [0; crate::wire::staging::MAX_RECORDS * RECORD];
        let mut written = 0;
        if send.is_own() && send.records.len() > 1 {
            for record in &*send.records {
                list[written..written + RECORD].copy_from_slice(&record.wire().encode());
                written += RECORD;
            }
        }
        // The list is written: later puts cannot join.
        if self.peer(pe).joinable == Some(index) {
            self.peer(pe).joinable = None;
        }
        let addr = self.buffer_addr(CopyDirection::Out, buffer);
        if written > 0 {
            if let Err(error) = core.port.store(addr, &list[..written]) {
                return self.fail_send(core, index, error);
            }
        }
        if has_bytes {
            return self.ready(CopyDirection::Out).push_back(Token::Send(index));
        }
        if let Some(send) = self.sends.get(index) {
            send.state = SendState::Outgoing(0);
        }
        self.outgoing.push_back(Token::Send(index));
    }

    pub(super) fn buffer_addr(&self, direction: CopyDirection, buffer: BounceBuffer) -> usize {
        let Some(stager) = &self.stager else { return 0 };
        let pool = if direction == CopyDirection::Out { &stager.out } else { &stager.inward };
        stager.bounce.addr + pool.offset(buffer)
    }

    pub(super) fn post_send<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        moved: &mut bool,
    ) -> Attempt {
        let Some(send) = self.sends.get(index) else { return Ok(Outcome::Done) };
        let SendState::Outgoing(sent) = send.state else { return Ok(Outcome::Done) };
        if send.awaits_writes {
            let order = &mut core.peers.get_mut(send.pe).order;
            // Messages that left a moment ago count, so that a chain of fences leaves in one go.
            order.settle();
            if !order.is_written(send.fence) {
                return Ok(Outcome::Blocked);
            }
            send.after = send.after.max(order.last_message_before(send.fence));
        }
        match send.to {
            SendTarget::Fabric(ref handle, remote) => {
                let handle = Arc::clone(handle);
                self.post_writes(core, index, sent, &handle, remote, moved)
            }
            SendTarget::Get(get, seq) if send.buffer.is_none() => {
                self.send_inline_reply(core, index, get, seq)
            }
            _ => self.send_message(core, index),
        }
    }

    fn post_writes<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        mut sent: usize,
        handle: &HandleBytes,
        remote: u64,
        moved: &mut bool,
    ) -> Attempt {
        let (Some(send), Some(stager)) = (self.sends.get(index), &self.stager) else {
            return Ok(Outcome::Done);
        };
        let Some(buffer) = send.buffer else { return Ok(Outcome::Done) };
        let addr = stager.bounce.addr + stager.out.offset(buffer);
        let view = HandleView::check(handle)?;
        while sent < send.len {
            let part = core.post_staged(
                (send.pe, Token::Send(index).bits(), Direction::Write),
                (send.len - sent, send.op_len),
                |rail| Local::Memory {
                    addr: addr + sent,
                    desc: stager.region.desc(crate::ids::LaneKind::Proxy, rail),
                },
                |rail| view.key(rail).ok().map(|key| (remote + sent as u64, key)),
            )?;
            let Some(part) = part else { break };
            (sent, *moved) = (sent + part, true);
            send.pending += 1;
            self.counters.by_fabric += part as u64;
        }
        send.state = SendState::Outgoing(sent);
        Ok(if sent < send.len { Outcome::LaneFull } else { Outcome::Done })
    }

    pub(super) fn write_completed<P: Port>(&mut self, core: &mut Core<P>, index: u32) {
        let Some(send) = self.sends.get(index) else { return };
        send.pending -= 1;
        let is_over =
            send.state == SendState::Dropped || send.state == SendState::Outgoing(send.len);
        if send.pending == 0 && is_over {
            self.end_send(core, index);
        }
    }

    fn send_inline_reply<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        get: u32,
        seq: Seq,
    ) -> Attempt {
        let Some(send) = self.sends.get(index) else { return Ok(Outcome::Done) };
        let (pe, from, len) = (send.pe, send.records[0].to, send.len);
        let mut bytes = [0; MAX_PAYLOAD];
        let bytes = &mut bytes[..len];
        // Located again: the region may have been released since the request arrived.
        let loaded = match core.regions.locate(from, len) {
            Ok(location) => {
                self.load(core, location.addr, location.reach, bytes).map_err(|e| e.to_string())
            }
            Err(fault) => Err(fault.to_string()),
        };
        if let Err(why) = loaded {
            core.decline(pe, seq, why);
            self.end_send(core, index);
            return Ok(Outcome::Done);
        }
        let body = Body::GetReply { get: GetId { number: get, low: seq.low() }, payload: bytes };
        let outcome = self.send_body(core, index, body, Tail::NONE)?;
        if outcome == Outcome::Done {
            self.counters.in_messages += len as u64;
        }
        Ok(outcome)
    }

    fn send_message<P: Port>(&mut self, core: &mut Core<P>, index: u32) -> Attempt {
        let Some(send) = self.sends.get(index) else { return Ok(Outcome::Done) };
        let (pe, len) = (send.pe, send.len);
        if let [Record { len: 0, signal: Some((addr, atomic)), .. }] = send.records[..] {
            return self.send_body(core, index, Body::Word { addr, atomic }, Tail::NONE);
        }
        let target = match (&send.to, &send.records[..]) {
            (SendTarget::Get(get, seq), _) => {
                PullTarget::Get(GetId { number: *get, low: seq.low() })
            }
            (_, [record]) => PullTarget::One(record.wire()),
            (_, records) => PullTarget::List(records.len() as u16),
        };
        let is_list = matches!(target, PullTarget::List(_));
        let (addr, region) = match (send.buffer, &send.region) {
            (None, Some(region)) => (send.records[0].memory, Arc::clone(region)),
            (buffer, _) => {
                // Registered host memory is read in place; everything else from the buffer.
                let (Some(buffer), Some(stager)) = (buffer, &self.stager) else {
                    return Ok(Outcome::Done);
                };
                let addr = stager.bounce.addr + stager.out.offset(buffer);
                (addr, Arc::clone(&stager.region))
            }
        };
        let is_buffered = self.sends.get(index).is_some_and(|send| send.buffer.is_some());
        let mut keys = [0; 8 * MAX_KEYS];
        let count = region.keys.len().min(MAX_KEYS);
        for (bytes, key) in keys.chunks_exact_mut(8).zip(&region.keys) {
            bytes.copy_from_slice(&key.to_le_bytes());
        }
        let offset = (addr - region.base) as u64;
        let is_shared = is_buffered && self.is_mapped_by(pe);
        let source = match (is_shared, region.addressing) {
            (true, _) => PullSource::Bounce(offset),
            (false, Addressing::Virtual) => PullSource::Fabric(addr as u64, &keys[..8 * count]),
            (false, Addressing::Offset) => PullSource::Fabric(offset, &keys[..8 * count]),
        };
        // The tail is read by the CPU.
        let is_direct =
            is_buffered || core.regions.reach_inside(&region, addr, len) == Reach::Direct;
        let brings = !is_shared
            && !is_list
            && is_direct
            && len <= max_pull_payload(self.longest_message, count)
            && self.longest_message > crate::port::packet::MAX_MESSAGE;
        let tail = if brings { Tail { addr, len } } else { Tail::NONE };
        let body = Body::Pull(Pull { target, len: len as u32, source, payload: &[] });
        self.send_body(core, index, body, tail)
    }

    fn send_body<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        body: Body<'_>,
        tail: Tail,
    ) -> Attempt {
        let Some(send) = self.sends.get(index) else { return Ok(Outcome::Done) };
        let StagedSend { pe, counts, after, .. } = *send;
        let is_own = send.is_own();
        let what = if is_own { "put" } else { "answer to a get" };
        let purpose = crate::channel::slots::Purpose::staged(Some(Token::Send(index).bits()), what);
        let outcome = core.send(&OutgoingMessage {
            tail,
            after,
            purpose,
            write: is_own.then_some(counts.group),
            has_data: true,
            class: is_own.then_some(Class::Message),
            ..OutgoingMessage::new(pe, body, counts.completion)
        })?;
        if outcome == Outcome::Done {
            send.state = SendState::Sent(core.channel(pe).last_sent());
            // The message has its own counts from here on.
            core.end_in_group(counts.completion);
        }
        Ok(outcome)
    }

    /// Ends a send whose message was executed, or quarantines its buffer if the peer has failed.
    pub(super) fn message_ended<P: Port>(&mut self, core: &mut Core<P>, index: u32, ok: bool) {
        let Some(send) = self.sends.get(index) else { return };
        let SendState::Sent(seq) = send.state else { return };
        if ok || send.buffer.is_none() {
            return self.end_send(core, index);
        }
        // The peer may still read the buffer: it is reused only once it cannot.
        send.state = SendState::Quarantined(seq);
        self.quarantined += 1;
    }

    /// Fails a send for a reason of this process.
    pub(super) fn fail_send<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        error: crate::port::PortError,
    ) {
        let Some(send) = self.sends.get(index) else { return };
        let (pe, len) = (send.pe, send.len);
        match send.to {
            SendTarget::Get(_, seq) => core.decline(pe, seq, error.to_string()),
            _ => {
                let failure = failed(("put", pe), len, error);
                core.fail_peer(pe, failure);
            }
        }
        self.end_send(core, index);
    }

    pub(super) fn end_send<P: Port>(&mut self, core: &mut Core<P>, index: u32) {
        let Some(send) = self.sends.remove(index) else { return };
        let StagedSend { pe, counts, buffer, state, records, .. } = send;
        self.reuse(records.list);
        self.release_buffer(pe, CopyDirection::Out, buffer);
        match state {
            SendState::Sent(_) => {}
            // The message took over the counts.
            SendState::Quarantined(_) => self.quarantined -= 1,
            _ => self.uncount(core, pe, counts),
        }
        match send.to {
            SendTarget::Get(..) => {
                self.peer(pe).gets_unanswered -= 1;
                core.peers.get_mut(pe).replies_owed -= u32::from(buffer.is_some());
            }
            _ => self.end_transfer(core, pe),
        }
    }

    /// Ends the sends of a failed peer, except those whose memory is still accessed.
    pub(super) fn drop_sends<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        if let Some(stager) = &mut self.stager {
            stager.out.forget(pe);
            stager.inward.forget(pe);
        }
        self.peer(pe).joinable = None;
        for index in self.sends.find(|send| send.pe == pe) {
            let token = Token::Send(index);
            self.outgoing.retain(|other| *other != token);
            self.ready(CopyDirection::Out).retain(|other| *other != token);
            let Some(send) = self.sends.get(index) else { continue };
            match send.state {
                SendState::Quarantined(_) | SendState::Sent(_) | SendState::Dropped => {}
                SendState::Outgoing(_) | SendState::CopyingOut
                    if send.pending > 0 || core.is_copying(token.bits()) =>
                {
                    send.state = SendState::Dropped;
                    // No caller waits for operations that the fabric may never end.
                    let counts = std::mem::replace(&mut send.counts, GroupCounts::NONE);
                    self.uncount(core, pe, counts);
                }
                _ => self.end_send(core, index),
            }
        }
    }
}
