//! Completions of segments, acknowledgements of messages, and the work that both make possible.
//!
//! Nothing is posted here. Peers and groups whose counts have reached zero go into lists, which the
//! lane's iteration works through.

use std::ops::Range;

use crate::channel::slots::Purpose;
use crate::core::{Continuation, Core, StagingEvent};
use crate::group::{CompletionGroups, CompletionId, Fence};
use crate::ids::{Pe, RailId, WrId};
use crate::peers::{Peer, Peers, WaitingSignal};
use crate::port::{Completions, Failure, Polled, Port};
use crate::segments::{
    Account, BALANCED, BY_LOAD, FOR_PEER, PLAIN, Segment, Segments, is_for_peer,
};
use crate::wire::message::{MAP_BYTES, Seq, WINDOW};

/// Receives the completions of a poll. Runs of segments with one account are counted together.
struct CompletionSink<'a> {
    segments: &'a mut Segments,
    peers: &'a mut Peers,
    groups: &'a mut CompletionGroups<Continuation>,
    settling: &'a mut Vec<Pe>,
    emptied: &'a mut Vec<CompletionId>,
    /// Segments whose completion does more than uncount them.
    others: &'a mut Vec<u32>,
    count: u32,
}

impl CompletionSink<'_> {
    #[inline(always)]
    fn end(&mut self, account: Account, count: u32) {
        self.count += count;
        let pe = account.pe();
        let peer = self.peers.get_mut(pe);
        peer.end(account.direction(), count);
        if peer.order.end(account.group(), count) && !peer.is_settling {
            peer.is_settling = true;
            self.settling.push(pe);
        }
        if self.groups.end(account.completion(), count) {
            self.emptied.push(account.completion());
        }
    }
}

impl Completions for CompletionSink<'_> {
    #[inline(always)]
    fn take(&mut self, index: usize) -> bool {
        // The fabric may report what is no segment of the lane, such as a message.
        let is_known = self.segments.account(index).is_some();
        if is_known {
            // Handled after the poll: it needs the whole core, and the poll borrows the port.
            self.others.push(index as u32);
        }
        is_known
    }

    #[inline(always)]
    fn take_alike(&mut self, mut indices: impl ExactSizeIterator<Item = usize>) -> usize {
        let Some(first) = indices.next() else { return 0 };
        let Some(account) = self.segments.account(first).filter(|it| it.is_plain()) else {
            return 0;
        };
        let count = self.segments.free_alike(account, std::iter::once(first).chain(indices));
        self.end(account, count as u32);
        count
    }
}

impl<P: Port> Core<P> {
    /// Handles a rail's completions. Returns whether there were any.
    #[inline(always)]
    pub(crate) fn take_completions(&mut self, rail: RailId, others: &mut Vec<u32>) -> bool {
        let Self { segments, peers, groups, settling, emptied, .. } = self;
        let mut sink =
            CompletionSink { segments, peers, groups, settling, emptied, others, count: 0 };
        let polled = self.port.drain(rail, &mut sink);
        let count = sink.count;
        // Once for all plain segments: this runs in every iteration.
        if count > 0 {
            self.rails[rail].end(count);
        }
        if !others.is_empty() {
            self.complete_others(others);
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

    #[cold]
    fn complete_others(&mut self, others: &mut Vec<u32>) {
        for index in others.drain(..) {
            self.complete_other(index);
        }
    }

    fn complete_other(&mut self, index: u32) {
        let Some(segment) = self.segments.posted_mut(index as usize) else { return };
        let (Segment { account, len, .. }, token) = (*segment, segment.token());
        self.segments.free(index as usize);
        self.rails[account.rail()].end(1);
        let peer = self.peers.get_mut(account.pe());
        peer.end(account.direction(), 1);
        peer.served = peer.served.wrapping_add(is_for_peer(token).into());
        let ahead = peer.bytes_ahead.get_mut(account.rail().index());
        let by_load = token != PLAIN && token & BY_LOAD != 0;
        if let Some(ahead) = ahead.filter(|_| by_load) {
            *ahead -= len as u64;
            let load = &mut self.rails[account.rail()].load;
            load.complete(len as u64, self.port.now());
        }
        if account.is_orphan() {
            // The fabric no longer accesses the memory, which may be released now.
            self.regions.directory.leave_orphan(self.regions.kind, index);
        } else {
            if peer.order.end(account.group(), 1) {
                self.settle_later(account.pe());
            }
            self.end_in_group(account.completion());
        }
        if !matches!(token, PLAIN | BALANCED) {
            self.staging_events
                .push_back(StagingEvent::Segment { token: token & !(BY_LOAD | FOR_PEER) });
        }
    }

    /// Schedules the cursors of a peer's groups to be moved.
    pub(crate) fn settle_later(&mut self, pe: Pe) {
        let peer = self.peers.get_mut(pe);
        if !std::mem::replace(&mut peer.is_settling, true) {
            self.settling.push(pe);
        }
    }

    pub(crate) fn end_in_group(&mut self, group: CompletionId) {
        if self.groups.end(group, 1) {
            self.emptied.push(group);
        }
    }

    #[inline(always)]
    pub(crate) fn has_settling(&self) -> bool {
        !self.settling.is_empty() || !self.emptied.is_empty()
    }

    #[inline(always)]
    pub(crate) fn has_pending(&self) -> bool {
        let Self { settling, emptied, ready, ring, control, staging_events, executable, .. } = self;
        // One test of all lists together: an idle iteration makes it every time.
        let waits = settling.len() | emptied.len() | ready.len() | ring.len() | control.len();
        waits | staging_events.len() | executable.len() != 0
    }

    /// Moves the cursors of peers whose groups have finished, and runs continuations.
    #[cold]
    pub(crate) fn settle(&mut self) {
        // Each may cause the other: a quiet ends a group, whose continuation ends another.
        while self.has_settling() {
            while let Some(pe) = self.settling.pop() {
                self.settle_peer(pe);
            }
            while let Some(group) = self.emptied.pop() {
                if let Some(continuation) = self.groups.take_continuation(group) {
                    // Freed first: the continuation may start a group itself.
                    self.groups.finish(group);
                    self.run_continuation(continuation);
                }
            }
        }
    }

    fn settle_peer(&mut self, pe: Pe) {
        let peer = self.peers.get_mut(pe);
        peer.is_settling = false;
        peer.order.settle();
        peer.update_fast_path();
        let order = &peer.order;
        let over = |(fence, id): &(Fence, CompletionId)| order.is_finished(*fence).then_some(*id);
        let ended: Vec<CompletionId> = peer.quiets.iter().filter_map(over).collect();
        if !ended.is_empty() {
            peer.quiets.retain(|(fence, _)| !order.is_finished(*fence));
        }
        if !peer.queue.is_empty() || !peer.waiting_signals.is_empty() {
            self.make_ready(pe);
        }
        ended.into_iter().for_each(|group| self.end_in_group(group));
    }

    fn run_continuation(&mut self, continuation: Continuation) {
        match continuation {
            Continuation::Signal { pe, word, group, completion } => {
                let peer = self.peers.get_mut(pe);
                if peer.error.is_some() {
                    return self.end_in_group(completion);
                }
                // Its data is delivered, so it waits for no group, only for capacity.
                let fence = peer.order.start();
                let signal = WaitingSignal { word, counted: None, fence, group, completion };
                peer.waiting_signals.push_back(signal);
                self.make_ready(pe);
            }
            Continuation::Handover(handed) => {
                // The group also ends when the peer fails.
                let failed = self.peers.of(handed.pe).and_then(|peer| peer.check().err());
                handed.end(failed);
            }
        }
    }

    #[cold]
    pub(crate) fn take_failure(&mut self, rail: RailId, failure: Failure) {
        let Failure { wr_id, is_message, error } = failure;
        let Some(wr_id) = wr_id else { return self.fail_rail(rail, error) };
        if is_message {
            return self.fail_message(rail, wr_id, error);
        }
        let Some(segment) = self.segments.posted_mut(wr_id.index()) else {
            let name = self.port.rail_name(rail);
            // Acting on it would corrupt another operation: the efa provider of libfabric 1.22
            // reports an error for each packet of an operation that fails.
            return log::error!(
                target: "TRANSPORT",
                "{rail} ({name}): libfabric reports an operation that is not in flight ({wr_id:?}) as failed: {error}"
            );
        };
        let segment = *segment;
        let (pe, rail) = (segment.account.pe(), segment.account.rail());
        if !segment.account.is_orphan() {
            let failed = self.segment_error((segment.what(), pe), segment.len, rail, error);
            self.fail_peer(pe, failed);
        }
        self.complete_other(wr_id.index() as u32);
    }

    fn fail_message(&mut self, rail: RailId, wr_id: WrId, error: crate::port::PortError) {
        let Some((_, slot)) = self.messages.named(wr_id) else {
            if wr_id == crate::channel::slots::CONTROL {
                // A control message is not sent again, and the peer may wait for it for ever.
                return self.fail_rail(rail, error);
            }
            return log::debug!(target: "TRANSPORT", "an executed message over {rail}: {error}");
        };
        let (pe, what, len) = (slot.account.pe(), slot.what(), slot.frame.len + slot.tail.len);
        let failed = self.segment_error((what, pe), len, rail, error);
        self.fail_peer(pe, failed);
    }

    /// Ends the messages before `ack`, and those after it whose bit is set in `map`.
    pub(crate) fn acknowledge(&mut self, pe: Pe, ack: Seq, map: Option<&[u8; MAP_BYTES]>) {
        let peer = self.peers.get_mut(pe);
        let has_failed = peer.error.is_some();
        let Some(channel) = peer.channel.as_deref_mut() else { return };
        if has_failed {
            // Its messages have ended already; only buffers that it may read are quarantined.
            self.staging_events.push_back(StagingEvent::Acknowledged { pe, before: ack });
            return;
        }
        let acked = channel.acked;
        // Acknowledgements may overtake one another on different rails.
        channel.acked = channel.acked.max(ack);
        let mut left = acked.0..ack.0;
        while !left.is_empty() {
            self.end_plain(pe, &mut left);
            if let Some(seq) = left.next() {
                self.complete_message(pe, Seq(seq));
            }
        }
        let beyond = map.into_iter().flat_map(|map| {
            (0..WINDOW).filter(|bit| map[(bit / 8) as usize] >> (bit % 8) & 1 != 0)
        });
        // A bit beyond what was sent finds no slot, and ends nothing.
        for seq in beyond.map(|bit| Seq(ack.0 + bit)) {
            self.complete_message(pe, seq);
        }
        let peer = self.peers.get(pe);
        let waits = !peer.queue.is_empty() || !peer.waiting_signals.is_empty();
        // Every message acknowledges, mostly nothing new.
        if waits && (ack > acked || map.is_some()) {
            // The window is open again, or a tag is free.
            self.make_ready(pe);
        }
    }

    /// Ends messages from the front of `numbers` while only their counts end with them. Runs with
    /// one account are counted together.
    fn end_plain(&mut self, pe: Pe, numbers: &mut Range<u64>) {
        let Self { peers, messages, groups, settling, emptied, .. } = self;
        let Peer { channel, order, is_settling, .. } = peers.get_mut(pe);
        let Some(channel) = channel.as_deref_mut() else { return };
        while !numbers.is_empty() {
            let ended = messages.release_alike(&mut channel.sent, numbers.clone());
            let Some((account, count)) = ended else { return };
            numbers.start += u64::from(count);
            channel.unfinished -= count;
            if order.end(account.group(), count) && !*is_settling {
                *is_settling = true;
                settling.push(pe);
            }
            if groups.end(account.completion(), count) {
                emptied.push(account.completion());
            }
        }
    }

    fn complete_message(&mut self, pe: Pe, seq: Seq) {
        let peer = self.peers.get_mut(pe);
        let Some(channel) = peer.channel.as_deref_mut() else { return };
        let Some(index) = channel.take_sent(seq) else { return };
        let Some(slot) = self.messages.get_mut(index) else { return };
        match slot.purpose {
            Purpose::Plain => {}
            Purpose::CountedSignal(tag) => channel.tags.release(tag),
            // The reply ends it, and may arrive after the acknowledgement.
            Purpose::Fetch { .. } => return,
            Purpose::Staged { token: PLAIN, .. } => {}
            Purpose::Staged { token, .. } => {
                self.staging_events.push_back(StagingEvent::Message { token, ok: true });
            }
        }
        self.end_message(pe, index);
    }

    /// Returns the name of the operation for which an unacknowledged message was sent, by the low
    /// half of its number; None unless staging sent it.
    pub(crate) fn sent_as(&mut self, pe: Pe, low: u32) -> Option<(&'static str, usize)> {
        let channel = self.peers.get(pe).channel.as_deref()?;
        let seq = channel.next.near(low);
        let slot = self.messages.get_mut(channel.slot_of(seq)?)?;
        // The slot may be another message's by now, also another peer's.
        let is_sent = slot.seq == seq && slot.account.pe() == pe;
        let is_staged = matches!(slot.purpose, Purpose::Staged { .. });
        (is_sent && is_staged).then_some((slot.what(), 0))
    }

    pub(crate) fn end_message(&mut self, pe: Pe, index: u16) {
        let Some(slot) = self.messages.get_mut(index) else { return };
        let account = slot.account;
        self.messages.release(index);
        let peer = self.peers.get_mut(pe);
        if let Some(channel) = peer.channel.as_deref_mut() {
            channel.unfinished -= 1;
        }
        if peer.order.end(account.group(), 1) {
            self.settle_later(pe);
        }
        self.end_in_group(account.completion());
    }

    /// Ends a fetch that was answered. Returns the destination of the word and its width in bytes,
    /// if the fetch is still in flight.
    pub(crate) fn end_fetch(
        &mut self,
        pe: Pe,
        reply_slot: u32,
        low: u32,
    ) -> Option<(crate::request::FetchTarget, usize)> {
        let channel = self.peers.get_mut(pe).channel.as_deref_mut()?;
        let index = channel.fetch(reply_slot)?;
        let slot = self.messages.get_mut(index)?;
        // A repeated reply finds another fetch in its place, or none.
        let Purpose::Fetch { result, width, reply_slot } = slot.purpose else { return None };
        if slot.seq.low() != low {
            return None;
        }
        let seq = slot.seq;
        channel.end_fetch(reply_slot);
        // An acknowledgement that arrives later must not find the slot of another message.
        if seq >= channel.acked {
            channel.take_sent(seq);
        }
        self.end_message(pe, index);
        if !self.peers.get(pe).queue.is_empty() {
            self.make_ready(pe);
        }
        Some((result, width))
    }

    pub(crate) fn message_executed(&mut self, pe: Pe, seq: Seq) {
        let channel = self.channel(pe);
        let is_waited_for = !channel.waiting.is_empty();
        if channel.set_executed(seq) {
            self.enter_control(pe);
        }
        // A mark may be reached now. Not executed here: that would recurse for each in a chain.
        if is_waited_for && !self.executable.contains(&pe) {
            self.executable.push(pe);
        }
    }
}
