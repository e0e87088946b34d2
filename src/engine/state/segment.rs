//! The table of segments of one lane: a fixed array with a free list.
//!
//! Every list of the lane (free slots, a rail's queue, a stream's held segments) is threaded
//! through the slots by index, so that nothing is allocated after start and the room for every
//! list is the room of the table.

use crate::engine::ids::{Pe, RailId, Token};
use crate::engine::port::{Context, Desc, Direction, Local, Transfer};
use crate::engine::state::batch::{Batch, Batches};
use crate::engine::wire::message::Ticket;

/// The end of a list, or the absence of a slot.
pub(in crate::engine) const NIL: u32 = u32::MAX;

/// Where a segment is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Stage {
    /// The slot is free.
    Free,
    /// Waits behind a fence in its stream's held queue.
    Held,
    /// Waits in its rail's queue.
    Ready,
    /// Taken by the fabric; its completion is outstanding.
    Posted,
    /// A signal that waits for the data of its own put.
    Chained,
    /// A message that waits for the peer's window.
    Windowed,
    /// A message that has left; the peer's acknowledgement, or its reply, is outstanding.
    Sent,
    /// An atomic taken by the fabric; its completion is outstanding.
    Native,
    /// A piece of staged memory that waits for a chunk, a copy or its peer.
    Staged,
    /// The rest of an operation that waits for rails.
    Pooled,
    /// It was lost sight of, and is posted again as soon as that is safe: see [`crate::engine::recovery::reissue`].
    Limbo,
}

/// What a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Kind {
    /// Bytes that the fabric moves. It ends with its completion.
    Transfer,
    /// The same, with remote data that the peer counts.
    Counted,
    /// The same as a transfer, of an operation whose rail is chosen by load.
    Weighed,
    /// The rest of such an operation, which is not bytes for one rail yet: see [`crate::engine::striping::pool`].
    Bulk,
    /// A message whose request returns nothing. It ends with the peer's acknowledgement.
    Message,
    /// The same, for a signal whose data the peer counts. With it ends the use of its tag.
    CountedSignal,
    /// A message whose request returns a word. It ends with the reply. `transfer.local` is where
    /// the word goes, `transfer.remote` the flag, if `transfer.key` says that there is one.
    Fetch,
    /// An atomic that the fabric carries out. It ends with its completion.
    Native,
    /// A piece of staged memory: see [`crate::engine::staging::pieces`].
    Staged,
    /// The same, for a peer. The stream knows nothing of it.
    ForPeer,
    /// Bytes that the fabric moves, with a signal behind them on the same path.
    Ordered,
    /// Such a signal: as [`Kind::Message`].
    OrderedSignal,
    /// Bytes that the fabric moves, and that were lost sight of before. It ends with its completion.
    Reissued,
}

impl Kind {
    /// Whether it has a place in the table of messages or among the native atomics, rather than
    /// being bytes that the fabric moves.
    #[inline]
    pub(in crate::engine) fn is_noted(self) -> bool {
        use Kind::{Counted, Ordered, Reissued, Transfer, Weighed};
        !matches!(self, Transfer | Counted | Weighed | Ordered | Reissued)
    }

    /// Whether it is moved by a mechanism, step by step, rather than posted as it is.
    #[inline]
    pub(in crate::engine) fn has_mover(self) -> bool {
        matches!(self, Kind::Bulk | Kind::Staged | Kind::ForPeer)
    }

    /// Whether its message ends with an answer, and not by being acknowledged.
    pub(in crate::engine) fn awaits_answer(self) -> bool {
        matches!(self, Kind::Fetch | Kind::Staged)
    }

    /// Whether it passes through staging.
    #[inline]
    pub(in crate::engine) fn is_staged(self) -> bool {
        matches!(self, Kind::Staged | Kind::ForPeer)
    }
}

/// One segment and its place in the list it is in.
///
/// Two cache lines, so that an index becomes an address with a shift. The first five fields, in this
/// order, are one word; see [`Segment::mark`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(in crate::engine) struct Segment {
    /// The peer.
    pub(in crate::engine) pe: Pe,
    /// Where it is.
    pub(in crate::engine) stage: Stage,
    /// What it is.
    pub(in crate::engine) kind: Kind,
    /// Its direction. Messages are writes.
    pub(in crate::engine) direction: Direction,
    /// Who counts it: a batch or nobody, or [`COUNTED`].
    tag: u8,
    /// If it is [`COUNTED`]: the operation that counts its segments.
    op: u32,
    /// Next in the queue it is in: free list, held queue or rail queue.
    pub(in crate::engine) next: u32,
    /// When it came to where it is, on the watchdog's clock. Not kept for a transfer that was posted
    /// at once: then it is some earlier moment.
    pub(in crate::engine) born: u32,
    /// Its message in the message table, or its place among the native atomics or the operations that
    /// wait for rails, or [`NIL`] for a transfer.
    pub(in crate::engine) message: u32,
    /// The rail it goes out on.
    pub(in crate::engine) rail: RailId,
    /// Its bytes are among those that its rail has ahead: see [`crate::engine::striping::pool`]. Not in a free slot.
    pub(in crate::engine) weighed: bool,
    /// It has one of the slots set aside for cuts. Not in a free slot.
    pub(in crate::engine) cut: bool,
    /// If it is [`COUNTED`]: its batch, or [`Batch::NONE`].
    batch: Batch,
    /// While held: which fence it waits for. Once it was lost sight of: see [`crate::engine::recovery::reissue`].
    pub(in crate::engine) epoch: u32,
    /// Of what is counted: the remote data, or for the signal its tag. Of what is ordered: the number of
    /// the put. Of a fetch: its place.
    pub(in crate::engine) data: u32,
    /// How often the slot has been used for a fetch; see [`Segment::ticket`]. Transfers in between
    /// leave it as it is.
    fetches: u8,
    /// What to post. A message is a write of its word.
    pub(in crate::engine) transfer: Transfer,
    /// What the port knows the slot by.
    pub(in crate::engine) context: Context,
}

impl Segment {
    /// The operation that counts it, or [`NIL`].
    #[inline]
    pub(in crate::engine) fn op(&self) -> u32 {
        if self.tag == COUNTED { self.op } else { NIL }
    }

    /// The batch that it belongs to.
    #[inline]
    pub(in crate::engine) fn batch(&self) -> Batch {
        if self.tag == COUNTED { self.batch } else { Batch(self.tag) }
    }

    /// An operation counts it, unless that is [`NIL`]. Its batch it keeps.
    #[inline]
    pub(in crate::engine) fn count_for(&mut self, op: u32) {
        if op != NIL {
            self.batch = self.batch();
            self.tag = COUNTED;
            self.op = op;
        }
    }

    /// Makes it plain: posted, a transfer, counted by no operation.
    #[inline(always)]
    pub(in crate::engine) fn make_plain(&mut self, pe: Pe, direction: Direction, batch: Batch) {
        self.pe = pe;
        self.stage = Stage::Posted;
        self.kind = Kind::Transfer;
        self.direction = direction;
        self.tag = batch.0;
    }

    /// Peer, stage, kind, direction and who counts it, in one number: equal marks are equal in all of
    /// them.
    #[inline(always)]
    fn mark(&self) -> u64 {
        mark(self.pe, self.stage, self.kind, self.direction, self.tag)
    }

    /// Whether it is a write that was lost sight of before.
    pub(in crate::engine) fn is_reissued_write(&self) -> bool {
        self.kind == Kind::Reissued && self.direction == Direction::Write
    }

    /// The words for it in messages to the user.
    pub(in crate::engine) fn what(&self) -> &'static str {
        match (self.kind, self.direction) {
            (Kind::ForPeer, _) => "put or get of the peer",
            (Kind::Message | Kind::CountedSignal | Kind::OrderedSignal, _) => "signal or atomic",
            (Kind::Fetch, _) => "fetching atomic",
            (Kind::Native, _) => "signal or atomic",
            (_, Direction::Write) => "put",
            (_, Direction::Read) => "get",
        }
    }

    /// Names a new fetch in this slot, which is `token`'s.
    #[inline]
    pub(in crate::engine) fn new_ticket(&mut self, token: Token) -> Ticket {
        self.fetches = self.fetches.wrapping_add(1);
        self.ticket(token)
    }

    /// The name of the slot's latest fetch for the peer that answers: the slot, and some bits of how
    /// often it has been used for one, so that a late second reply to an earlier fetch is noticed.
    #[inline]
    pub(in crate::engine) fn ticket(&self, token: Token) -> Ticket {
        Ticket(token.0 & TOKEN_BITS | u32::from(self.fetches) << 24)
    }

    const FREE: Segment = Segment {
        pe: Pe(0),
        stage: Stage::Free,
        kind: Kind::Transfer,
        direction: Direction::Write,
        tag: 0,
        op: NIL,
        next: NIL,
        born: 0,
        message: NIL,
        rail: RailId(0),
        weighed: false,
        cut: false,
        batch: Batch::NONE,
        epoch: 0,
        data: 0,
        fetches: 0,
        transfer: Transfer {
            direction: Direction::Write,
            local: Local::Memory { addr: 0, desc: Desc(0) },
            len: 0,
            remote: 0,
            key: 0,
        },
        context: Context(0),
    };
}

/// What a segment that was lost sight of waits for, bits of [`Segment::epoch`].
pub(in crate::engine) struct Waits;

impl Waits {
    /// The fabric may have the token.
    pub(in crate::engine) const TOKEN: u32 = 1;
    /// The target may take the write.
    pub(in crate::engine) const TARGET: u32 = 2;
    /// The peer may have applied the signal of the data.
    pub(in crate::engine) const ASK: u32 = 4;
    /// It has been asked.
    pub(in crate::engine) const ASKED: u32 = 8;
    /// The peer has the data: it waits for nothing.
    pub(in crate::engine) const LANDED: u32 = 16;
    /// All that it waits for.
    pub(in crate::engine) const ALL: u32 = Self::TOKEN | Self::TARGET | Self::ASK;
}

/// Most times that a segment is posted again.
pub(in crate::engine) const REISSUES: u32 = 64;

/// How often a segment has been posted again. They are kept beside what it waits for.
pub(in crate::engine) fn reissues(segment: &Segment) -> u32 {
    match segment.kind {
        Kind::Reissued => segment.epoch >> 8,
        _ => 0,
    }
}

/// The tag of a segment that an operation counts; whether a batch does as well is in the segment then.
const COUNTED: u8 = u8::MAX;

/// The part of a ticket that is the segment's token.
const TOKEN_BITS: u32 = 0x00ff_ffff;

/// The segment that a ticket names.
#[inline]
pub(in crate::engine) fn named_by(ticket: Ticket) -> Token {
    Token(ticket.0 & TOKEN_BITS)
}

/// What remains to be done for a segment that has completed.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Finished {
    pub(in crate::engine) pe: Pe,
    pub(in crate::engine) op: u32,
    pub(in crate::engine) direction: Direction,
}

/// What [`SegmentTable::finish_plain`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Finish {
    /// Such a segment, which is over.
    Done,
    /// Another one, or none.
    Other,
    /// No slot.
    NoSlot,
}

/// What a plain segment is: posted, a transfer, counted by no operation, of some peer, direction and batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) struct Plain {
    mark: u64,
}

impl Plain {
    /// No segment: a free slot's mark has another stage.
    pub(in crate::engine) const NONE: Plain = Plain { mark: u64::MAX };

    /// Stage and kind in a mark.
    const SHAPE: u64 = 0xffff << 32;

    /// Those of a plain segment.
    const POSTED: u64 = (Stage::Posted as u64) << 32 | (Kind::Transfer as u64) << 40;

    /// The peer.
    pub(in crate::engine) fn pe(self) -> Pe {
        Pe(self.mark as u32)
    }

    /// The direction.
    pub(in crate::engine) fn direction(self) -> Direction {
        const READ: u8 = Direction::Read as u8;
        if (self.mark >> 48) as u8 == READ { Direction::Read } else { Direction::Write }
    }

    /// The batch.
    pub(in crate::engine) fn batch(self) -> Batch {
        Batch((self.mark >> 56) as u8)
    }
}

/// See [`Segment::mark`]. The parts lie in the number as they do in a segment on a little endian
/// machine, so that the compiler reads them at once.
#[inline(always)]
fn mark(pe: Pe, stage: Stage, kind: Kind, direction: Direction, tag: u8) -> u64 {
    u64::from(pe.0)
        | (stage as u64) << 32
        | (kind as u64) << 40
        | (direction as u64) << 48
        | u64::from(tag) << 56
}

/// The segments of a lane.
#[derive(Debug)]
pub(in crate::engine) struct SegmentTable {
    slots: Box<[Segment]>,
    free: u32,
    used: u32,
    /// What batches wait for.
    pub(in crate::engine) batches: Batches,
}

impl SegmentTable {
    /// A table of `capacity` free slots, at least 1 and below `u32::MAX`. `context` tells what the port
    /// knows a token by.
    pub(in crate::engine) fn new(capacity: u32, context: impl Fn(Token) -> Context) -> Self {
        let mut slots = vec![Segment::FREE; capacity as usize].into_boxed_slice();
        for (index, slot) in slots.iter_mut().enumerate() {
            let next = index as u32 + 1;
            slot.next = if next == capacity { NIL } else { next };
            slot.context = context(Token(index as u32));
        }
        Self { slots, free: 0, used: 0, batches: Batches::new() }
    }

    /// Slots in use.
    #[inline]
    pub(in crate::engine) fn used(&self) -> u32 {
        self.used
    }

    /// Takes a free slot; its content is what its last user left, but for the batch, which is the current
    /// one. None when the table is full.
    #[inline]
    pub(in crate::engine) fn take(&mut self) -> Option<Token> {
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.used += 1;
        slot.tag = self.batches.take_current().0;
        Some(Token(index))
    }

    /// As [`SegmentTable::take`], with the segment, whose batch is as it was.
    #[inline(always)]
    pub(in crate::engine) fn take_slot(&mut self) -> Option<(Token, &mut Segment)> {
        let index = self.free;
        let slot = self.slots.get_mut(index as usize)?;
        self.free = slot.next;
        self.used += 1;
        Some((Token(index), slot))
    }

    /// The slot that the next segment takes.
    #[inline(always)]
    pub(in crate::engine) fn next_token(&self) -> Option<Token> {
        ((self.free as usize) < self.slots.len()).then_some(Token(self.free))
    }

    /// Takes the slot that [`SegmentTable::next_token`] has named, for a message that has been sent:
    /// about a word of `width` bytes, in slot `message` of the message table.
    #[inline(always)]
    pub(in crate::engine) fn take_sent(
        &mut self,
        (pe, rail): (Pe, RailId),
        message: u32,
        born: u32,
        width: usize,
        batch: Batch,
    ) {
        self.batches.begin(batch);
        let Some((_, slot)) = self.take_slot() else { return };
        slot.pe = pe;
        slot.stage = Stage::Sent;
        slot.kind = Kind::Message;
        slot.direction = Direction::Write;
        slot.tag = batch.0;
        slot.rail = rail;
        slot.message = message;
        slot.born = born;
        slot.transfer.len = width;
    }

    /// Gives a slot back.
    #[inline]
    pub(in crate::engine) fn give(&mut self, token: Token) {
        let free = self.free;
        let slot = &mut self.slots[token.index()];
        debug_assert!(slot.stage != Stage::Free, "segment {token:?} given back twice");
        slot.stage = Stage::Free;
        slot.next = free;
        let batch = slot.batch();
        self.batches.end(batch, 1);
        self.free = token.0;
        self.used -= 1;
    }

    /// The segment, if the token is one that the fabric or the peer has at present.
    pub(in crate::engine) fn away(&self, token: Token) -> Option<&Segment> {
        self.slots.get(token.index()).filter(|segment| {
            matches!(segment.stage, Stage::Posted | Stage::Sent | Stage::Native | Stage::Limbo)
        })
    }

    /// Gives back a slot that was just taken and put to no use.
    pub(in crate::engine) fn give_unused(&mut self, token: Token) {
        self.slots[token.index()].stage = Stage::Ready;
        self.give(token);
    }

    /// Frees the slot of a segment that has completed. None if the token is not of one that is
    /// posted.
    pub(in crate::engine) fn finish(&mut self, token: Token) -> Option<Finished> {
        let slot = self.slots.get(token.index())?;
        if slot.stage != Stage::Posted || slot.kind.is_staged() {
            return None;
        }
        let finished = Finished { pe: slot.pe, op: slot.op(), direction: slot.direction };
        self.give(token);
        Some(finished)
    }

    /// What the segment is, if it is a plain one.
    pub(in crate::engine) fn plain(&self, token: Token) -> Option<Plain> {
        let slot = self.slots.get(token.index())?;
        let mark = slot.mark();
        (mark & Plain::SHAPE == Plain::POSTED && slot.tag != COUNTED).then_some(Plain { mark })
    }

    /// Frees the slot at `index` if its segment has completed and is a plain one of `of`. Otherwise
    /// nothing happens. [`SegmentTable::count_finished`] is told of those freed.
    #[inline(always)]
    pub(in crate::engine) fn finish_plain(&mut self, index: usize, of: Plain) -> Finish {
        let Some(slot) = self.slots.get_mut(index) else { return Finish::NoSlot };
        if slot.mark() != of.mark {
            return Finish::Other;
        }
        slot.stage = Stage::Free;
        slot.next = self.free;
        self.free = index as u32;
        Finish::Done
    }

    /// Frees the slot at `index` if it is a message's that returns nothing, which has been sent and is
    /// acknowledged now, and that no operation counts. Otherwise nothing happens.
    #[inline(always)]
    pub(in crate::engine) fn finish_message(&mut self, index: u32) -> bool {
        let Some(slot) = self.slots.get_mut(index as usize) else { return false };
        let tag = slot.tag;
        let plain = mark(slot.pe, Stage::Sent, Kind::Message, Direction::Write, tag);
        if slot.mark() != plain || tag == COUNTED {
            return false;
        }
        self.batches.end(Batch(tag), 1);
        slot.message = NIL;
        slot.stage = Stage::Free;
        slot.next = self.free;
        self.free = index;
        self.used -= 1;
        true
    }

    /// So many segments have been freed by [`SegmentTable::finish_plain`].
    pub(in crate::engine) fn count_finished(&mut self, of: Plain, count: u32) {
        self.used -= count;
        self.batches.end(of.batch(), count);
    }

    /// The tokens of all segments in use that are so.
    pub(in crate::engine) fn tokens(&self, mut so: impl FnMut(&Segment) -> bool) -> Vec<Token> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.stage != Stage::Free);
        let used = used.take(self.used as usize).filter(|(_, slot)| so(slot));
        used.map(|(index, _)| Token(index as u32)).collect()
    }

    /// As [`SegmentTable::in_use`], to change them.
    pub(in crate::engine) fn in_use_mut(&mut self) -> impl Iterator<Item = (Token, &mut Segment)> {
        let slots = self.slots.iter_mut().enumerate();
        let used = slots.filter(|(_, segment)| segment.stage != Stage::Free);
        used.take(self.used as usize).map(|(index, slot)| (Token(index as u32), slot))
    }

    /// All segments in use. Slots are reused last in first out, so they are found near the front
    /// of the table, and the search ends with the last of them.
    pub(in crate::engine) fn in_use(&self) -> impl Iterator<Item = &Segment> {
        let used = self.slots.iter().filter(|segment| segment.stage != Stage::Free);
        used.take(self.used as usize)
    }
}

impl std::ops::Index<u32> for SegmentTable {
    type Output = Segment;
    #[inline]
    fn index(&self, index: u32) -> &Segment {
        &self.slots[index as usize]
    }
}

impl std::ops::IndexMut<u32> for SegmentTable {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut Segment {
        &mut self.slots[index as usize]
    }
}

/// A first-in first-out queue of segments, threaded through [`Segment::next`]. A segment is in at
/// most one queue at a time.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Queue {
    head: u32,
    tail: u32,
    len: u32,
}

impl Queue {
    pub(in crate::engine) const EMPTY: Queue = Queue { head: NIL, tail: NIL, len: 0 };

    #[inline]
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.head == NIL
    }

    /// Segments in the queue.
    #[inline]
    pub(in crate::engine) fn len(&self) -> u32 {
        self.len
    }

    /// The segment that leaves next.
    #[inline]
    pub(in crate::engine) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(in crate::engine) fn push(&mut self, table: &mut SegmentTable, index: u32) {
        table[index].next = NIL;
        if self.tail == NIL {
            self.head = index;
        } else {
            table[self.tail].next = index;
        }
        self.tail = index;
        self.len += 1;
    }

    pub(in crate::engine) fn pop(&mut self, table: &SegmentTable) -> Option<u32> {
        let index = self.front()?;
        self.head = table[index].next;
        if self.head == NIL {
            self.tail = NIL;
        }
        self.len -= 1;
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(table: &mut SegmentTable) -> u32 {
        let token = table.take().unwrap();
        table[token.0].stage = Stage::Ready;
        token.0
    }

    #[test]
    fn a_full_table_gives_nothing_and_recovers() {
        let mut table = SegmentTable::new(3, |_| Context(0));
        let all: Vec<u32> = (0..3).map(|_| take(&mut table)).collect();
        assert_eq!(table.used(), 3);
        assert!(table.take().is_none());
        table.give(Token(all[1]));
        assert_eq!(take(&mut table), all[1]);
        assert!(table.take().is_none());
    }

    #[test]
    fn a_fetch_has_a_ticket_of_its_own_whatever_used_its_slot_in_between() {
        let mut table = SegmentTable::new(1, |_| Context(0));
        let mut tickets = std::collections::HashSet::new();
        for _ in 0..256 {
            let token = Token(take(&mut table));
            assert!(tickets.insert(table[token.0].new_ticket(token).0));
            assert_eq!(named_by(table[token.0].ticket(token)), token);
            table.give(token);
            let put = take(&mut table);
            table[put].transfer.key = 7;
            table.give(Token(put));
        }
    }

    #[test]
    fn a_queue_is_first_in_first_out() {
        let mut table = SegmentTable::new(4, |_| Context(0));
        let mut queue = Queue::EMPTY;
        let all: Vec<u32> = (0..4).map(|_| take(&mut table)).collect();
        for &index in &all {
            queue.push(&mut table, index);
        }
        assert_eq!(queue.len(), 4);
        for &index in &all {
            assert_eq!(queue.front(), Some(index));
            assert_eq!(queue.pop(&table), Some(index));
        }
        assert!(queue.is_empty());
        queue.push(&mut table, all[2]);
        assert_eq!(queue.pop(&table), Some(all[2]));
        assert_eq!(queue.pop(&table), None);
    }
}
