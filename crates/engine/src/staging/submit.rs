//! Submission of staged puts: their source, fragments, and puts that share a buffer.

use std::sync::Arc;

use crate::atomic::Atomic;
use crate::channel::slots::Purpose;
use crate::core::Core;
use crate::core::send::OutgoingMessage;
use crate::error::EngineError;
use crate::group::Class;
use crate::ids::Pe;
use crate::op::{Attempt, Op, OpKind, Outcome, SignalProtocol, WordOp};
use crate::port::{Direction, Port};
use crate::regions::Region;
use crate::request::{LocalSide, Request};
use crate::staging::records::{Record, Records, fits_alone};
use crate::staging::send::{SendState, SendTarget, StagedSend};
use crate::staging::{MAX_IN_FLIGHT, Staging, Token, failed};
use crate::wire::handle::{HandleBytes, HandleError, HandleView};
use crate::wire::message::{Body, RegionAddr};
use crate::wire::staging::MAX_PAYLOAD;

/// Longest put or get in bytes that shares a buffer: a longer one is worth a copy of its own.
const MAX_JOINED: usize = 64 << 10;

/// Bytes of the shortest fragment, unless buffers are shorter.
pub(super) const FRAGMENT: usize = 512 << 10;

/// Number of fragments of a long operation on one host with nothing else under way: their copies
/// overlap. Each costs the same to start, whatever its length.
const PIECES: usize = 4;

enum PutSource {
    Buffer,
    /// In a region that peers read.
    Region(Arc<Region>),
}

/// Returns the bytes up to which a put or get shares a buffer. On one host, beside others under
/// way, long ones do too: a device takes long to begin each copy while kernels poll host memory.
pub(super) fn max_joined(is_same_host: bool, is_busy: bool) -> usize {
    if is_same_host && is_busy { FRAGMENT } else { MAX_JOINED }
}

/// Returns the bytes of an operation's fragments, where buffers have `max_len`.
pub(super) fn fragment_len(len: usize, max_len: usize, is_same_host: bool, is_busy: bool) -> usize {
    let wanted = match (is_same_host, is_busy) {
        (false, _) => max_len / 4,
        (true, false) => len.div_ceil(PIECES).next_multiple_of(4096),
        (true, true) => max_len,
    };
    wanted.max(FRAGMENT).min(max_len)
}

impl Staging {
    /// Submits an operation on staged memory as far as capacity permits, and sets `op.staged`.
    pub(crate) fn submit<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        op: &mut Op,
        request: &Request<'_>,
    ) -> Attempt {
        self.sync(core);
        // From now on: a queued operation must not turn to the other path.
        op.staged = true;
        let (remote, offset) = request.remote()?;
        let outcome = match request.direction {
            Direction::Read => self.submit_get(core, pe, op, request, &remote, offset)?,
            Direction::Write => self.submit_put(core, pe, op, request, &remote, offset)?,
        };
        match op.kind {
            _ if outcome != Outcome::Done => Ok(outcome),
            OpKind::PutSignal(_, SignalProtocol::Chained { data, .. }) => {
                core.end_in_group(data);
                Ok(outcome)
            }
            OpKind::PutSignal(word, SignalProtocol::Ordered) => {
                core.submit_signal(pe, word, None, op.completion)
            }
            _ => Ok(outcome),
        }
    }

    fn submit_put<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        op: &mut Op,
        request: &Request<'_>,
        remote: &HandleView<'_>,
        offset: u64,
    ) -> Attempt {
        let by_peer = remote.is_staged();
        let word = match op.kind {
            OpKind::PutSignal(word, SignalProtocol::Undecided) => Some(word),
            _ => None,
        };
        let to = RegionAddr { region: remote.region(), offset };
        if by_peer && op.len <= MAX_PAYLOAD && word.is_none() && op.sent == 0 {
            return self.submit_inline(core, pe, op, request, to);
        }
        let LocalSide::Memory(addr) = op.local else {
            return Err(request.refuse("local", HandleError::Unregistered));
        };
        let from = self.source(core, pe, request, addr, by_peer)?;
        let needs_buffer = matches!(from, PutSource::Buffer);
        if needs_buffer && !self.has_buffers(core, (addr, op.len))? {
            // Another thread may still be making the buffers.
            return Ok(Outcome::LaneFull);
        }
        let own = self.stager.as_ref().filter(|_| needs_buffer);
        let own = own.map_or(usize::MAX, |stager| stager.bounce.bounce_len);
        let max_len = own.min(if by_peer { remote.bounce_len() } else { usize::MAX });
        let is_same_host = by_peer && self.is_mapped_by(pe);
        // Over a fabric the lists should be short enough for several to be in flight.
        let max_bytes = if is_same_host { max_len } else { max_len.min(FRAGMENT) };
        let is_busy = self.is_busy_with(pe);
        let is_short = op.sent == 0 && op.len <= max_joined(is_same_host, is_busy);
        let may_join = by_peer && needs_buffer && is_short;
        if may_join {
            let record = Record { signal: signal_of(word), ..Record::put(addr, op.len, to) };
            if self.join(core, pe, op, record, core.signals.strong && word.is_some()) {
                op.sent = op.len;
                // The record carries the signal.
                op.kind = OpKind::Transfer(Direction::Write);
                return Ok(Outcome::Done);
            }
        }
        // Behind a fence, what the peer reads is copied out at once, and its message waits: for
        // earlier writes alone, since its mark does the rest. A write of this lane would also have
        // to wait for earlier messages.
        let peer = core.peers.get(pe);
        if !by_peer && !peer.order.is_ordered(peer.fence) && op.sent < op.len {
            return Ok(Outcome::Blocked);
        }
        let mut awaits_writes = !peer.order.is_written(peer.fence);
        if self.peer(pe).in_flight >= MAX_IN_FLIGHT && op.sent < op.len {
            return Ok(Outcome::PeerFull);
        }
        let fragment = fragment_len(op.len, max_len, is_same_host, is_busy);
        let mut signal = None;
        if let Some(word) = word {
            let peer = core.peers.get_mut(pe);
            let follows_writes = core.signals.strong && peer.order.has_writes();
            // In an order group of its own the message waits for the writes before it. All groups
            // may be in use.
            let fits = by_peer && op.len <= fragment;
            if fits && (!follows_writes || peer.close().is_some()) {
                awaits_writes |= follows_writes;
                signal = signal_of(Some(word));
                op.kind = OpKind::Transfer(Direction::Write);
            } else {
                op.kind = OpKind::PutSignal(word, core.chain(pe, op, word));
            }
        }
        let completion = match op.kind {
            OpKind::PutSignal(_, SignalProtocol::Chained { data, .. }) => data,
            _ => op.completion,
        };
        let handle = core.peers.get_mut(pe).share_handle(request.remote_handle);
        while op.sent < op.len {
            if self.peer(pe).in_flight >= MAX_IN_FLIGHT {
                return Ok(Outcome::PeerFull);
            }
            let len = fragment.min(op.len - op.sent);
            let after = match signal {
                Some(_) => core.last_before_signal(pe),
                None => core.last_before_fence(pe),
            };
            let destination = RegionAddr { offset: offset + op.sent as u64, ..to };
            let record = Record { signal, ..Record::put(addr + op.sent, len, destination) };
            let region = match &from {
                PutSource::Buffer => None,
                PutSource::Region(region) => Some(Arc::clone(region)),
            };
            let state = if needs_buffer { SendState::Waiting } else { SendState::Outgoing(0) };
            let counts = self.begin_transfer(core, pe, Class::Write, completion);
            let to = match by_peer {
                true => SendTarget::Records,
                false => SendTarget::Fabric(
                    Arc::clone(&handle),
                    remote.remote_address(offset) + op.sent as u64,
                ),
            };
            let records = Records::of(record, self.spare.pop().unwrap_or_default());
            let send = StagedSend::new(core.peers.get(pe), to, records, len);
            let op_len = op.len;
            let send = StagedSend { counts, after, awaits_writes, max_bytes, op_len, ..send };
            self.add_send(StagedSend { state, region, ..send });
            op.sent += len;
        }
        let joinable = may_join && op.len > MAX_PAYLOAD && fits_alone(op.len, max_bytes);
        if !joinable {
            self.peer(pe).joinable = None;
            self.start(core);
        } else {
            // Left for the iteration, which starts it together with puts that arrive until then.
            self.batcher.add_operation();
        }
        Ok(Outcome::Done)
    }

    /// Returns true if other fragments keep both ends' copy engines busy, so that longer ones pay.
    pub(super) fn is_busy_with(&mut self, pe: Pe) -> bool {
        self.peer(pe).in_flight >= PIECES as u32
    }

    pub(super) fn add_send(&mut self, send: StagedSend) {
        let (pe, state) = (send.pe, send.state);
        let may_open = matches!(send.to, SendTarget::Records);
        let index = self.sends.add(send);
        let token = Token::Send(index);
        if state != SendState::Waiting {
            return self.outgoing.push_back(token);
        }
        // The newest send alone may be joined, so that puts stay in order.
        if may_open {
            self.peer(pe).joinable = Some(index);
        }
        if let Some(stager) = &mut self.stager {
            stager.out.wait(pe, token.bits());
        }
    }

    /// Sends a put of a few bytes to staged memory in one message.
    fn submit_inline<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        op: &mut Op,
        request: &Request<'_>,
        to: RegionAddr,
    ) -> Attempt {
        let Some(after) = core.behind_writes(pe) else { return Ok(Outcome::Blocked) };
        let mut payload = [0; MAX_PAYLOAD];
        let payload = &mut payload[..op.len];
        let is_run = matches!(op.kind, OpKind::Values);
        match op.local {
            LocalSide::Value(_) if is_run => {
                payload.iter_mut().zip(&self.values.bytes).for_each(|(to, byte)| *to = *byte);
            }
            LocalSide::Value(value) => payload.copy_from_slice(&value.to_le_bytes()[..op.len]),
            LocalSide::Memory(addr) => {
                let what = (request.what(), pe);
                let reach = self.local_reach(core, what, addr, op.len)?;
                self.load(core, addr, reach, payload)
                    .map_err(|error| failed(what, op.len, error))?;
            }
        }
        let body = Body::InlinePut { to, payload };
        let purpose = Purpose::staged(None, "put");
        let sending = OutgoingMessage::new(pe, body, op.completion);
        let outcome = core.send(&OutgoingMessage { after, purpose, has_data: true, ..sending })?;
        if outcome == Outcome::Done {
            self.counters.in_messages += op.len as u64;
            op.sent = op.len;
            if is_run {
                let bytes = &mut self.values.bytes;
                bytes.drain(..op.len.min(bytes.len()));
            }
        }
        Ok(outcome)
    }

    fn source<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        request: &Request<'_>,
        addr: usize,
        by_peer: bool,
    ) -> Result<PutSource, EngineError> {
        let found = core.regions.lookup(addr, request.len);
        if found.cut.is_some() && !found.device && core.needs_desc {
            // Posting would fail with a better error: the region that ends too early.
            let rail = core.peers.get(pe).path.rail;
            return core.local(request, 0, request.len, rail).map(|_| PutSource::Buffer);
        }
        match found.fabric.filter(|region| by_peer && !region.keys.is_empty()) {
            // The peer reads registered memory in place, for which it gets the keys.
            Some(region) => Ok(PutSource::Region(Arc::clone(region))),
            None if found.device => Ok(PutSource::Buffer),
            None => {
                self.reach(core, (request.what(), pe), addr, request.len)?;
                Ok(PutSource::Buffer)
            }
        }
    }

    /// Adds a put, or a signal alone, to the send that waits for a buffer. `follows_all`: its
    /// signal follows all earlier puts and signals of the lane. Returns whether it was added.
    fn join<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        op: &Op,
        record: Record,
        follows_all: bool,
    ) -> bool {
        let Some(index) = self.peer(pe).joinable else { return false };
        let Some(send) = self.sends.get(index) else { return false };
        let peer = core.peers.get(pe);
        // A put behind a fence starts a section, whose puts all follow the same fences.
        let starts = record.len > 0 && peer.fences != send.fences;
        let is_ordered = follows_all || starts;
        // The record follows puts of this send, writes that the message waits for, and messages
        // that its mark covers. Any other unfinished write would be missed.
        let is_covered = || peer.order.writes_after(send.fence) == 1;
        if send.counts.completion != op.completion || is_ordered && !is_covered() {
            return false;
        }
        if !send.records.add(Record { is_ordered: starts, ..record }, is_ordered, send.max_bytes) {
            return false;
        }
        if is_ordered {
            let after = match record.len {
                0 => core.last_before_separate_signal(pe),
                _ => core.last_before_signal(pe),
            };
            send.after = send.after.max(after);
            send.awaits_writes = true;
            if starts {
                send.fences = peer.fences;
            }
        }
        self.batcher.add_operation();
        true
    }

    /// Takes a signal that follows all earlier puts, while transfers are in flight: into the send
    /// that waits for a buffer, if nothing else is unfinished; or else into a send of its own,
    /// which signals and puts behind it may join until the next iteration. Returns false, without
    /// effect, if there are none or it cannot.
    pub(crate) fn submit_signal<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        op: &Op,
        word: WordOp,
        handle: &HandleBytes,
    ) -> Result<bool, EngineError> {
        let Some(peer) = self.peers.get(pe.index()) else { return Ok(false) };
        let in_flight = peer.in_flight;
        let nowhere = RegionAddr { region: 0, offset: 0 };
        let record = Record { signal: signal_of(Some(word)), ..Record::put(0, 0, nowhere) };
        if peer.joinable.is_some() && self.join(core, pe, op, record, true) {
            return Ok(true);
        }
        let Some(stager) = &self.stager else { return Ok(false) };
        let own = stager.bounce.bounce_len;
        let remote = HandleView::check(handle)?;
        let peer = core.peers.get_mut(pe);
        let has_writes = peer.order.has_writes();
        if !(1..MAX_IN_FLIGHT).contains(&in_flight)
            || !remote.is_staged()
            || has_writes && peer.close().is_none()
        {
            return Ok(false);
        }
        let max_len = own.min(remote.bounce_len());
        let max_bytes = if self.is_mapped_by(pe) { max_len } else { max_len.min(FRAGMENT) };
        let after = core.last_before_separate_signal(pe);
        let counts = self.begin_transfer(core, pe, Class::Write, op.completion);
        let records = Records::of(record, self.spare.pop().unwrap_or_default());
        let send = StagedSend::new(core.peers.get(pe), SendTarget::Records, records, 0);
        self.add_send(StagedSend { counts, after, awaits_writes: true, max_bytes, ..send });
        Ok(true)
    }
}

fn signal_of(word: Option<WordOp>) -> Option<(RegionAddr, Atomic)> {
    word.map(|word| (word.addr, word.atomic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_are_long_on_one_host() {
        let (kib, mib) = (1 << 10, 1 << 20);
        for (len, max_len, is_same_host, is_busy, fragment) in [
            (1, 2 * mib, true, false, FRAGMENT),
            (2 * mib + 1, 2 * mib, true, false, 516 * kib),
            (8 * mib, 2 * mib, true, false, 2 * mib),
            (64 * mib, 4096, true, false, 4096),
            (mib, 2 * mib, true, true, 2 * mib),
            (64 * mib, 2 * mib, false, true, FRAGMENT),
            (64 * mib, 8 * mib, false, false, 2 * mib),
            (64 * mib, 64 * kib, false, false, 64 * kib),
        ] {
            let found = fragment_len(len, max_len, is_same_host, is_busy);
            assert_eq!(found, fragment, "{len} {max_len} {is_same_host} {is_busy}");
        }
    }
}
