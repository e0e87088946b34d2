//! Ends: completions of segments, acknowledgements of messages, and what both make possible.
//!
//! Nothing is posted here. Peers and groups whose counts have reached zero go into lists, which
//! the lane's iteration works through.

use crate::channel::slots::Purpose as MessagePurpose;
use crate::core::{Core, StagedEvent, Then};
use crate::error::EngineError;
use crate::group::{GroupId, Groups};
use crate::ids::{Pe, RailId, WrId};
use crate::peers::{HeldSignal, Peers};
use crate::port::{Completions, Failure, Polled, Port};
use crate::segments::{Purpose, Segment, Segments, State};
use crate::wire::message::{MAP_BYTES, Seq, WINDOW};

/// Takes the completions of a poll.
struct Sink<'a> {
    segments: &'a mut Segments,
    peers: &'a mut Peers,
    groups: &'a mut Groups<Then>,
    settling: &'a mut Vec<u32>,
    emptied: &'a mut Vec<GroupId>,
    /// Segments whose completion is for more than their counts.
    others: &'a mut Vec<u32>,
    count: u32,
}

impl Completions for Sink<'_> {
    #[inline(always)]
    fn take(&mut self, index: usize) -> bool {
        let Some(segment) = self.segments.posted_mut(index) else { return false };
        self.count += 1;
        if segment.state != State::Posted || segment.purpose != Purpose::Plain {
            self.others.push(index as u32);
            return true;
        }
        let Segment { peer: at, group, completion, .. } = *segment;
        let peer = self.peers.get_mut(at);
        peer.in_flight -= 1;
        if peer.order.end(group) && peer.order.has_closed() && !peer.is_settling {
            peer.is_settling = true;
            self.settling.push(at);
        }
        if self.groups.end(completion) {
            self.emptied.push(completion);
        }
        self.segments.free(index);
        true
    }
}

impl<P: Port> Core<P> {
    /// Takes a rail's completions. Returns whether there were any.
    #[inline(always)]
    pub(crate) fn take_completions(&mut self, rail: RailId, others: &mut Vec<u32>) -> bool {
        let Self { segments, peers, groups, settling, emptied, .. } = self;
        let mut sink = Sink { segments, peers, groups, settling, emptied, others, count: 0 };
        let polled = self.port.drain(rail, &mut sink);
        let count = sink.count;
        if count > 0 {
            let rail = &mut self.rails[rail.index()];
            rail.in_flight -= count;
            rail.counters.completed += u64::from(count);
            self.eightfold_room += 8 * count;
            if !others.is_empty() {
                self.complete_others(others);
            }
        }
        match polled {
            Polled::Empty => false,
            Polled::Completed(_) => true,
            Polled::Failed(failure) => {
                self.take_failure(rail, *failure);
                true
            }
        }
    }

    /// Completes segments that are more than plain transfers.
    #[cold]
    fn complete_others(&mut self, others: &mut Vec<u32>) {
        for at in others.drain(..) {
            self.complete_other(at, true);
        }
    }

    /// Ends a segment of any purpose; `ok`: it has completed without error.
    fn complete_other(&mut self, index: u32, ok: bool) {
        let Some(segment) = self.segments.posted_mut(index as usize) else { return };
        let segment = *segment;
        self.segments.free(index as usize);
        let peer = self.peers.get_mut(segment.peer);
        peer.in_flight -= 1;
        if segment.purpose == Purpose::Stripe {
            let now = self.port.now();
            let (rail, len) = (&mut self.rails[segment.rail.index()], segment.transfer.len as u64);
            rail.load.complete(len, now);
            peer.ahead[segment.rail.index()] -= len;
        }
        if segment.state == State::Orphan {
            self.regions.index().leave_orphan(self.regions.kind(), index);
        } else {
            if peer.order.end(segment.group) {
                self.settle_later(segment.peer);
            }
            self.end_in_group(segment.completion);
        }
        if let Purpose::Staged(token) = segment.purpose {
            let ok = ok && segment.state == State::Posted;
            self.staged.push_back(StagedEvent::Segment { token, ok });
        }
    }

    /// Notes that the cursors of a peer's groups may move.
    pub(crate) fn settle_later(&mut self, at: u32) {
        let peer = self.peers.get_mut(at);
        if !std::mem::replace(&mut peer.is_settling, true) {
            self.settling.push(at);
        }
    }

    /// Gives one count of a completion group back.
    pub(crate) fn end_in_group(&mut self, group: GroupId) {
        if self.groups.end(group) {
            self.emptied.push(group);
        }
    }

    /// Whether peers or groups have to be settled.
    #[inline(always)]
    pub(crate) fn has_settling(&self) -> bool {
        !self.settling.is_empty() || !self.emptied.is_empty()
    }

    /// Moves the cursors of peers whose groups have finished, and runs continuations.
    #[cold]
    pub(crate) fn settle(&mut self) {
        while self.has_settling() {
            while let Some(at) = self.settling.pop() {
                self.settle_peer(at);
            }
            while let Some(group) = self.emptied.pop() {
                if let Some(then) = self.groups.take_then(group) {
                    self.groups.finish(group);
                    self.follow(then);
                }
            }
        }
    }

    fn settle_peer(&mut self, at: u32) {
        let peer = self.peers.get_mut(at);
        peer.is_settling = false;
        peer.order.settle();
        peer.update_open();
        let order = &peer.order;
        let over = |(behind, group): &(u32, GroupId)| order.is_finished(*behind).then_some(*group);
        let ended: Vec<GroupId> = peer.quiets.iter().filter_map(over).collect();
        if !ended.is_empty() {
            peer.quiets.retain(|(behind, _)| !order.is_finished(*behind));
        }
        if !peer.queue.is_empty() || !peer.held.is_empty() {
            self.make_ready(at);
        }
        ended.into_iter().for_each(|group| self.end_in_group(group));
    }

    /// Runs the continuation of a group.
    fn follow(&mut self, then: Then) {
        match then {
            Then::Signal { peer: at, word, held, completion } => {
                let peer = self.peers.get_mut(at);
                if peer.error.is_some() {
                    return self.end_in_group(completion);
                }
                // Its data is delivered, so it is behind nothing any more.
                let behind = peer.order.start();
                let held = HeldSignal { word, counted: None, behind, held, completion };
                peer.held.push_back(held);
                self.make_ready(at);
            }
            Then::Handed(handed) => {
                let failed = self.peers.of(handed.pe()).and_then(|peer| peer.check().err());
                handed.end(failed);
            }
        }
    }

    /// A poll has reported an error.
    #[cold]
    pub(crate) fn take_failure(&mut self, rail: RailId, failure: Failure) {
        let Failure { wr_id, is_message, error } = failure;
        let Some(wr_id) = wr_id else { return self.fail_rail(rail, error) };
        if is_message {
            return self.message_failed(rail, wr_id, error);
        }
        let Some(segment) = self.segments.posted_mut(wr_id.index()) else {
            let name = self.port.rail_name(rail);
            // Acting on it would corrupt another operation; libfabric 1.22's efa reports every
            // packet of an operation that fails.
            return log::error!(
                target: "TRANSPORT",
                "{rail} ({name}): libfabric reports an operation that is not in flight ({wr_id:?}) as failed: {error}"
            );
        };
        let segment = *segment;
        let of = &mut self.rails[segment.rail.index()];
        of.end();
        self.eightfold_room += 8;
        if segment.state == State::Posted {
            let failed = EngineError::Segment {
                what: segment.what(),
                pe: self.peers.get(segment.peer).pe,
                len: segment.transfer.len,
                rail: segment.rail,
                rail_name: self.port.rail_name(segment.rail).to_owned(),
                error,
            };
            self.fail_peer(segment.peer, failed);
        }
        self.complete_other(wr_id.index() as u32, false);
    }

    /// A message has failed that had left.
    fn message_failed(&mut self, rail: RailId, wr_id: WrId, error: crate::port::PortError) {
        let Some((_, slot)) = self.messages.named(wr_id) else {
            if wr_id == crate::channel::slots::UNNUMBERED {
                // The peer may wait for it for ever.
                return self.fail_rail(rail, error);
            }
            return log::debug!(target: "TRANSPORT", "an executed message over {rail}: {error}");
        };
        let (at, what, len) = (slot.peer, slot.what(), slot.frame.len + slot.tail.len);
        let failed = EngineError::Segment {
            what,
            pe: self.peers.get(at).pe,
            len,
            rail,
            rail_name: self.port.rail_name(rail).to_owned(),
            error,
        };
        self.fail_peer(at, failed);
    }

    /// A peer has executed all messages before a number, and those of a bitmap beyond it.
    pub(crate) fn acknowledge(&mut self, at: u32, ack: Seq, map: Option<&[u8; MAP_BYTES]>) {
        let peer = self.peers.get_mut(at);
        let (pe, has_failed) = (peer.pe, peer.error.is_some());
        let Some(channel) = peer.channel.as_deref_mut() else { return };
        if ack > channel.next {
            let why = String::from("it acknowledges a message that was not sent");
            return self.fail_lane(EngineError::BadMessage { pe, why });
        }
        if has_failed {
            return;
        }
        let acked = channel.acked;
        channel.acked = channel.acked.max(ack);
        let last = channel.next;
        for seq in (acked.0..ack.0).map(Seq) {
            self.executed(at, seq);
        }
        let beyond = map.into_iter().flat_map(|map| {
            (0..WINDOW).filter(|bit| map[(bit / 8) as usize] >> (bit % 8) & 1 != 0)
        });
        for seq in beyond.map(|bit| Seq(ack.0 + bit)).filter(|seq| *seq < last) {
            self.executed(at, seq);
        }
        if (ack > acked || map.is_some()) && !self.peers.get(at).queue.is_empty() {
            // There is room in the window again, or a tag.
            self.make_ready(at);
        }
    }

    /// A message was executed by its target.
    #[inline]
    fn executed(&mut self, at: u32, seq: Seq) {
        let peer = self.peers.get_mut(at);
        let Some(channel) = peer.channel.as_deref_mut() else { return };
        let Some(number) = channel.take_sent(seq) else { return };
        let Some(slot) = self.messages.get_mut(number) else { return };
        match slot.purpose {
            MessagePurpose::Plain => {}
            MessagePurpose::Beside(tag) => channel.tags.give(tag),
            // Its reply ends it.
            MessagePurpose::Fetch { .. } => return,
            MessagePurpose::Staged(token) => {
                self.staged.push_back(StagedEvent::Message { token, ok: true });
            }
        }
        self.end_message(at, number);
    }

    /// Ends a message that has a slot.
    pub(crate) fn end_message(&mut self, at: u32, number: u16) {
        let Some(slot) = self.messages.get_mut(number) else { return };
        let (group, completion) = (slot.group, slot.completion);
        self.messages.give(number);
        let peer = self.peers.get_mut(at);
        if let Some(channel) = peer.channel.as_deref_mut() {
            channel.held -= 1;
        }
        if peer.order.end(group) && peer.order.has_closed() {
            self.settle_later(at);
        }
        self.end_in_group(completion);
    }

    /// A fetch was answered. Returns where its result goes and the width of the word, if it is still
    /// waited for.
    pub(crate) fn end_fetch(
        &mut self,
        at: u32,
        place: u32,
        of: u32,
    ) -> Option<(crate::request::ResultPlace, usize)> {
        let channel = self.peers.get_mut(at).channel.as_deref_mut()?;
        let number = channel.fetch(place)?;
        let slot = self.messages.get_mut(number)?;
        // A reply that comes twice finds another fetch in its place, or none.
        let MessagePurpose::Fetch { result, width, place } = slot.purpose else { return None };
        if slot.peer != at || slot.seq.low() != of {
            return None;
        }
        let seq = slot.seq;
        channel.end_fetch(place);
        // An acknowledgement that comes later finds nothing to end.
        if seq >= channel.acked {
            channel.take_sent(seq);
        }
        self.end_message(at, number);
        if !self.peers.get(at).queue.is_empty() {
            self.make_ready(at);
        }
        Some((result, width))
    }

    /// A message of a peer was executed here.
    pub(crate) fn note_executed(&mut self, at: u32, seq: Seq) {
        let channel = self.channel(at);
        channel.executed.note(seq);
        let is_waited_for = !channel.waiting.is_empty();
        if channel.is_ack_due() {
            self.enter_control(at);
        }
        if is_waited_for && !self.due.contains(&at) {
            self.due.push(at);
        }
    }

    /// The PE of a peer.
    pub(crate) fn pe(&self, at: u32) -> Pe {
        self.peers.get(at).pe
    }
}
