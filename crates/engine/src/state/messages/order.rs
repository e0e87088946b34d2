//! Order at the target: what of a peer's requests has arrived and is not executed, and which of
//! them wait for others.
//!
//! A request may say that it comes behind all with a number below a *mark*. It is executed when
//! each of these has arrived and is executed; all others are executed as they arrive. Marks rise
//! with the numbers of their requests, so of those that wait the first one is due first.
//!
//! # Why it cannot deadlock
//! A request waits for lower numbers only, so of those that are here the lowest never waits for
//! another. It has what it needs: one that waits holds a place in here, in which there is room for
//! a window's, and nothing else; but for pulls, which may have a bounce buffer. Those get it in the
//! order of their numbers, and not before all that they come behind have arrived: so the lower ones
//! have theirs by then, or want none.
//!
//! # How much waits
//! At most [`WINDOW`] requests of a peer, whatever it sends: none is taken whose number is a window
//! or more from the first that waits
//! ([`ReliableChannel::is_beyond`](crate::state::messages::reliable_channel::ReliableChannel::is_beyond)).
//! These are 140 KiB, and 2 MiB more for payloads of a peer that does not keep the rules. Once
//! nothing waits, no more than [`KEPT`] places are kept.
//!
//! [`WINDOW`]: crate::wire::window::WINDOW

use std::collections::VecDeque;

use crate::wire::message::{LongPacket, MAX_EAGER, Message, Packet};
use crate::wire::window::Seq;

const KEPT: usize = 32;

/// Requests of one peer.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Pulls that were begun, in no order.
    pulls: Vec<Seq>,
    /// Pulls that wait until all before their marks have arrived, by number.
    early: VecDeque<WaitingRequest>,
    /// Other requests, that wait until all before their marks are executed, by number.
    words: VecDeque<WaitingRequest>,
}

/// The bytes of a request that waits.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are short, and a queue of them allocates for none"
)]
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Short(Packet),
    /// One with data of some KiB, of which a peer that keeps the rules has 32 at most here: 133
    /// KiB.
    Long(Box<LongPacket>),
}

impl Kept {
    pub(crate) fn of(message: &Message<'_>) -> Self {
        if message.body.payload_len() <= MAX_EAGER {
            let mut packet = Packet::EMPTY;
            message.encode(&mut packet);
            return Self::Short(packet);
        }
        let mut packet = Box::new(LongPacket::EMPTY);
        message.encode(&mut *packet);
        Self::Long(packet)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Short(packet) => packet.bytes(),
            Self::Long(packet) => packet.bytes(),
        }
    }
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(crate) struct WaitingRequest {
    pub(crate) seq: Seq,
    /// It comes behind all before this number.
    pub(crate) mark: Seq,
    pub(crate) kept: Kept,
}

impl Order {
    pub(crate) fn begin_pull(&mut self, seq: Seq) {
        self.pulls.push(seq);
    }

    pub(crate) fn end_pull(&mut self, seq: Seq) {
        if let Some(at) = self.pulls.iter().position(|other| *other == seq) {
            self.pulls.swap_remove(at);
        }
    }

    pub(crate) fn pulls_before(&self, mark: Seq) -> bool {
        self.pulls.iter().any(|pull| pull.is_before(mark))
    }

    pub(crate) fn wait(&mut self, waiting: WaitingRequest, is_pull: bool) {
        let queue = if is_pull { &mut self.early } else { &mut self.words };
        let at = queue.partition_point(|other| other.seq.is_before(waiting.seq));
        queue.insert(at, waiting);
    }

    pub(crate) fn is_waited_in(&self) -> bool {
        !self.early.is_empty() || !self.words.is_empty()
    }

    pub(crate) fn first(&self) -> Option<Seq> {
        let first = |queue: &VecDeque<WaitingRequest>| queue.front().map(|waiting| waiting.seq);
        match (first(&self.early), first(&self.words)) {
            (Some(early), Some(word)) => Some(if early.is_before(word) { early } else { word }),
            (early, word) => early.or(word),
        }
    }

    pub(crate) fn first_early(&self) -> Option<Seq> {
        self.early.front().map(|waiting| waiting.mark)
    }

    pub(crate) fn first_word(&self) -> Option<Seq> {
        self.words.front().map(|waiting| waiting.mark)
    }

    pub(crate) fn take(&mut self, is_pull: bool) -> Option<WaitingRequest> {
        let queue = if is_pull { &mut self.early } else { &mut self.words };
        let first = queue.pop_front();
        if queue.is_empty() && queue.capacity() > KEPT {
            *queue = VecDeque::new();
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::window::WINDOW;

    fn waiting(seq: u32, mark: u32) -> WaitingRequest {
        WaitingRequest { seq: Seq(seq), mark: Seq(mark), kept: Kept::Short(Packet::EMPTY) }
    }

    #[test]
    fn requests_wait_in_the_order_of_their_numbers() {
        let mut order = Order::default();
        assert!(!order.is_waited_in() && order.first().is_none());
        // Across the wrap of numbers.
        for (seq, is_pull) in [(2, false), (u32::MAX, true), (0, false), (1, true)] {
            order.wait(waiting(seq, seq), is_pull);
        }
        assert_eq!(order.first(), Some(Seq(u32::MAX)));
        assert_eq!((order.first_early(), order.first_word()), (Some(Seq(u32::MAX)), Some(Seq(0))));
        assert_eq!(order.take(true).map(|waiting| waiting.seq), Some(Seq(u32::MAX)));
        assert_eq!((order.first(), order.first_early()), (Some(Seq(0)), Some(Seq(1))));
        assert_eq!(order.take(false).map(|waiting| waiting.seq), Some(Seq(0)));
        assert_eq!(order.take(false).map(|waiting| waiting.seq), Some(Seq(2)));
        assert!(order.take(false).is_none() && order.is_waited_in());
    }

    #[test]
    fn a_window_waits_in_few_bytes_and_leaves_fewer() {
        assert!(WINDOW as usize * size_of::<WaitingRequest>() <= 140 << 10);
        let mut order = Order::default();
        for is_pull in [false, true] {
            (0..WINDOW).for_each(|seq| order.wait(waiting(seq, seq), is_pull));
            assert!(
                (0..WINDOW)
                    .all(|seq| order.take(is_pull).is_some_and(|first| first.seq == Seq(seq)))
            );
        }
        let places = order.early.capacity() + order.words.capacity();
        assert!(places <= 2 * KEPT, "{places}");
    }

    #[test]
    fn pulls_under_way_are_before_what_comes_behind_them() {
        let mut order = Order::default();
        order.begin_pull(Seq(u32::MAX));
        order.begin_pull(Seq(5));
        assert!(!order.pulls_before(Seq(u32::MAX)) && order.pulls_before(Seq(0)));
        order.end_pull(Seq(u32::MAX));
        assert!(!order.pulls_before(Seq(5)) && order.pulls_before(Seq(6)));
    }
}
