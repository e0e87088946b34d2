//! Access of a stager to words and short bytes.
//!
//! - Deferred writes: waiting for the device takes the proxy thread longer than storing a word, so
//!   it waits once for all deferred writes of a context.
//! - Signal shadow: host copies of words that only signals change, so that an addition needs no
//!   read, which is a round trip to the device. A failed write invalidates them.

use std::sync::Arc;

use super::{DeviceStager, Location, RangeEntry};
use crate::copy::MAX_WRITES;
use crate::driver::error::refused;
use crate::words::deferred::{DeferredWrite, WriteOrder};
use crate::words::word_range::WordRange;
use engine::atomic::{Atomic, Width};
use engine::port::PortError;
use engine::port::copies::DeferredOrder;

/// Maximum words of a range with a shadow, which takes 4 MiB. NCCL has such a range for each
/// context.
const MAX_SHADOWED: usize = 1 << 18;

/// Host copies of a range's words, None if unknown; empty if the range is not shadowed.
#[derive(Debug, Default)]
pub(super) struct SignalShadow(Vec<Option<u64>>);

impl SignalShadow {
    /// Takes over the shadow of a range from its entry in `before`, or creates one.
    pub(super) fn of(before: &mut [RangeEntry], range: &Arc<WordRange>) -> Self {
        let same = |entry: &&mut RangeEntry| std::ptr::eq(entry.range.as_ptr(), Arc::as_ptr(range));
        if let Some(entry) = before.iter_mut().find(same) {
            return std::mem::take(&mut entry.words);
        }
        let words = range.range().len() / size_of::<u64>();
        Self(if words <= MAX_SHADOWED { vec![None; words] } else { Vec::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl DeviceStager {
    pub(super) fn word(&mut self, addr: usize, width: Width) -> Result<Location, PortError> {
        let len = width.bytes();
        let location = self.staged(addr, len)?;
        if location.addr % len == 0 {
            return Ok(location);
        }
        Err(refused("reaching a word", format!("no word of {len} bytes at {addr:#x}")))
    }

    fn shadow_mut(&mut self, location: &Location, width: Width) -> Option<&mut Option<u64>> {
        let entry = &mut self.ranges[location.shadow?];
        let index = (location.addr - entry.driver_addr) / size_of::<u64>();
        entry.words.0.get_mut(index).filter(|_| width == Width::Eight)
    }

    fn shadow_value(&mut self, location: &Location, width: Width) -> Option<u64> {
        self.shadow_mut(location, width).copied().flatten()
    }

    fn set_shadow(&mut self, location: &Location, width: Width, value: u64) {
        if let Some(word) = self.shadow_mut(location, width) {
            *word = Some(value);
        }
    }

    pub(super) fn invalidate(&mut self, addr: usize, len: usize) {
        for &at in &self.shadowed {
            let RangeEntry { addr: start, ref mut words, .. } = self.ranges[at];
            let first = addr.saturating_sub(start) / size_of::<u64>();
            let end = (addr + len).saturating_sub(start).div_ceil(size_of::<u64>());
            words.0.iter_mut().take(end).skip(first).for_each(|word| *word = None);
        }
    }

    pub(super) fn submit_deferred(&mut self) -> Result<(), PortError> {
        let stored = match (&self.flush_error, self.deferred.first()) {
            // Nothing follows a lost write before a flush has told of it.
            (Some(error), _) => Err(error.clone()),
            (None, None) => return Ok(()),
            (None, Some(first)) => {
                let context = first.context;
                self.wait_for_words().and_then(|()| {
                    let words = &mut self.contexts[context].copies.words;
                    Ok(words.store_all(&mut self.deferred)?)
                })
            }
        };
        self.deferred.clear();
        if stored.is_err() {
            self.ranges.iter_mut().for_each(|entry| entry.words.0.fill(None));
        }
        stored.map_err(|error| self.flush_error.insert(error).clone())
    }

    /// Completes all earlier writes of words, before one is accessed directly.
    pub(super) fn complete_words(&mut self) -> Result<(), PortError> {
        self.submit_deferred()?;
        self.wait_for_words()
    }

    pub(super) fn apply_at(&mut self, at: &Location, atomic: &Atomic) -> Result<u64, PortError> {
        let Atomic { width, .. } = *atomic;
        let known = self.shadow_value(at, width);
        self.invalidate(at.memory, width.bytes());
        let before = known.map_or_else(|| self.load_word(at, width), Ok)?;
        let after = atomic.apply(before);
        if after != before {
            self.store_at(at, &after.to_le_bytes()[..width.bytes()])?;
        }
        self.set_shadow(at, width, after);
        Ok(before)
    }

    pub(super) fn store_at(&mut self, location: &Location, bytes: &[u8]) -> Result<(), PortError> {
        let words = &mut self.contexts[location.context].copies.words;
        Ok(words.store(&location.range, location.addr, bytes)?)
    }

    fn load_word(&mut self, location: &Location, width: Width) -> Result<u64, PortError> {
        let mut bytes = [0; 8];
        let words = &mut self.contexts[location.context].copies.words;
        words.load(&location.range, location.addr, &mut bytes[..width.bytes()])?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Makes capacity for `parts` of a context: stores deferred writes that are of another context,
    /// or too many.
    fn reserve_deferred(&mut self, context: usize, parts: usize) -> Result<(), PortError> {
        let is_other = self.deferred.first().is_some_and(|first| first.context != context);
        if is_other || self.deferred.len() + parts > MAX_WRITES {
            self.submit_deferred()
        } else {
            Ok(())
        }
    }

    /// Defers a write of bytes, which have at most [`MAX_WRITES`] parts.
    pub(super) fn defer_bytes(
        &mut self,
        location: &Location,
        bytes: &[u8],
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        let Location { context, ref range, addr, .. } = *location;
        let parts = || DeferredWrite::parts_of(context, range, addr, bytes, order_of(order));
        self.reserve_deferred(context, parts().count())?;
        self.deferred.extend(parts());
        Ok(())
    }

    /// Defers an operation that fetches nothing on a word without CPU mapping.
    pub(super) fn defer_atomic(
        &mut self,
        location: &Location,
        atomic: &Atomic,
        order: DeferredOrder,
    ) -> Result<(), PortError> {
        let Location { context, ref range, addr, .. } = *location;
        let (width, len) = (atomic.width, atomic.width.bytes());
        let before = match self.shadow_value(location, width) {
            None if atomic.op.sets() => None,
            None if location.shadow.is_none() => {
                // The old value is read when the writes are submitted, for all of them at once.
                let mut before = self.deferred.iter().rev();
                let before = before.find(|write| write.overlaps(addr, len));
                if before.is_some_and(|write| (write.addr, write.end()) != (addr, addr + len)) {
                    self.submit_deferred()?;
                }
                self.reserve_deferred(context, 1)?;
                let order = order_of(order);
                self.deferred.push(DeferredWrite::atomic(context, range, addr, atomic, order));
                return Ok(());
            }
            // Shadowed, and not read before: read once earlier writes to it are stored.
            None => {
                let is_of =
                    |write: &DeferredWrite| write.context == context && write.overlaps(addr, len);
                if self.deferred.iter().any(is_of) {
                    self.submit_deferred()?;
                }
                self.wait_for_words()?;
                Some(self.load_word(location, width)?)
            }
            known => known,
        };
        let after = atomic.apply(before.unwrap_or(0));
        self.invalidate(location.memory, len);
        if before != Some(after) {
            self.defer_bytes(location, &after.to_le_bytes()[..len], order)?;
        }
        self.set_shadow(location, width, after);
        Ok(())
    }
}

fn order_of(order: DeferredOrder) -> WriteOrder {
    match order {
        DeferredOrder::Any => WriteOrder::Any,
        DeferredOrder::After => WriteOrder::After,
    }
}
