//! Words and short bytes that are stored together: adjacent ones take one copy.
//!
//! An operation of a stream stores a word in 0.7 µs, whatever its length, and a copy some hundred
//! words in 2 µs. A copy has no order within, so it takes only what nothing orders among one
//! another. What is no word of 4 or 8 bytes, a copy stores in any case.

use std::sync::Arc;

use crate::copy::MAX_WRITES;
use crate::copy::request::{Step, Word};
use crate::words::word_range::WordRange;
use engine::atomic::{Atomic, Width};

/// Most bytes that are stored with others: the longest message of the engine.
pub(crate) const MAX_BYTES: usize = 256;

// With the parts before the first word and behind the last one.
const _: () = assert!(MAX_BYTES / 8 + 6 <= MAX_WRITES);

/// Fewer parts side by side, all of which are words, are not worth a copy.
pub(crate) const FEWEST: usize = 6;

/// A part of what is to be stored: 1, 2, 4 or 8 bytes, aligned to that.
#[derive(Debug)]
pub(crate) struct Soon {
    pub(crate) context: usize,
    pub(crate) range: Arc<WordRange>,
    pub(crate) addr: usize,
    pub(crate) len: u8,
    /// In the first bytes; once [`Self::change`] is none.
    pub(crate) value: u64,
    /// Atomic that computes the word's new value from the old one.
    pub(crate) change: Option<Atomic>,
    pub(crate) tie: Tie,
    /// Its place in the list, while that is put in another order.
    pub(crate) place: u8,
}

/// Order of a part relative to those before it in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tie {
    /// It comes behind all of them.
    Behind,
    /// Nothing orders it and those next to it that are free as well.
    Free,
    /// It belongs to the same bytes as the one before it, and nothing orders the two.
    Same,
}

impl Soon {
    /// The parts of bytes for an address. The first one is tied to what is before it.
    pub(crate) fn parts_of<'b>(
        context: usize,
        range: &Arc<WordRange>,
        addr: usize,
        bytes: &'b [u8],
        tie: Tie,
    ) -> impl Iterator<Item = Self> + use<'b> {
        let range = Arc::clone(range);
        parts(addr, bytes.len()).map(move |(at, len)| {
            let mut value = [0; 8];
            value[..len.into()].copy_from_slice(&bytes[at..at + usize::from(len)]);
            let tie = if at > 0 && tie == Tie::Behind { Tie::Same } else { tie };
            let (range, value) = (Arc::clone(&range), u64::from_le_bytes(value));
            Self { context, range, addr: addr + at, len, value, change: None, tie, place: 0 }
        })
    }

    /// A word whose value an operation makes, of what it holds before unless the operation sets it.
    pub(crate) fn changed_by(
        context: usize,
        range: &Arc<WordRange>,
        addr: usize,
        atomic: &Atomic,
        tie: Tie,
    ) -> Self {
        let (range, len) = (Arc::clone(range), atomic.width.bytes() as u8);
        let change = (!atomic.op.sets()).then_some(*atomic);
        let value = atomic.operand & atomic.width.mask();
        Self { context, range, addr, len, value, change, tie, place: 0 }
    }

    /// The width that an operation of a stream would store.
    pub(crate) fn width(&self) -> Option<Width> {
        match self.len {
            4 => Some(Width::Four),
            8 => Some(Width::Eight),
            _ => None,
        }
    }

    /// The store of a word. None if it is no word of 4 or 8 bytes.
    pub(crate) fn store(&self) -> Option<Step<'_>> {
        let (range, addr, width) = (&**self.range.range(), self.addr, self.width()?);
        Some(Step::Store { word: Word { range, addr, width }, value: self.value })
    }

    /// Whether it and a word have a byte in common.
    pub(crate) fn overlaps(&self, addr: usize, len: usize) -> bool {
        self.addr < addr + len && addr < self.end()
    }

    fn is_changed_by(&mut self, atomic: &Atomic) -> bool {
        match &mut self.change {
            None => self.value = atomic.apply(self.value),
            Some(change) => match change.then(atomic) {
                Some(both) => *change = both,
                None => return false,
            },
        }
        true
    }

    pub(crate) fn end(&self) -> usize {
        self.addr + usize::from(self.len)
    }

    fn touches(&self, next: &Self) -> bool {
        let untied = match next.tie {
            Tie::Behind => false,
            Tie::Free => self.tie == Tie::Free,
            Tie::Same => true,
        };
        untied && self.end() == next.addr && Arc::ptr_eq(&self.range, &next.range)
    }
}

/// Words whose value is made of what they hold before: what they hold in memory is read by `load`,
/// which is given their places in the list, ascending by address, and puts it into `value`.
pub(crate) fn resolve<E>(
    words: &mut [Soon],
    load: impl FnOnce(&mut [Soon], &[usize]) -> Result<(), E>,
) -> Result<(), E> {
    let mut unread = [0; MAX_WRITES];
    let mut count = 0;
    for at in 0..words.len() {
        if words[at].change.is_some() && before(words, at).is_none() {
            unread[count] = at;
            count += 1;
        }
    }
    let unread = &mut unread[..count];
    if !unread.is_empty() {
        unread.sort_unstable_by_key(|at| words[*at].addr);
        load(words, unread)?;
    }
    for at in 0..words.len() {
        let Some(change) = words[at].change.take() else { continue };
        let held = before(words, at).map_or(words[at].value, |before| words[before].value);
        words[at].value = change.apply(held);
    }
    Ok(())
}

/// Whether an operation on a word of a context, which may come before or behind those that are free
/// of order, has become one with what is to be stored in the same word.
pub(crate) fn joins(words: &mut [Soon], (context, addr): (usize, usize), atomic: &Atomic) -> bool {
    let len = atomic.width.bytes();
    for soon in words.iter_mut().rev() {
        if soon.context == context && soon.overlaps(addr, len) {
            return (soon.addr, usize::from(soon.len)) == (addr, len) && soon.is_changed_by(atomic);
        }
        if soon.tie != Tie::Free {
            return false;
        }
    }
    false
}

fn before(words: &[Soon], at: usize) -> Option<usize> {
    let Soon { addr, len, .. } = words[at];
    words[..at].iter().rposition(|other| (other.addr, other.len) == (addr, len))
}

/// Bytes for an address, in parts as long as can be: each one's place among them, and length.
pub(crate) fn parts(addr: usize, len: usize) -> impl Iterator<Item = (usize, u8)> + Clone {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = len.checked_sub(at).filter(|left| *left > 0)?;
        let most = (addr + at).trailing_zeros().min(left.ilog2()).min(3);
        let part = (at, 1 << most);
        at += 1 << most;
        Some(part)
    })
}

pub(crate) fn arrange(words: &mut [Soon]) {
    let are_free = |one: &Soon, next: &Soon| one.tie == Tie::Free && next.tie == Tie::Free;
    for free in words.chunk_by_mut(are_free) {
        if free.len() < FEWEST || free.is_sorted_by_key(|word| word.addr) {
            continue;
        }
        for (place, word) in (0..).zip(free.iter_mut()) {
            word.place = place;
        }
        free.sort_unstable_by_key(|word| word.addr);
        if free.windows(2).any(|two| two[0].end() > two[1].addr) {
            free.sort_unstable_by_key(|word| word.place);
        }
    }
}

/// Runs of parts side by side that nothing orders: the place of each one's first in the list.
pub(crate) fn runs(words: &[Soon]) -> impl Iterator<Item = (usize, &[Soon])> + Clone {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = words.get(from..).filter(|rest| !rest.is_empty())?;
        let breaks = rest.windows(2).position(|two| !two[0].touches(&two[1]));
        let run = (from, &rest[..breaks.map_or(rest.len(), |at| at + 1)]);
        from += run.1.len();
        Some(run)
    })
}
