//! Deferred writes of words and short bytes, submitted together; adjacent ones share a copy.
//!
//! A stream memory operation stores a word in 0.7 µs, whatever its length, and a copy some hundred
//! words in 2 µs. The bytes of a copy are unordered, so only unordered writes share one. A copy
//! also stores whatever is no word of 4 or 8 bytes.

use std::sync::Arc;

use crate::copy::MAX_WRITES;
use crate::copy::request::StreamOp;
use crate::words::word_range::WordRange;
use engine::atomic::{Atomic, Width};

/// Maximum bytes of one deferred write: the longest message of the engine.
pub(crate) const MAX_BYTES: usize = 256;

// With the parts before the first word and after the last one.
const _: () = assert!(MAX_BYTES / 8 + 6 <= MAX_WRITES);

/// Minimum number of adjacent words that are worth a copy.
pub(crate) const MIN_COPY_PARTS: usize = 6;

/// A deferred write, or an aligned part of one: 1, 2, 4 or 8 bytes.
#[derive(Debug)]
pub(crate) struct DeferredWrite {
    pub(crate) context: usize,
    pub(crate) range: Arc<WordRange>,
    pub(crate) addr: usize,
    pub(crate) len: u8,
    /// The bytes to store, little-endian; valid once `update` is None.
    pub(crate) value: u64,
    /// Atomic that computes the word's new value from the old one.
    pub(crate) update: Option<Atomic>,
    pub(crate) order: WriteOrder,
    /// Index in the list before `arrange` sorts it.
    pub(crate) index: u8,
}

/// Order of a part relative to those before it in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteOrder {
    /// After all of them.
    After,
    /// Unordered with adjacent parts of this kind.
    Any,
    /// Unordered with the part before it, which belongs to the same write.
    SameWrite,
}

impl DeferredWrite {
    /// Splits bytes into aligned parts. `order` is that of the first one.
    pub(crate) fn parts_of<'b>(
        context: usize,
        range: &Arc<WordRange>,
        addr: usize,
        bytes: &'b [u8],
        order: WriteOrder,
    ) -> impl Iterator<Item = Self> + use<'b> {
        let range = Arc::clone(range);
        aligned_parts(addr, bytes.len()).map(move |(at, len)| {
            let mut value = [0; 8];
            value[..len.into()].copy_from_slice(&bytes[at..at + usize::from(len)]);
            let order =
                if at > 0 && order == WriteOrder::After { WriteOrder::SameWrite } else { order };
            let (range, value) = (Arc::clone(&range), u64::from_le_bytes(value));
            Self { context, range, addr: addr + at, len, value, update: None, order, index: 0 }
        })
    }

    /// Creates the write of an atomic operation to a word. Unless the operation sets the word, its
    /// value is computed by [`resolve`].
    pub(crate) fn atomic(
        context: usize,
        range: &Arc<WordRange>,
        addr: usize,
        atomic: &Atomic,
        order: WriteOrder,
    ) -> Self {
        let (range, len) = (Arc::clone(range), atomic.width.bytes() as u8);
        let update = (!atomic.op.sets()).then_some(*atomic);
        let value = atomic.operand & atomic.width.mask();
        Self { context, range, addr, len, value, update, order, index: 0 }
    }

    /// Returns the width, if a stream memory operation could store the part.
    pub(crate) fn width(&self) -> Option<Width> {
        match self.len {
            4 => Some(Width::Four),
            8 => Some(Width::Eight),
            _ => None,
        }
    }

    /// Returns the stream memory operation that stores the part; None unless it has 4 or 8 bytes.
    pub(crate) fn store(&self) -> Option<StreamOp<'_>> {
        let (range, addr, width) = (&**self.range.range(), self.addr, self.width()?);
        Some(StreamOp::Store { range, addr, width, value: self.value })
    }

    pub(crate) fn overlaps(&self, addr: usize, len: usize) -> bool {
        self.addr < addr + len && addr < self.end()
    }

    fn merge(&mut self, atomic: &Atomic) -> bool {
        match &mut self.update {
            None => self.value = atomic.apply(self.value),
            Some(update) => match update.then(atomic) {
                Some(both) => *update = both,
                None => return false,
            },
        }
        true
    }

    pub(crate) fn end(&self) -> usize {
        self.addr + usize::from(self.len)
    }

    fn continues(&self, next: &Self) -> bool {
        let is_unordered = match next.order {
            WriteOrder::After => false,
            WriteOrder::Any => self.order == WriteOrder::Any,
            WriteOrder::SameWrite => true,
        };
        is_unordered && self.end() == next.addr && Arc::ptr_eq(&self.range, &next.range)
    }
}

/// Computes the values of updates. `load` gets the indices, ascending by address, of the words that
/// have to be read from memory first, and puts what it reads into `value`.
pub(crate) fn resolve<E>(
    words: &mut [DeferredWrite],
    load: impl FnOnce(&mut [DeferredWrite], &[usize]) -> Result<(), E>,
) -> Result<(), E> {
    let mut unread = [0; MAX_WRITES];
    let mut count = 0;
    for at in 0..words.len() {
        if words[at].update.is_some() && earlier(words, at).is_none() {
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
        let Some(update) = words[at].update.take() else { continue };
        let held = earlier(words, at).map_or(words[at].value, |before| words[before].value);
        words[at].value = update.apply(held);
    }
    Ok(())
}

/// Merges an unordered operation on a word of a context into the latest write to the same word.
/// Returns false, without effect, if there is none that it may be merged into.
pub(crate) fn merge_atomic(
    words: &mut [DeferredWrite],
    (context, addr): (usize, usize),
    atomic: &Atomic,
) -> bool {
    let len = atomic.width.bytes();
    for write in words.iter_mut().rev() {
        if write.context == context && write.overlaps(addr, len) {
            return (write.addr, usize::from(write.len)) == (addr, len) && write.merge(atomic);
        }
        if write.order != WriteOrder::Any {
            return false;
        }
    }
    false
}

fn earlier(words: &[DeferredWrite], at: usize) -> Option<usize> {
    let DeferredWrite { addr, len, .. } = words[at];
    words[..at].iter().rposition(|other| (other.addr, other.len) == (addr, len))
}

/// Splits `len` bytes at `addr` into the longest naturally aligned parts: offset and length of
/// each.
pub(crate) fn aligned_parts(addr: usize, len: usize) -> impl Iterator<Item = (usize, u8)> + Clone {
    let mut at = 0;
    std::iter::from_fn(move || {
        let left = len.checked_sub(at).filter(|left| *left > 0)?;
        let most = (addr + at).trailing_zeros().min(left.ilog2()).min(3);
        let part = (at, 1 << most);
        at += 1 << most;
        Some(part)
    })
}

pub(crate) fn arrange(words: &mut [DeferredWrite]) {
    let are_unordered = |one: &DeferredWrite, next: &DeferredWrite| {
        one.order == WriteOrder::Any && next.order == WriteOrder::Any
    };
    for run in words.chunk_by_mut(are_unordered) {
        if run.len() < MIN_COPY_PARTS || run.is_sorted_by_key(|word| word.addr) {
            continue;
        }
        for (index, word) in (0..).zip(run.iter_mut()) {
            word.index = index;
        }
        run.sort_unstable_by_key(|word| word.addr);
        if run.windows(2).any(|two| two[0].end() > two[1].addr) {
            run.sort_unstable_by_key(|word| word.index);
        }
    }
}

/// Iterates over runs of adjacent, unordered parts, each with the index of its first part.
pub(crate) fn runs(
    words: &[DeferredWrite],
) -> impl Iterator<Item = (usize, &[DeferredWrite])> + Clone {
    let mut from = 0;
    std::iter::from_fn(move || {
        let rest = words.get(from..).filter(|rest| !rest.is_empty())?;
        let breaks = rest.windows(2).position(|two| !two[0].continues(&two[1]));
        let run = (from, &rest[..breaks.map_or(rest.len(), |at| at + 1)]);
        from += run.1.len();
        Some(run)
    })
}
