//! Words and short bytes of a stager.
//!
//! - *Soon*: to wait for the device takes the proxy thread longer than to store a word, and is done
//!   once for all words of a context that are to be stored.
//! - *Remembered*: of memory that only signals change, a word is read once. To read it takes a trip
//!   to the device as well. What could not be stored is not remembered.

use std::sync::Arc;

use super::{DeviceStager, Entry, Place};
use crate::copy::MAX_WRITES;
use crate::driver::error::refused;
use crate::words::together::{Soon, Tie};
use crate::words::word_range::WordRange;
use engine::atomic::{Atomic, Width};
use engine::port::PortError;
use engine::port::copies::DeferredOrder;

/// Words of the longest range that are remembered, in 4 MiB. NCCL has some for each context.
const MAX_REMEMBERED: usize = 1 << 18;

/// Known values of a range's words; empty where none are remembered.
#[derive(Debug, Default)]
pub(super) struct Remembered(Vec<Option<u64>>);

impl Remembered {
    /// Room for the words of a range, with what was remembered if it was registered before.
    pub(super) fn of(before: &mut [Entry], range: &Arc<WordRange>) -> Self {
        let same = |entry: &&mut Entry| std::ptr::eq(entry.range.as_ptr(), Arc::as_ptr(range));
        if let Some(entry) = before.iter_mut().find(same) {
            return std::mem::take(&mut entry.words);
        }
        let words = range.range().len() / size_of::<u64>();
        Self(if words <= MAX_REMEMBERED { vec![None; words] } else { Vec::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl DeviceStager {
    /// The place of a word, which is aligned.
    pub(super) fn word(&mut self, addr: usize, width: Width) -> Result<Place, PortError> {
        let len = width.bytes();
        let place = self.staged(addr, len)?;
        if place.addr % len == 0 {
            return Ok(place);
        }
        Err(refused("reaching a word", format!("no word of {len} bytes at {addr:#x}")))
    }

    fn remembered(&mut self, place: &Place, width: Width) -> Option<&mut Option<u64>> {
        let entry = &mut self.ranges[place.remembered?];
        let index = (place.addr - entry.at) / size_of::<u64>();
        entry.words.0.get_mut(index).filter(|_| width == Width::Eight)
    }

    fn recall(&mut self, place: &Place, width: Width) -> Option<u64> {
        self.remembered(place, width).copied().flatten()
    }

    fn remember(&mut self, place: &Place, width: Width, value: u64) {
        if let Some(word) = self.remembered(place, width) {
            *word = Some(value);
        }
    }

    pub(super) fn forget(&mut self, addr: usize, len: usize) {
        for &at in &self.remembering {
            let Entry { addr: start, ref mut words, .. } = self.ranges[at];
            let first = addr.saturating_sub(start) / size_of::<u64>();
            let end = (addr + len).saturating_sub(start).div_ceil(size_of::<u64>());
            words.0.iter_mut().take(end).skip(first).for_each(|word| *word = None);
        }
    }

    /// Stores what is to be stored soon.
    pub(super) fn submit_deferred(&mut self) -> Result<(), PortError> {
        let Some(context) = self.soon.first().map(|first| first.context) else { return Ok(()) };
        self.finish_in_order()?;
        let stored = self.contexts[context].copies.words.store_all(&mut self.soon);
        self.soon.clear();
        if stored.is_err() {
            self.ranges.iter_mut().for_each(|entry| entry.words.0.fill(None));
        }
        stored.map_err(|error| self.lost.insert(error.into()).clone())
    }

    /// All words are as they are to be, before one is read or changed at once.
    pub(super) fn settle_words(&mut self) -> Result<(), PortError> {
        self.submit_deferred()?;
        self.finish_in_order()
    }

    pub(super) fn apply_at(&mut self, place: &Place, atomic: &Atomic) -> Result<u64, PortError> {
        let Atomic { width, .. } = *atomic;
        let known = self.recall(place, width);
        self.forget(place.memory, width.bytes());
        let before = known.map_or_else(|| self.load_word(place, width), Ok)?;
        let after = atomic.apply(before);
        if after != before {
            self.store_at(place, &after.to_le_bytes()[..width.bytes()])?;
        }
        self.remember(place, width, after);
        Ok(before)
    }

    pub(super) fn store_at(&mut self, place: &Place, bytes: &[u8]) -> Result<(), PortError> {
        let words = &mut self.contexts[place.context].copies.words;
        Ok(words.store(&place.range, place.addr, bytes)?)
    }

    fn load_word(&mut self, place: &Place, width: Width) -> Result<u64, PortError> {
        let mut bytes = [0; 8];
        let words = &mut self.contexts[place.context].copies.words;
        words.load(&place.range, place.addr, &mut bytes[..width.bytes()])?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Stores what waits unless it is of this context, which all goes to in one call.
    fn make_room(&mut self, context: usize, parts: usize) -> Result<(), PortError> {
        let is_other = self.soon.first().is_some_and(|first| first.context != context);
        if is_other || self.soon.len() + parts > MAX_WRITES {
            self.submit_deferred()
        } else {
            Ok(())
        }
    }

    /// The bytes of a place are stored with others. They have [`MAX_WRITES`] parts at most.
    pub(super) fn store_bytes_soon(
        &mut self,
        place: &Place,
        bytes: &[u8],
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        let Place { context, ref range, addr, .. } = *place;
        let parts = || Soon::parts_of(context, range, addr, bytes, tie(order));
        self.make_room(context, parts().count())?;
        self.soon.extend(parts());
        Ok(())
    }

    /// Applies an operation that returns nothing to a word on which the CPU has no window.
    pub(super) fn apply_at_soon(
        &mut self,
        place: &Place,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        let Place { context, ref range, addr, .. } = *place;
        let (width, len) = (atomic.width, atomic.width.bytes());
        let before = match self.recall(place, width) {
            None if atomic.op.sets() => None,
            None if place.remembered.is_none() => {
                // What it is made of is read with that of others, once they are stored.
                let mut before = self.soon.iter().rev();
                let before = before.find(|soon| soon.overlaps(addr, len));
                if before.is_some_and(|soon| (soon.addr, soon.end()) != (addr, addr + len)) {
                    self.submit_deferred()?;
                }
                self.make_room(context, 1)?;
                self.soon.push(Soon::changed_by(context, range, addr, atomic, tie(order)));
                return Ok(());
            }
            // It is read once, when it is stored itself.
            None => {
                let is_of = |soon: &Soon| soon.context == context && soon.overlaps(addr, len);
                if self.soon.iter().any(is_of) {
                    self.submit_deferred()?;
                }
                self.finish_in_order()?;
                Some(self.load_word(place, width)?)
            }
            known => known,
        };
        let after = atomic.apply(before.unwrap_or(0));
        self.forget(place.memory, len);
        if before != Some(after) {
            self.store_bytes_soon(place, &after.to_le_bytes()[..len], order)?;
        }
        self.remember(place, width, after);
        Ok(())
    }
}

fn tie(order: DeferredOrder) -> Tie {
    match order {
        DeferredOrder::Any => Tie::Free,
        DeferredOrder::After => Tie::Behind,
    }
}
