//! Receiving side of staging: a peer's puts at their target, and gets.

use std::sync::Arc;

use crate::channel::{PendingMessage, PendingOn};
use crate::core::Core;
use crate::ids::{LaneKind, Pe};
use crate::op::{Attempt, Outcome};
use crate::port::copies::CopyDirection;
use crate::port::{Direction, Local, Port, PortError};
use crate::segments::FOR_PEER;
use crate::staging::bounce::BounceBuffer;
use crate::staging::records::{Record, check};
use crate::staging::{GroupCounts, PeerTransfers, Staging, Token, failed};
use crate::wire::handle::{HandleBytes, HandleView};
use crate::wire::message::{RegionAddr, Seq};
use crate::wire::staging::{
    MAX_KEYS, MAX_RECORDS, Pull, PullSource, PullTarget, RECORD, WireRecord,
};

#[derive(Clone, Copy, Debug)]
pub(super) enum ReceiveTarget {
    One(WireRecord),
    List(u16),
    Get(u32),
    /// Local memory of a get whose remote side the fabric reaches.
    Memory(usize),
}

#[derive(Debug)]
pub(super) enum ReceiveSource {
    /// Offset in a same-host peer's bounce memory.
    Bounce(u64),
    /// Address, and keys that the message carries.
    Keyed(u64, [u8; 8 * MAX_KEYS], u8),
    Handle(u64, Arc<HandleBytes>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReceiveState {
    Waiting,
    /// Being read; the number of bytes posted.
    Reading(usize),
    Arrived,
    /// The records are being copied, or their next section is ready to be.
    CopyingIn(CopySpan),
    Storing,
    Dropped,
}

/// Records that are copied at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CopySpan {
    /// All, in any order; the words are changed afterwards.
    All,
    /// All, by the device, which also changes the words in order.
    InOrder,
    /// The section that begins at this record.
    Section(usize),
}

/// Bytes that are read from a peer, or found in its bounce memory, and scattered into local memory.
#[derive(Debug)]
pub(super) struct StagedReceive {
    pub(super) pe: Pe,
    /// Number of the message that announced the bytes, or the counts of this lane's get.
    origin: Result<Seq, GroupCounts>,
    to: ReceiveTarget,
    /// Local memory that is known from the start.
    memory: Option<(usize, usize)>,
    from: ReceiveSource,
    /// Nothing is stored before all messages up to this one are executed.
    after: Seq,
    pub(super) len: usize,
    pub(super) buffer: Option<BounceBuffer>,
    pub(super) state: ReceiveState,
    /// Located when the copies are about to start; empty until then.
    pub(super) records: Vec<Record>,
    /// Whether the records are known to be unordered.
    pub(super) is_unordered: bool,
    /// Number of segments in flight.
    pending: u32,
}

impl StagedReceive {
    pub(super) fn may_be_ordered(&self) -> bool {
        match self.to {
            ReceiveTarget::One(record) => record.signal.is_some() && !self.is_unordered,
            ReceiveTarget::List(_) => !self.is_unordered,
            ReceiveTarget::Get(_) | ReceiveTarget::Memory(_) => false,
        }
    }

    /// Returns true if its message, or one before it, is refused.
    pub(super) fn is_refused<P: Port>(&self, core: &Core<P>) -> bool {
        let channel = core.peers.get(self.pe).channel.as_deref();
        self.origin.is_ok() && channel.is_some_and(|channel| channel.has_refused)
    }

    /// Iterates over the local memory that the receive will access, as far as it is known.
    pub(super) fn memory(&self) -> impl Iterator<Item = (Pe, &'static str, (usize, usize))> + '_ {
        let records = self.records.iter().map(|record| (record.memory, record.len));
        let touches = move |memory| (self.pe, self.what(), memory);
        self.memory.into_iter().chain(records).map(touches)
    }

    pub(super) fn what(&self) -> &'static str {
        match self.to {
            ReceiveTarget::One(_) | ReceiveTarget::List(_) => "peer's put",
            ReceiveTarget::Get(_) | ReceiveTarget::Memory(_) => "get",
        }
    }
}

impl Staging {
    pub(super) fn add_receive(
        &mut self,
        pe: Pe,
        origin: Result<Seq, GroupCounts>,
        to: ReceiveTarget,
        from: ReceiveSource,
        len: usize,
    ) -> u32 {
        self.receives.add(StagedReceive {
            pe,
            origin,
            to,
            memory: if let ReceiveTarget::Memory(addr) = to { Some((addr, len)) } else { None },
            from,
            after: Seq::NONE,
            len,
            buffer: None,
            state: ReceiveState::Waiting,
            records: self.spare.pop().unwrap_or_default(),
            is_unordered: false,
            pending: 0,
        })
    }

    /// Accepts a message that announces bytes; it is executed after `after`, once they are stored.
    pub(crate) fn accept_pull<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        (seq, after): (Seq, Seq),
        pull: &Pull<'_>,
    ) -> Result<(), String> {
        self.sync(core);
        let len = pull.len as usize;
        let max_len = self.stager.as_ref().map_or(0, |stager| stager.bounce.bounce_len);
        let (mut memory, mut known) = (None, None);
        let to = match pull.target {
            PullTarget::One(record) => {
                // Located again before the copy; here for the error, and for `check_unused`.
                known = Some((locate(core, &record)?.memory, len));
                ReceiveTarget::One(record)
            }
            PullTarget::List(count) => {
                if usize::from(count) > MAX_RECORDS || len < usize::from(count) * RECORD {
                    return Err(format!("a list of {count} puts in {len} bytes"));
                }
                ReceiveTarget::List(count)
            }
            PullTarget::Get(named) => {
                let get = self.take_requested_get(core, pe, named, |get| get.len() == len)?;
                let Some(get) = get else {
                    // The get has failed: nothing is stored.
                    core.message_executed(pe, seq);
                    return Ok(());
                };
                memory = get.is_direct.then_some(get.records[0].memory);
                ReceiveTarget::Get(named.number)
            }
        };
        let from = match pull.source {
            PullSource::Bounce(offset) => {
                self.shared_addr(pe, offset, len)?;
                ReceiveSource::Bounce(offset)
            }
            // A buffer has to hold it, unless it goes straight to the destination of a get.
            PullSource::Fabric(..) if memory.is_none() && len > max_len => {
                return Err(format!("{len} bytes at once, and bounce buffers have {max_len}"));
            }
            PullSource::Fabric(remote, _) if remote.checked_add(len as u64).is_none() => {
                return Err(format!("{len} bytes from address {remote:#x} on"));
            }
            PullSource::Fabric(_, keys) if !has_key(core, pe, keys) => {
                return Err(String::from("bytes without a key for a rail that leads there"));
            }
            PullSource::Fabric(remote, keys) => {
                let mut copied = [0; 8 * MAX_KEYS];
                copied[..keys.len()].copy_from_slice(keys);
                ReceiveSource::Keyed(remote, copied, (keys.len() / 8) as u8)
            }
        };
        let is_shared = matches!(from, ReceiveSource::Bounce(_));
        let index = self.add_receive(pe, Ok(seq), to, from, len);
        if let Some(receive) = self.receives.get(index) {
            (receive.after, receive.memory) = (after, known);
        }
        let channel = core.channel(pe);
        channel.reads += 1;
        channel.wait(PendingMessage { seq, on: PendingOn::Staging });
        if !self.peer(pe).waiting.is_empty() {
            // The lowest number takes a buffer first, so that it never lacks one.
            self.peer(pe).waiting.push((seq, index));
            self.readmit(core, pe);
        } else if pull.payload.is_empty()
            || is_shared
            || !self.take_payload(core, index, memory, pull)
        {
            self.admit(core, index);
        }
        Ok(())
    }

    /// Takes bytes carried by the message, if a buffer is free. Otherwise they are read later.
    fn take_payload<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        memory: Option<usize>,
        pull: &Pull<'_>,
    ) -> bool {
        let Some(receive) = self.receives.get(index) else { return false };
        let (pe, after) = (receive.pe, receive.after);
        let len = pull.payload.len() as u64;
        if let Some(memory) = memory {
            self.counters.in_messages += len;
            self.store_get(core, pe, memory, pull.payload);
            self.finish(core, index, Ok(()));
            return true;
        }
        let Some(stager) = &mut self.stager else { return false };
        // The message must not overtake a receive that waits for a buffer or a message.
        if stager.inward.is_waited_for() || !has_arrived(core, pe, after) {
            return false;
        }
        let Some(buffer) = stager.inward.take(pe) else { return false };
        receive.buffer = Some(buffer);
        self.counters.in_messages += len;
        let addr = stager.bounce.addr + stager.inward.offset(buffer);
        match core.port.store(addr, pull.payload) {
            Ok(()) => self.bytes_arrived(core, index),
            Err(error) => self.finish(core, index, Err(error)),
        }
        true
    }

    /// Advances a receive as far as earlier messages allow, or queues it in `waiting`.
    fn admit<P: Port>(&mut self, core: &mut Core<P>, index: u32) {
        let Some(receive) = self.receives.get(index) else { return };
        let (pe, after, state) = (receive.pe, receive.after, receive.state);
        let is_executed = core.channel(pe).executed.next() > after;
        let is_shared = matches!(receive.from, ReceiveSource::Bounce(_));
        let is_direct = match receive.to {
            ReceiveTarget::Get(get) => self.gets.get(get).is_some_and(|get| get.is_direct),
            _ => false,
        };
        let token = Token::Receive(index);
        match state {
            // Bytes in a same-host peer's bounce memory need no buffer here.
            ReceiveState::Waiting if is_shared => self.bytes_arrived(core, index),
            ReceiveState::Arrived if is_executed => self.ready(CopyDirection::In).push_back(token),
            ReceiveState::Waiting if !is_shared && has_arrived(core, pe, after) => {
                // A buffer is taken only when all earlier messages are here: from then on it waits
                // for a read, their execution and a copy.
                match &mut self.stager {
                    Some(stager) if !is_direct => stager.inward.wait(pe, token.bits()),
                    _ => {
                        receive.state = ReceiveState::Reading(0);
                        self.outgoing.push_back(token);
                    }
                }
            }
            ReceiveState::Waiting | ReceiveState::Arrived => {
                let seq = receive.origin.unwrap_or(Seq::NONE);
                self.peer(pe).waiting.push((seq, index));
            }
            _ => {}
        }
    }

    /// Advances receives of a peer after earlier messages have arrived or were executed.
    pub(super) fn readmit<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        let channel = core.channel(pe);
        let reached = Some((channel.first_missing(), channel.executed.next()));
        let PeerTransfers { waiting, checked, .. } = self.peer(pe);
        // If nothing has moved since the last check, only the newest entry can.
        let known = std::mem::replace(checked, reached) == reached;
        let mut waiting =
            waiting.split_off(if known { waiting.len().saturating_sub(1) } else { 0 });
        // Buffers are taken in the order of message numbers, so the lowest never lacks one.
        waiting.sort_unstable_by_key(|(seq, _)| *seq);
        waiting.into_iter().for_each(|(_, index)| self.admit(core, index));
    }

    pub(super) fn start_read(&mut self, index: u32, buffer: BounceBuffer) {
        let Some(receive) = self.receives.get(index) else { return };
        (receive.buffer, receive.state) = (Some(buffer), ReceiveState::Reading(0));
        self.outgoing.push_back(Token::Receive(index));
    }

    pub(super) fn post_read<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        moved: &mut bool,
    ) -> Attempt {
        let Some(receive) = self.receives.get(index) else { return Ok(Outcome::Done) };
        let ReceiveState::Reading(mut sent) = receive.state else { return Ok(Outcome::Done) };
        let direct = match receive.to {
            ReceiveTarget::Get(get) => self.gets.get(get).map(|get| get.records[0]),
            _ => None,
        };
        let (addr, region) = match (receive.buffer, &self.stager, direct) {
            (Some(buffer), Some(stager), _) => {
                let addr = stager.bounce.addr + stager.inward.offset(buffer);
                (addr, Some(Arc::clone(&stager.region)))
            }
            // The bytes go straight to their destination, which may have been released meanwhile.
            (_, _, Some(Record { memory: addr, len, .. })) => {
                core.regions.sync();
                let region = core.regions.lookup(addr, len).fabric.cloned();
                if region.is_none() && core.needs_desc {
                    let text = String::from("its local memory is not registered any more");
                    let error = PortError { call: "reading", code: 0, text };
                    self.finish(core, index, Err(error));
                    return Ok(Outcome::Done);
                }
                (addr, region)
            }
            _ => return Ok(Outcome::Done),
        };
        let mut token = Token::Receive(index).bits();
        if let ReceiveTarget::One(_) | ReceiveTarget::List(_) = receive.to {
            token |= FOR_PEER;
        }
        let len = receive.len;
        while sent < len {
            let remote = |rail: crate::ids::RailId| match &receive.from {
                ReceiveSource::Keyed(remote, keys, count) => {
                    let key = keys[..8 * usize::from(*count)].chunks_exact(8).nth(rail.index())?;
                    let key = u64::from_le_bytes(key.try_into().ok()?);
                    Some((remote + sent as u64, key))
                }
                ReceiveSource::Handle(remote, handle) => {
                    let view = HandleView::check(handle).ok()?;
                    Some((remote + sent as u64, view.key(rail).ok()?))
                }
                ReceiveSource::Bounce(_) => None,
            };
            let part = core.post_staged(
                (receive.pe, token, Direction::Read),
                (len - sent, len),
                |rail| {
                    let desc = region.as_ref().map(|region| region.desc(LaneKind::Proxy, rail));
                    Local::Memory { addr: addr + sent, desc: desc.unwrap_or_default() }
                },
                remote,
            )?;
            let Some(part) = part else { break };
            (sent, *moved) = (sent + part, true);
            receive.pending += 1;
            // The payload of a list is known, and counted, when the list has been read.
            if !matches!(receive.to, ReceiveTarget::List(_)) {
                self.counters.by_fabric += part as u64;
            }
        }
        receive.state = ReceiveState::Reading(sent);
        Ok(if sent < len { Outcome::LaneFull } else { Outcome::Done })
    }

    pub(super) fn read_completed<P: Port>(&mut self, core: &mut Core<P>, index: u32) {
        let Some(receive) = self.receives.get(index) else { return };
        receive.pending -= 1;
        match receive.state {
            _ if receive.pending > 0 => {}
            ReceiveState::Reading(sent) if sent == receive.len => self.bytes_arrived(core, index),
            ReceiveState::Dropped => self.end_receive(core, index),
            _ => {}
        }
    }

    /// Continues a receive whose bytes are all in a buffer, or in their destination.
    fn bytes_arrived<P: Port>(&mut self, core: &mut Core<P>, index: u32) {
        let Some(receive) = self.receives.get(index) else { return };
        receive.state = ReceiveState::Arrived;
        let is_shared = matches!(receive.from, ReceiveSource::Bounce(_));
        if receive.buffer.is_none() && !is_shared {
            return self.finish(core, index, Ok(()));
        }
        self.admit(core, index);
    }

    pub(super) fn bytes_of(&mut self, index: u32) -> Result<usize, PortError> {
        let Some(receive) = self.receives.get(index) else { return Err(super::missing()) };
        let (pe, len) = (receive.pe, receive.len);
        match (receive.buffer, &receive.from) {
            (Some(buffer), _) => Ok(self.buffer_addr(CopyDirection::In, buffer)),
            (None, ReceiveSource::Bounce(offset)) => {
                let offset = *offset;
                self.shared_addr(pe, offset, len).map_err(|text| PortError {
                    call: "copying from the peer's bounce memory",
                    code: 0,
                    text,
                })
            }
            (None, _) => Err(super::missing()),
        }
    }

    /// Locates the memory of a receive's records. Returns the address of its bytes.
    pub(super) fn locate_records<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
    ) -> Result<usize, PortError> {
        let bytes = self.bytes_of(index)?;
        let Some(receive) = self.receives.get(index) else { return Err(super::missing()) };
        let (len, to) = (receive.len, receive.to);
        let nowhere = RegionAddr { region: 0, offset: 0 };
        let mut records = std::mem::take(&mut receive.records);
        records.clear();
        let read = match to {
            ReceiveTarget::Memory(memory) => {
                records.push(Record::put(memory, len, nowhere));
                Ok(())
            }
            ReceiveTarget::Get(get) => match self.gets.get(get) {
                Some(get) => {
                    records.extend_from_slice(&get.records);
                    Ok(())
                }
                None => Err(String::from("its get has ended")),
            },
            ReceiveTarget::One(record) => locate(core, &record).map(|record| records.push(record)),
            ReceiveTarget::List(count) => {
                let mut list = [0; MAX_RECORDS * RECORD];
                let list = &mut list[..usize::from(count) * RECORD];
                // Loaded once: the peer may change the list in its bounce memory meanwhile.
                core.port.load(bytes, list)?;
                let begin = list.len();
                let read = list.chunks_exact(RECORD).try_for_each(|entry| {
                    let record = WireRecord::decode(entry);
                    let record = record.ok_or_else(|| String::from("a signal that is none"))?;
                    let (offset, size) = (record.offset as usize, record.len as usize);
                    // Entries have to be after the list and inside the bytes that were read.
                    if size > 0 && (offset < begin || offset + size > len) {
                        return Err(format!("{size} bytes at {offset} of a buffer with {len}"));
                    }
                    records.push(locate(core, &record)?);
                    Ok(())
                });
                read.and_then(|()| check(&records))
            }
        };
        if let Some(receive) = self.receives.get(index) {
            receive.records = records;
        }
        let failed = |text| PortError { call: "reading the peer's list of puts", code: 0, text };
        read.map(|()| bytes).map_err(failed)
    }

    /// Ends a receive: executes or refuses its message, or fails this lane's get.
    pub(super) fn finish<P: Port>(
        &mut self,
        core: &mut Core<P>,
        index: u32,
        result: Result<(), PortError>,
    ) {
        let Some(receive) = self.receives.get(index) else { return };
        let (pe, len, origin, to) = (receive.pe, receive.len, receive.origin, receive.to);
        if result.is_ok() {
            // The list itself is no payload.
            let bytes: usize = receive.records.iter().map(|record| record.len).sum();
            match (&receive.from, to) {
                (ReceiveSource::Bounce(_), _) => self.counters.shared += bytes as u64,
                (_, ReceiveTarget::List(_)) => self.counters.by_fabric += bytes as u64,
                _ => {}
            }
        }
        let failure = match (&result, to) {
            (Err(error), ReceiveTarget::Get(_) | ReceiveTarget::Memory(_)) => {
                Some(failed(("get", pe), len, error.clone()))
            }
            _ => None,
        };
        if let Some(failure) = failure {
            core.fail_peer(pe, failure);
        }
        self.end_receive(core, index);
        // The get of a failed peer has ended already, and its number may be in use again.
        let is_alive = core.peers.get(pe).error.is_none();
        if let (ReceiveTarget::Get(get), Ok(()), true) = (to, &result, is_alive) {
            self.end_get(core, get);
        }
        let Ok(seq) = origin else { return };
        if core.channel(pe).take_waiting(seq).is_none() {
            // The peer was refused or has failed: nothing of it is executed any more.
            return;
        }
        match result {
            Err(error) if !matches!(to, ReceiveTarget::Get(_)) => {
                core.decline(pe, seq, error.to_string())
            }
            _ => {
                core.message_executed(pe, seq);
                // Sent without a request: the sender reuses its buffer then.
                core.channel(pe).ack_due = true;
                core.enter_control(pe);
            }
        }
    }

    pub(super) fn end_receive<P: Port>(&mut self, core: &mut Core<P>, index: u32) {
        let Some(receive) = self.receives.remove(index) else { return };
        let StagedReceive { pe, origin, buffer, records, .. } = receive;
        self.reuse(records);
        self.release_buffer(pe, CopyDirection::In, buffer);
        match origin {
            Ok(_) => core.channel(pe).reads -= 1,
            Err(counts) => {
                self.uncount(core, pe, counts);
                self.end_transfer(core, pe);
            }
        }
    }

    /// Ends the receives of a failed or refused peer, except those whose memory is still accessed.
    pub(super) fn drop_receives<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        let has_failed = core.peers.get(pe).error.is_some();
        let is_dropped =
            |receive: &StagedReceive| receive.pe == pe && (has_failed || receive.origin.is_ok());
        self.peer(pe).waiting.clear();
        let dropped = self.receives.find(is_dropped);
        let first = dropped.iter().find_map(|index| self.receives.get(*index)?.origin.ok());
        if let (Some(seq), Err(failed)) = (first, core.peers.get(pe).check()) {
            // The refusal tells the peer that its buffers are not read any more.
            core.decline(pe, seq, failed.to_string());
        }
        for index in dropped {
            let token = Token::Receive(index);
            let Some(receive) = self.receives.get(index) else { continue };
            match receive.state {
                ReceiveState::Dropped => {}
                ReceiveState::Reading(_) | ReceiveState::CopyingIn(_)
                    if receive.pending > 0 || core.is_copying(token.bits()) =>
                {
                    receive.state = ReceiveState::Dropped;
                    // No caller waits for operations that the fabric may never end.
                    if let Err(counts) = &mut receive.origin {
                        let counts = std::mem::replace(counts, GroupCounts::NONE);
                        self.uncount(core, pe, counts);
                    }
                }
                _ => {
                    self.outgoing.retain(|other| *other != token);
                    self.ready(CopyDirection::In).retain(|other| *other != token);
                    if let Some(stager) = &mut self.stager {
                        stager.inward.withdraw(pe, token.bits());
                    }
                    self.end_receive(core, index);
                }
            }
        }
    }
}

/// Returns true if the peer sent a key for some rail that leads to it.
fn has_key<P: Port>(core: &Core<P>, pe: Pe, keys: &[u8]) -> bool {
    core.peers.get(pe).paths.iter().any(|path| path.remote.rail().index() < keys.len() / 8)
}

fn has_arrived<P: Port>(core: &mut Core<P>, pe: Pe, last: Seq) -> bool {
    core.channel(pe).first_missing() > last
}

fn locate<P: Port>(core: &mut Core<P>, record: &WireRecord) -> Result<Record, String> {
    let WireRecord { to, len, offset, signal, is_ordered } = *record;
    if let Some((word, atomic)) = signal {
        core.locate_word(word, &atomic)?;
    }
    let (len, offset) = (len as usize, offset as usize);
    let memory = match len {
        0 if signal.is_none() => return Err(String::from("a put of no bytes")),
        0 => 0,
        _ => core.regions.locate(to, len).map_err(|fault| fault.to_string())?.addr,
    };
    Ok(Record { offset, signal, is_ordered, ..Record::put(memory, len, to) })
}
