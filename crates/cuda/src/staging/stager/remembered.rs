//! Words that are remembered in place of being read: those of memory that only signals change.
//!
//! A signal adds to its word. To read the word takes a trip to the device, for which the proxy
//! thread waits; so does to store it, but what is stored goes together. So a word is read once.

use std::sync::{Arc, Weak};

use super::{DeviceStager, Entry, Place};
use crate::words::word_range::WordRange;
use engine::atomic::Width;

/// What the words of a range hold, as far as they are known; nothing before the first is.
#[derive(Debug, Default)]
pub(super) struct Remembered(Vec<Option<u64>>);

impl Remembered {
    /// What was remembered of a range that is still registered.
    pub(super) fn of(before: &mut [Entry], range: &Arc<WordRange>) -> Self {
        let same = |entry: &&mut Entry| std::ptr::eq(entry.range.as_ptr(), Arc::as_ptr(range));
        let entry = before.iter_mut().find(same);
        entry.map(|entry| std::mem::take(&mut entry.words)).unwrap_or_default()
    }
}

impl DeviceStager {
    /// The entry of a place, if its words are remembered.
    fn remembers(&mut self, place: &Place) -> Option<&mut Entry> {
        let is_it = |entry: &&mut Entry| {
            entry.is_signals && std::ptr::eq(Weak::as_ptr(&entry.range), Arc::as_ptr(&place.range))
        };
        self.ranges.iter_mut().find(is_it)
    }

    /// What a word holds, if it is known.
    pub(super) fn recall(&mut self, place: &Place, width: Width) -> Option<u64> {
        if self.is_forgetful() || width != Width::Eight {
            return None;
        }
        let entry = self.remembers(place)?;
        entry.words.0.get((place.addr - entry.at) / size_of::<u64>()).copied().flatten()
    }

    /// A word holds this from now on.
    pub(super) fn remember(&mut self, place: &Place, width: Width, value: u64) {
        if self.is_forgetful() {
            return;
        }
        if width != Width::Eight {
            return self.forget(place, width.bytes());
        }
        let Some(entry) = self.remembers(place) else { return };
        if entry.words.0.is_empty() {
            entry.words.0.resize(entry.len / size_of::<u64>(), None);
        }
        let index = (place.addr - entry.at) / size_of::<u64>();
        if let Some(word) = entry.words.0.get_mut(index) {
            *word = Some(value);
        }
    }

    /// Bytes are written that are no signal.
    pub(super) fn forget(&mut self, place: &Place, len: usize) {
        if self.is_forgetful() {
            return;
        }
        let Some(entry) = self.remembers(place) else { return };
        let first = (place.addr - entry.at) / size_of::<u64>();
        let end = (place.addr - entry.at + len).div_ceil(size_of::<u64>());
        entry.words.0.iter_mut().take(end).skip(first).for_each(|word| *word = None);
    }

    /// Whether nothing is remembered of any range.
    #[inline]
    fn is_forgetful(&self) -> bool {
        !self.has_signals
    }
}
