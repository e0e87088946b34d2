//! A segment: what it is, where it is on its way, and what it knows of what it is for.

pub(crate) mod queue;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod waits;
pub(crate) mod work;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Context, Direction, Transfer};
use crate::state::batch::Batch;
use crate::state::segment::waits::Waits;
use crate::state::segment::work::{MessageSlot, Work, no_bytes};
use crate::wire::format::{RequestId, Tag};
use crate::wire::window::Seq;

/// The end of a list, or the absence of a slot.
pub(crate) const NIL: u32 = u32::MAX;

/// Where a segment is on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// The slot is free.
    Free,
    /// Waits behind a fence in its connection's held queue.
    Held,
    /// Waits in its rail's queue.
    Ready,
    /// Taken by the fabric; its completion is outstanding.
    Posted,
    /// A signal that waits for the data of its own put.
    Chained,
    /// A signal that waits for the puts before it.
    BehindPuts,
    /// A message that waits for the peer's window.
    Windowed,
    /// A message that has left; the peer's acknowledgement, or its reply, is outstanding.
    Sent,
    /// A fragment of staged memory that waits for a bounce buffer, a copy or its peer.
    Staged,
    /// The rest of an operation that waits for rails.
    Pooled,
    /// It was in doubt, and is posted again as soon as that is safe: see
    /// [`crate::recovery::reissue`].
    Lost,
}

/// What a signal goes out behind, of what was started before to the same PE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Follows {
    /// Nothing.
    Nothing,
    /// The puts.
    Puts,
    /// The puts and the signals.
    All,
}

/// What a write is among those of its connection: a put, of one of two generations, or a change of
/// a word.
///
/// A signal that is sent apart from its data waits for the generation of puts before it; see
/// [`Connection`](crate::state::connection::Connection).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteClass {
    /// Bytes, or a message with bytes that has not left: what has left its target orders, so from
    /// then on it is a word.
    EvenPut,
    /// The same, of the other generation.
    OddPut,
    /// An atomic or a signal, a message with bytes that has left, or bytes that are counted where
    /// signals come behind signals: behind that of the bytes. No read is one.
    Word,
}

impl WriteClass {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::EvenPut => Self::OddPut,
            _ => Self::EvenPut,
        }
    }
}

/// One segment and its place in the list it is in.
///
/// Two cache lines, so that an index becomes an address with a shift. The first five fields, in
/// this order, are one word; see [`Segment::signature`].
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Segment {
    pub(crate) pe: Pe,
    pub(crate) stage: Stage,
    pub(crate) direction: Direction,
    /// Its batch if it is plain, or [`NOT_PLAIN`].
    pub(super) plain: u8,
    /// What it goes out behind, if it is a signal.
    pub(crate) follows: Follows,
    /// If it is not plain: the operation that counts it, or [`NIL`].
    op: u32,
    /// Next in the queue it is in: free list, held queue or rail queue. While posted: [`SEEN`], or
    /// nothing.
    pub(super) next: u32,
    /// When it came to where it is, on the watchdog's clock. Not kept for a transfer that was
    /// posted at once, nor for a message that stands for itself: then it is some earlier moment.
    pub(crate) born: u32,
    pub(crate) rail: RailId,
    /// Its bytes are among those that its rail has ahead: see [`crate::striping::pool`]. Not in a
    /// free slot.
    pub(crate) in_load: bool,
    /// It has one of the slots set aside for stripes. Not in a free slot.
    pub(crate) is_stripe: bool,
    /// What it is among the writes of its connection, if it is one.
    pub(crate) class: WriteClass,
    /// If it is not plain: its batch, or [`Batch::NONE`].
    batch: Batch,
    /// It is a signal that takes effect behind all puts that have left as messages before it.
    pub(crate) behind_sent: bool,
    /// Its mechanism was told to drop it, and has not yet. Not in a free slot: what has ended
    /// meanwhile is not dropped, nor what is in its slot by then.
    pub(crate) is_dropped: bool,
    /// While held: the epoch of the fence that it waits for.
    fence: u32,
    /// What it waits for, once it was in doubt.
    waits: Waits,
    /// The number of the latest request that it has sent, if that is answered.
    pub(crate) request: Seq,
    pub(crate) context: Context,
    work: Work,
}

impl Segment {
    #[inline(always)]
    pub(crate) fn work(&self) -> &Work {
        &self.work
    }

    #[inline]
    pub(crate) fn set_work(&mut self, work: Work) {
        self.work = work;
        self.recount(self.op());
    }

    /// An operation counts it, unless that is [`NIL`].
    #[inline]
    pub(crate) fn count_for(&mut self, op: u32) {
        if op != NIL {
            self.recount(op);
        }
    }

    pub(crate) fn uncount(&mut self) {
        self.op = NIL;
    }

    #[inline]
    fn recount(&mut self, op: u32) {
        let batch = self.batch();
        let ends_plainly = matches!(self.work, Work::Transfer(_) | Work::Message { .. });
        self.plain = if op == NIL && ends_plainly { batch.0 } else { NOT_PLAIN };
        (self.op, self.batch) = (op, batch);
    }

    #[inline]
    pub(crate) fn op(&self) -> u32 {
        if self.plain == NOT_PLAIN { self.op } else { NIL }
    }

    #[inline]
    pub(crate) fn batch(&self) -> Batch {
        if self.plain == NOT_PLAIN { self.batch } else { Batch(self.plain) }
    }

    #[inline(always)]
    pub(crate) fn make_plain(
        &mut self,
        pe: Pe,
        direction: Direction,
        class: WriteClass,
        batch: Batch,
    ) {
        self.class = class;
        self.pe = pe;
        self.stage = Stage::Posted;
        self.direction = direction;
        self.plain = batch.0;
        self.follows = Follows::Nothing;
    }

    /// A message about so many bytes that has left, in slot `message` of the message
    /// table, counted by no operation. The target sees to the order of what has left.
    pub(crate) fn sent((pe, rail): (Pe, RailId), message: u32, len: usize, batch: Batch) -> Self {
        Self {
            pe,
            stage: Stage::Sent,
            plain: batch.0,
            class: WriteClass::Word,
            rail,
            work: Work::Message { slot: MessageSlot::of(message), len },
            ..Self::FREE
        }
    }

    /// A plain segment moves these bytes.
    #[inline(always)]
    pub(crate) fn carry(&mut self, transfer: Transfer) {
        self.work = Work::Transfer(transfer);
    }

    /// A plain segment moves bytes that the peer counts, and is plain no more: as
    /// [`Segment::carry`] and [`Segment::set_counted`], in few instructions.
    #[inline(always)]
    pub(crate) fn carry_counted(&mut self, transfer: Transfer, tag: Tag, class: WriteClass) {
        (self.op, self.batch) = (NIL, Batch(self.plain));
        self.plain = NOT_PLAIN;
        self.work = Work::Counted { tag, bulk: false, transfer };
        self.class = class;
    }

    /// Peer, stage, direction and batch of a plain segment, in one number: equal signatures are
    /// equal in all of them, and no other segment has that of a plain one.
    #[inline(always)]
    pub(super) fn signature(&self) -> u64 {
        // As the parts lie in memory on a little endian machine, so that the compiler reads them at
        // once.
        u64::from(self.pe.0)
            | (self.stage as u64) << 32
            | (self.direction as u64) << 40
            | u64::from(self.plain) << 48
            | (self.follows as u64) << 56
    }

    pub(crate) fn is_request(&self) -> bool {
        match self.work {
            Work::Fragment { slot, .. } => {
                self.direction == Direction::Write && slot.get().is_some()
            }
            work => work.is_message(),
        }
    }

    #[inline(always)]
    pub(crate) fn hold(&mut self, epoch: u32) {
        self.stage = Stage::Held;
        self.fence = epoch;
    }

    pub(crate) fn fence(&self) -> u32 {
        debug_assert_eq!(self.stage, Stage::Held);
        self.fence
    }

    pub(crate) fn step(&mut self) {
        debug_assert!(self.work.is_staged());
        self.stage = Stage::Staged;
        self.waits = Waits::NONE;
    }

    /// It is in doubt, and waits for these. Whether it is bytes that were not in doubt before.
    pub(crate) fn lose(&mut self, waits: Waits) -> bool {
        let before = if self.counts_reissues() { self.waits } else { Waits::NONE };
        self.waits = before.counting(waits);
        self.stage = Stage::Lost;
        let (bulk, transfer) = match self.work {
            Work::Transfer(transfer) => (false, transfer),
            Work::Stripe { bulk, transfer } => (bulk, transfer),
            _ => return false,
        };
        self.set_work(Work::Reissued { bulk, transfer });
        true
    }

    fn counts_reissues(&self) -> bool {
        matches!(self.work, Work::Reissued { .. }) || self.work.is_staged()
    }

    pub(crate) fn is_out(&self) -> bool {
        match self.stage {
            Stage::Posted | Stage::Staged => true,
            Stage::Lost => self.waits().has(Waits::FABRIC),
            _ => false,
        }
    }

    pub(crate) fn waits(&self) -> Waits {
        debug_assert!(self.stage == Stage::Lost || matches!(self.work, Work::Reissued { .. }));
        self.waits
    }

    pub(crate) fn set_waits(&mut self, waits: Waits) {
        debug_assert!(self.stage == Stage::Lost || matches!(self.work, Work::Reissued { .. }));
        self.waits = waits;
    }

    pub(crate) fn reissues(&self) -> u32 {
        if self.counts_reissues() { self.waits.reissues() } else { 0 }
    }

    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    #[inline]
    pub(crate) fn set_next(&mut self, next: u32) {
        self.next = next;
    }

    pub(crate) fn behind(&self) -> Option<u32> {
        debug_assert_eq!(self.stage, Stage::Ready);
        (self.next != NIL).then_some(self.next)
    }

    pub(crate) fn was_seen(&mut self) -> bool {
        debug_assert_eq!(self.stage, Stage::Posted);
        std::mem::replace(&mut self.next, SEEN) == SEEN
    }

    #[inline]
    pub(crate) fn message(&self) -> Option<u32> {
        self.work.message()
    }

    pub(crate) fn take_message(&mut self) -> Option<u32> {
        self.work.take_message()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.work.len()
    }

    /// It is a message or a fragment, which others have joined: it is about so many bytes now.
    pub(crate) fn set_len(&mut self, new: usize) {
        match &mut self.work {
            Work::Message { len, .. } => *len = new,
            work => work.transfer_mut().into_iter().for_each(|transfer| transfer.len = new),
        }
    }

    /// It moves these bytes by another rail, which knows them by these.
    pub(crate) fn set_transfer(&mut self, transfer: Transfer) {
        if let Some(old) = self.work.transfer_mut() {
            *old = transfer;
        }
    }

    /// It is a fragment, and moves these bytes next. `in_bulk`: another thread of the port may.
    pub(crate) fn move_next(&mut self, new: Transfer, in_bulk: bool) {
        if let Work::Fragment { bulk, transfer, .. } | Work::PeerRequest { bulk, transfer } =
            &mut self.work
        {
            (*transfer, *bulk) = (new, in_bulk);
        }
    }

    /// It is a fragment, of which a copy touches these bytes until it has ended.
    pub(crate) fn touch(&mut self, addr: usize, len: usize) {
        self.work.touch(addr, len);
    }

    pub(crate) fn touch_nothing(&mut self) {
        self.work.touch_nothing();
    }

    /// The direction in which the fabric moves its bytes, if it does.
    pub(crate) fn fabric_direction(&self) -> Direction {
        self.work.transfer().map_or(self.direction, |transfer| transfer.direction)
    }

    #[inline]
    pub(crate) fn set_counted(&mut self, tag: Tag, class: WriteClass) {
        if let Some(transfer) = self.work.transfer().copied() {
            self.set_work(Work::Counted { tag, bulk: self.work.is_bulk(), transfer });
        }
        self.class = class;
    }

    pub(crate) fn leave_to_peer(&mut self) {
        if let Some(transfer) = self.work.transfer().copied() {
            self.set_work(Work::PeerRequest { bulk: false, transfer });
        }
        self.uncount();
    }

    pub(crate) fn is_reissued_write(&self) -> bool {
        matches!(self.work, Work::Reissued { .. }) && self.direction == Direction::Write
    }

    pub(crate) fn memory(&self) -> Option<(usize, usize)> {
        self.work.memory()
    }

    pub(crate) fn what(&self) -> &'static str {
        self.work.what(self.direction)
    }

    #[inline]
    pub(crate) fn request_id(&self, wr_id: WrId) -> RequestId {
        RequestId { slot: wr_id.0, seq: self.request }
    }

    pub(super) const FREE: Segment = Segment {
        pe: Pe(0),
        stage: Stage::Free,
        direction: Direction::Write,
        plain: 0,
        follows: Follows::Nothing,
        op: NIL,
        next: NIL,
        born: 0,
        rail: RailId(0),
        in_load: false,
        is_stripe: false,
        class: WriteClass::EvenPut,
        batch: Batch::NONE,
        behind_sent: false,
        is_dropped: false,
        fence: 0,
        waits: Waits::NONE,
        request: Seq(0),
        context: Context(0),
        work: Work::Transfer(no_bytes(Direction::Write, 0)),
    };
}

const _: () = assert!(size_of::<Segment>() == 128);

/// In [`Segment::next`] of a posted segment: it was posted when last looked at. Not a slot, and
/// gone as soon as the slot is free or in a queue.
const SEEN: u32 = 1 << 30;

/// In place of the batch of a segment that does not end by being counted: an operation counts it,
/// or it is more than a transfer or a message that returns nothing.
pub(super) const NOT_PLAIN: u8 = u8::MAX;

/// What a plain segment is: posted, a transfer, counted by no operation, of some peer, direction
/// and batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plain {
    pub(super) signature: u64,
}

impl Plain {
    /// No segment: none has such a stage.
    pub(crate) const NONE: Plain = Plain { signature: u64::MAX };

    pub(super) fn of(segment: &Segment) -> Option<Self> {
        let is_plain = segment.stage == Stage::Posted && segment.plain != NOT_PLAIN;
        is_plain.then(|| Plain { signature: segment.signature() })
    }

    pub(crate) fn pe(self) -> Pe {
        Pe(self.signature as u32)
    }

    pub(crate) fn direction(self) -> Direction {
        const READ: u8 = Direction::Read as u8;
        if (self.signature >> 40) as u8 == READ { Direction::Read } else { Direction::Write }
    }

    pub(crate) fn batch(self) -> Batch {
        Batch((self.signature >> 48) as u8)
    }
}
