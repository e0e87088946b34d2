//! The table of messages that are on their way, one slot each. Channels know theirs by number.

#[cfg(any(test, feature = "audit"))]
use std::iter;

use crate::ids::{Pe, RailId, WrId};
use crate::port::Tail;
use crate::state::batch::{Batch, Batches};
use crate::state::messages::reliable_channel::{FIRST, ReliableChannel, UNLISTED};
use crate::state::segment::{NIL, Segment};
use crate::wire::message::Packet;
use crate::wire::window::{Seq, WINDOW};

/// Bits of the work-request id of a message that are its slot, and its number's bits above them.
/// With one bit less than a work-request id has, since the last one is no message's.
const SLOT_BITS: u32 = 12;
pub(super) const SEQ_BITS: u32 = (1 << (31 - SLOT_BITS)) - 1;

/// Most messages of a lane: more could not be named.
pub(crate) const MOST_MESSAGES: u32 = 1 << SLOT_BITS;

/// In place of a message's segment: it stands for itself. A message that has left, and whose
/// acknowledgement is all that anybody waits for, needs no more than its slot.
const ITSELF: u32 = NIL - 1;

/// One message on its way, kept until it is acknowledged.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    packet: Packet,
    /// The bytes behind the packet's. They stay as they are until the message is acknowledged.
    tail: Tail,
    pub(super) seq: Seq,
    rail: RailId,
    lost: bool,
    /// The segment it completes, or [`NIL`] when that is over; or [`ITSELF`].
    segment: u32,
    /// If it stands for itself: whom it is for, how many bytes it is about, and the batch that it
    /// belongs to.
    pe: Pe,
    len: u32,
    batch: Batch,
    /// The next slot that is free, or set aside.
    next: u32,
}

/// The messages of a lane that are queued or not acknowledged.
#[derive(Debug)]
pub(crate) struct MessageTable {
    pub(super) slots: Box<[Outgoing]>,
    pub(super) free: u32,
    /// Slots that are not in use, but for those of answers.
    pub(super) left: u32,
    /// Slots from here on are for answers alone: see [`crate::posting::peers::answers`].
    first_answer: u32,
    /// The first of these that is free, and how many are.
    pub(super) free_answer: u32,
    pub(super) answers_left: u32,
    /// Slots in use that stand for no segment of their own: those of fragments, and of messages
    /// whose segment is over.
    beside: u32,
    without: u32,
    /// Slots of segments that are acknowledged and wait for their answer: see
    /// [`MessageTable::set_aside`].
    pub(super) aside: u32,
    /// The first of the peers with messages that nobody has asked to acknowledge since they left,
    /// or [`NIL`]. Some of them may have been acknowledged all the same.
    unasked: u32,
}

impl MessageTable {
    pub(crate) fn new(capacity: u32) -> Self {
        Self::with_answers(capacity, 0)
    }

    pub(crate) fn with_answers(capacity: u32, answers: u32) -> Self {
        let slots = capacity + answers;
        debug_assert!(slots <= MOST_MESSAGES, "not all slots can be named");
        let slot = |index: u32| Outgoing {
            packet: Packet::EMPTY,
            tail: Tail::NONE,
            seq: FIRST,
            rail: RailId(0),
            lost: false,
            segment: NIL,
            pe: Pe(0),
            len: 0,
            batch: Batch::NONE,
            next: if index + 1 == capacity || index + 1 == slots { NIL } else { index + 1 },
        };
        Self {
            slots: (0..slots).map(slot).collect(),
            free: if capacity == 0 { NIL } else { 0 },
            left: capacity,
            first_answer: capacity,
            free_answer: if answers == 0 { NIL } else { capacity },
            answers_left: answers,
            beside: 0,
            without: 0,
            aside: NIL,
            unasked: NIL,
        }
    }

    pub(crate) fn segments(&self) -> u32 {
        self.first_answer - self.left - self.beside - self.without
    }

    /// What a message is named by towards the fabric when it leaves with this number: its slot and,
    /// as the fabric may speak of it when the slot is another's, some bits of the number.
    #[inline(always)]
    pub(crate) fn wr_id(index: u32, seq: Seq) -> WrId {
        WrId(index | (seq.0 & SEQ_BITS) << SLOT_BITS)
    }

    pub(crate) fn named_by(&self, wr_id: WrId) -> Option<(u32, u32)> {
        let index = wr_id.0 & ((1 << SLOT_BITS) - 1);
        let slot = self.slots.get(index as usize)?;
        (Self::wr_id(index, slot.seq) == wr_id).then_some((index, slot.segment))
    }

    #[cfg(any(test, feature = "audit"))]
    pub(super) fn list(&self, first: u32) -> impl Iterator<Item = u32> {
        let next = |index: &u32| self.slots.get(*index as usize).map(|slot| slot.next);
        // No list is longer; one that ends in itself would be.
        iter::successors(Some(first), next)
            .take_while(|index| (*index as usize) < self.slots.len())
            .take(self.slots.len() + 1)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.first_answer == 0 || self.free != NIL
    }

    #[inline]
    pub(crate) fn take(&mut self, segment: u32) -> Option<u32> {
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.left -= 1;
        slot.segment = segment;
        slot.next = NIL;
        slot.tail = Tail::NONE;
        Some(index)
    }

    pub(crate) fn take_beside(&mut self, segment: u32) -> Option<u32> {
        let index = self.take(segment)?;
        self.beside += 1;
        Some(index)
    }

    #[inline(always)]
    pub(crate) fn next_slot(&mut self) -> Option<NextSlot<'_>> {
        let Self { slots, free, left, without, unasked, .. } = self;
        let index = *free;
        let slot = slots.get_mut(index as usize)?;
        Some(NextSlot { index, slot, free, left, without, unasked })
    }

    #[cold]
    pub(crate) fn take_back(&mut self, channel: &mut ReliableChannel) -> u32 {
        channel.give_number_back();
        channel.slot_of(channel.next)
    }

    pub(crate) fn has_without(&self) -> bool {
        self.without != 0
    }

    pub(crate) fn would_be(&self, index: u32) -> Option<Segment> {
        let slot = self.slots.get(index as usize).filter(|slot| slot.segment == ITSELF)?;
        let Outgoing { pe, rail, batch, .. } = *slot;
        Some(Segment::sent((pe, rail), index, slot.len as usize, batch))
    }

    pub(crate) fn all_without(&self) -> impl Iterator<Item = Segment> + '_ {
        let all = (0..self.slots.len() as u32).filter_map(|index| self.would_be(index));
        all.take(self.without as usize)
    }

    #[inline]
    pub(crate) fn take_segment(&mut self, index: u32, segment: &Segment) {
        let slot = &mut self.slots[index as usize];
        (slot.segment, slot.pe) = (ITSELF, segment.pe);
        (slot.len, slot.batch) = (segment.len() as u32, segment.batch());
        self.without += 1;
    }

    pub(crate) fn give_segment(&mut self, index: u32, segment: u32) {
        self.slots[index as usize].segment = segment;
        self.without -= 1;
    }

    #[inline]
    pub(crate) fn give(&mut self, index: u32) {
        self.slots[index as usize].next = self.free;
        self.free = index;
        self.left += 1;
    }

    pub(crate) fn give_beside(&mut self, index: u32) {
        self.beside -= 1;
        self.give(index);
    }

    pub(crate) fn take_answer(&mut self, channel: &mut ReliableChannel) -> Option<u32> {
        if channel.answers >= self.answers_left {
            return None;
        }
        let index = self.free_answer;
        let slot = self.slots.get_mut(index as usize)?;
        self.free_answer = slot.next;
        self.answers_left -= 1;
        channel.answers += 1;
        (slot.segment, slot.next, slot.tail) = (NIL, NIL, Tail::NONE);
        Some(index)
    }

    pub(crate) fn give_answer(&mut self, channel: &mut ReliableChannel, index: u32) {
        self.slots[index as usize].next = self.free_answer;
        self.free_answer = index;
        self.answers_left += 1;
        channel.answers -= 1;
    }

    pub(crate) fn give_over(&mut self, channel: &mut ReliableChannel, index: u32) {
        if index < self.first_answer {
            self.give_beside(index);
        } else {
            self.give_answer(channel, index);
        }
    }

    #[cfg(any(test, feature = "audit"))]
    pub(super) fn is_answer(&self, index: u32) -> bool {
        index >= self.first_answer
    }

    pub(crate) fn has(&self, channel: &ReliableChannel, wr_id: WrId) -> Option<RailId> {
        let (index, _) = self.named_by(wr_id)?;
        let slot = self.slots.get(index as usize)?;
        (channel.awaits(slot.seq) && channel.slot_of(slot.seq) == index).then_some(slot.rail)
    }

    /// A message is acknowledged whose segment goes on: a slot stays in use for it, so that there
    /// are never more segments than the lane has room for. [`MessageTable::restore`] gives one
    /// back; which one makes no difference.
    pub(crate) fn set_aside(&mut self, index: u32) {
        self.slots[index as usize].next = std::mem::replace(&mut self.aside, index);
    }

    pub(crate) fn restore(&mut self) {
        let index = self.aside;
        if let Some(slot) = self.slots.get(index as usize) {
            self.aside = slot.next;
            self.give(index);
        }
    }

    #[inline]
    pub(crate) fn packet_mut(&mut self, index: u32) -> &mut Packet {
        &mut self.slots[index as usize].packet
    }

    /// The packet of a message, and the bytes behind it.
    #[inline]
    pub(crate) fn parts_mut(&mut self, index: u32) -> (&mut Packet, Tail) {
        let slot = &mut self.slots[index as usize];
        (&mut slot.packet, slot.tail)
    }

    /// A message ends with these bytes.
    pub(crate) fn set_tail(&mut self, index: u32, tail: Tail) {
        self.slots[index as usize].tail = tail;
    }

    pub(crate) fn memory_of(&self, index: u32) -> Option<(usize, usize)> {
        let Tail { addr, len } = self.slots.get(index as usize)?.tail;
        (len != 0).then_some((addr, len))
    }

    pub(crate) fn forget_segment(&mut self, index: u32) {
        self.beside += 1;
        self.forget_fragment(index);
    }

    pub(crate) fn forget_fragment(&mut self, index: u32) {
        let slot = &mut self.slots[index as usize];
        slot.segment = NIL;
        // The bounce buffer that it brings has another use from here on. Sent again, it tells of
        // the bytes and brings none: its peer has them, or will not ask for them.
        slot.tail = Tail::NONE;
    }

    #[inline(always)]
    pub(crate) fn sent(
        &mut self,
        channel: &mut ReliableChannel,
        index: u32,
        seq: Seq,
        rail: RailId,
    ) {
        let slot = &mut self.slots[index as usize];
        (slot.seq, slot.rail, slot.lost) = (seq, rail, false);
        channel.note(seq, index, &mut self.unasked);
    }

    #[inline(always)]
    pub(crate) fn first_unasked(&self) -> Option<Pe> {
        (self.unasked != NIL).then_some(Pe(self.unasked))
    }

    pub(crate) fn pop_unasked(&mut self, channel: &mut ReliableChannel) {
        debug_assert_eq!(self.unasked, channel.pe.0);
        self.unasked = std::mem::replace(&mut channel.next_unasked, UNLISTED);
    }

    pub(crate) fn first_missing(&self, channel: &ReliableChannel) -> Option<RailId> {
        let heard = channel.heard();
        let mut slots = channel.unacked().map(|index| &self.slots[index as usize]);
        slots.find(|slot| !slot.seq.is_before(heard)).map(|slot| slot.rail)
    }

    pub(crate) fn lose(
        &mut self,
        channel: &ReliableChannel,
        mut so: impl FnMut(RailId) -> bool,
    ) -> u32 {
        let mut count = 0;
        for index in channel.unacked() {
            let slot = &mut self.slots[index as usize];
            if !slot.lost && so(slot.rail) {
                slot.lost = true;
                count += 1;
            }
        }
        count
    }

    pub(crate) fn first_lost(&self, channel: &ReliableChannel) -> Option<(u32, Seq, RailId)> {
        channel.unacked().find_map(|index| {
            let slot = &self.slots[index as usize];
            slot.lost.then_some((index, slot.seq, slot.rail))
        })
    }

    pub(crate) fn found(&mut self, index: u32, rail: RailId) {
        let slot = &mut self.slots[index as usize];
        (slot.lost, slot.rail) = (false, rail);
    }

    pub(crate) fn forget_all(&mut self, channel: &mut ReliableChannel) {
        while let Some((index, segment)) = self.pop_acked(channel, channel.next) {
            debug_assert_eq!(segment, NIL, "a segment waits for its acknowledgement");
            self.give_over(channel, index);
        }
    }

    #[inline(always)]
    pub(crate) fn end_acked(
        &mut self,
        channel: &mut ReliableChannel,
        ack: Seq,
        batches: &mut Batches,
    ) -> u32 {
        let first = channel.ack_received;
        if !first.is_before(ack) {
            return 0;
        }
        let (mut seq, mut free) = (first, self.free);
        while seq != ack {
            let index = channel.slot_of(seq);
            let Some(slot) = self.slots.get_mut(index as usize) else { break };
            if slot.segment != ITSELF {
                break;
            }
            (slot.segment, slot.next) = (NIL, free);
            batches.end(slot.batch, 1);
            free = index;
            seq = seq.next();
        }
        let count = seq.after(first);
        (channel.ack_received, self.free) = (seq, free);
        self.left += count;
        self.without -= count;
        count
    }

    /// Takes the oldest unacknowledged message of a channel, if it comes before `ack`, which is not
    /// beyond its newest: it is acknowledged. Gives its slot and its segment.
    #[inline]
    pub(crate) fn pop_acked(
        &mut self,
        channel: &mut ReliableChannel,
        ack: Seq,
    ) -> Option<(u32, u32)> {
        let seq = channel.ack_received;
        if !seq.is_before(ack) {
            return None;
        }
        channel.ack_received = seq.next();
        let index = channel.slot_of(seq);
        self.slots.get(index as usize).map(|slot| (index, slot.segment))
    }
}

/// A slot that is free, of those there are; taken for the message that leaves next to a peer.
pub(crate) struct NextSlot<'a> {
    index: u32,
    slot: &'a mut Outgoing,
    free: &'a mut u32,
    left: &'a mut u32,
    without: &'a mut u32,
    unasked: &'a mut u32,
}

impl<'a> NextSlot<'a> {
    #[inline(always)]
    pub(crate) fn packet(&mut self) -> &mut Packet {
        &mut self.slot.packet
    }

    /// Takes it for a message of the channel that is about to leave over a rail, now, with the
    /// channel's next number, and stands for itself. Gives its index and its packet.
    #[inline(always)]
    pub(crate) fn take(
        self,
        channel: &mut ReliableChannel,
        rail: RailId,
        width: usize,
        batch: Batch,
    ) -> (u32, &'a mut Packet) {
        let Self { index, slot, free, left, without, unasked } = self;
        let seq = channel.next;
        // The slot first, and what is at hand of that: in this order the compiler keeps none of it.
        slot.rail = rail;
        (slot.lost, slot.batch) = (false, batch);
        (slot.segment, slot.len) = (ITSELF, width as u32);
        (slot.seq, slot.pe) = (seq, channel.pe);
        slot.tail.len = 0;
        *free = slot.next;
        *left -= 1;
        *without += 1;
        channel.note(seq, index, unasked);
        (index, &mut slot.packet)
    }
}

impl ReliableChannel {
    #[inline(always)]
    pub(crate) fn has_room_for_new(&self, messages: &MessageTable) -> bool {
        let unacknowledged = self.unacknowledged();
        unacknowledged < WINDOW && unacknowledged < messages.left
    }

    /// Whether the peer may have another slot: it has fewer than are left. So one that acknowledges
    /// nothing takes half of them at most, and however many such peers there are, as many as each
    /// has are left for others.
    pub(crate) fn is_within_quota(&self, messages: &MessageTable) -> bool {
        self.unacknowledged() + self.unsent < messages.left
    }
}
