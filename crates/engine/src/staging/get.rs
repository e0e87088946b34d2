//! Gets: from staged memory of the peer, by a request to it; from other memory, read by this lane.

use std::sync::Arc;

use crate::core::Core;
use crate::core::send::OutgoingMessage;
use crate::group::Class;
use crate::ids::Pe;
use crate::op::{Attempt, Op, OpKind, Outcome, SignalProtocol};
use crate::port::Port;
use crate::port::copies::Reach;
use crate::request::{LocalSide, Request};
use crate::staging::receive::{ReceiveSource, ReceiveTarget};
use crate::staging::records::{Record, end_of_gets, place_get};
use crate::staging::submit::{FRAGMENT, fragment_len, max_joined};
use crate::staging::{GroupCounts, MAX_IN_FLIGHT, Staging, Token, failed};
use crate::wire::handle::HandleView;
use crate::wire::message::{Body, RegionAddr, Seq};
use crate::wire::staging::{FURTHER_GET, GetId, MAX_GETS, further_get};

/// Number of unanswered requests to a peer at which further short gets are held back to share one.
/// The peer's device has two copy calls in flight, one for each request.
const UNANSWERED: u32 = 2;

/// Gets from staged memory, or a fragment of one, that share a request, until their bytes have
/// arrived.
#[derive(Debug)]
pub(super) struct StagedGet {
    pub(super) pe: Pe,
    /// One at least, placed by [`place_get`].
    pub(super) records: Vec<Record>,
    counts: GroupCounts,
    /// Number of the message that requested it; None once the reply is here.
    request: Option<Seq>,
    /// Whether the fabric reaches the destination, so that the bytes need no buffer.
    pub(super) is_direct: bool,
}

impl StagedGet {
    /// Returns the number of bytes of the answer.
    pub(super) fn len(&self) -> usize {
        end_of_gets(&self.records)
    }
}

impl Staging {
    pub(super) fn submit_get<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        op: &mut Op,
        request: &Request<'_>,
        remote: &HandleView<'_>,
        offset: u64,
    ) -> Attempt {
        let LocalSide::Memory(addr) = op.local else { return Ok(Outcome::Done) };
        debug_assert!(
            !matches!(op.kind, OpKind::PutSignal(_, SignalProtocol::Undecided)),
            "a signal follows a put"
        );
        let by_peer = remote.is_staged();
        let found = core.regions.lookup(addr, op.len);
        let (is_registered, is_device, is_cut) =
            (found.fabric.is_some(), found.device, found.cut.is_some());
        // Posting would fail with a better error: the region that ends too early.
        if is_cut && !is_device && core.needs_desc {
            let rail = core.peers.get(pe).path.rail;
            core.local(request, 0, op.len, rail)?;
        }
        let is_direct = is_registered
            || !is_device && {
                let reach = self.reach(core, ("get", pe), addr, op.len)?;
                reach == Reach::Direct && !core.needs_desc
            };
        // Another thread may still be making the bounce memory.
        if !is_direct && !self.has_buffers(core, (addr, op.len))? {
            return Ok(Outcome::LaneFull);
        }
        // A fragment must fit into a buffer on both sides.
        let own = self.stager.as_ref().map_or(FRAGMENT, |stager| stager.bounce.bounce_len);
        let max_len = if by_peer { own.min(remote.bounce_len()) } else { own };
        let is_same_host = by_peer && self.is_mapped_by(pe);
        let is_busy = self.is_busy_with(pe);
        let fragment = fragment_len(op.len, max_len, is_same_host, is_busy);
        let from = RegionAddr { region: remote.region(), offset };
        let max_bytes = if is_same_host { max_len } else { max_len.min(FRAGMENT) };
        let is_short = op.sent == 0 && op.len <= max_joined(is_same_host, is_busy).min(max_bytes);
        let may_join = by_peer && is_short && self.stager.is_some();
        let get = Record { completion: op.completion, ..Record::put(addr, op.len, from) };
        if may_join && self.join_get(pe, get, max_bytes) {
            op.sent = op.len;
            core.groups.begin(op.completion);
            return Ok(Outcome::Done);
        }
        let handle = core.peers.get_mut(pe).share_handle(request.remote_handle);
        while op.sent < op.len {
            if self.peer(pe).in_flight >= MAX_IN_FLIGHT {
                return Ok(Outcome::PeerFull);
            }
            let len = fragment.min(op.len - op.sent);
            // The fragment counts as a read until its bytes have landed.
            let counts = self.begin_transfer(core, pe, Class::Read, op.completion);
            let memory = addr + op.sent;
            let token = if by_peer {
                let from = RegionAddr { offset: offset + op.sent as u64, ..from };
                let mut records = self.spare.pop().unwrap_or_default();
                records.push(Record::put(memory, len, from));
                let get = StagedGet { pe, records, counts, request: None, is_direct };
                Token::Get(self.gets.add(get))
            } else {
                let from = remote.remote_address(offset) + op.sent as u64;
                let from = ReceiveSource::Handle(from, Arc::clone(&handle));
                let index =
                    self.add_receive(pe, Err(counts), ReceiveTarget::Memory(memory), from, len);
                Token::Receive(index)
            };
            // From here on the fragment ends by itself, even if the rest is queued.
            op.sent += len;
            if let (Token::Get(index), true) = (token, may_join) {
                // Left for the iteration, which requests it together with gets that follow.
                self.release_get(pe);
                let peer = core.peers.get(pe);
                let unanswered = peer.gets_requested.wrapping_sub(peer.gets_answered);
                let to = self.peer(pe);
                (to.joinable_get, to.holds_get) = (Some(index), true);
                if unanswered < UNANSWERED {
                    self.release_get(pe);
                }
                self.batcher.add_operation();
                return Ok(Outcome::Done);
            }
            match (token, &mut self.stager) {
                (Token::Receive(_), Some(stager)) => stager.inward.wait(pe, token.bits()),
                _ => self.outgoing.push_back(token),
            }
        }
        self.start(core);
        Ok(Outcome::Done)
    }

    /// Adds a get to one that is not requested yet. Returns whether it was added.
    fn join_get(&mut self, pe: Pe, record: Record, max_bytes: usize) -> bool {
        let Some(index) = self.peer(pe).joinable_get else { return false };
        let Some(get) = self.gets.get(index) else { return false };
        let record = place_get(&get.records, record);
        let is_near = further_get(get.records[0].to, record.to, record.len).is_some();
        if !is_near || get.records.len() == MAX_GETS || record.offset + record.len > max_bytes {
            return false;
        }
        get.records.push(record);
        // Their bytes arrive in one buffer.
        get.is_direct = false;
        if get.records.len() == MAX_GETS {
            self.release_get(pe);
        }
        self.batcher.add_operation();
        true
    }

    /// Queues the request of gets that were held back, if there is one.
    fn release_get(&mut self, pe: Pe) {
        let peer = self.peer(pe);
        if let (true, Some(index)) = (std::mem::take(&mut peer.holds_get), peer.joinable_get) {
            self.outgoing.push_back(Token::Get(index));
        }
    }

    pub(super) fn send_get_request<P: Port>(&mut self, core: &mut Core<P>, index: u32) -> Attempt {
        let Some(get) = self.gets.get(index) else { return Ok(Outcome::Done) };
        let (pe, first) = (get.pe, get.records[0]);
        let mut more = [0; MAX_GETS * FURTHER_GET];
        let others = get.records[1..].iter();
        let others = others.filter_map(|get| further_get(first.to, get.to, get.len)).flatten();
        more.iter_mut().zip(others).for_each(|(to, byte)| *to = byte);
        let more = &more[..FURTHER_GET * (get.records.len() - 1)];
        let (from, len) = (first.to, first.len as u32);
        let body = Body::GetRequest { from, len, get: index, more };
        let purpose = crate::channel::slots::Purpose::staged(Some(Token::Get(index).bits()), "get");
        let sending = OutgoingMessage::new(pe, body, get.counts.completion);
        let outcome =
            core.send(&OutgoingMessage { purpose, class: Some(Class::Read), ..sending })?;
        if outcome == Outcome::Done {
            // The get ends with its reply, not with the acknowledgement of the request.
            get.request = Some(core.channel(pe).last_sent());
            self.peer(pe).joinable_get.take_if(|joinable| *joinable == index);
            let asked = &mut core.peers.get_mut(pe).gets_requested;
            *asked = asked.wrapping_add(1);
        }
        Ok(outcome)
    }

    /// Returns name and length of the get that a message requested, by the low half of its number.
    pub(crate) fn get_requested_by(&self, pe: Pe, low: u32) -> Option<(&'static str, usize)> {
        let is = |get: &StagedGet| get.pe == pe && get.request.is_some_and(|seq| seq.low() == low);
        self.gets.iter().find(|(_, get)| is(get)).map(|(_, get)| ("get", get.len()))
    }

    pub(crate) fn was_issued(&self, get: u32) -> bool {
        (get as usize) < self.gets.entries.len()
    }

    /// Returns the get that a peer's reply is for; None if the peer has failed meanwhile.
    pub(super) fn take_requested_get<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        named: GetId,
        fits: impl Fn(&StagedGet) -> bool,
    ) -> Result<Option<&mut StagedGet>, String> {
        if core.peers.get(pe).error.is_some() {
            // A failed get has returned to the program, which may have released the destination.
            return Ok(None);
        }
        let is =
            |get: &StagedGet| get.pe == pe && get.request.is_some_and(|seq| seq.low() == named.low);
        match self.gets.get(named.number).filter(|get| is(get)) {
            Some(get) if fits(get) => {
                // A repeated reply must not match: its number may name another get by then.
                get.request = None;
                let answered = &mut core.peers.get_mut(pe).gets_answered;
                *answered = answered.wrapping_add(1);
                self.release_get(pe);
                Ok(self.gets.get(named.number))
            }
            Some(get) => Err(format!("an answer of another length to gets of {} bytes", get.len())),
            None => Err(String::from("an answer to a get that was not asked for")),
        }
    }

    pub(crate) fn finish_inline_get<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        named: GetId,
        payload: &[u8],
    ) -> Result<(), String> {
        let fits = |get: &StagedGet| get.records.len() == 1 && get.len() == payload.len();
        let Some(get) = self.take_requested_get(core, pe, named, fits)? else { return Ok(()) };
        let memory = get.records[0].memory;
        self.store_get(core, pe, memory, payload);
        self.end_get(core, named.number);
        Ok(())
    }

    /// Stores the bytes of a get at its destination. A failure fails the peer.
    pub(super) fn store_get<P: Port>(
        &mut self,
        core: &mut Core<P>,
        pe: Pe,
        memory: usize,
        bytes: &[u8],
    ) {
        let what = ("get", pe);
        let stored = self.local_reach(core, what, memory, bytes.len()).and_then(|reach| {
            let stored = match reach {
                Reach::Direct => core.port.store(memory, bytes),
                _ => self.copies(core).and_then(|copies| copies.store(memory, bytes)),
            };
            stored.map_err(|error| failed(what, bytes.len(), error))
        });
        if let Err(failure) = stored {
            core.fail_peer(pe, failure);
        }
    }

    pub(super) fn end_get<P: Port>(&mut self, core: &mut Core<P>, index: u32) {
        let Some(StagedGet { pe, counts, records, .. }) = self.gets.remove(index) else { return };
        records.iter().for_each(|record| core.end_in_group(record.completion));
        self.reuse(records);
        self.uncount(core, pe, counts);
        self.end_transfer(core, pe);
    }

    pub(super) fn drop_gets<P: Port>(&mut self, core: &mut Core<P>, pe: Pe) {
        self.peer(pe).holds_get = false;
        for index in self.gets.find(|get| get.pe == pe) {
            self.outgoing.retain(|other| *other != Token::Get(index));
            self.end_get(core, index);
        }
    }
}
