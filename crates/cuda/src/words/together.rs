//! Words and short bytes that are stored together: which of them lie side by side, so that one copy
//! stores them.
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
    /// What makes a word's value, of what it holds before.
    pub(crate) change: Option<Atomic>,
    pub(crate) tie: Tie,
    /// Its place in the list, while that is put in another order.
    pub(crate) place: u8,
}

/// What orders a part and those before it in the list.
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

/// Bytes for an address, in parts: for each its place among the bytes, and its length. They are as
/// long as they can be.
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

/// Runs of parts that lie side by side, and that nothing orders: for each the place of its first
/// part in the list.
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

#[cfg(test)]
mod tests {
    use engine::atomic::AtomicOp;

    use super::*;
    use crate::memory::range::DeviceRange;

    fn list(parts: &[(usize, u8, Tie)]) -> Vec<Soon> {
        let range = Arc::new(DeviceRange::stand_in(0x1000, 0x1000, &[]));
        let range = Arc::new(WordRange::unmapped(range));
        let soon = |(value, (addr, len, tie)): (u64, &(usize, u8, Tie))| {
            let (range, addr, len, tie) = (Arc::clone(&range), *addr, *len, *tie);
            Soon { context: 0, range, addr, len, value, change: None, tie, place: 0 }
        };
        (0..).zip(parts).map(soon).collect()
    }

    fn words(addrs: &[usize], tie: Tie) -> Vec<Soon> {
        list(&addrs.iter().map(|addr| (0x1000 + addr, 8, tie)).collect::<Vec<_>>())
    }

    fn add(operand: u64, width: Width) -> Atomic {
        Atomic { op: AtomicOp::Add, width, float: false, operand, compare: 0 }
    }

    #[test]
    fn runs_are_adjacent_and_unordered() {
        use Tie::{Behind, Free, Same};
        let lens = |parts: &[Soon]| runs(parts).map(|(_, run)| run.len()).collect::<Vec<_>>();
        let in_a_row = |tie| words(&[0, 8, 16], tie);
        assert_eq!(lens(&[]), []);
        assert_eq!(lens(&in_a_row(Free)), [3]);
        assert_eq!(lens(&in_a_row(Behind)), [1, 1, 1]);
        let put = [(0x1001, 1, Behind), (0x1002, 2, Same), (0x1004, 4, Same), (0x1008, 8, Free)];
        assert_eq!(lens(&list(&put)), [3, 1]);
        let apart = [(0x1000, 8, Free), (0x1010, 1, Free), (0x1011, 1, Free)];
        assert_eq!(lens(&list(&apart)), [1, 2]);
        let mixed = [(0x1000, 1, Free), (0x1001, 1, Behind), (0x1002, 1, Free)];
        assert_eq!(lens(&list(&mixed)), [1, 1, 1]);
        let mut of_two = in_a_row(Free);
        of_two[1].range = Arc::clone(&words(&[0], Free)[0].range);
        assert_eq!(lens(&of_two), [1, 1, 1], "each of another range");
        assert!(runs(&of_two).map(|(at, _)| at).eq(0..3));
    }

    #[test]
    fn operation_joins_same_word_past_others() {
        let at = |addr: usize| (0, 0x1000 + addr);
        let mut soon = words(&[8, 16, 0], Tie::Free);
        assert!(joins(&mut soon, at(8), &add(5, Width::Eight)), "words beside it are no bar");
        assert!(joins(&mut soon, at(16), &add(u64::MAX, Width::Eight)));
        assert_eq!(soon.iter().map(|word| word.value).collect::<Vec<_>>(), [5, 0, 2]);
        assert!(!joins(&mut soon, at(12), &add(1, Width::Four)), "a part of a word");
        assert!(!joins(&mut soon, at(24), &add(1, Width::Eight)), "no such word");
        assert!(!joins(&mut soon, (1, 0x1008), &add(1, Width::Eight)), "another context's");
        // What is to be added is added up; what cannot be is not.
        soon[0].change = Some(add(3, Width::Eight));
        assert!(joins(&mut soon, at(8), &add(4, Width::Eight)));
        assert_eq!(soon[0].change, Some(add(7, Width::Eight)));
        let swap = Atomic { op: AtomicOp::Xor, ..add(4, Width::Eight) };
        assert!(!joins(&mut soon, at(8), &swap));
        assert_eq!(soon[0].change, Some(add(7, Width::Eight)));
        // Nothing goes past what is ordered, but to it.
        soon[1].tie = Tie::Behind;
        assert!(joins(&mut soon, at(16), &add(1, Width::Eight)));
        assert!(!joins(&mut soon, at(8), &add(1, Width::Eight)));
        let mut half = list(&[(0x1004, 4, Tie::Free)]);
        half[0].value = 0xffff_ffff;
        assert!(joins(&mut half, at(4), &add(2, Width::Four)));
        assert_eq!(half[0].value, 1);
    }

    #[test]
    fn bytes_are_cut_into_aligned_parts() {
        let cut = |addr, len| parts(addr, len).collect::<Vec<_>>();
        assert_eq!(cut(0x1000, 8), [(0, 8)]);
        assert_eq!(cut(0x1004, 12), [(0, 4), (4, 8)]);
        assert_eq!(cut(0x1001, 10), [(0, 1), (1, 2), (3, 4), (7, 2), (9, 1)]);
        assert_eq!(cut(0x1002, 1), [(0, 1)]);
        for addr in 0..16 {
            for len in 1..64 {
                let mut end = 0;
                for (at, part) in parts(addr, len) {
                    assert_eq!(at, end, "{len} bytes at {addr}");
                    assert_eq!((addr + at) % usize::from(part), 0, "{len} bytes at {addr}");
                    end += usize::from(part);
                }
                assert_eq!(end, len);
            }
        }
    }
}
