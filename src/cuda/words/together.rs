//! Words that are stored together: which of them lie side by side, so that one copy stores them.
//!
//! An operation of a stream stores a word in 0.7 µs, whatever its length, and a copy some hundred words in 2 µs. A copy has no
//! order within, so it takes only words that nothing orders among one another.

use std::sync::Arc;

use crate::cuda::copy::request::Word;
use crate::cuda::words::word_range::WordRange;
use crate::engine::atomic::Width;

/// A word that is to be stored.
#[derive(Debug)]
pub(crate) struct Soon {
    /// Index of its context.
    pub(crate) context: usize,
    /// What has it.
    pub(crate) range: Arc<WordRange>,
    /// The driver's address.
    pub(crate) addr: usize,
    pub(crate) width: Width,
    pub(crate) value: u64,
    /// Whether it may be stored before or after those next to it in the list that are free as well.
    pub(crate) free: bool,
    /// Its place in the list, while that is put in another order.
    pub(crate) place: u8,
}

/// Words that are given to the device as one thing.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// They lie side by side, in this order.
    SideBySide(&'a [Soon]),
    /// Each by itself, in this order.
    Each(&'a [Soon]),
}

/// Fewest words that are worth a copy.
pub(crate) const FEWEST: usize = 6;

impl Soon {
    /// Where it is.
    pub(crate) fn word(&self) -> Word<'_> {
        Word { range: self.range.range(), addr: self.addr, width: self.width }
    }

    fn end(&self) -> usize {
        self.addr + self.width.bytes()
    }

    /// Whether `next` lies right behind it, and may be stored with it.
    fn touches(&self, next: &Self) -> bool {
        self.free && next.free && self.end() == next.addr && Arc::ptr_eq(&self.range, &next.range)
    }
}

/// Puts what is free in the order of addresses, where no word lies on another. What memory holds in the end stays the same.
pub(crate) fn arrange(words: &mut [Soon]) {
    for free in words.chunk_by_mut(|one, next| one.free && next.free) {
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

/// What the words are given to the device as, in their order, each with the place of its first word.
pub(crate) fn pieces(words: &[Soon]) -> impl Iterator<Item = (usize, Piece<'_>)> {
    let run = |from: usize| {
        let rest = &words[from..];
        let breaks = rest.windows(2).position(|two| !two[0].touches(&two[1]));
        breaks.map_or(words.len(), |at| from + at + 1)
    };
    let mut from = 0;
    std::iter::from_fn(move || {
        let start = from;
        if start == words.len() {
            return None;
        }
        // To the end of the first run that is worth a copy, or to its start.
        while from < words.len() {
            let end = run(from);
            if end - from >= FEWEST {
                if from == start {
                    from = end;
                    return Some((start, Piece::SideBySide(&words[start..end])));
                }
                break;
            }
            from = end;
        }
        Some((start, Piece::Each(&words[start..from])))
    })
}
