//! A segment: what it is, where it is on its way, and what it knows of what it is for.

pub(crate) mod queue;
pub(crate) mod table;
#[cfg(test)]
mod tests;
pub(crate) mod waits;

use crate::ids::{Pe, RailId, WrId};
use crate::port::{Context, Desc, Direction, Local, Transfer};
use crate::request::ResultPlace;
use crate::state::batch::Batch;
use crate::state::segment::waits::Waits;
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

/// What a segment is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Bytes that the fabric moves. It ends with its completion.
    Transfer,
    /// The same, with immediate data that the peer counts.
    Counted,
    /// The same as a transfer, of an operation whose rail is chosen by load.
    Stripe,
    /// The rest of such an operation, which is not bytes for one rail yet: see
    /// [`crate::striping::pool`].
    Pooled,
    /// A message whose request returns nothing. It ends with the peer's acknowledgement.
    Message,
    /// The same, for a signal whose data the peer counts. With it ends the use of its tag.
    CountedSignal,
    /// A message whose request returns a word. It ends with the reply. [`Segment::result`] is where
    /// the word goes.
    Fetch,
    /// A fragment of staged memory: see [`crate::staging::fragments`].
    Staged,
    /// The same, for a peer. The connection knows nothing of it.
    PeerRequest,
    /// Bytes that the fabric moves, and that were in doubt before. It ends with its completion.
    Reissued,
}

impl Kind {
    /// Whether it is bytes that the fabric moves as they are, rather than having a place in the
    /// table of messages or in the pool.
    #[inline]
    pub(crate) fn is_rma(self) -> bool {
        use Kind::{Counted, Reissued, Stripe, Transfer};
        matches!(self, Transfer | Counted | Stripe | Reissued)
    }

    /// Whether it is moved by a mechanism, step by step, rather than posted as it is.
    #[inline]
    pub(crate) fn has_mover(self) -> bool {
        matches!(self, Kind::Pooled | Kind::Staged | Kind::PeerRequest)
    }

    /// Whether it passes through staging.
    #[inline]
    pub(crate) fn is_staged(self) -> bool {
        matches!(self, Kind::Staged | Kind::PeerRequest)
    }
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
    /// The other generation of puts.
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
    /// The peer.
    pub(crate) pe: Pe,
    /// Where it is.
    pub(crate) stage: Stage,
    /// What it is.
    pub(crate) kind: Kind,
    /// Its direction. Messages are writes.
    pub(crate) direction: Direction,
    /// Who counts it: a batch or nobody, or [`COUNTED`].
    pub(super) counted_by: u8,
    /// If it is [`COUNTED`]: the operation that counts its segments.
    op: u32,
    /// Next in the queue it is in: free list, held queue or rail queue. While posted: [`SEEN`], or
    /// nothing.
    pub(super) next: u32,
    /// When it came to where it is, on the watchdog's clock. Not kept for a transfer that was
    /// posted at once: then it is some earlier moment.
    pub(crate) born: u32,
    /// Its message in the message table or its place in the pool, by kind; or [`NIL`].
    pub(super) place: u32,
    /// The rail it goes out on.
    pub(crate) rail: RailId,
    /// Its bytes are among those that its rail has ahead: see [`crate::striping::pool`]. Not in a
    /// free slot.
    pub(crate) in_load: bool,
    /// It has one of the slots set aside for stripes. Not in a free slot.
    pub(crate) is_stripe: bool,
    /// The port may have another thread move its bytes. Of no meaning for a [`Kind::Transfer`].
    pub(crate) is_bulk: bool,
    /// If it is [`COUNTED`]: its batch, or [`Batch::NONE`].
    pub(super) batch: Batch,
    /// While held: which fence it waits for. Once it was in doubt: what of [`Waits`].
    wait: u32,
    /// By kind: immediate data, the tag of a signal, or the place of a fetch.
    data: u32,
    /// What it is among the writes of its connection, if it is one.
    pub(crate) class: WriteClass,
    /// What it goes out behind, if it is a signal.
    pub(crate) follows: Follows,
    /// It is a signal that takes effect behind all puts that have left as messages before it.
    pub(crate) behind_sent: bool,
    /// The number of the latest request that it has sent, if that is answered.
    pub(crate) request: Seq,
    /// What to post. A message is a write of its word.
    pub(crate) transfer: Transfer,
    /// What the port knows the slot by.
    pub(crate) context: Context,
}

impl Segment {
    /// The operation that counts it, or [`NIL`].
    #[inline]
    pub(crate) fn op(&self) -> u32 {
        if self.counted_by == COUNTED { self.op } else { NIL }
    }

    /// The batch that it belongs to.
    #[inline]
    pub(crate) fn batch(&self) -> Batch {
        if self.counted_by == COUNTED { self.batch } else { Batch(self.counted_by) }
    }

    /// An operation counts it, unless that is [`NIL`]. Its batch it keeps.
    #[inline]
    pub(crate) fn count_for(&mut self, op: u32) {
        if op != NIL {
            self.batch = self.batch();
            self.counted_by = COUNTED;
            self.op = op;
        }
    }

    /// Makes it plain: posted, a transfer, counted by no operation.
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
        self.kind = Kind::Transfer;
        self.direction = direction;
        self.counted_by = batch.0;
    }

    /// Peer, stage, kind, direction and who counts it, in one number: equal signatures are equal in
    /// all of them.
    #[inline(always)]
    pub(super) fn signature(&self) -> u64 {
        signature(self.pe, self.stage, self.kind, self.direction, self.counted_by)
    }

    /// No operation counts it any longer.
    pub(crate) fn uncount(&mut self) {
        self.op = NIL;
    }

    /// Whether it is a write that leaves as a request, whose order its target sees to.
    pub(crate) fn is_request(&self) -> bool {
        match self.kind {
            Kind::Message | Kind::CountedSignal | Kind::Fetch => true,
            Kind::Staged => self.direction == Direction::Write && self.place != NIL,
            _ => false,
        }
    }

    /// Waits behind a fence, in its connection's held queue.
    #[inline(always)]
    pub(crate) fn hold(&mut self, epoch: u32) {
        self.stage = Stage::Held;
        self.wait = epoch;
    }

    /// The epoch of the fence that it is held behind.
    pub(crate) fn fence(&self) -> u32 {
        debug_assert_eq!(self.stage, Stage::Held);
        self.wait
    }

    /// It is a fragment that takes its next step, and nothing of that was in doubt yet.
    pub(crate) fn step(&mut self) {
        debug_assert!(self.kind.is_staged());
        self.stage = Stage::Staged;
        self.wait = Waits::NONE.0;
    }

    /// It is in doubt, and waits for these.
    pub(crate) fn lose(&mut self, waits: Waits) {
        let counts = self.kind == Kind::Reissued || self.kind.is_staged();
        let before = if counts { Waits(self.wait) } else { Waits::NONE };
        self.wait = before.counting(waits).0;
        self.stage = Stage::Lost;
    }

    /// Whether the fabric, or a copy, may still touch its memory.
    pub(crate) fn is_out(&self) -> bool {
        match self.stage {
            Stage::Posted | Stage::Staged => true,
            Stage::Lost => self.waits().has(Waits::FABRIC),
            _ => false,
        }
    }

    /// What it waits for, once it was in doubt.
    pub(crate) fn waits(&self) -> Waits {
        debug_assert!(self.stage == Stage::Lost || self.kind == Kind::Reissued);
        Waits(self.wait)
    }

    /// As [`Segment::waits`], to be these.
    pub(crate) fn set_waits(&mut self, waits: Waits) {
        debug_assert!(self.stage == Stage::Lost || self.kind == Kind::Reissued);
        self.wait = waits.0;
    }

    /// How often it was posted again; a fragment, in its present step.
    pub(crate) fn reissues(&self) -> u32 {
        let counts = self.kind == Kind::Reissued || self.kind.is_staged();
        if counts { Waits(self.wait).reissues() } else { 0 }
    }

    /// The next in the queue that it is in, or [`NIL`].
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// As [`Segment::next`], to be this one.
    #[inline]
    pub(crate) fn set_next(&mut self, next: u32) {
        self.next = next;
    }

    /// The one behind it in the queue that it is in.
    pub(crate) fn behind(&self) -> Option<u32> {
        debug_assert_eq!(self.stage, Stage::Ready);
        (self.next != NIL).then_some(self.next)
    }

    /// A posted segment is looked at: whether it was posted the last time as well.
    pub(crate) fn was_seen(&mut self) -> bool {
        debug_assert_eq!(self.stage, Stage::Posted);
        std::mem::replace(&mut self.next, SEEN) == SEEN
    }

    /// Its message in the message table, if it has one.
    #[inline(always)]
    pub(crate) fn message(&self) -> Option<u32> {
        debug_assert_ne!(self.kind, Kind::Pooled);
        (self.place != NIL).then_some(self.place)
    }

    /// Its message is in this slot.
    #[inline(always)]
    pub(crate) fn set_message(&mut self, slot: u32) {
        self.place = slot;
    }

    /// It has no message.
    #[inline(always)]
    pub(crate) fn no_message(&mut self) {
        self.place = NIL;
    }

    /// It has no message any more. The one that it had.
    pub(crate) fn take_message(&mut self) -> Option<u32> {
        let slot = self.message();
        self.place = NIL;
        slot
    }

    /// Its place in the pool of operations that wait for rails.
    pub(crate) fn pool_place(&self) -> u32 {
        debug_assert_eq!(self.kind, Kind::Pooled);
        self.place
    }

    /// It waits for rails in this place of the pool.
    pub(crate) fn set_pool_place(&mut self, place: u32) {
        (self.kind, self.place) = (Kind::Pooled, place);
    }

    /// It is a write of this class that the peer counts, of the put with this tag.
    pub(crate) fn set_counted(&mut self, tag: Tag, class: WriteClass) {
        (self.kind, self.data) = (Kind::Counted, tag.0.into());
        self.class = class;
    }

    /// The tag of the put that it is a part of, or the signal.
    pub(crate) fn tag(&self) -> Tag {
        debug_assert!(matches!(self.kind, Kind::Counted | Kind::CountedSignal));
        Tag(self.data as u16)
    }

    /// It is the signal of a counted put.
    pub(crate) fn set_counted_signal(&mut self, tag: Tag) {
        (self.kind, self.data) = (Kind::CountedSignal, tag.0.into());
    }

    /// The place of a fetch among those under way to its peer.
    pub(crate) fn fetch_place(&self) -> u8 {
        debug_assert_eq!(self.kind, Kind::Fetch);
        self.data as u8
    }

    /// It is a message that returns a word, which goes to `result`; or nothing, if there is none.
    #[inline(always)]
    pub(crate) fn set_fetch(&mut self, result: Option<ResultPlace>, place: u8) {
        let ResultPlace { addr, flag } = result.unwrap_or(ResultPlace { addr: 0, flag: None });
        self.kind = if result.is_some() { Kind::Fetch } else { Kind::Message };
        self.data = place.into();
        self.transfer.local = Local::Memory { addr, desc: Desc(0) };
        self.transfer.remote = flag.unwrap_or(0);
        self.transfer.key = u64::from(flag.is_some());
    }

    /// Where the word that it fetches goes.
    pub(crate) fn result(&self) -> ResultPlace {
        debug_assert_eq!(self.kind, Kind::Fetch);
        let Transfer { local, remote, key, .. } = self.transfer;
        let addr = match local {
            Local::Memory { addr, .. } => addr,
            Local::Value(_) => 0,
        };
        ResultPlace { addr, flag: (key != 0).then_some(remote) }
    }

    /// Whether it is a write that was in doubt before.
    pub(crate) fn is_reissued_write(&self) -> bool {
        self.kind == Kind::Reissued && self.direction == Direction::Write
    }

    /// The local memory that it touches, if the core moves it: an address and a length. Messages
    /// have copied what they carry.
    pub(crate) fn memory(&self) -> Option<(usize, usize)> {
        match (self.kind, self.transfer.local) {
            (Kind::Fetch, _) => Some(self.result().memory(self.transfer.len)),
            (kind, Local::Memory { addr, .. }) if kind.is_rma() => Some((addr, self.transfer.len)),
            _ => None,
        }
    }

    /// The words for it in messages to the user.
    pub(crate) fn what(&self) -> &'static str {
        match (self.kind, self.direction) {
            (Kind::PeerRequest, _) => "put or get of the peer",
            (Kind::Message | Kind::CountedSignal, _) => "signal or atomic",
            (Kind::Fetch, _) => "fetching atomic",
            (_, Direction::Write) => "put",
            (_, Direction::Read) => "get",
        }
    }

    /// Names the request that it has sent, for the peer that answers. `wr_id` is its own.
    #[inline]
    pub(crate) fn request_id(&self, wr_id: WrId) -> RequestId {
        RequestId { slot: wr_id.0, seq: self.request }
    }

    pub(super) const FREE: Segment = Segment {
        pe: Pe(0),
        stage: Stage::Free,
        kind: Kind::Transfer,
        direction: Direction::Write,
        counted_by: 0,
        op: NIL,
        next: NIL,
        born: 0,
        place: NIL,
        rail: RailId(0),
        in_load: false,
        is_stripe: false,
        is_bulk: false,
        batch: Batch::NONE,
        wait: 0,
        data: 0,
        class: WriteClass::EvenPut,
        follows: Follows::Nothing,
        behind_sent: false,
        request: Seq(0),
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

/// In [`Segment::next`] of a posted segment: it was posted when last looked at. Not a slot, and
/// gone as soon as the slot is free or in a queue.
const SEEN: u32 = 1 << 30;

/// Who counts a segment that an operation counts; whether a batch does as well is in the segment
/// then.
pub(super) const COUNTED: u8 = u8::MAX;

/// What a plain segment is: posted, a transfer, counted by no operation, of some peer, direction
/// and batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Plain {
    pub(super) signature: u64,
}

impl Plain {
    /// No segment: a free slot's signature has another stage.
    pub(crate) const NONE: Plain = Plain { signature: u64::MAX };

    /// Stage and kind in a signature.
    pub(super) const SHAPE: u64 = 0xffff << 32;

    /// Those of a plain segment.
    pub(super) const POSTED: u64 = (Stage::Posted as u64) << 32 | (Kind::Transfer as u64) << 40;

    /// The peer.
    pub(crate) fn pe(self) -> Pe {
        Pe(self.signature as u32)
    }

    /// The direction.
    pub(crate) fn direction(self) -> Direction {
        const READ: u8 = Direction::Read as u8;
        if (self.signature >> 48) as u8 == READ { Direction::Read } else { Direction::Write }
    }

    /// The batch.
    pub(crate) fn batch(self) -> Batch {
        Batch((self.signature >> 56) as u8)
    }
}

/// See [`Segment::signature`]. The parts lie in the number as they do in a segment on a little
/// endian machine, so that the compiler reads them at once.
#[inline(always)]
pub(super) fn signature(
    pe: Pe,
    stage: Stage,
    kind: Kind,
    direction: Direction,
    counted_by: u8,
) -> u64 {
    u64::from(pe.0)
        | (stage as u64) << 32
        | (kind as u64) << 40
        | (direction as u64) << 48
        | u64::from(counted_by) << 56
}
