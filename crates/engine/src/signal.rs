//! Signals: how the signal of a put follows its data, and which operations come before a signal.
//!
//! *Eager*: data and signal are one message. *Counted*: the segments carry immediate data, and the
//! signal's message says how many of them the target has to count. *Chained*: the segments have a
//! completion group of their own whose continuation sends the signal.
//!
//! The signal of a put follows its own data alone. A signal without data, by an atomic operation,
//! follows all puts started before. Strong signals, those of a lane that orders them (NCCL's),
//! follow all earlier puts and signals.

use crate::channel::slots::Purpose;
use crate::core::send::OutgoingMessage;
use crate::core::{Continuation, Core};
use crate::group::{Class, GroupId, GroupRef};
use crate::ids::Pe;
use crate::op::{Attempt, Op, OpKind, Outcome, SignalProtocol, WordOp};
use crate::peers::HeldSignal;
use crate::port::{Port, Tail};
use crate::request::{FetchTarget, LocalSide, Request};
use crate::wire::message::{Body, RegionAddr, Tag};

/// Maximum number of unacknowledged messages to a peer for another long one with a mark to leave.
/// The target keeps a message that waits for its mark, so this bounds its memory to as many long
/// ones.
const MAX_KEPT: u32 = 32;

/// The payload of a put with signal, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload<'a> {
    /// Its bytes, if they were loaded for a message.
    pub(crate) bytes: Option<&'a [u8]>,
    /// Whether processors reach it at both ends.
    pub(crate) is_direct: bool,
}

impl<P: Port> Core<P> {
    /// Chooses the protocol of a put with signal between memories that the fabric reaches, or with
    /// a short payload. None while the peer has no tag for it.
    pub(crate) fn choose_protocol(
        &mut self,
        at: u32,
        op: &Op,
        word: WordOp,
        payload: &Payload<'_>,
    ) -> Option<SignalProtocol> {
        if self.may_be_eager(at, op) {
            // Only those that fit every message are loaded.
            if payload.bytes.is_some() {
                return Some(SignalProtocol::Eager);
            }
            // A long message is kept at the target while its mark is not reached.
            let (peer, strong) = (self.peers.get(at), self.signals.strong);
            let unacked = peer.channel.as_deref().map_or(0, |channel| channel.held);
            let is_marked = strong || !peer.order.is_ordered(peer.fence);
            let may_be_kept = is_marked && unacked >= MAX_KEPT;
            if op.len <= self.signals.longest && payload.is_direct && !may_be_kept {
                return Some(SignalProtocol::EagerLong);
            }
        }
        if self.signals.tags > 0 {
            let channel = self.channel(at);
            let tag = channel.tags.take();
            // Tags come back with acknowledgements, which nobody else may be requesting.
            if channel.tags.are_few() {
                self.request_ack(at);
            }
            return tag.map(|tag| SignalProtocol::Counted { tag, segments: 0 });
        }
        Some(self.chain(at, op, word))
    }

    /// Returns true if data and signal may be one message, whatever their length.
    pub(crate) fn may_be_eager(&self, at: u32, op: &Op) -> bool {
        // A message with data cannot be held back until writes are delivered.
        let is_behind = self.signals.strong && self.peers.get(at).order.has_writes();
        self.signals.eager && matches!(op.local, LocalSide::Memory(_)) && !is_behind
    }

    /// Makes a signal follow data in a completion group of its own; a strong one everything.
    pub(crate) fn chain(&mut self, at: u32, op: &Op, word: WordOp) -> SignalProtocol {
        if self.signals.strong {
            // A chained signal would overtake earlier ones whose data is delivered later.
            return SignalProtocol::Ordered;
        }
        let Some(data) = self.groups.start() else { return SignalProtocol::Ordered };
        // Until the signal has left, the operation counts as a write: fences and quiets wait for
        // it.
        let held = self.peers.get_mut(at).order.begin_last(Class::Write);
        // The operation's own count keeps the group from ending before all segments are posted.
        self.groups.begin(data);
        self.groups.begin(op.completion);
        let completion = op.completion;
        self.groups
            .set_continuation(data, Continuation::Signal { peer: at, word, held, completion });
        SignalProtocol::Chained { data, held }
    }

    /// Submits as much of a put with signal as capacity permits. Its protocol is chosen.
    pub(crate) fn advance_put_signal(
        &mut self,
        at: u32,
        op: &mut Op,
        request: &Request<'_>,
        payload: &Payload<'_>,
    ) -> Attempt {
        let OpKind::PutSignal(word, ref mut protocol) = op.kind else { return Ok(Outcome::Done) };
        match *protocol {
            SignalProtocol::Undecided => Ok(Outcome::Held),
            SignalProtocol::Eager | SignalProtocol::EagerLong => {
                let is_long = *protocol == SignalProtocol::EagerLong;
                self.send_eager(at, op, word, request, payload, is_long)
            }
            SignalProtocol::Counted { tag, segments } => {
                self.advance_counted(at, op, word, request, (tag, segments))
            }
            SignalProtocol::Chained { data, .. } => {
                // `held` counts for the segments in the order group.
                op.counted_by = Some(GroupRef::NONE);
                let (_, outcome) = self.post_parts(at, op, request, None)?;
                if outcome == Outcome::Done {
                    self.end_in_group(data);
                }
                Ok(outcome)
            }
            SignalProtocol::Ordered => {
                let (_, outcome) = self.post_parts(at, op, request, None)?;
                if outcome != Outcome::Done {
                    return Ok(outcome);
                }
                // All data is posted: the signal closes the group that counts it.
                self.submit_signal(at, word, None, op.completion)
            }
        }
    }

    fn send_eager(
        &mut self,
        at: u32,
        op: &Op,
        word: WordOp,
        request: &Request<'_>,
        payload: &Payload<'_>,
        is_long: bool,
    ) -> Attempt {
        let peer = self.peers.get(at);
        if !peer.order.is_written(peer.fence) {
            return Ok(Outcome::Held);
        }
        let (remote, offset) = request.remote()?;
        let LocalSide::Memory(addr) = op.local else { return Ok(Outcome::Held) };
        let to = RegionAddr { slot: remote.slot(), offset };
        let WordOp { at: word_addr, atomic } = word;
        let bytes = if is_long { &[] } else { payload.bytes.unwrap_or_default() };
        // The tail brings a long payload from its own memory.
        let body = Body::PutSignal { at: word_addr, atomic, to, payload: bytes };
        let tail = if is_long { Tail { addr, len: op.len } } else { Tail::NONE };
        let behind = self.behind_of_signal(at);
        let message = OutgoingMessage::new(at, body, op.completion);
        self.send(&OutgoingMessage { tail, behind, has_data: true, ..message })
    }

    fn advance_counted(
        &mut self,
        at: u32,
        op: &mut Op,
        word: WordOp,
        request: &Request<'_>,
        (tag, before): (Tag, u32),
    ) -> Attempt {
        // All segments of the put carry the same immediate data; the target counts them.
        let data = self.immediate.encode(Pe(at), tag);
        let (posted, outcome) = self.post_parts(at, op, request, Some(data))?;
        let segments = before + posted;
        // The rest may be posted in a later turn, and the signal names all of them.
        op.kind = OpKind::PutSignal(word, SignalProtocol::Counted { tag, segments });
        if outcome != Outcome::Done {
            return Ok(outcome);
        }
        self.submit_signal(at, word, Some((tag, segments)), op.completion)
    }

    /// Returns the last message that a signal which leaves with its data has to follow.
    pub(crate) fn behind_of_signal(&self, at: u32) -> u64 {
        let peer = self.peers.get(at);
        match &peer.channel {
            Some(channel) if self.signals.strong => channel.next.0 - 1,
            _ => self.behind_fence(at),
        }
    }

    /// Returns the last message that a signal apart from its data has to follow.
    pub(crate) fn behind_of_separate(&self, at: u32) -> u64 {
        let peer = self.peers.get(at);
        match &peer.channel {
            None => 0,
            Some(channel) if self.signals.strong => channel.next.0 - 1,
            Some(channel) => {
                // Earlier puts may have travelled in messages, which the mark has to name.
                let data = channel.after_data.0 - 1;
                data.max(peer.order.last_message_before(peer.fence))
            }
        }
    }

    /// Submits a signal that follows earlier puts, or only its own data if it is `counted`. Holds
    /// it back while such puts are not delivered.
    pub(crate) fn submit_signal(
        &mut self,
        at: u32,
        word: WordOp,
        counted: Option<(Tag, u32)>,
        completion: GroupId,
    ) -> Attempt {
        let strong = self.signals.strong;
        let peer = self.peers.get_mut(at);
        // A copy of its data may have failed meanwhile, and with it the peer.
        peer.check()?;
        if (strong || counted.is_none()) && peer.order.has_writes() {
            let Some(behind) = peer.close() else { return Ok(Outcome::Held) };
            // It counts in the new group, so it never waits for itself.
            let held = peer.order.begin_last(Class::Write);
            peer.held.push_back(HeldSignal { word, counted, behind, held, completion });
            self.groups.begin(completion);
            self.request_ack(at);
            return Ok(Outcome::Done);
        }
        // Counted segments waited for the fence, and the signal waits for them.
        let is_behind = strong || counted.is_none();
        let behind = if is_behind { self.behind_of_separate(at) } else { 0 };
        self.send_word(at, word, counted, behind, None, completion)
    }

    /// Sends the held signals of a peer whose writes are delivered.
    pub(crate) fn send_held(&mut self, at: u32) -> Attempt {
        loop {
            let peer = self.peers.get(at);
            // Not always in order: a chained signal waits for its own data alone.
            let free = |signal: &HeldSignal| peer.order.is_written(signal.behind);
            let Some(place) = peer.held.iter().position(free) else { return Ok(Outcome::Done) };
            let HeldSignal { word, counted, behind, held, completion } = peer.held[place];
            let last = peer.order.last_message_before(behind);
            let outcome = self.send_word(at, word, counted, last, Some(held), completion)?;
            if outcome != Outcome::Done {
                return Ok(outcome);
            }
            self.peers.get_mut(at).held.remove(place);
            self.end_in_group(completion);
        }
    }

    fn send_word(
        &mut self,
        at: u32,
        WordOp { at: word_addr, atomic }: WordOp,
        counted: Option<(Tag, u32)>,
        behind: u64,
        held: Option<GroupRef>,
        completion: GroupId,
    ) -> Attempt {
        let (body, purpose) = match counted {
            None => (Body::Word { at: word_addr, atomic }, Purpose::Plain),
            Some((tag, segments)) => (
                Body::CountedSignal { at: word_addr, atomic, tag, segments },
                Purpose::CountedSignal(tag),
            ),
        };
        // Executed, a counted signal has its data before it, as later signals require.
        let has_data = counted.is_some();
        let message = OutgoingMessage::new(at, body, completion);
        self.send(&OutgoingMessage { behind, held, purpose, has_data, ..message })
    }

    /// Submits an atomic that only fences order.
    pub(crate) fn submit_word(&mut self, at: u32, word: WordOp, completion: GroupId) -> Attempt {
        let peer = self.peers.get(at);
        // Its mark covers earlier messages; earlier writes have to be delivered first.
        if !peer.order.is_written(peer.fence) {
            return Ok(Outcome::Held);
        }
        let behind = self.behind_fence(at);
        self.send_word(at, word, None, behind, None, completion)
    }

    /// Submits a fetch.
    pub(crate) fn submit_fetch(
        &mut self,
        at: u32,
        WordOp { at: word_addr, atomic }: WordOp,
        result: FetchTarget,
        completion: GroupId,
    ) -> Attempt {
        let peer = self.peers.get(at);
        if !peer.order.is_written(peer.fence) {
            return Ok(Outcome::Held);
        }
        let behind = self.behind_fence(at);
        // The peer keeps the reply by place, so fetches in flight are bounded by the places.
        let Some(place) = self.channel(at).fetch_place() else { return Ok(Outcome::PeerFull) };
        let width = atomic.width.bytes();
        let body = Body::Fetch { at: word_addr, atomic, place };
        let purpose = Purpose::Fetch { result, width, place };
        let message = OutgoingMessage::new(at, body, completion);
        self.send(&OutgoingMessage { behind, purpose, ..message })
    }
}
