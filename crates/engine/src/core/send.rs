//! Messages: numbered ones as far as window and table permit, and *control messages*, which have no
//! number: acknowledgements, requests for them, replies and refusals.

use crate::channel::Channel;
use crate::channel::slots::{CONTROL, MessageSlots, Purpose};
use crate::core::Core;
use crate::error::EngineError;
use crate::group::{Class, CompletionId, OrderGroup};
use crate::ids::Pe;
use crate::op::{Attempt, Outcome};
use crate::peers::Peer;
use crate::port::{Port, PortError, Posted, Tail};
use crate::request::{AtomicRequest, LocalSide, Request};
use crate::segments::SegmentState;
use crate::wire::handle::HandleView;
use crate::wire::message::{Body, Frame, Numbers, SealContext, Seq};

/// Maximum number of peers per iteration whose waiting work may be tried without success.
pub(crate) const ATTEMPTS: u32 = 8;

#[derive(Clone, Copy, Debug)]
pub(crate) struct OutgoingMessage<'a> {
    pub(crate) pe: Pe,
    pub(crate) body: Body<'a>,
    pub(crate) tail: Tail,
    /// Last message that the target has to execute first.
    pub(crate) after: Seq,
    pub(crate) purpose: Purpose,
    pub(crate) completion: CompletionId,
    /// Order group that counts the message as a write until it leaves.
    pub(crate) write: Option<OrderGroup>,
    /// Whether a later separate signal has to follow the message.
    pub(crate) has_data: bool,
    /// Class in the order of the peer; None if nothing orders the message.
    pub(crate) class: Option<Class>,
}

impl<'a> OutgoingMessage<'a> {
    pub(crate) fn new(pe: Pe, body: Body<'a>, completion: CompletionId) -> Self {
        let (tail, purpose) = (Tail::NONE, Purpose::Plain);
        let (write, has_data, class) = (None, false, Some(Class::Message));
        Self { pe, body, tail, after: Seq::NONE, purpose, completion, write, has_data, class }
    }
}

impl<P: Port> Core<P> {
    /// Sends an atomic, or a short put with its signal, on the fast path: nothing is queued for the
    /// peer, no fence is pending (else `fast_prefix` matches no handle), and there is capacity.
    /// Returns false, with no side effect, if anything prevents that. Never panics.
    #[inline(always)]
    pub(crate) fn try_send(
        &mut self,
        signal: &AtomicRequest<'_>,
        part: Option<&Request<'_>>,
        completion: CompletionId,
    ) -> bool {
        let Self { peers, messages, rails, regions, groups, port, seal, .. } = self;
        let Some(peer) = peers.of_mut(signal.pe) else { return false };
        let Peer { channel, order, fast_prefix, pe, path, account, is_staging, .. } = peer;
        let Some(channel) = channel.as_deref_mut() else { return false };
        let rail = &rails[path.rail];
        // A peer takes another slot only while it holds less than is free, so a silent one leaves
        // some.
        if !channel.has_window() || channel.unfinished >= messages.free() {
            return false;
        }
        let atomic = &signal.atomic;
        let mut is_marked = false;
        // A signal apart from its data follows earlier puts, a strong one everything: writes would
        // have to be waited for, messages need a mark.
        let is_strong = self.signals.strong;
        if (part.is_some() || atomic.op.is_signal()) && (is_strong || part.is_none()) {
            if order.has_writes() {
                return false;
            }
            let before = if is_strong { channel.next } else { channel.after_data };
            is_marked = channel.acked < before;
            // Behind staged puts it may share a message with others.
            if is_marked && *is_staging {
                return false;
            }
        }
        let Some(word) = HandleView::for_messages(signal.remote_handle, *fast_prefix) else {
            return false;
        };
        let width = atomic.width.bytes();
        let Some(word_addr) = word.region_addr(signal.remote_addr, width as u64) else {
            return false;
        };
        if signal.remote_addr % width as u64 != 0 {
            return false;
        }
        // Reserved is not taken: until `take`, every return leaves the slot free.
        let Some(reserved) = messages.reserve() else { return false };
        let slot = &mut *reserved.slot;
        let mask = channel.out_mask(seal, *pe);
        let (seq, ack) = (channel.next, channel.executed.next());
        let numbers = Numbers { seq, ack, mark: is_marked.into(), mask };
        // Encoded in place and in this order: each argument is done with before the next is read.
        slot.frame.atomic(seal.me(), &numbers, (word_addr, atomic), part.is_some());
        if let Some(part) = part {
            let Some(data) = HandleView::for_messages(part.remote_handle, *fast_prefix) else {
                return false;
            };
            let Some(to) = data.region_addr(part.remote_addr, part.len as u64) else {
                return false;
            };
            let LocalSide::Memory(from) = part.local else { return false };
            if !regions.is_known_cpu_memory(from, part.len) {
                return false;
            }
            if port.load(from, slot.frame.data(to, part.len)).is_err() {
                return false;
            }
        }
        // Last, since the seal covers what is written above but the payload.
        slot.frame.seal(&SealContext { seal, from: seal.me(), receiver: &channel.receiver });
        let wr_id = MessageSlots::wr_id(reserved.index(), seq);
        if !port.try_send(rail.fast, path.rail, path.to, wr_id, reserved.slot.frame.bytes()) {
            return false;
        }
        let slot = &mut *reserved.slot;
        slot.seq = channel.next;
        slot.born = self.watchdog.time();
        let account = account.of_class(Class::Message, completion);
        order.begin(account.group());
        channel.send(reserved.take(account));
        if part.is_some() {
            // Later signals apart from their data have to follow this message.
            channel.after_data = channel.next;
        }
        groups.begin(completion);
        if !channel.in_unrequested {
            channel.in_unrequested = true;
            self.unrequested.push(signal.pe);
        }
        let next = path.next;
        peer.advance_path(next);
        true
    }

    /// Sends a numbered message if there is capacity.
    ///
    /// # Errors
    /// The fabric has refused it for good, and its peer has failed with that error.
    pub(crate) fn send(&mut self, message: &OutgoingMessage<'_>) -> Attempt {
        let OutgoingMessage { pe, ref body, tail, after, purpose, completion, .. } = *message;
        self.channel(pe);
        let Self { peers, messages, seal, port, .. } = self;
        let peer = peers.get_mut(pe);
        let mut path = peer.path;
        let Peer { channel, order, paths, is_refused, .. } = peer;
        let Some(channel) = channel.as_deref_mut() else { return Ok(Outcome::LaneFull) };
        if !channel.has_window() {
            // The window advances with acknowledgements, which nobody else may be requesting.
            self.request_ack(pe);
            return Ok(Outcome::PeerFull);
        }
        let reserved = if channel.unfinished < messages.free() { messages.reserve() } else { None };
        let Some(reserved) = reserved else {
            // Slots of any peer are freed by acknowledgements alone.
            self.request_acks();
            return Ok(Outcome::LaneFull);
        };
        let (index, slot) = (reserved.index(), &mut *reserved.slot);
        let mask = channel.out_mask(seal, pe);
        let (seq, ack) = (channel.next, channel.executed.next());
        // An acknowledged message needs no mark. The distance is below the window: it fits 16 bits.
        let mark = if after < channel.acked { 0 } else { (seq.0 - after.0) as u16 };
        let numbers = Numbers { seq, ack, mark, mask };
        let sealing = SealContext { seal, from: seal.me(), receiver: &channel.receiver };
        if let (Body::PutSignal { addr, atomic, to, .. }, true) = (body, tail.len > 0) {
            slot.frame.put_signal_long(&sealing, &numbers, (*addr, atomic), *to, tail.len);
        } else {
            slot.frame.encode(&sealing, &numbers, body);
        }
        let wr_id = MessageSlots::wr_id(index, seq);
        let mut left = None;
        for _ in 0..paths.len() {
            let (rail, to) = (path.rail, path.to);
            let bytes = slot.frame.bytes();
            let sent = match tail.len {
                0 => port.send(rail, to, wr_id, bytes),
                _ => port.send_with_tail(rail, to, wr_id, bytes, tail),
            };
            let account = path.account;
            path = paths.get(path.next as usize).copied().unwrap_or(path);
            match sent {
                Ok(Posted::Yes) => {
                    left = Some(account);
                    break;
                }
                Ok(Posted::Again) => self.rails[rail].counters.again += 1,
                Err(error) => {
                    let len = slot.frame.len + tail.len;
                    let failed = self.segment_error(("message", pe), len, rail, error);
                    self.fail_peer(pe, failed.clone());
                    return Err(failed);
                }
            }
        }
        *is_refused = left.is_none();
        let Some(account) = left else { return Ok(Outcome::LaneFull) };
        // A message that was counted as a write stays in the same group.
        let group = match (message.write, message.class) {
            (Some(write), _) => order.leave(write, seq),
            (None, Some(class)) => order.begin_last(class),
            (None, None) => OrderGroup::NONE,
        };
        slot.tail = tail;
        slot.seq = seq;
        slot.born = self.watchdog.time();
        slot.purpose = purpose;
        // Plain messages end in runs; a tail has to be cleared from the slot.
        let is_plain = purpose == Purpose::Plain && tail.len == 0;
        let state = if is_plain { SegmentState::Plain } else { SegmentState::Other };
        channel.send(reserved.take(account.in_groups(completion, group).with(state)));
        if let Purpose::Fetch { reply_slot, .. } = purpose {
            channel.begin_fetch(reply_slot, index);
        }
        if message.has_data {
            channel.after_data = channel.next;
        }
        self.groups.begin(completion);
        if !std::mem::replace(&mut channel.in_unrequested, true) {
            self.unrequested.push(pe);
        }
        peer.set_path(path);
        if message.write.is_some() {
            // The write has ended, and a cursor may move.
            self.settle_later(pe);
        }
        Ok(Outcome::Done)
    }

    pub(crate) fn last_before_fence(&self, pe: Pe) -> Seq {
        let peer = self.peers.get(pe);
        peer.order.last_message_before(peer.fence)
    }

    /// Requests an acknowledgement of everything sent to a peer, once until more is sent.
    pub(crate) fn request_ack(&mut self, pe: Pe) {
        if let Some(channel) = self.peers.get_mut(pe).channel.as_deref_mut() {
            if channel.request_ack() {
                self.enter_control(pe);
            }
        }
    }

    /// Requests an acknowledgement unless a request has not been answered.
    pub(crate) fn request_first_ack(&mut self, pe: Pe) {
        let channel = self.peers.get(pe).channel.as_deref();
        if channel.is_some_and(|channel| !channel.is_ack_requested()) {
            self.request_ack(pe);
        }
    }

    /// Requests acknowledgements from all peers with messages for which none was requested: a
    /// caller that waits for one peer after another then waits once.
    pub(crate) fn request_acks(&mut self) {
        while let Some(pe) = self.unrequested.pop() {
            if let Some(channel) = self.peers.get_mut(pe).channel.as_deref_mut() {
                channel.in_unrequested = false;
            }
            self.request_ack(pe);
        }
    }

    /// Schedules the control messages that are due to a peer.
    pub(crate) fn enter_control(&mut self, pe: Pe) {
        let Some(channel) = self.peers.get_mut(pe).channel.as_deref_mut() else { return };
        if channel.has_control() && !std::mem::replace(&mut channel.in_control, true) {
            self.control.push_back(pe);
        }
    }

    #[inline(always)]
    pub(crate) fn has_control(&self) -> bool {
        !self.control.is_empty()
    }

    /// Notes whether other work was posted: a transmit queue's last entry is then left to a control
    /// message that waits, once.
    pub(crate) fn take_turn(&mut self, posted: bool) {
        self.control_first |= posted && self.has_control();
    }

    /// Sends control messages for which other work has left no capacity.
    pub(crate) fn send_refused_control(&mut self) -> bool {
        self.control_first && self.send_control()
    }

    /// Sends due control messages as far as capacity permits. Returns whether any left.
    #[cold]
    pub(crate) fn send_control(&mut self) -> bool {
        let mut moved = false;
        let mut refused = 0;
        for _ in 0..self.control.len() {
            let Some(pe) = self.control.pop_front() else { break };
            if self.send_control_to(pe, &mut moved) {
                if let Some(channel) = self.peers.get_mut(pe).channel.as_deref_mut() {
                    channel.in_control = false;
                }
                continue;
            }
            self.control.push_back(pe);
            refused += 1;
            if refused == ATTEMPTS {
                break;
            }
        }
        self.control_first &= !moved;
        moved
    }

    /// Sends all control messages that are due to a peer. Returns false if some are left.
    fn send_control_to(&mut self, pe: Pe, moved: &mut bool) -> bool {
        loop {
            let peer = self.peers.get_mut(pe);
            let Some(channel) = peer.channel.as_deref_mut() else { return true };
            let map = channel.executed.map();
            let why;
            let (body, sent): (Body<'_>, fn(&mut Channel)) = if channel.replies_due != 0 {
                let reply_slot = channel.replies_due.trailing_zeros();
                let (of, value) = channel.replies[reply_slot as usize];
                (Body::Reply { reply_slot, low: of.low(), value }, |channel| {
                    channel.replies_due &= channel.replies_due - 1;
                })
            } else if let (Some((of, reason)), 0) = (&channel.refusal, channel.reads) {
                // The receiver of a refusal reuses the buffers that this lane read from.
                why = reason.clone();
                (Body::Refusal { low: of.low(), why: &why }, |channel| channel.refusal = None)
            } else if channel.ack_request_due {
                (Body::AckRequest, |channel| channel.ack_request_due = false)
            } else if channel.ack_due {
                (Body::Ack(map.as_ref()), |channel| channel.ack_due = false)
            } else {
                return channel.refusal.is_none();
            };
            match self.send_control_message(pe, &body) {
                Ok(Posted::Yes) => {
                    *moved = true;
                    if let Some(channel) = self.peers.get_mut(pe).channel.as_deref_mut() {
                        sent(channel);
                    }
                }
                Ok(Posted::Again) => return false,
                Err((rail, error)) => {
                    // The flags stay set: the watchdog's next check tries again, since the peer may
                    // wait for this alone.
                    if self.peers.get(pe).error.is_none() {
                        let rail_name = self.port.rail_name(rail).to_owned();
                        self.fail_peer(pe, EngineError::Rail { rail, rail_name, error });
                    }
                    return true;
                }
            }
        }
    }

    fn send_control_message(
        &mut self,
        pe: Pe,
        body: &Body<'_>,
    ) -> Result<Posted, (crate::ids::RailId, PortError)> {
        let Self { peers, seal, port, .. } = self;
        let peer = peers.get_mut(pe);
        let path = peer.path;
        let Some(channel) = peer.channel.as_deref_mut() else { return Ok(Posted::Yes) };
        let mask = channel.out_mask(seal, pe);
        // Without a number of its own it carries the next one: an `AckRequest` is for all messages
        // before.
        let (seq, ack) = (channel.next, channel.executed.next());
        let sealing = SealContext { seal, from: seal.me(), receiver: &channel.receiver };
        let mut frame = Frame::EMPTY;
        frame.encode(&sealing, &Numbers { seq, ack, mark: 0, mask }, body);
        let sent = port.send(path.rail, path.to, CONTROL, frame.bytes());
        match sent {
            Ok(Posted::Yes) => channel.set_ack_sent(ack),
            Ok(Posted::Again) => self.rails[path.rail].counters.again += 1,
            Err(_) => {}
        }
        // The next message tries another rail, in case this one is full or broken.
        peer.advance_path(path.next);
        sent.map_err(|error| (path.rail, error))
    }
}
