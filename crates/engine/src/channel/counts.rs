//! Counted puts between this lane and one peer: tags of those sent, counts of those received.
//!
//! # Why no count is mistaken for another
//! A tag is a counter and the number of its use, modulo [`USES`]. The sender frees a tag when the
//! signal is acknowledged; the receiver acknowledges it once executed, which is when all segments
//! with the tag have arrived, each exactly once. So nothing of a use is in flight when the next use
//! of the counter begins, and whatever arrives belongs to the present use or begins the next one.
//! Anything else is refused. Only consecutive uses are compared, so their wrap is harmless.

use crate::wire::immediate::COUNTER_BITS;
use crate::wire::message::{Seq, Tag};

/// Maximum number of counted puts to one peer in flight.
pub const TAGS: u16 = 16;

/// Number of uses of a counter before their numbers repeat.
const USES: u16 = 1 << (u16::BITS - COUNTER_BITS);

/// First use of every counter, near the wrap, so that every longer job crosses it.
const FIRST_USE: u16 = USES - 3;

const _: () = assert!(TAGS == 1 << COUNTER_BITS);

impl Tag {
    /// Tag of a sender's first counted put to each peer.
    pub const FIRST: Tag = Tag(FIRST_USE << COUNTER_BITS);

    fn new(counter: usize, uses: u16) -> Self {
        Tag(uses << COUNTER_BITS | counter as u16)
    }

    fn counter(self) -> usize {
        usize::from(self.0 % TAGS)
    }

    fn uses(self) -> u16 {
        self.0 >> COUNTER_BITS
    }
}

/// Free tags of the sender.
#[derive(Debug)]
pub(crate) struct Tags {
    /// One bit per free counter.
    free: u16,
    /// Number of the next use of each counter.
    uses: [u16; TAGS as usize],
}

impl Tags {
    pub(crate) fn new(count: u16) -> Self {
        let free = (1_u32 << count.min(TAGS)) - 1;
        Self { free: free as u16, uses: [FIRST_USE; TAGS as usize] }
    }

    pub(crate) fn take(&mut self) -> Option<Tag> {
        if self.free == 0 {
            return None;
        }
        let counter = self.free.trailing_zeros() as usize;
        self.free &= self.free - 1;
        let tag = Tag::new(counter, self.uses[counter]);
        self.uses[counter] = self.uses[counter].wrapping_add(1) % USES;
        Some(tag)
    }

    /// Frees the tag of a put whose signal is executed.
    pub(crate) fn release(&mut self, tag: Tag) {
        self.free |= 1 << tag.counter();
    }

    /// Returns true if an acknowledgement should be requested, since tags run out soon.
    pub(crate) fn are_few(&self) -> bool {
        self.free.count_ones() <= 1
    }
}

/// Counts of the peer's counted puts at the receiver.
#[derive(Debug, Default)]
pub(crate) struct SegmentCounts {
    counters: [TagCounter; TAGS as usize],
    /// Time of the last arrival in the watchdog's units, and warnings since.
    pub(crate) last_arrival: u32,
    pub(crate) warned: u32,
}

/// Counts the segments of one tag; idle while no segment and no signal has arrived.
#[derive(Clone, Copy, Debug)]
struct TagCounter {
    arrived: u32,
    /// Number of the signal and of the segments that it waits for, once it has arrived.
    signal: Option<(Seq, u32)>,
    /// Number of the present use; of an idle counter the last one.
    uses: u16,
}

impl Default for TagCounter {
    fn default() -> Self {
        Self { arrived: 0, signal: None, uses: FIRST_USE - 1 }
    }
}

impl TagCounter {
    fn expected(&self) -> u16 {
        let idle = self.arrived == 0 && self.signal.is_none();
        if idle { (self.uses + 1) % USES } else { self.uses }
    }

    fn complete(&mut self) -> Option<Seq> {
        // A complete counter is idle again: its use has ended.
        let (seq, segments) = self.signal?;
        if self.arrived != segments {
            return None;
        }
        (self.arrived, self.signal) = (0, None);
        Some(seq)
    }
}

impl SegmentCounts {
    /// Returns the tag that the next segment of a counter must have.
    pub(crate) fn expected(&self, counter: usize) -> Tag {
        Tag::new(counter, self.counters[counter].expected())
    }

    /// Counts a segment with the expected tag. Returns the number of the signal that it completes.
    pub(crate) fn land(&mut self, tag: Tag, now: u32) -> Option<Seq> {
        (self.last_arrival, self.warned) = (now, 0);
        let of = &mut self.counters[tag.counter()];
        // The first segment of a put may arrive before its signal, and begins the use.
        of.uses = tag.uses();
        // A peer may send any number: the surplus is refused with the signal.
        of.arrived = of.arrived.saturating_add(1);
        of.complete()
    }

    /// Records a signal. Returns true if all its segments have arrived; otherwise
    /// [`SegmentCounts::land`] returns its number later.
    ///
    /// # Errors
    /// A tag or number of segments that no correct peer sends.
    pub(crate) fn announce(
        &mut self,
        (tag, segments): (Tag, u32),
        seq: Seq,
        now: u32,
    ) -> Result<bool, String> {
        (self.last_arrival, self.warned) = (now, 0);
        let of = &mut self.counters[tag.counter()];
        if tag.uses() != of.expected() || of.signal.is_some() || of.arrived > segments {
            let (uses, expected) = (tag.uses(), of.expected());
            return Err(format!(
                "a signal of use {uses} of tag {} with {segments} segments, while use {expected} has {} segments",
                tag.counter(),
                of.arrived
            ));
        }
        (of.uses, of.signal) = (tag.uses(), Some((seq, segments)));
        Ok(of.complete().is_some())
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.counters.iter().filter(|of| of.signal.is_some()).count() as u32
    }

    /// Returns the arrived and the expected segments of the waiting signal with the lowest number.
    pub(crate) fn first_waiting(&self) -> Option<(u32, u32)> {
        let waiting = self.counters.iter().filter_map(|of| Some((of.signal?, of.arrived)));
        let first = waiting.min_by_key(|((seq, _), _)| *seq);
        first.map(|((_, segments), arrived)| (arrived, segments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_tag_is_a_warning() {
        let mut tags = Tags::new(3);
        let left = [(); 3].map(|()| {
            let are_few = tags.are_few();
            tags.take().unwrap();
            are_few
        });
        assert_eq!((left, tags.are_few()), ([false, false, true], true));
    }
}
