//! Channel: reliable messages between this lane and one peer.
//!
//! Messages are numbered, and at most [`WINDOW`] of them are unacknowledged. *Acknowledged means
//! executed.* The receiver executes a message when it arrives, or, if it has a mark, once every
//! message up to the mark is executed. It drops what it has executed before.
//!
//! # Why messages cannot deadlock
//! A message that arrives is always accepted: executing it takes no slot, and what it causes has
//! capacity reserved, a flag for an acknowledgement and a reply slot per fetch for a reply. A
//! message that waits waits for lower numbers, or for counted segments that left before it; so the
//! lowest number never waits for another message. Outgoing messages wait for the fabric and for the
//! peer's acknowledgements, which are requested as soon as a caller waits.
//!
//! # Bounds on what a peer can allocate
//! Messages that wait are within the window of the first one that is not executed: 512, and 2.3 MB
//! if all of them carry the longest payload.

pub mod counts;
pub(crate) mod receive_window;
pub(crate) mod slots;

use crate::channel::counts::{SegmentCounts, Tags};
use crate::channel::receive_window::ReceiveWindow;
use crate::ids::Pe;
use crate::wire::message::{FETCHES, Head, Seq, WINDOW};
use crate::wire::seal::{Receiver, Seal};

pub(crate) const NO_SLOT: u16 = u16::MAX;

/// Number of executed messages after which an acknowledgement is sent without a request: half the
/// window, so that a sender which never requests one does not stop.
const ACK_INTERVAL: u64 = WINDOW / 2;

#[derive(Debug)]
pub(crate) struct PendingMessage {
    pub(crate) seq: Seq,
    pub(crate) on: PendingOn,
}

#[derive(Debug)]
pub(crate) enum PendingOn {
    /// All messages up to `after` are executed. The message itself is held here.
    Earlier { after: Seq, head: Head, word: u32, bytes: Box<[u8]> },
    /// The segments that it counts have arrived. The message itself is held here.
    Data { head: Head, word: u32, bytes: Box<[u8]> },
    /// Staging executes it.
    Staging,
}

/// Both directions of messages between this lane and one peer.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) next: Seq,
    /// The peer has executed all messages before this one.
    pub(crate) acked: Seq,
    /// An acknowledgement of all messages before this one was requested.
    ack_requested: Seq,
    /// Slot of each unacknowledged message, by its number modulo the window.
    pub(crate) sent: Box<[u16; WINDOW as usize]>,
    /// Number of messages to the peer that have not ended, each of which has a slot.
    pub(crate) unfinished: u32,
    /// Number after the last message that carries data of a put.
    pub(crate) after_data: Seq,
    pub(crate) receiver: Receiver,
    /// High half of a number and its mask, for messages to the peer and from it.
    out_mask: (u32, u32),
    in_mask: (u32, u32),
    /// Slots of the fetches in flight, by reply slot.
    fetches: [u16; FETCHES],
    pub(crate) tags: Tags,

    pub(crate) executed: ReceiveWindow,
    /// Messages that have arrived and are not executed, by number.
    pub(crate) waiting: Vec<PendingMessage>,
    /// All messages before this one had arrived at the last check.
    arrived: Seq,
    /// The peer has requested an acknowledgement of all messages before this one.
    ack_wanted: Seq,
    /// The last message that has left acknowledges all before this one.
    ack_sent: Seq,
    /// An acknowledgement is due once all messages before this one are executed.
    ack_due_at: Seq,
    /// Number and result of the last fetch of each reply slot; slots whose reply is due.
    pub(crate) replies: [(Seq, u64); FETCHES],
    pub(crate) replies_due: u16,
    /// First message that could not be executed, and the reason, until it was sent.
    pub(crate) refusal: Option<(Seq, String)>,
    /// Whether a message was refused: nothing more of the peer is executed.
    pub(crate) has_refused: bool,
    /// Number of the peer's staged transfers that read its memory or will.
    pub(crate) reads: u32,
    pub(crate) counts: Option<Box<SegmentCounts>>,

    pub(crate) ack_due: bool,
    pub(crate) ack_request_due: bool,
    /// Whether the peer is in the lane's list of those with control messages due.
    pub(crate) in_control: bool,
    /// Whether the peer is in the lane's list of those without a requested acknowledgement.
    pub(crate) in_unrequested: bool,
}

impl Channel {
    pub(crate) fn new(seal: &Seal, pe: Pe, tags: u16) -> Box<Self> {
        let (me, high) = (seal.me(), Seq::FIRST.high());
        Box::new(Self {
            next: Seq::FIRST,
            acked: Seq::FIRST,
            ack_requested: Seq::FIRST,
            sent: Box::new([NO_SLOT; WINDOW as usize]),
            unfinished: 0,
            after_data: Seq::FIRST,
            receiver: seal.receiver(pe),
            out_mask: (high, seal.mask(me, pe, high)),
            in_mask: (high, seal.mask(pe, me, high)),
            fetches: [NO_SLOT; FETCHES],
            tags: Tags::new(tags),
            executed: ReceiveWindow::new(),
            waiting: Vec::new(),
            arrived: Seq::FIRST,
            ack_wanted: Seq::FIRST,
            ack_sent: Seq::FIRST,
            ack_due_at: Seq(Seq::FIRST.0 + ACK_INTERVAL),
            replies: [(Seq::NONE, 0); FETCHES],
            replies_due: 0,
            refusal: None,
            has_refused: false,
            reads: 0,
            counts: None,
            ack_due: false,
            ack_request_due: false,
            in_control: false,
            in_unrequested: false,
        })
    }

    pub(crate) fn last_sent(&self) -> Seq {
        Seq(self.next.0 - 1)
    }

    #[inline(always)]
    pub(crate) fn has_window(&self) -> bool {
        self.next.0 - self.acked.0 < WINDOW
    }

    #[inline(always)]
    pub(crate) fn out_mask(&mut self, seal: &Seal, pe: Pe) -> u32 {
        let high = self.next.high();
        // The mask changes every 2^32 messages; computing it takes a block cipher.
        if self.out_mask.0 != high {
            self.out_mask = (high, seal.mask(seal.me(), pe, high));
        }
        self.out_mask.1
    }

    #[inline(always)]
    pub(crate) fn in_mask(&mut self, seal: &Seal, pe: Pe, seq: Seq) -> u32 {
        let high = seq.high();
        if self.in_mask.0 != high {
            self.in_mask = (high, seal.mask(pe, seal.me(), high));
        }
        self.in_mask.1
    }

    /// Notes that the next message has left, from this slot.
    #[inline(always)]
    pub(crate) fn send(&mut self, slot: u16) {
        self.sent[(self.next.0 % WINDOW) as usize] = slot;
        self.next = self.next.next();
        self.unfinished += 1;
        // Every message carries the acknowledgement in its head, mostly the same as the last one's.
        let executed = self.executed.next();
        if executed != self.ack_sent {
            self.set_ack_sent(executed);
        }
    }

    /// Updates the due acknowledgement after a message that acknowledges everything before `before`
    /// has left.
    #[inline(always)]
    pub(crate) fn set_ack_sent(&mut self, before: Seq) {
        self.ack_sent = before;
        self.ack_due_at = Seq(before.0 + ACK_INTERVAL);
        if before < self.ack_wanted {
            self.ack_due_at = self.ack_wanted.min(self.ack_due_at);
        }
        // A due bitmap travels only in an `Ack`, so it stays due.
        self.ack_due &= self.executed.has_beyond();
    }

    /// Takes the slot of a message that the peer has executed. None if it ended before.
    #[inline(always)]
    pub(crate) fn take_sent(&mut self, seq: Seq) -> Option<u16> {
        let slot = &mut self.sent[(seq.0 % WINDOW) as usize];
        let slot = std::mem::replace(slot, NO_SLOT);
        (slot != NO_SLOT).then_some(slot)
    }

    pub(crate) fn slot_of(&self, seq: Seq) -> Option<u16> {
        let slot = self.sent[(seq.0 % WINDOW) as usize];
        (slot != NO_SLOT).then_some(slot)
    }

    pub(crate) fn free_reply_slot(&self) -> Option<u8> {
        self.fetches.iter().position(|slot| *slot == NO_SLOT).map(|reply_slot| reply_slot as u8)
    }

    pub(crate) fn begin_fetch(&mut self, reply_slot: u8, slot: u16) {
        self.fetches[usize::from(reply_slot)] = slot;
    }

    pub(crate) fn fetch(&self, reply_slot: u32) -> Option<u16> {
        let slot = *self.fetches.get(reply_slot as usize)?;
        (slot != NO_SLOT).then_some(slot)
    }

    pub(crate) fn end_fetch(&mut self, reply_slot: u8) {
        self.fetches[usize::from(reply_slot)] = NO_SLOT;
    }

    /// Requests an acknowledgement of everything sent. Returns true if the request is new.
    pub(crate) fn request_ack(&mut self) -> bool {
        // Requested once: the peer remembers the request until it has executed everything before.
        if self.acked == self.next || self.ack_requested == self.next {
            return false;
        }
        (self.ack_requested, self.ack_request_due) = (self.next, true);
        true
    }

    pub(crate) fn is_ack_requested(&self) -> bool {
        self.ack_requested > self.acked
    }

    /// Handles the peer's request for an acknowledgement of everything before a number.
    pub(crate) fn handle_ack_request(&mut self, before: Seq) {
        self.ack_wanted = self.ack_wanted.max(before);
        // Messages after one that waits are acknowledged by the bitmap.
        self.ack_due |= self.executed.next() >= self.ack_wanted || !self.waiting.is_empty();
        self.ack_due_at = self.ack_due_at.min(self.ack_wanted);
    }

    /// Returns true if an acknowledgement is due after a message was executed.
    #[inline(always)]
    pub(crate) fn is_ack_due(&mut self) -> bool {
        let due = self.executed.next() >= self.ack_due_at;
        self.ack_due |= due;
        due
    }

    /// Adds an executed message. Returns true if an acknowledgement is due.
    pub(crate) fn set_executed(&mut self, seq: Seq) -> bool {
        self.executed.insert(seq);
        // After a gap that may last: the peer waits for this message, so the bitmap is sent.
        let is_beyond = seq >= self.executed.next() && !self.waiting.is_empty();
        self.ack_due |= is_beyond && seq < self.ack_wanted;
        self.is_ack_due() || self.ack_due
    }

    /// Holds a message that cannot be executed yet.
    pub(crate) fn wait(&mut self, waiting: PendingMessage) {
        let index = self.waiting.binary_search_by_key(&waiting.seq, |other| other.seq);
        self.waiting.insert(index.unwrap_or_else(|index| index), waiting);
    }

    pub(crate) fn is_waiting(&self, seq: Seq) -> bool {
        self.waiting.binary_search_by_key(&seq, |waiting| waiting.seq).is_ok()
    }

    /// Returns the number of the first message of the peer that has not arrived.
    pub(crate) fn first_missing(&mut self) -> Seq {
        // Continues at the last result: messages never become missing again.
        let mut seq = self.arrived.max(self.executed.next());
        while self.executed.has(seq) || self.is_waiting(seq) {
            seq = seq.next();
        }
        self.arrived = seq;
        seq
    }

    pub(crate) fn take_waiting(&mut self, seq: Seq) -> Option<PendingMessage> {
        let index = self.waiting.binary_search_by_key(&seq, |waiting| waiting.seq).ok()?;
        Some(self.remove(index))
    }

    /// Takes the first message that no longer waits for earlier ones.
    pub(crate) fn take_executable(&mut self) -> Option<PendingMessage> {
        let next = self.executed.next();
        let is_executable = |waiting: &PendingMessage| match waiting.on {
            PendingOn::Earlier { after, .. } => after < next,
            PendingOn::Data { .. } | PendingOn::Staging => false,
        };
        let index = self.waiting.iter().position(is_executable)?;
        Some(self.remove(index))
    }

    fn remove(&mut self, index: usize) -> PendingMessage {
        let waiting = self.waiting.remove(index);
        if self.waiting.is_empty() {
            // Frees the list: most peers never need it again.
            self.waiting = Vec::new();
        }
        waiting
    }

    pub(crate) fn has_control(&self) -> bool {
        self.ack_due || self.ack_request_due || self.replies_due != 0 || self.refusal.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::cookie::Cookie;

    fn channel() -> Box<Channel> {
        Channel::new(&Seal::new(Cookie::of([[7; 16]]), Pe(0)), Pe(1), 16)
    }

    fn ahead(count: u64) -> Seq {
        Seq(Seq::FIRST.0 + count)
    }

    fn wait(channel: &mut Channel, count: u64) {
        channel.wait(PendingMessage { seq: ahead(count), on: PendingOn::Staging });
    }

    /// A message that leaves spares a due acknowledgement, unless that has a bitmap.
    #[test]
    fn messages_spare_due_acks() {
        for (executed, is_due) in [(0, false), (1, true)] {
            let mut channel = channel();
            channel.ack_due = true;
            channel.executed.insert(ahead(executed));
            channel.send(0);
            assert_eq!(channel.ack_due, is_due);
        }
    }

    /// Only a peer that waits for a message behind a lasting gap is told of it.
    #[test]
    fn lasting_gaps_are_acknowledged() {
        for (is_waiting, wanted, is_due) in [(false, 9, false), (true, 1, false), (true, 2, true)] {
            let mut channel = channel();
            if is_waiting {
                wait(&mut channel, 0);
            }
            channel.handle_ack_request(ahead(wanted));
            channel.ack_due = false;
            assert_eq!(channel.set_executed(ahead(1)), is_due, "{is_waiting}, {wanted}");
        }
    }

    #[test]
    fn kept_messages_have_arrived() {
        let mut channel = channel();
        wait(&mut channel, 0);
        channel.executed.insert(ahead(1));
        assert_eq!(channel.first_missing(), ahead(2));
    }

    #[test]
    fn ack_requests_are_remembered() {
        let mut channel = channel();
        channel.send(0);
        assert!(channel.request_ack() && channel.is_ack_requested());
        channel.acked = channel.next;
        assert!(!channel.is_ack_requested());
    }
}
