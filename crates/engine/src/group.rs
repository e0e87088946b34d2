//! Groups: the only counters of unfinished work, and the only order between operations.
//!
//! Each segment and each message counts once in an *order group* of its peer ([`OrderGroups`]) and,
//! if a caller waits for its operation alone, once in a *completion group* ([`CompletionGroups`]).
//! Both counts are taken when the work leaves and given back when a write is delivered, a read has
//! landed, or a message is acknowledged as executed.
//!
//! # Order
//! Work counts in the last group of its peer. Closing that group begins the next, whose number is
//! the [`Fence`] between them. A write after a fence leaves when [`OrderGroups::ordered`] reaches
//! it, a message when [`OrderGroups::written`] does, and the marks of messages do the rest at the
//! target. A waiting signal counts as a write of the group in which it was submitted, which is
//! after its fence: so it waits for nothing that waits for it.

use std::num::NonZeroU16;

use crate::wire::message::Seq;

/// Order groups of a peer at a time.
const RING: u32 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Segments written, and waiting signals.
    Write = 0,
    Read = 1,
    /// Messages, and segments that a message has its target count.
    Message = 2,
}

/// Order group of a peer and class of a segment or message. [`OrderGroup::NONE`] counts nowhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OrderGroup(u8);

/// Point in the order of a peer's work: the number of the first group after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Fence(u32);

/// Entries of the counts for each group: a class each, and one that is not used.
const CLASSES: u32 = 4;

/// A power of two, so that no index has to be checked.
const COUNTS: usize = (RING * CLASSES) as usize;

impl OrderGroup {
    /// For segments whose operation counts itself, or that nothing orders.
    pub(crate) const NONE: Self = Self(CLASSES as u8 - 1);

    #[inline(always)]
    fn new(number: u32, class: Class) -> Self {
        Self((number % RING * CLASSES) as u8 | class as u8)
    }

    #[inline(always)]
    pub(crate) fn bits(self) -> u8 {
        self.0
    }

    #[inline(always)]
    pub(crate) fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self.0) % COUNTS
    }
}

#[derive(Clone, Debug)]
pub(crate) struct OrderGroups {
    /// Unfinished work by group and class. The entry of [`OrderGroup::NONE`] means nothing.
    counts: [u32; COUNTS],
    /// Number of the last message before the end of each closed group.
    last_message: [Seq; RING as usize],
    /// Group of new work, and the position of its first count.
    last: u32,
    first_count: u8,
    /// No group below has unfinished writes.
    written: u32,
    /// No group below has unfinished writes or messages.
    ordered: u32,
    /// All groups below are finished.
    finished: u32,
}

impl Default for OrderGroups {
    fn default() -> Self {
        Self {
            counts: [0; COUNTS],
            last_message: [Seq::NONE; RING as usize],
            last: Self::FIRST,
            first_count: OrderGroup::new(Self::FIRST, Class::Write).0,
            written: Self::FIRST,
            ordered: Self::FIRST,
            finished: Self::FIRST,
        }
    }
}

impl OrderGroups {
    /// The first group's number is near the end of the numbers, so that long jobs cross it.
    const FIRST: u32 = u32::MAX - 100;

    /// Returns the group in which new work of a class counts.
    #[inline(always)]
    pub(crate) fn next(&self, class: Class) -> OrderGroup {
        OrderGroup(self.first_count | class as u8)
    }

    #[inline(always)]
    pub(crate) fn begin_last(&mut self, class: Class) -> OrderGroup {
        let group = self.next(class);
        self.begin(group);
        group
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self, group: OrderGroup) {
        let count = &mut self.counts[group.index()];
        // `NONE` has a count too, so that the fast path needs no branch. Never read, it may wrap.
        *count = count.wrapping_add(1);
    }

    /// Uncounts finished work. Returns true if this may move a cursor that something waits for.
    #[inline(always)]
    pub(crate) fn end(&mut self, group: OrderGroup, ended: u32) -> bool {
        let count = &mut self.counts[group.index()];
        *count = count.wrapping_sub(ended);
        // Nothing waits for the last group, which is not closed.
        *count == 0 && self.finished != self.last
    }

    /// Turns a waiting signal or staged put, counted as a write, into a message of the same group.
    pub(crate) fn leave(&mut self, write: OrderGroup, message: Seq) -> OrderGroup {
        self.end(write, 1);
        // The message stays in the group of the write: the same fences wait for it.
        let group = OrderGroup(write.0 & !(CLASSES as u8 - 1) | Class::Message as u8);
        self.begin(group);
        // For the last group, `close` overwrites this with the newest number.
        self.last_message[group.index() / CLASSES as usize] = message;
        group
    }

    fn count(&self, number: u32, class: Class) -> u32 {
        self.counts[OrderGroup::new(number, class).index()]
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        // Work in a closed group keeps `finished` below `last`, so only the last counts are read.
        let first = usize::from(self.first_count);
        let last = self.counts.get(first..first + CLASSES as usize - 1);
        self.finished == self.last
            && last.is_some_and(|counts| counts.iter().all(|count| *count == 0))
    }

    /// Returns true if writes are unfinished. Errs towards true until the cursors have moved.
    #[inline(always)]
    pub(crate) fn has_writes(&self) -> bool {
        self.written != self.last || self.counts[self.next(Class::Write).index()] != 0
    }

    /// Returns the fence before the group of new work.
    pub(crate) fn last(&self) -> Fence {
        Fence(self.last)
    }

    pub(crate) fn writes_after(&self, fence: Fence) -> u32 {
        let groups = self.last.wrapping_sub(fence.0) + 1;
        (0..groups).map(|ahead| self.count(fence.0.wrapping_add(ahead), Class::Write)).sum()
    }

    pub(crate) fn unfinished(&self, class: Class) -> u32 {
        (0..RING).map(|number| self.count(number, class)).sum()
    }

    /// Closes the last group unless it is empty; `newest` is the last message that has left.
    /// Returns the fence after all work so far, or None if all groups are in use.
    pub(crate) fn close(&mut self, newest: Seq) -> Option<Fence> {
        let classes = [Class::Write, Class::Message, Class::Read];
        if classes.iter().all(|class| self.count(self.last, *class) == 0) {
            // What follows the groups before an empty one follows everything.
            return Some(Fence(self.last));
        }
        // The next group would share its counts with the oldest unfinished one.
        if self.last.wrapping_sub(self.finished) == RING - 1 {
            return None;
        }
        self.last_message[(self.last % RING) as usize] = newest;
        self.last = self.last.wrapping_add(1);
        self.first_count = OrderGroup::new(self.last, Class::Write).0;
        Some(Fence(self.last))
    }

    /// Advances the cursors over finished groups.
    pub(crate) fn settle(&mut self) {
        while self.written != self.last && self.count(self.written, Class::Write) == 0 {
            self.written = self.written.wrapping_add(1);
        }
        // `finished <= ordered <= written`: a group without messages may follow one with writes.
        while self.ordered != self.written && self.count(self.ordered, Class::Message) == 0 {
            self.ordered = self.ordered.wrapping_add(1);
        }
        while self.finished != self.ordered && self.count(self.finished, Class::Read) == 0 {
            self.finished = self.finished.wrapping_add(1);
        }
    }

    /// Advances all cursors as if `groups` groups, a multiple of the ring, had finished.
    #[cfg(test)]
    pub(crate) fn skip(&mut self, groups: u32) {
        for number in [&mut self.last, &mut self.written, &mut self.ordered, &mut self.finished] {
            *number = number.wrapping_add(groups);
        }
    }

    /// Returns true if all writes before a fence are delivered.
    #[inline(always)]
    pub(crate) fn is_written(&self, fence: Fence) -> bool {
        // Group numbers wrap; a cursor is less than 2^31 ahead, see `Peer::update_fast_path`.
        self.written.wrapping_sub(fence.0) as i32 >= 0
    }

    /// Returns true if all writes and messages before a fence are finished.
    #[inline(always)]
    pub(crate) fn is_ordered(&self, fence: Fence) -> bool {
        self.ordered.wrapping_sub(fence.0) as i32 >= 0
    }

    pub(crate) fn is_finished(&self, fence: Fence) -> bool {
        self.finished.wrapping_sub(fence.0) as i32 >= 0
    }

    /// Returns a fence before which nothing is unfinished.
    pub(crate) fn start(&self) -> Fence {
        Fence(self.finished)
    }

    /// Returns the last message before a fence, or [`Seq::NONE`] if all are executed.
    pub(crate) fn last_message_before(&self, fence: Fence) -> Seq {
        let mut last = Seq::NONE;
        // Messages before `ordered` are executed: a mark need not name them.
        let mut group = self.ordered;
        while (fence.0.wrapping_sub(group) as i32) > 0 {
            last = last.max(self.last_message[(group % RING) as usize]);
            group = group.wrapping_add(1);
        }
        last
    }
}

/// Name of a completion group from its start to its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CompletionId(Option<NonZeroU16>);

impl CompletionId {
    /// No group: only the quiet of the peer waits for the work.
    pub const NONE: CompletionId = CompletionId(None);

    #[inline(always)]
    pub(crate) fn bits(self) -> u16 {
        self.0.map_or(0, NonZeroU16::get)
    }

    #[inline(always)]
    pub(crate) fn from_bits(bits: u16) -> Self {
        Self(NonZeroU16::new(bits))
    }

    #[inline(always)]
    fn index(self) -> usize {
        usize::from(self.bits())
    }

    fn of(index: usize) -> Option<Self> {
        let id = u16::try_from(index).ok().and_then(NonZeroU16::new)?;
        Some(CompletionId(Some(id)))
    }
}

/// Maximum number of completion groups of a lane at a time.
pub const MAX_GROUPS: usize = u16::MAX as usize;

/// Completion groups of a lane. `T` is the continuation that runs when a group becomes empty.
#[derive(Debug)]
pub(crate) struct CompletionGroups<T> {
    /// By identifier. The entry of [`CompletionId::NONE`] is not used.
    groups: Vec<CompletionGroup<T>>,
    free: Vec<CompletionId>,
}

#[derive(Debug)]
struct CompletionGroup<T> {
    /// Unfinished segments and messages, and queued operations.
    left: u32,
    continuation: Option<Box<T>>,
}

impl<T> CompletionGroups<T> {
    pub(crate) fn new() -> Self {
        Self { groups: vec![CompletionGroup { left: 0, continuation: None }], free: Vec::new() }
    }

    /// Starts an empty group. None if all identifiers are in use.
    pub(crate) fn start(&mut self) -> Option<CompletionId> {
        if let Some(id) = self.free.pop() {
            return Some(id);
        }
        let id = CompletionId::of(self.groups.len())?;
        self.groups.push(CompletionGroup { left: 0, continuation: None });
        Some(id)
    }

    /// Ends an empty group; its identifier may be used again.
    pub(crate) fn finish(&mut self, id: CompletionId) {
        debug_assert!(id != CompletionId::NONE && self.is_done(id), "{id:?} has unfinished work");
        self.groups[id.index()].continuation = None;
        self.free.push(id);
    }

    pub(crate) fn set_continuation(&mut self, id: CompletionId, continuation: T) {
        debug_assert!(!self.is_done(id), "nothing is unfinished in {id:?}");
        self.groups[id.index()].continuation = Some(Box::new(continuation));
    }

    pub(crate) fn take_continuation(&mut self, id: CompletionId) -> Option<T> {
        self.groups[id.index()].continuation.take().map(|next| *next)
    }

    #[inline(always)]
    pub(crate) fn is_done(&self, id: CompletionId) -> bool {
        self.groups.get(id.index()).is_none_or(|group| group.left == 0)
    }

    #[inline(always)]
    pub(crate) fn begin(&mut self, id: CompletionId) {
        if id == CompletionId::NONE {
            return;
        }
        if let Some(group) = self.groups.get_mut(id.index()) {
            group.left = group.left.wrapping_add(1);
        }
    }

    /// Uncounts finished work. Returns true if the group is empty and has a continuation to run.
    #[inline(always)]
    pub(crate) fn end(&mut self, id: CompletionId, ended: u32) -> bool {
        // `begin` skips `NONE`, so its entry only goes down; it never has a continuation.
        let Some(group) = self.groups.get_mut(id.index()) else { return false };
        group.left = group.left.wrapping_sub(ended);
        group.left == 0 && group.continuation.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Work by the order in which it was begun: its group's number, class and reference.
    type Begun = (u32, Class, OrderGroup);

    proptest! {
        /// A cursor passes a number exactly when all that it stands for has ended.
        #[test]
        fn cursors_agree_with_a_list(steps in proptest::collection::vec((0..5_u8, any::<u16>()), 1..400)) {
            let mut order = OrderGroups::default();
            let mut begun: Vec<Begun> = Vec::new();
            for (step, pick) in steps {
                match step {
                    0..3 => {
                        let class = [Class::Write, Class::Message, Class::Read][usize::from(step)];
                        let group = order.begin_last(class);
                        begun.push((order.last, class, group));
                    }
                    3 => drop(order.close(Seq::NONE)),
                    _ if begun.is_empty() => {}
                    _ => {
                        let (_, _, group) = begun.swap_remove(usize::from(pick) % begun.len());
                        order.end(group, 1);
                    }
                }
                order.settle();
                let has = |classes: &[Class], before: u32| {
                    let is_before = |n: u32| (n.wrapping_sub(before) as i32) < 0;
                    begun.iter().any(|(n, class, _)| is_before(*n) && classes.contains(class))
                };
                for number in (0..RING).map(|back| order.last.wrapping_sub(back)) {
                    let fence = Fence(number);
                    let (w, m, r) = (Class::Write, Class::Message, Class::Read);
                    prop_assert_eq!(order.is_written(fence), !has(&[w], number));
                    prop_assert_eq!(order.is_ordered(fence), !has(&[w, m], number));
                    prop_assert_eq!(order.is_finished(fence), !has(&[w, m, r], number));
                }
                prop_assert_eq!(order.is_empty(), begun.is_empty());
            }
        }
    }

    #[test]
    fn exhausted_groups_are_refused() {
        let mut groups: CompletionGroups<()> = CompletionGroups::new();
        let all: Vec<CompletionId> = std::iter::from_fn(|| groups.start()).collect();
        assert_eq!(all.len(), MAX_GROUPS);
        groups.finish(all[7]);
        assert_eq!(groups.start(), Some(all[7]));
    }
}
