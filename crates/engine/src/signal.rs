//! Signals: how the signal of a put follows its data, and which operations come before a signal.
//!
//! `SignalChoice` describes the protocols.
//!
//! The signal of a put follows its own data alone. A signal without data, by an atomic operation or
//! behind a put of several parts, follows all puts started before. Strong signals, those of a lane
//! that orders them (NCCL's), follow all earlier puts and signals.

use crate::channel::slots::Purpose;
use crate::core::send::OutgoingMessage;
use crate::core::{Continuation, Core};
use crate::group::{Class, CompletionId, OrderGroup};
use crate::ids::Pe;
use crate::op::{Attempt, Op, OpKind, Outcome, SignalProtocol, WordOp};
use crate::peers::WaitingSignal;
use crate::port::{Port, Tail};
use crate::request::{FetchTarget, LocalSide, Request};
use crate::wire::message::{Body, RegionAddr, Seq, Tag};

/// Maximum number of unacknowledged messages to a peer for a long one with a mark to leave: a bound
/// of the long messages that the target holds until their marks are reached.
const MAX_HELD: u32 = 32;

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
        pe: Pe,
        op: &Op,
        word: WordOp,
        payload: &Payload<'_>,
    ) -> Option<SignalProtocol> {
        if self.may_be_eager(pe, op) {
            // Only those that fit every message are loaded.
            if payload.bytes.is_some() {
                return Some(SignalProtocol::Eager);
            }
            // A long message is held at the target while its mark is not reached.
            let (peer, strong) = (self.peers.get(pe), self.signals.strong);
            let unfinished = peer.channel.as_deref().map_or(0, |channel| channel.unfinished);
            let is_marked = strong || !peer.order.is_ordered(peer.fence);
            let may_be_held = is_marked && unfinished >= MAX_HELD;
            if op.len <= self.signals.longest && payload.is_direct && !may_be_held {
                return Some(SignalProtocol::EagerLong);
            }
        }
        if self.signals.tags > 0 {
            let channel = self.channel(pe);
            let tag = channel.tags.take();
            // Tags come back with acknowledgements, which nobody else may be requesting.
            if channel.tags.are_few() {
                self.request_ack(pe);
            }
            return tag.map(|tag| SignalProtocol::Counted { tag, segments: 0 });
        }
        Some(self.chain(pe, op, word))
    }

    /// Returns true if data and signal may be one message, whatever their length.
    pub(crate) fn may_be_eager(&self, pe: Pe, op: &Op) -> bool {
        // A message with data cannot wait until writes are delivered.
        let has_to_wait = self.signals.strong && self.peers.get(pe).order.has_writes();
        self.signals.eager && matches!(op.local, LocalSide::Memory(_)) && !has_to_wait
    }

    /// Makes a signal follow data in a completion group of its own; a strong one everything.
    pub(crate) fn chain(&mut self, pe: Pe, op: &Op, word: WordOp) -> SignalProtocol {
        if self.signals.strong {
            // A chained signal would overtake earlier ones whose data is delivered later.
            return SignalProtocol::Ordered;
        }
        let Some(data) = self.groups.start() else { return SignalProtocol::Ordered };
        // Until the signal has left, its operation counts as a write: fences and quiets wait.
        let group = self.peers.get_mut(pe).order.begin_last(Class::Write);
        // The operation's own count keeps the group from ending before all segments are posted.
        self.groups.begin(data);
        self.groups.begin(op.completion);
        let completion = op.completion;
        self.groups.set_continuation(data, Continuation::Signal { pe, word, group, completion });
        SignalProtocol::Chained { data, group }
    }

    /// Submits as much of a put with signal as capacity permits. Its protocol is chosen.
    pub(crate) fn advance_put_signal(
        &mut self,
        pe: Pe,
        op: &mut Op,
        request: &Request<'_>,
        payload: &Payload<'_>,
    ) -> Attempt {
        let OpKind::PutSignal(word, ref mut protocol) = op.kind else { return Ok(Outcome::Done) };
        match *protocol {
            SignalProtocol::Undecided => Ok(Outcome::Blocked),
            SignalProtocol::Eager | SignalProtocol::EagerLong => {
                let is_long = *protocol == SignalProtocol::EagerLong;
                self.send_eager(pe, op, word, request, payload, is_long)
            }
            SignalProtocol::Counted { tag, segments } => {
                self.advance_counted(pe, op, word, request, (tag, segments))
            }
            SignalProtocol::Chained { data, .. } => {
                // Its order group counts the operation, not the segments.
                op.group = Some(OrderGroup::NONE);
                let (_, outcome) = self.post_parts(pe, op, request, None)?;
                if outcome == Outcome::Done {
                    self.end_in_group(data);
                }
                Ok(outcome)
            }
            SignalProtocol::Ordered => {
                let (_, outcome) = self.post_parts(pe, op, request, None)?;
                if outcome != Outcome::Done {
                    return Ok(outcome);
                }
                // All data is posted: the signal closes the group that counts it.
                self.submit_signal(pe, word, None, op.completion)
            }
        }
    }

    fn send_eager(
        &mut self,
        pe: Pe,
        op: &Op,
        word: WordOp,
        request: &Request<'_>,
        payload: &Payload<'_>,
        is_long: bool,
    ) -> Attempt {
        let peer = self.peers.get(pe);
        if !peer.order.is_written(peer.fence) {
            return Ok(Outcome::Blocked);
        }
        let (remote, offset) = request.remote()?;
        let LocalSide::Memory(addr) = op.local else { return Ok(Outcome::Blocked) };
        let to = RegionAddr { region: remote.region(), offset };
        let WordOp { addr: word_addr, atomic } = word;
        let bytes = if is_long { &[] } else { payload.bytes.unwrap_or_default() };
        // The tail brings a long payload from its own memory.
        let body = Body::PutSignal { addr: word_addr, atomic, to, payload: bytes };
        let tail = if is_long { Tail { addr, len: op.len } } else { Tail::NONE };
        let after = self.last_before_signal(pe);
        let message = OutgoingMessage::new(pe, body, op.completion);
        self.send(&OutgoingMessage { tail, after, has_data: true, ..message })
    }

    fn advance_counted(
        &mut self,
        pe: Pe,
        op: &mut Op,
        word: WordOp,
        request: &Request<'_>,
        (tag, before): (Tag, u32),
    ) -> Attempt {
        // All segments of the put carry the same immediate data; the target counts them.
        let data = self.immediate.encode(pe, tag);
        let (posted, outcome) = self.post_parts(pe, op, request, Some(data))?;
        let segments = before + posted;
        // The rest may be posted in a later turn, and the signal names all of them.
        op.kind = OpKind::PutSignal(word, SignalProtocol::Counted { tag, segments });
        if outcome != Outcome::Done {
            return Ok(outcome);
        }
        self.submit_signal(pe, word, Some((tag, segments)), op.completion)
    }

    /// Returns the last message that a signal which leaves with its data has to follow.
    pub(crate) fn last_before_signal(&self, pe: Pe) -> Seq {
        let peer = self.peers.get(pe);
        match &peer.channel {
            Some(channel) if self.signals.strong => channel.last_sent(),
            _ => self.last_before_fence(pe),
        }
    }

    /// Returns the last message that a signal apart from its data has to follow.
    pub(crate) fn last_before_separate_signal(&self, pe: Pe) -> Seq {
        let peer = self.peers.get(pe);
        match &peer.channel {
            None => Seq::NONE,
            Some(channel) if self.signals.strong => channel.last_sent(),
            Some(channel) => {
                // Earlier puts may have travelled in messages, which the mark has to name.
                let data = Seq(channel.after_data.0 - 1);
                data.max(peer.order.last_message_before(peer.fence))
            }
        }
    }

    /// Submits a signal. It waits for earlier puts, or only for its own data if it is `counted`.
    pub(crate) fn submit_signal(
        &mut self,
        pe: Pe,
        word: WordOp,
        counted: Option<(Tag, u32)>,
        completion: CompletionId,
    ) -> Attempt {
        let strong = self.signals.strong;
        let peer = self.peers.get_mut(pe);
        // A copy of its data may have failed meanwhile, and with it the peer.
        peer.check()?;
        if (strong || counted.is_none()) && peer.order.has_writes() {
            let Some(fence) = peer.close() else { return Ok(Outcome::Blocked) };
            // It counts in the new group, so it never waits for itself.
            let group = peer.order.begin_last(Class::Write);
            let signal = WaitingSignal { word, counted, fence, group, completion };
            peer.waiting_signals.push_back(signal);
            self.groups.begin(completion);
            self.request_ack(pe);
            return Ok(Outcome::Done);
        }
        // Counted segments waited for the fence, and the signal waits for them.
        let follows_all = strong || counted.is_none();
        let after = if follows_all { self.last_before_separate_signal(pe) } else { Seq::NONE };
        self.send_word(pe, word, counted, after, None, completion)
    }

    /// Sends the waiting signals of a peer whose writes are delivered.
    pub(crate) fn send_waiting_signals(&mut self, pe: Pe) -> Attempt {
        loop {
            let peer = self.peers.get(pe);
            // Not always in order: a chained signal waits for its own data alone.
            let free = |signal: &WaitingSignal| peer.order.is_written(signal.fence);
            let Some(index) = peer.waiting_signals.iter().position(free) else {
                return Ok(Outcome::Done);
            };
            let WaitingSignal { word, counted, fence, group, completion } =
                peer.waiting_signals[index];
            let after = peer.order.last_message_before(fence);
            let outcome = self.send_word(pe, word, counted, after, Some(group), completion)?;
            if outcome != Outcome::Done {
                return Ok(outcome);
            }
            self.peers.get_mut(pe).waiting_signals.remove(index);
            self.end_in_group(completion);
        }
    }

    fn send_word(
        &mut self,
        pe: Pe,
        WordOp { addr, atomic }: WordOp,
        counted: Option<(Tag, u32)>,
        after: Seq,
        write: Option<OrderGroup>,
        completion: CompletionId,
    ) -> Attempt {
        let (body, purpose) = match counted {
            None => (Body::Word { addr, atomic }, Purpose::Plain),
            Some((tag, segments)) => {
                (Body::CountedSignal { addr, atomic, tag, segments }, Purpose::CountedSignal(tag))
            }
        };
        // Executed, a counted signal has its data before it, as later signals require.
        let has_data = counted.is_some();
        let message = OutgoingMessage::new(pe, body, completion);
        self.send(&OutgoingMessage { after, write, purpose, has_data, ..message })
    }

    /// Returns the last message before the fence, which the mark of an atomic covers; None before
    /// earlier writes are delivered.
    pub(crate) fn behind_writes(&self, pe: Pe) -> Option<Seq> {
        let peer = self.peers.get(pe);
        peer.order.is_written(peer.fence).then(|| self.last_before_fence(pe))
    }

    /// Submits an atomic that only fences order.
    pub(crate) fn submit_word(
        &mut self,
        pe: Pe,
        word: WordOp,
        completion: CompletionId,
    ) -> Attempt {
        let Some(after) = self.behind_writes(pe) else { return Ok(Outcome::Blocked) };
        self.send_word(pe, word, None, after, None, completion)
    }

    pub(crate) fn submit_fetch(
        &mut self,
        pe: Pe,
        WordOp { addr, atomic }: WordOp,
        result: FetchTarget,
        completion: CompletionId,
    ) -> Attempt {
        let Some(after) = self.behind_writes(pe) else { return Ok(Outcome::Blocked) };
        // The peer caches the reply by reply slot, so fetches in flight are bounded by the slots.
        let Some(reply_slot) = self.channel(pe).free_reply_slot() else {
            return Ok(Outcome::PeerFull);
        };
        let width = atomic.width.bytes();
        let body = Body::Fetch { addr, atomic, reply_slot };
        let purpose = Purpose::Fetch { result, width, reply_slot };
        let message = OutgoingMessage::new(pe, body, completion);
        self.send(&OutgoingMessage { after, purpose, ..message })
    }
}
