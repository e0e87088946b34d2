//! Messages between this lane and one peer: what was sent and not acknowledged, what has arrived.

use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::state::counts::{Counts, Tags};
use crate::engine::state::order::{Order, Waiting};
use crate::engine::state::segment::NIL;
use crate::engine::state::segment::queue::Queue;
use crate::engine::wire::message::{Packet, Ticket};
use crate::engine::wire::window::{Received, Seq, WINDOW};

/// Most fetching operations under way to one peer. The peer keeps room for as many replies.
pub(in crate::engine) const FETCHES: u32 = 16;

/// A request for an acknowledgement goes out at the latest after so many messages.
const REQUEST_EVERY: u32 = WINDOW / 4;

/// In [`Link::next_unasked`] of a link that is not among them. No PE: there are at most 65536.
const UNLISTED: u32 = NIL - 1;

/// Bits of the token of a message that are its slot, and its number's bits above them. With one bit less than a token
/// has, since the last one is no message's.
const SLOT_BITS: u32 = 11;
const SEQ_BITS: u32 = (1 << (31 - SLOT_BITS)) - 1;

/// Most messages of a lane: more could not be named.
pub(in crate::engine) const MOST_MESSAGES: u32 = 1 << SLOT_BITS;

/// The number of the first message of every stream. Near the wrap, so that every job crosses it.
pub(in crate::engine) const FIRST: Seq = Seq(u32::MAX - 99);

/// Replies to fetches, by place: the fetch's ticket, and the word.
type Replies = [Option<(Ticket, u64)>; FETCHES as usize];

/// The message side of a stream, in both directions. Made with the first message.
#[derive(Debug)]
pub(in crate::engine) struct Link {
    /// The peer.
    pe: Pe,
    /// The next peer among those with messages that nobody has asked about, or [`NIL`]; [`UNLISTED`] if this is none
    /// of them.
    next_unasked: u32,
    /// Number of the next message to the peer.
    pub(in crate::engine) next: Seq,
    /// Messages sent and not acknowledged, in the order of their numbers, in the message table.
    pub(in crate::engine) oldest: u32,
    pub(in crate::engine) newest: u32,
    /// The latest acknowledgement that the peer has given.
    pub(in crate::engine) ack_received: Seq,
    /// Messages that have a slot and have not left.
    pub(in crate::engine) unsent: u32,
    /// Messages that wait for the window, in the order in which they were to leave.
    pub(in crate::engine) waiting: Queue,
    /// The places of fetching operations that have no reply yet, a bit each.
    fetches: u16,
    /// The replies that the peer was given last, by place of the fetch, from the first one on.
    pub(in crate::engine) replies: Option<Box<Replies>>,
    /// The latest number that an acknowledgement was asked for.
    requested: Seq,
    /// What has arrived from the peer.
    pub(in crate::engine) received: Received,
    /// The latest acknowledgement that the peer was given.
    ack_sent: Seq,
    /// The peer asked for everything before this number to be acknowledged.
    wanted: Option<Seq>,
    /// Control messages that are due; the lane's control queue knows of the stream then.
    pub(in crate::engine) request_due: bool,
    pub(in crate::engine) ack_due: bool,
    /// Whether the stream is in the lane's control queue.
    pub(in crate::engine) in_control: bool,
    /// The tags of counted puts to the peer, from the first one on.
    pub(in crate::engine) tags: Option<Box<Tags>>,
    /// The counts of the peer's counted puts, likewise.
    pub(in crate::engine) counts: Option<Box<Counts>>,
    /// The first of the peer's requests that have arrived, were not carried out and are not acknowledged before that: the
    /// first in `counted`, `refused` and `order`.
    unapplied: Option<Seq>,
    /// The first of the peer's signals that wait for their data.
    counted: Option<Seq>,
    /// The first of the peer's requests that cannot be carried out. It is never acknowledged: what tells of
    /// the refusal may come later than an acknowledgement, on another rail.
    refused: Option<Seq>,
    /// The order of the peer's requests, from the first one on that needs it.
    order: Option<Box<Order>>,
    /// Whether requests wait in `order`.
    pub(in crate::engine) holds: bool,
    /// The number of the latest message to the peer that was a put.
    pub(in crate::engine) last_put: Seq,
    /// Pulls to the peer that have left and have not ended.
    pub(in crate::engine) pulls: u32,
    /// Writes under way that have left as messages, less [`Link::unacknowledged`], modulo 2^32.
    pub(in crate::engine) apart: u32,
}

impl Link {
    pub(in crate::engine) fn new(pe: Pe) -> Self {
        Self {
            pe,
            next_unasked: UNLISTED,
            next: FIRST,
            oldest: NIL,
            newest: NIL,
            ack_received: FIRST,
            unsent: 0,
            waiting: Queue::EMPTY,
            fetches: 0,
            replies: None,
            requested: FIRST,
            received: Received::new(FIRST),
            ack_sent: FIRST,
            wanted: None,
            request_due: false,
            ack_due: false,
            in_control: false,
            tags: None,
            counts: None,
            unapplied: None,
            counted: None,
            refused: None,
            order: None,
            holds: false,
            last_put: Seq(FIRST.0 - 1),
            pulls: 0,
            apart: 0,
        }
    }

    /// Numbered messages that have left, and that have arrived up to the first missing one.
    pub(in crate::engine) fn counts(&self) -> (u32, u32) {
        (self.next.after(FIRST), self.received.prefix().after(FIRST))
    }

    /// A place for another fetching operation.
    pub(in crate::engine) fn fetch_place(&self) -> Option<u8> {
        let place = self.fetches.trailing_ones();
        (place < FETCHES).then_some(place as u8)
    }

    /// A fetching operation takes its place, or leaves it.
    pub(in crate::engine) fn turn_fetch(&mut self, place: u8) {
        self.fetches ^= 1 << place;
    }

    /// The peer is asked again for what it was asked for before.
    pub(in crate::engine) fn ask_again(&mut self) {
        if self.oldest != NIL {
            self.requested = self.next;
            self.request_due = true;
        }
    }

    /// Whether another message may be sent: the peer remembers no more than a window.
    #[inline]
    pub(in crate::engine) fn has_room(&self) -> bool {
        self.unacknowledged() < WINDOW
    }

    /// Whether another message may be sent that has no slot yet: see [`Link::has_share`].
    #[inline(always)]
    pub(in crate::engine) fn has_room_for_new(&self, messages: &MessageTable) -> bool {
        let unacknowledged = self.unacknowledged();
        unacknowledged < WINDOW && unacknowledged < messages.left
    }

    /// Whether the peer may have another slot: it has fewer than are left. So one that acknowledges nothing takes half
    /// of them at most, and however many such peers there are, as many as each has are left for others.
    pub(in crate::engine) fn has_share(&self, messages: &MessageTable) -> bool {
        self.unacknowledged() + self.unsent < messages.left
    }

    /// How many messages may be sent now.
    pub(in crate::engine) fn room(&self) -> u32 {
        WINDOW - self.unacknowledged()
    }

    /// Messages that have left and are not acknowledged: their numbers follow one another.
    #[inline(always)]
    pub(in crate::engine) fn unacknowledged(&self) -> u32 {
        self.next.after(self.ack_received)
    }

    /// Takes the next number for a message, and notes when the peer should be asked to acknowledge.
    #[inline]
    pub(in crate::engine) fn take_number(&mut self) -> Seq {
        let seq = self.next;
        self.next = seq.next();
        if self.next.after(self.requested) >= REQUEST_EVERY {
            self.want_ack();
        }
        seq
    }

    /// Somebody waits for what has been sent: asks for an acknowledgement, unless that was done.
    #[inline]
    pub(in crate::engine) fn want_ack(&mut self) {
        if self.oldest != NIL && self.requested != self.next {
            self.requested = self.next;
            self.request_due = true;
        }
    }

    /// Whether the stream has to be put into the lane's control queue now, where it is from here on.
    #[inline]
    pub(in crate::engine) fn enters_control(&mut self) -> bool {
        let enters = (self.request_due || self.ack_due) && !self.in_control;
        self.in_control |= enters;
        enters
    }

    /// The first of the peer's signals that wait for their data, if any does.
    pub(in crate::engine) fn waits_for_data(&mut self, first: Option<Seq>) {
        self.counted = first;
        self.find_unapplied();
    }

    fn find_unapplied(&mut self) {
        let waits = self.order.as_deref().and_then(Order::first);
        let all = [self.counted, self.refused, waits].into_iter().flatten();
        self.unapplied = all.reduce(|first, next| if next.is_before(first) { next } else { first });
    }

    /// A request of the peer cannot be carried out.
    #[cold]
    pub(in crate::engine) fn refuse(&mut self, seq: Seq) {
        if self.refused.is_none_or(|refused| seq.is_before(refused)) {
            self.refused = Some(seq);
        }
        self.find_unapplied();
    }

    /// A request of the peer that comes behind all before `mark` waits for them.
    pub(in crate::engine) fn wait(&mut self, waiting: Waiting, is_pull: bool) {
        self.order.get_or_insert_default().wait(waiting, is_pull);
        self.holds = true;
        self.find_unapplied();
    }

    /// Takes a request that waits for nothing any more, if there is one.
    pub(in crate::engine) fn next_due(&mut self) -> Option<Waiting> {
        let order = self.order.as_deref()?;
        let is_pull = order.first_early().is_some_and(|mark| self.has_arrived(mark));
        if !is_pull && !order.first_word().is_some_and(|mark| self.is_carried_out(mark)) {
            return None;
        }
        let order = self.order.as_deref_mut()?;
        let due = order.take(is_pull);
        self.holds = order.is_waited_in();
        self.find_unapplied();
        due
    }

    /// Whether all of the peer's requests before this number have arrived.
    pub(in crate::engine) fn has_arrived(&self, mark: Seq) -> bool {
        !self.received.prefix().is_before(mark)
    }

    /// Whether they are carried out.
    pub(in crate::engine) fn is_carried_out(&self, mark: Seq) -> bool {
        self.has_arrived(mark)
            && self.unapplied.is_none_or(|first| !first.is_before(mark))
            && !self.order.as_deref().is_some_and(|order| order.pulls_before(mark))
    }

    /// Whether one of them cannot be.
    pub(in crate::engine) fn is_refused(&self, mark: Seq) -> bool {
        self.refused.is_some_and(|refused| refused.is_before(mark))
    }

    /// A pull of the peer is under way: it is acknowledged, and not carried out.
    pub(in crate::engine) fn begin_pull(&mut self, seq: Seq) {
        self.order.get_or_insert_default().begin_pull(seq);
    }

    /// It has ended. If it is not carried out, nothing that comes behind it ever is.
    pub(in crate::engine) fn end_pull(&mut self, seq: Seq, carried_out: bool) {
        if let Some(order) = self.order.as_deref_mut() {
            order.end_pull(seq);
        }
        if !carried_out {
            self.refuse(seq);
        }
    }

    /// Whether any of the peer's requests may wait for others.
    pub(in crate::engine) fn has_order(&self) -> bool {
        self.order.is_some()
    }

    /// Whether puts have left as messages of which it is not known that they are there.
    #[inline(always)]
    pub(in crate::engine) fn has_sent_puts(&self) -> bool {
        self.pulls != 0 || !self.last_put.is_before(self.ack_received)
    }

    /// Writes under way that have left as messages: the target can tell what comes behind them.
    pub(in crate::engine) fn placed(&self) -> u32 {
        self.unacknowledged().wrapping_add(self.apart)
    }

    /// The number that an acknowledgement is asked for.
    pub(in crate::engine) fn requested(&self) -> Seq {
        self.requested
    }

    /// The peer asks for everything before `seq` to be acknowledged.
    pub(in crate::engine) fn asked(&mut self, seq: Seq) {
        self.wanted = match self.wanted {
            Some(wanted) if seq.is_before(wanted) => Some(wanted),
            _ => Some(seq),
        };
        // What waits for its data may wait long; what is before it need not.
        if self.unapplied.is_some() && self.ack() != self.ack_sent {
            self.ack_due = true;
        }
        self.check_wanted();
    }

    /// A message has arrived, or was applied: whether an acknowledgement is due now. Otherwise it waits for a
    /// message that carries it, or for the peer to ask.
    #[inline(always)]
    pub(in crate::engine) fn check_wanted(&mut self) {
        let ack = self.ack();
        if self.wanted.is_some_and(|wanted| !ack.is_before(wanted)) {
            self.wanted = None;
            self.ack_due = true;
        }
        if ack.after(self.ack_sent) >= WINDOW / 2 {
            self.ack_due = true;
        }
    }

    /// The acknowledgement that a message to the peer carries: everything before it was applied.
    #[inline]
    pub(in crate::engine) fn ack(&self) -> Seq {
        let prefix = self.received.prefix();
        match self.unapplied {
            Some(first) if first.is_before(prefix) => first,
            _ => prefix,
        }
    }

    /// A message with this acknowledgement has left.
    #[inline]
    pub(in crate::engine) fn carried(&mut self, ack: Seq) {
        self.ack_sent = ack;
        self.ack_due = false;
    }
}

/// One message on its way, kept until it is acknowledged.
#[derive(Clone, Debug)]
struct Outgoing {
    packet: Packet,
    seq: Seq,
    /// The rail it went out on.
    rail: RailId,
    /// It has to be sent again.
    lost: bool,
    /// The segment it completes, or [`NIL`] when that is over.
    segment: u32,
    /// The next newer unacknowledged message of its link, or the next free slot.
    next: u32,
}

/// The slot that the next message takes.
#[derive(Debug)]
pub(in crate::engine) struct Next<'a> {
    pub(in crate::engine) index: u32,
    slot: &'a mut Outgoing,
}

/// A slot whose message has left, and which is to be taken: it, and the next free one.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Left {
    index: u32,
    free: u32,
}

impl Next<'_> {
    /// The message's bytes.
    #[inline(always)]
    pub(in crate::engine) fn packet(&mut self) -> &mut Packet {
        &mut self.slot.packet
    }

    /// The message, a segment's, has left with this number.
    #[inline(always)]
    pub(in crate::engine) fn leave(self, segment: u32, seq: Seq, rail: RailId) -> Left {
        let Self { index, slot } = self;
        (slot.seq, slot.rail, slot.lost, slot.segment) = (seq, rail, false, segment);
        Left { index, free: std::mem::replace(&mut slot.next, NIL) }
    }
}

/// The messages of a lane that are queued or not acknowledged.
#[derive(Debug)]
pub(in crate::engine) struct MessageTable {
    slots: Box<[Outgoing]>,
    free: u32,
    /// Slots that are not in use.
    left: u32,
    /// Slots in use that stand for no segment of their own: those of fragments, and of messages whose segment is over.
    beside: u32,
    /// Slots of segments that are acknowledged and wait for their answer: see [`MessageTable::set_aside`].
    aside: u32,
    /// The first of the peers with messages that nobody has asked to acknowledge since they left, or [`NIL`]. Some of
    /// them may have been acknowledged all the same.
    unasked: u32,
}

impl MessageTable {
    /// A table of `capacity` free slots, at most [`MOST_MESSAGES`].
    pub(in crate::engine) fn new(capacity: u32) -> Self {
        debug_assert!(capacity <= MOST_MESSAGES, "not all slots can be named");
        let slot = |index: u32| Outgoing {
            packet: Packet::EMPTY,
            seq: FIRST,
            rail: RailId(0),
            lost: false,
            segment: NIL,
            next: if index + 1 == capacity { NIL } else { index + 1 },
        };
        let free = if capacity == 0 { NIL } else { 0 };
        Self {
            slots: (0..capacity).map(slot).collect(),
            free,
            left: capacity,
            beside: 0,
            aside: NIL,
            unasked: NIL,
        }
    }

    /// Segments that are messages: each has a slot, from when it is taken until it ends.
    pub(in crate::engine) fn segments(&self) -> u32 {
        self.slots.len() as u32 - self.left - self.beside
    }

    /// What a message is named by towards the fabric when it leaves with this number: its slot and, as the fabric may
    /// speak of it when the slot is another's, some bits of the number.
    #[inline(always)]
    pub(in crate::engine) fn token(index: u32, seq: Seq) -> Token {
        Token(index | (seq.0 & SEQ_BITS) << SLOT_BITS)
    }

    /// The segment of the message that a token names, if it has not been given back.
    pub(in crate::engine) fn named_by(&self, token: Token) -> Option<(u32, u32)> {
        let index = token.0 & ((1 << SLOT_BITS) - 1);
        let slot = self.slots.get(index as usize)?;
        (Self::token(index, slot.seq) == token).then_some((index, slot.segment))
    }

    /// Whether there is a free slot, in a table that has any.
    pub(in crate::engine) fn has_room(&self) -> bool {
        self.slots.is_empty() || self.free != NIL
    }

    /// Takes a slot for a segment's message.
    #[inline]
    pub(in crate::engine) fn take(&mut self, segment: u32) -> Option<u32> {
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.left -= 1;
        slot.segment = segment;
        slot.next = NIL;
        Some(index)
    }

    /// As [`MessageTable::take`], for a segment that is a transfer as well.
    pub(in crate::engine) fn take_beside(&mut self, segment: u32) -> Option<u32> {
        let index = self.take(segment)?;
        self.beside += 1;
        Some(index)
    }

    /// The slot that the next message takes. Nothing is taken before [`MessageTable::take_next`].
    #[inline(always)]
    pub(in crate::engine) fn next(&mut self) -> Option<Next<'_>> {
        let index = self.free;
        self.slots.get_mut(index as usize).map(|slot| Next { index, slot })
    }

    /// Takes the slot of which [`Next::leave`] has told, for a message of the link.
    #[inline(always)]
    pub(in crate::engine) fn take_next(&mut self, link: &mut Link, Left { index, free }: Left) {
        self.free = free;
        self.left -= 1;
        self.append(link, index);
    }

    /// Gives a slot back.
    #[inline]
    pub(in crate::engine) fn give(&mut self, index: u32) {
        self.slots[index as usize].next = self.free;
        self.free = index;
        self.left += 1;
    }

    /// Gives back a slot that stands for no segment of its own.
    pub(in crate::engine) fn give_beside(&mut self, index: u32) {
        self.beside -= 1;
        self.give(index);
    }

    /// A message is acknowledged whose segment goes on: a slot stays in use for it, so that there are never more segments
    /// than the lane has room for. [`MessageTable::restore`] gives one back; which one makes no difference.
    pub(in crate::engine) fn set_aside(&mut self, index: u32) {
        self.slots[index as usize].next = std::mem::replace(&mut self.aside, index);
    }

    /// A segment for which a slot was set aside has ended.
    pub(in crate::engine) fn restore(&mut self) {
        let index = self.aside;
        if let Some(slot) = self.slots.get(index as usize) {
            self.aside = slot.next;
            self.give(index);
        }
    }

    #[inline]
    pub(in crate::engine) fn packet_mut(&mut self, index: u32) -> &mut Packet {
        &mut self.slots[index as usize].packet
    }

    /// The number of a message, if there is one at that index.
    #[inline]
    fn seq_of(&self, index: u32) -> Option<Seq> {
        self.slots.get(index as usize).map(|slot| slot.seq)
    }

    /// The segment of a message is over; the message may still wait for its acknowledgement.
    pub(in crate::engine) fn forget_segment(&mut self, index: u32) {
        self.beside += 1;
        self.forget_fragment(index);
    }

    /// The same, of one that is a transfer as well, or goes on as one.
    pub(in crate::engine) fn forget_fragment(&mut self, index: u32) {
        self.slots[index as usize].segment = NIL;
    }

    /// Adds a message that has left, with its number, to a link's unacknowledged ones.
    #[inline(always)]
    pub(in crate::engine) fn sent(&mut self, link: &mut Link, index: u32, seq: Seq, rail: RailId) {
        let slot = &mut self.slots[index as usize];
        slot.seq = seq;
        slot.rail = rail;
        slot.lost = false;
        slot.next = NIL;
        self.append(link, index);
    }

    #[inline(always)]
    fn append(&mut self, link: &mut Link, index: u32) {
        if link.next_unasked == UNLISTED {
            link.next_unasked = std::mem::replace(&mut self.unasked, link.pe.0);
        }
        // None, if all others are acknowledged.
        match self.slots.get_mut(link.newest as usize) {
            None => link.oldest = index,
            Some(newest) => newest.next = index,
        }
        link.newest = index;
    }

    /// The first of the peers with messages that nobody has asked to acknowledge.
    #[inline(always)]
    pub(in crate::engine) fn first_unasked(&self) -> Option<Pe> {
        (self.unasked != NIL).then_some(Pe(self.unasked))
    }

    /// The first of these peers, which has this link, is asked: it is none of them any more.
    pub(in crate::engine) fn pop_unasked(&mut self, link: &mut Link) {
        debug_assert_eq!(self.unasked, link.pe.0);
        self.unasked = std::mem::replace(&mut link.next_unasked, UNLISTED);
    }

    /// The number of a message that has left.
    pub(in crate::engine) fn number_of(&self, index: u32) -> Option<Seq> {
        self.seq_of(index)
    }

    /// The rail of a message, and its segment.
    pub(in crate::engine) fn rail_of(&self, index: u32) -> Option<(RailId, u32)> {
        self.slots.get(index as usize).map(|slot| (slot.rail, slot.segment))
    }

    /// The messages of a link that `so` says of, by rail, have to be sent again. How many there are.
    pub(in crate::engine) fn lose(
        &mut self,
        link: &Link,
        mut so: impl FnMut(RailId) -> bool,
    ) -> u32 {
        let mut count = 0;
        let mut index = link.oldest;
        while let Some(slot) = self.slots.get_mut(index as usize) {
            if !slot.lost && so(slot.rail) {
                slot.lost = true;
                count += 1;
            }
            index = slot.next;
        }
        count
    }

    /// The oldest message of a link that has to be sent again: its index, number, rail and packet.
    pub(in crate::engine) fn first_lost(
        &mut self,
        link: &Link,
    ) -> Option<(u32, Seq, RailId, &mut Packet)> {
        let mut index = link.oldest;
        while self.slots.get(index as usize).is_some_and(|slot| !slot.lost) {
            index = self.slots[index as usize].next;
        }
        let slot = self.slots.get_mut(index as usize)?;
        Some((index, slot.seq, slot.rail, &mut slot.packet))
    }

    /// A message was sent again.
    pub(in crate::engine) fn found(&mut self, index: u32, rail: RailId) {
        let slot = &mut self.slots[index as usize];
        (slot.lost, slot.rail) = (false, rail);
    }

    /// Gives back the slots of a link whose peer is not asked any more. Their segments are over.
    pub(in crate::engine) fn forget_all(&mut self, link: &mut Link) {
        while let Some((index, segment)) = self.pop_acked(link, link.next) {
            debug_assert_eq!(segment, NIL, "a segment waits for its acknowledgement");
            self.give_beside(index);
        }
    }

    /// Takes the oldest unacknowledged message of a link, if it comes before `ack`. Gives its slot
    /// and its segment.
    #[inline]
    pub(in crate::engine) fn pop_acked(&mut self, link: &mut Link, ack: Seq) -> Option<(u32, u32)> {
        let index = link.oldest;
        let slot = self.slots.get(index as usize)?;
        if !slot.seq.is_before(ack) {
            return None;
        }
        link.oldest = slot.next;
        if link.oldest == NIL {
            link.newest = NIL;
        }
        Some((index, slot.segment))
    }
}

#[cfg(test)]
mod tests;
