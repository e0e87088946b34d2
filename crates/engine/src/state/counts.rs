//! Counted puts between this lane and one peer: the tags of those to it, the counts of those from
//! it.
//!
//! # Why no count is mistaken for another
//! A tag is a slot and how often the slot has been used, modulo [`USES`]. The sender gives a tag
//! back when the signal is acknowledged, and never one that no signal was sent with. The receiver
//! acknowledges it when it was applied, which is when all segments with the tag have arrived, each
//! exactly once; the signal itself was taken once, by its number. So nothing of a use is under way
//! when the next use of the slot begins, and what arrives for a slot is of its present use, or the
//! first of the very next one. Anything else is no correct sender's, and refused. That holds
//! wherever the uses wrap, as only two that follow one another are ever compared.

use crate::atomic::Atomic;
#[cfg(any(test, feature = "audit"))]
use crate::state::discrepancy::{Discrepancy, same};
use crate::wire::marks;
use crate::wire::message::{Spot, Tag};
use crate::wire::window::Seq;

/// Most counted puts to one peer that are under way: enough that some are always being carried, few
/// enough that a peer's counts stay below a kilobyte.
pub const TAGS: u16 = 16;

const SLOT_BITS: u32 = TAGS.ilog2();

const USES: u16 = 1 << (u16::BITS - SLOT_BITS);

/// The first use of every slot. Near the wrap, so that every longer job crosses it.
const FIRST_USE: u16 = USES - 3;

const MOST_OPEN: u32 = 1 << 30;

const _: () = assert!(TAGS.is_power_of_two() && TAGS <= u16::BITS as u16);
const _: () = assert!(SLOT_BITS == marks::SLOT_BITS);
const _: () = assert!(size_of::<Slot>() <= 40);

impl Tag {
    /// The first that a sender uses to each peer.
    pub const FIRST: Tag = Tag(FIRST_USE << SLOT_BITS);

    pub(crate) fn first(slot: usize) -> Self {
        Self::new(slot, FIRST_USE)
    }

    fn new(slot: usize, uses: u16) -> Self {
        // Above its bits a number of uses has none that are not shifted out.
        Tag(uses << SLOT_BITS | slot as u16)
    }

    pub(crate) fn slot(self) -> usize {
        usize::from(self.0 % TAGS)
    }

    fn uses(self) -> u16 {
        self.0 >> SLOT_BITS
    }
}

/// What the segments of a put, or of several, tell the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Counting {
    pub(crate) tag: Tag,
    /// How many there are so far.
    pub(crate) segments: u32,
}

/// The sender's side: which tags are free.
#[derive(Debug)]
pub(crate) struct Tags {
    /// A bit per free slot.
    free: u16,
    most: u16,
    uses: [u16; TAGS as usize],
    /// A put was begun and not finished, so that some segments have no signal. Nothing is counted
    /// any more: a tag with orphan segments must never be used again.
    retired: bool,
    /// Of puts behind which no signal was sent yet, where signals come behind puts.
    open: Option<Counting>,
}

impl Tags {
    pub(crate) fn new(most: u16) -> Self {
        let most = most.min(TAGS);
        let free = (1_u32 << most) - 1;
        Self {
            free: free as u16,
            most,
            uses: [FIRST_USE; TAGS as usize],
            retired: false,
            open: None,
        }
    }

    pub(crate) fn open(&mut self) -> Option<Counting> {
        if self.open.is_none() {
            self.open = self.take().map(|tag| Counting { tag, segments: 0 });
        }
        self.open.filter(|open| open.segments < MOST_OPEN)
    }

    /// The same, unless tags run out: who asks for acknowledgements is somebody else.
    #[inline(always)]
    pub(crate) fn open_fast(&mut self) -> Option<Counting> {
        if self.open.is_none() && self.are_few() { None } else { self.open() }
    }

    pub(crate) fn keep_open(&mut self, counting: Counting) {
        debug_assert!(self.open.is_none_or(|open| open.tag == counting.tag), "two are open");
        self.open = Some(counting);
    }

    #[inline(always)]
    pub(crate) fn has_open(&self) -> bool {
        self.open.is_some_and(|open| open.segments != 0)
    }

    pub(crate) fn take_open(&mut self) -> Option<Counting> {
        self.open.take()
    }

    pub(crate) fn counted(&self) -> Option<Counting> {
        self.open.filter(|open| open.segments != 0)
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn open_slot(&self) -> u16 {
        self.open.map_or(0, |open| 1 << open.tag.slot())
    }

    pub(crate) fn take(&mut self) -> Option<Tag> {
        if self.free == 0 || self.retired {
            return None;
        }
        let slot = self.free.trailing_zeros() as usize;
        self.free &= self.free - 1;
        let tag = Tag::new(slot, self.uses[slot]);
        self.uses[slot] = self.uses[slot].wrapping_add(1) % USES;
        Some(tag)
    }

    pub(crate) fn give(&mut self, tag: Tag) {
        self.free |= 1 << tag.slot();
    }

    /// Whether tags run out soon, so that an acknowledgement should be asked for.
    pub(crate) fn are_few(&self) -> bool {
        self.free.count_ones() <= u32::from(self.most / 2)
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn free(&self) -> u16 {
        self.free
    }

    pub(crate) fn retire(&mut self) {
        self.retired = true;
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired
    }
}

/// A signal that the target applies when its data is there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct CountedSignal {
    pub(crate) seq: Seq,
    pub(crate) at: Spot,
    /// The operation; it fetches and compares nothing.
    pub(crate) atomic: Atomic,
}

/// The receiver's side: what has arrived of the peer's counted puts.
#[derive(Debug)]
pub(crate) struct Counts {
    slots: [Slot; TAGS as usize],
    /// Signals that wait for their data.
    waiting: u32,
    /// When the last of anything here arrived, on the watchdog's clock.
    pub(crate) moved: u32,
    pub(crate) warned: u32,
}

/// One slot. Idle while neither count is above zero.
///
/// The signal lies flat in it: as structures inside one another they would take half as much again.
#[derive(Clone, Copy, Debug)]
struct Slot {
    offset: u64,
    operand: u64,
    arrived: u32,
    /// Segments that the signal waits for; 0 as long as it has not arrived.
    segments: u32,
    region: u32,
    seq: Seq,
    /// The present use; of an idle slot, the last one.
    uses: u16,
    op: crate::atomic::AtomicOp,
    width: crate::atomic::Width,
    float: bool,
}

impl Slot {
    const IDLE: Slot = Slot {
        offset: 0,
        operand: 0,
        arrived: 0,
        segments: 0,
        region: 0,
        seq: Seq(0),
        uses: FIRST_USE - 1,
        op: crate::atomic::AtomicOp::Set,
        width: crate::atomic::Width::Eight,
        float: false,
    };

    fn is_idle(&self) -> bool {
        self.arrived == 0 && self.segments == 0
    }

    fn expected(&self) -> u16 {
        if self.is_idle() { (self.uses + 1) % USES } else { self.uses }
    }

    fn begin(&mut self, tag: Tag) -> Result<(), String> {
        let (idle, expected) = (self.is_idle(), self.expected());
        if tag.uses() != expected {
            return Err(format!(
                "put {} of tag {} while put {expected} is {}",
                tag.uses(),
                tag.slot(),
                if idle { "next" } else { "under way" }
            ));
        }
        self.uses = expected;
        Ok(())
    }

    fn keep(&mut self, segments: u32, signal: &CountedSignal) {
        let CountedSignal { seq, at, atomic } = *signal;
        *self = Slot {
            offset: at.offset,
            operand: atomic.operand,
            segments,
            region: at.slot,
            seq,
            op: atomic.op,
            width: atomic.width,
            float: atomic.float,
            ..*self
        };
    }

    fn signal(&self) -> CountedSignal {
        let Slot { offset, operand, region, seq, op, width, float, .. } = *self;
        let at = Spot { slot: region, offset };
        CountedSignal { seq, at, atomic: Atomic { op, width, float, operand, compare: 0 } }
    }

    fn end(&mut self) {
        (self.arrived, self.segments) = (0, 0);
    }
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self { slots: [Slot::IDLE; TAGS as usize], waiting: 0, moved: 0, warned: 0 }
    }

    pub(crate) fn expected(&self, slot: usize) -> Tag {
        Tag::new(slot, self.slots[slot].expected())
    }

    pub(crate) fn landed(&mut self, tag: Tag, now: u32) -> Option<CountedSignal> {
        debug_assert_eq!(tag, self.expected(tag.slot()));
        (self.moved, self.warned) = (now, 0);
        let slot = &mut self.slots[tag.slot()];
        slot.uses = tag.uses();
        // Those of puts without a signal have no end; never equal to none.
        slot.arrived = slot.arrived.saturating_add(1);
        if slot.arrived != slot.segments {
            return None;
        }
        self.waiting -= 1;
        slot.end();
        Some(slot.signal())
    }

    /// A signal has arrived. Whether it may be applied now: all its segments are there. If not, it
    /// is kept, and given by [`Counts::landed`].
    ///
    /// # Errors
    /// What no correct sender does.
    pub(crate) fn announced(
        &mut self,
        tag: Tag,
        segments: u32,
        signal: &CountedSignal,
        now: u32,
    ) -> Result<bool, String> {
        (self.moved, self.warned) = (now, 0);
        let slot = &mut self.slots[tag.slot()];
        slot.begin(tag)?;
        if slot.segments != 0 || slot.arrived > segments {
            let (arrived, before) = (slot.arrived, slot.segments);
            return Err(format!(
                "a signal of {segments} segments, after {arrived} segments and a signal of {before}"
            ));
        }
        if slot.arrived == segments {
            slot.end();
            return Ok(true);
        }
        slot.keep(segments, signal);
        self.waiting += 1;
        Ok(false)
    }

    #[cfg(any(test, feature = "audit"))]
    pub(crate) fn audit(&self) -> Result<(), Discrepancy> {
        let waiting = self.slots.iter().filter(|slot| slot.segments != 0).count() as u32;
        same("signals that wait for their data", self.waiting, waiting)
    }

    pub(crate) fn waiting(&self) -> u32 {
        self.waiting
    }

    pub(crate) fn first_waiting(&self) -> Option<(Seq, u32, u32)> {
        if self.waiting == 0 {
            return None;
        }
        let waiting = self.slots.iter().filter(|slot| slot.segments != 0);
        waiting
            .map(|slot| (slot.seq, slot.arrived, slot.segments))
            .reduce(|first, next| if next.0.is_before(first.0) { next } else { first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::atomic::{AtomicOp, Width};

    #[test]
    fn an_audit_finds_a_signal_that_is_counted_and_does_not_wait() {
        let mut counts = Counts::new();
        counts.audit().unwrap();
        counts.waiting += 1;
        counts.audit().unwrap_err();
    }

    fn signal(seq: u32) -> CountedSignal {
        let atomic = Atomic {
            op: AtomicOp::SignalAdd,
            width: Width::Eight,
            float: false,
            operand: u64::from(seq) << 32 | 5,
            compare: 0,
        };
        CountedSignal { seq: Seq(seq), at: Spot { slot: 3, offset: 0x1234 }, atomic }
    }

    #[test]
    fn a_signal_is_given_with_its_last_segment_whichever_comes_first() {
        for before in 0..=4 {
            let mut counts = Counts::new();
            let mut tags = Tags::new(TAGS);
            // Far enough for every use to be reached twice.
            for round in 0..2 * u32::from(USES) {
                let tag = tags.take().unwrap();
                assert_eq!(tag.slot(), 0, "the lowest free one");
                let mut given = None;
                for _ in 0..before {
                    assert_eq!(counts.landed(tag, 1), None);
                }
                let at_once = counts.announced(tag, 4, &signal(round), 1).unwrap();
                assert_eq!(at_once, before == 4);
                assert_eq!(counts.waiting(), u32::from(!at_once));
                for _ in before..4 {
                    assert_eq!(given, None);
                    given = counts.landed(tag, 1);
                }
                assert_eq!(given, (!at_once).then_some(signal(round)));
                assert_eq!((counts.waiting(), counts.first_waiting()), (0, None));
                tags.give(tag);
            }
        }
    }

    #[test]
    fn puts_with_different_tags_do_not_touch_one_another() {
        let mut counts = Counts::new();
        let mut tags = Tags::new(TAGS);
        let all: Vec<Tag> = (0..TAGS).map(|_| tags.take().unwrap()).collect();
        assert!(tags.take().is_none() && tags.are_few());
        for (at, tag) in all.iter().enumerate() {
            assert_eq!(
                counts.announced(*tag, 2, &signal((u32::MAX - 7).wrapping_add(at as u32)), 1),
                Ok(false)
            );
            assert_eq!(counts.landed(*tag, 1), None);
        }
        assert_eq!(counts.waiting(), u32::from(TAGS));
        assert_eq!(counts.first_waiting(), Some((Seq(u32::MAX - 7), 1, 2)));
        for at in (0..all.len()).rev() {
            let given = counts.landed(all[at], 1);
            assert_eq!(given, Some(signal((u32::MAX - 7).wrapping_add(at as u32))));
        }
        assert_eq!(counts.waiting(), 0);
    }

    #[test]
    fn what_no_sender_does_is_refused() {
        let (now, next) = (Tag::new(2, FIRST_USE), Tag::new(2, FIRST_USE + 1));
        let mut counts = Counts::new();
        assert!(counts.announced(next, 1, &signal(1), 1).is_err(), "a use too early");
        assert_eq!((counts.expected(2), Tag::first(2)), (now, now));
        assert_eq!(counts.landed(now, 1), None);
        assert_eq!(counts.expected(2), now, "the use before is not over");
        assert!(counts.announced(next, 1, &signal(1), 1).is_err(), "nor for the signal");
        assert_eq!(counts.landed(now, 1), None);
        assert!(counts.announced(now, 1, &signal(1), 1).is_err(), "fewer than have arrived");
        assert_eq!(counts.announced(now, 3, &signal(1), 1), Ok(false));
        assert!(counts.announced(now, 3, &signal(2), 1).is_err(), "two signals of one put");
        assert_eq!(counts.landed(now, 1), Some(signal(1)));
        assert_eq!(counts.expected(2), next);
    }

    #[test]
    fn as_many_tags_as_were_asked_for_and_none_once_retired() {
        for most in [1, 2, TAGS, TAGS + 9] {
            let mut tags = Tags::new(most);
            let all: Vec<Tag> = std::iter::from_fn(|| tags.take()).collect();
            assert_eq!(all.len(), usize::from(most.min(TAGS)));
            tags.give(all[0]);
            assert_ne!(tags.take(), Some(all[0]), "another use");
            tags.give(all[0]);
            tags.retire();
            assert!(tags.is_retired() && tags.take().is_none());
        }
        assert!(Tags::new(0).take().is_none());
    }

    #[test]
    fn a_signal_is_kept_as_it_came() {
        let mut slot = Slot::IDLE;
        for (width, float) in [(Width::Two, false), (Width::Four, true), (Width::Eight, false)] {
            let mut given = signal(9);
            (given.atomic.width, given.atomic.float) = (width, float);
            slot.keep(2, &given);
            assert_eq!((slot.signal(), slot.segments), (given, 2));
        }
    }

    #[test]
    fn a_tag_names_its_slot_and_the_use_of_it() {
        for slot in 0..usize::from(TAGS) {
            for uses in [0, 1, FIRST_USE, USES - 1] {
                let tag = Tag::new(slot, uses);
                assert_eq!((tag.slot(), tag.uses()), (slot, uses));
            }
            assert_eq!(Tag::new(slot, USES).uses(), 0, "they repeat");
        }
    }

    #[test]
    fn tags_are_few_when_half_of_them_are_taken() {
        for most in [1, 2, 5, TAGS] {
            let mut tags = Tags::new(most);
            for taken in 0..most {
                assert_eq!(tags.are_few(), most - taken <= most / 2, "{taken} of {most}");
                tags.take().unwrap();
            }
            assert!(tags.are_few());
        }
    }
}
