//! Messages between this lane and one peer: what was sent and not acknowledged, what has arrived.

use crate::ids::Pe;
use crate::state::counts::{Counts, Tags};
use crate::state::messages::order::{Order, WaitingRequest};
use crate::state::segment::NIL;
use crate::state::segment::queue::Queue;
use crate::wire::message::RequestId;
use crate::wire::window::{Received, Seq, WINDOW};

/// Most fetching operations under way to one peer. The peer keeps room for as many replies.
pub(crate) const FETCHES: u32 = 16;

/// A request for an acknowledgement goes out at the latest after so many messages.
pub(super) const REQUEST_EVERY: u32 = WINDOW / 4;

/// In [`ReliableChannel::next_unasked`] of a channel that is not among them. No PE: there are at
/// most 65536.
pub(super) const UNLISTED: u32 = NIL - 1;

/// The number of the first message of every connection. Near the wrap, so that every job crosses
/// it.
pub(crate) const FIRST: Seq = Seq(u32::MAX - 99);

/// Replies to fetches, by place: the fetch's request id, and the word.
type Replies = [Option<(RequestId, u64)>; FETCHES as usize];

/// The message side of a connection, in both directions. Made with the first message.
#[derive(Debug)]
pub(crate) struct ReliableChannel {
    pub(super) pe: Pe,
    /// The next peer among those with messages that nobody has asked about, or [`NIL`];
    /// [`UNLISTED`] if this is none of them.
    pub(super) next_unasked: u32,
    pub(crate) next: Seq,
    /// The number of the first message that the peer has not acknowledged, or that its
    /// acknowledgement has not ended yet.
    pub(crate) ack_received: Seq,
    /// Where the messages from there on are in the message table, by number modulo [`WINDOW`].
    slots: [u16; WINDOW as usize],
    /// Everything before this number has arrived, as the peer has said last; it may wait there for
    /// what it comes behind.
    arrived: Seq,
    /// Messages that have a slot and have not left.
    pub(crate) unsent: u32,
    /// Answers sent and not acknowledged, of those messages.
    pub(crate) answers: u32,
    /// Whether the peer is among those that were answered since recovery looked last.
    pub(crate) is_noted: bool,
    /// Keys that are due to the peer and have not left; counted where answers have numbers.
    pub(crate) keys_due: u32,
    /// Messages that wait for the window, in the order in which they were to leave.
    pub(crate) waiting: Queue,
    /// The places of fetching operations that have no reply yet, a bit each.
    fetches: u16,
    /// The replies that the peer was given last, by place of the fetch, from the first one on.
    pub(crate) replies: Option<Box<Replies>>,
    requested: Seq,
    pub(crate) received: Received,
    ack_sent: Seq,
    /// The peer asked for everything before this number to be acknowledged.
    wanted: Option<Seq>,
    /// As long as the acknowledgement to be given is before this one, none becomes due: it is to be
    /// looked at then.
    look_at: Seq,
    /// Control messages that are due; the lane's control queue knows of the connection then.
    pub(crate) request_due: bool,
    pub(crate) ack_due: bool,
    /// Messages without numbers that are due to the peer, in the lane's queue of these.
    pub(crate) owed: u32,
    pub(crate) in_control: bool,
    /// The tags of counted puts to the peer, from the first one on.
    pub(crate) tags: Option<Box<Tags>>,
    pub(crate) counts: Option<Box<Counts>>,
    /// The first of the peer's requests that have arrived, were not executed and are not
    /// acknowledged before that: the first in `counted`, `refused` and `order`.
    unapplied: Option<Seq>,
    /// The first of the peer's signals that wait for their data.
    counted: Option<Seq>,
    /// The first of the peer's requests that cannot be executed. It is never acknowledged: what
    /// tells of the refusal may come later than an acknowledgement, on another rail.
    refused: Option<Seq>,
    /// The order of the peer's requests, from the first one on that needs it.
    order: Option<Box<Order>>,
    /// Whether requests wait in `order`.
    pub(crate) holds: bool,
    /// The number of the latest message to the peer that was a put.
    pub(crate) last_put: Seq,
    /// Pulls to the peer that have left and have not ended.
    pub(crate) pulls: u32,
    /// Writes under way that have left as messages, less [`ReliableChannel::unacknowledged`],
    /// modulo 2^32. An answer is no write.
    pub(crate) apart: u32,
}

impl ReliableChannel {
    pub(crate) fn new(pe: Pe) -> Self {
        Self {
            pe,
            next_unasked: UNLISTED,
            next: FIRST,
            ack_received: FIRST,
            slots: [0; WINDOW as usize],
            arrived: FIRST,
            unsent: 0,
            answers: 0,
            is_noted: false,
            keys_due: 0,
            waiting: Queue::EMPTY,
            fetches: 0,
            replies: None,
            requested: FIRST,
            received: Received::new(FIRST),
            ack_sent: FIRST,
            wanted: None,
            look_at: FIRST,
            request_due: false,
            ack_due: false,
            owed: 0,
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

    pub(crate) fn pe(&self) -> Pe {
        self.pe
    }

    pub(crate) fn counts(&self) -> (u32, u32) {
        (self.next.after(FIRST), self.received.prefix().after(FIRST))
    }

    pub(crate) fn fetch_place(&self) -> Option<u8> {
        let place = self.fetches.trailing_ones();
        (place < FETCHES).then_some(place as u8)
    }

    pub(crate) fn turn_fetch(&mut self, place: u8) {
        self.fetches ^= 1 << place;
    }

    #[cfg(any(test, feature = "audit"))]
    pub(super) fn fetches(&self) -> u16 {
        self.fetches
    }

    pub(crate) fn ask_again(&mut self) {
        if self.has_unacked() {
            self.requested = self.next;
            self.request_due = true;
        }
    }

    #[inline]
    pub(crate) fn has_arrived_there(&mut self, seq: Seq) {
        if self.arrived.is_before(seq) {
            self.arrived = seq;
        }
    }

    pub(crate) fn heard(&self) -> Seq {
        let Self { arrived, ack_received, .. } = *self;
        if arrived.is_before(ack_received) { ack_received } else { arrived }
    }

    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.unacknowledged() < WINDOW
    }

    pub(crate) fn room(&self) -> u32 {
        WINDOW - self.unacknowledged()
    }

    #[inline(always)]
    pub(crate) fn unacknowledged(&self) -> u32 {
        self.next.after(self.ack_received)
    }

    #[inline(always)]
    pub(crate) fn has_unacked(&self) -> bool {
        self.next != self.ack_received
    }

    pub(crate) fn unacked(&self) -> impl Iterator<Item = u32> + '_ {
        let first = self.ack_received.0;
        (0..self.unacknowledged()).map(move |at| self.slot_of(Seq(first.wrapping_add(at))))
    }

    pub(super) fn awaits(&self, seq: Seq) -> bool {
        seq.after(self.ack_received) < self.unacknowledged()
    }

    #[inline(always)]
    pub(super) fn slot_of(&self, seq: Seq) -> u32 {
        self.slots[(seq.0 % WINDOW) as usize].into()
    }

    #[inline(always)]
    pub(super) fn note(&mut self, seq: Seq, slot: u32, unasked: &mut u32) {
        if self.next_unasked == UNLISTED {
            self.next_unasked = std::mem::replace(unasked, self.pe.0);
        }
        self.slots[(seq.0 % WINDOW) as usize] = slot as u16;
    }

    #[inline]
    pub(crate) fn take_number(&mut self) -> Seq {
        let seq = self.next;
        if self.take_next(seq) {
            self.want_ack();
        }
        seq
    }

    #[inline(always)]
    pub(crate) fn take_next(&mut self, seq: Seq) -> bool {
        self.next = seq.next();
        self.next.after(self.requested) >= REQUEST_EVERY
    }

    pub(super) fn give_number_back(&mut self) {
        self.next = Seq(self.next.0.wrapping_sub(1));
        self.unsent += 1;
        self.ack_due = true;
    }

    /// Somebody waits for what has been sent: asks for an acknowledgement, unless that was done.
    #[inline]
    pub(crate) fn want_ack(&mut self) {
        if self.has_unacked() && self.requested != self.next {
            self.requested = self.next;
            self.request_due = true;
        }
    }

    pub(crate) fn want_ack_in_turn(&mut self) {
        if !self.ack_received.is_before(self.requested) {
            self.want_ack();
        }
    }

    #[inline]
    pub(crate) fn enters_control(&mut self) -> bool {
        let enters = (self.request_due || self.ack_due) && !self.in_control;
        self.in_control |= enters;
        enters
    }

    pub(crate) fn waits_for_data(&mut self, first: Option<Seq>) {
        self.counted = first;
        self.find_unapplied();
    }

    fn find_unapplied(&mut self) {
        let waits = self.order.as_deref().and_then(Order::first);
        let all = [self.counted, self.refused, waits].into_iter().flatten();
        self.unapplied = all.reduce(|first, next| if next.is_before(first) { next } else { first });
    }

    /// Whether a number is too far ahead for any correct sender, which sends no more than a window
    /// from the first that is not acknowledged. What waits here for its data or in `order` is not.
    pub(crate) fn is_beyond(&self, seq: Seq) -> bool {
        let waits = self.order.as_deref().and_then(Order::first);
        let is_far = |first: Seq| !seq.is_before(first) && seq.after(first) >= WINDOW;
        let is_new = !seq.is_before(self.received.prefix());
        is_new && [self.counted, waits].into_iter().flatten().any(is_far)
            || self.received.is_beyond(seq)
    }

    #[cold]
    pub(crate) fn refuse(&mut self, seq: Seq) {
        if self.refused.is_none_or(|refused| seq.is_before(refused)) {
            self.refused = Some(seq);
        }
        self.find_unapplied();
    }

    pub(crate) fn wait(&mut self, waiting: WaitingRequest, is_pull: bool) {
        self.order.get_or_insert_default().wait(waiting, is_pull);
        self.holds = true;
        self.find_unapplied();
    }

    pub(crate) fn next_due(&mut self) -> Option<WaitingRequest> {
        let order = self.order.as_deref()?;
        let is_pull = order.first_early().is_some_and(|mark| self.has_arrived(mark));
        if !is_pull && !order.first_word().is_some_and(|mark| self.is_executed(mark)) {
            return None;
        }
        let order = self.order.as_deref_mut()?;
        let due = order.take(is_pull);
        self.holds = order.is_waited_in();
        self.find_unapplied();
        due
    }

    pub(crate) fn has_arrived(&self, mark: Seq) -> bool {
        !self.received.prefix().is_before(mark)
    }

    pub(crate) fn is_executed(&self, mark: Seq) -> bool {
        self.has_arrived(mark)
            && self.unapplied.is_none_or(|first| !first.is_before(mark))
            && !self.order.as_deref().is_some_and(|order| order.pulls_before(mark))
    }

    pub(crate) fn is_refused(&self, mark: Seq) -> bool {
        self.refused.is_some_and(|refused| refused.is_before(mark))
    }

    pub(crate) fn begin_pull(&mut self, seq: Seq) {
        self.order.get_or_insert_default().begin_pull(seq);
    }

    pub(crate) fn end_pull(&mut self, seq: Seq, executed: bool) {
        if let Some(order) = self.order.as_deref_mut() {
            order.end_pull(seq);
        }
        if !executed {
            self.refuse(seq);
        }
    }

    pub(crate) fn has_order(&self) -> bool {
        self.order.is_some()
    }

    #[inline(always)]
    pub(crate) fn has_sent_puts(&self) -> bool {
        self.pulls != 0 || !self.last_put.is_before(self.ack_received)
    }

    /// Keeps the number of the latest put, which is acknowledged, near those of the present:
    /// numbers wrap, and one of long ago would be taken for one to come.
    pub(crate) fn keep_last_put(&mut self) {
        if self.last_put.is_before(self.ack_received) {
            self.last_put = Seq(self.ack_received.0.wrapping_sub(1));
        }
    }

    pub(crate) fn placed(&self) -> u32 {
        self.unacknowledged().wrapping_add(self.apart)
    }

    pub(crate) fn requested(&self) -> Seq {
        self.requested
    }

    /// The peer asks for everything before `seq` to be acknowledged. If it `recovers` it is told at
    /// once what has arrived and waits here, or it would take it for lost.
    pub(crate) fn asked(&mut self, seq: Seq, recovers: bool) {
        self.wanted = match self.wanted {
            Some(wanted) if seq.is_before(wanted) => Some(wanted),
            _ => Some(seq),
        };
        self.look_at = self.ack();
        // What waits for its data may wait long; what is before it need not.
        if self.unapplied.is_some() && (recovers || self.ack() != self.ack_sent) {
            self.ack_due = true;
        }
        self.check_wanted();
    }

    /// A message has arrived, or was applied: whether an acknowledgement may have become due.
    /// Otherwise it waits for a message that carries it, or for the peer to ask.
    #[inline(always)]
    pub(crate) fn check_wanted(&mut self) -> bool {
        let looks = !self.ack().is_before(self.look_at);
        if looks {
            self.look_whether_due();
        }
        looks
    }

    #[cold]
    fn look_whether_due(&mut self) {
        let ack = self.ack();
        if self.wanted.is_some_and(|wanted| !ack.is_before(wanted)) {
            self.wanted = None;
            self.ack_due = true;
        }
        if ack.after(self.ack_sent) >= WINDOW / 2 {
            self.ack_due = true;
        }
        // Once one is due nothing changes before it has left, with what is acknowledged then.
        let given = if self.ack_due { ack } else { self.ack_sent };
        let latest = Seq(given.0.wrapping_add(WINDOW / 2));
        self.look_at = match self.wanted {
            Some(wanted) if wanted.is_before(latest) => wanted,
            _ => latest,
        };
    }

    #[inline]
    pub(crate) fn ack(&self) -> Seq {
        let prefix = self.received.prefix();
        match self.unapplied {
            Some(first) if first.is_before(prefix) => first,
            _ => prefix,
        }
    }

    #[inline]
    pub(crate) fn carried(&mut self, ack: Seq) {
        self.ack_sent = ack;
        self.ack_due = false;
    }
}
