//! Words that are remembered in place of being read: those of memory that only signals change.
//!
//! A signal adds to its word. To read the word takes a trip to the device, for which the proxy
//! thread waits; so does to store it, but what is stored goes together. So a word is read once.
//! What could not be stored is not remembered.

use std::sync::Arc;

use super::{DeviceStager, Entry, Place};
use crate::words::word_range::WordRange;
use engine::atomic::Width;

/// Words of the longest range that are remembered, in 4 MiB. NCCL has some for each context.
const MOST_WORDS: usize = 1 << 18;

/// What the words of a range hold, as far as that is known; empty where nothing is remembered.
#[derive(Debug, Default)]
pub(super) struct Remembered(Vec<Option<u64>>);

impl Remembered {
    /// Room for the words of a range of so many bytes, with what was remembered if it was
    /// registered before.
    pub(super) fn of(before: &mut [Entry], range: &Arc<WordRange>, len: usize) -> Self {
        let same = |entry: &&mut Entry| std::ptr::eq(entry.range.as_ptr(), Arc::as_ptr(range));
        if let Some(entry) = before.iter_mut().find(same) {
            return std::mem::take(&mut entry.words);
        }
        let words = len / size_of::<u64>();
        Self(if words <= MOST_WORDS { vec![None; words] } else { Vec::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl DeviceStager {
    /// The place in memory of a word of eight bytes, if it is remembered.
    #[inline]
    fn word_of(&mut self, place: &Place, width: Width) -> Option<&mut Option<u64>> {
        let entry = &mut self.ranges[place.remembered?];
        let index = (place.addr - entry.at) / size_of::<u64>();
        entry.words.0.get_mut(index).filter(|_| width == Width::Eight)
    }

    #[inline]
    pub(super) fn recall(&mut self, place: &Place, width: Width) -> Option<u64> {
        self.word_of(place, width).copied().flatten()
    }

    #[inline]
    pub(super) fn remember(&mut self, place: &Place, width: Width, value: u64) {
        if let Some(word) = self.word_of(place, width) {
            *word = Some(value);
        }
    }

    #[inline]
    pub(super) fn forget(&mut self, place: &Place, len: usize) {
        let end = place.memory + len;
        for &at in &self.remembering {
            let Entry { addr, ref mut words, .. } = self.ranges[at];
            let first = place.memory.saturating_sub(addr) / size_of::<u64>();
            let end = end.saturating_sub(addr).div_ceil(size_of::<u64>());
            words.0.iter_mut().take(end).skip(first).for_each(|word| *word = None);
        }
    }

    #[cold]
    pub(super) fn forget_all(&mut self) {
        self.ranges.iter_mut().for_each(|entry| entry.words.0.fill(None));
    }
}
