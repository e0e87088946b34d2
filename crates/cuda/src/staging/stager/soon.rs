//! Words that are to be stored soon, with others of their context: to wait for the device takes the
//! proxy thread longer than to store a word, and is done once for all of them.

use std::sync::Arc;

use super::{DeviceStager, Place};
use crate::copy::MOST_WRITES;
use crate::words::together::{self, Soon, Tie};
use engine::atomic::{Atomic, Width};
use engine::port::PortError;
use engine::port::copies::SoonOrder;

impl DeviceStager {
    pub(super) fn stores_together(&self, place: &Place) -> bool {
        let words = &self.contexts[place.context].copies.words;
        words.stores_together(&place.range, place.addr)
    }

    pub(super) fn flush(&mut self) -> Result<(), PortError> {
        if self.soon.is_empty() {
            return Ok(());
        }
        self.finish_in_order()?;
        let Some(first) = self.soon.first() else { return Ok(()) };
        let words = &mut self.contexts[first.context].copies.words;
        let stored = words.store_all(&mut self.soon);
        self.soon.clear();
        if stored.is_err() {
            self.forget_all();
        }
        stored.map_err(|error| self.lost.insert(error.into()).clone())
    }

    /// All words are as they are to be, before one is read or changed at once.
    pub(super) fn settle_words(&mut self) -> Result<(), PortError> {
        self.flush()?;
        self.finish_in_order()
    }

    /// The bytes of a place are stored with others. They have [`MOST_WRITES`] parts at most.
    pub(super) fn store_bytes_soon(
        &mut self,
        place: &Place,
        bytes: &[u8],
        order: SoonOrder,
    ) -> Result<(), PortError> {
        let Place { context, ref range, addr, .. } = *place;
        let parts = together::parts(addr, bytes.len());
        let others = self.soon.first().is_some_and(|first| first.context != context);
        if others || self.soon.len() + parts.clone().count() > MOST_WRITES {
            self.flush()?;
        }
        for (at, len) in parts {
            let mut value = [0; 8];
            value[..len.into()].copy_from_slice(&bytes[at..at + usize::from(len)]);
            let tie = match order {
                SoonOrder::Any => Tie::Free,
                SoonOrder::Behind if at == 0 => Tie::Behind,
                SoonOrder::Behind => Tie::Same,
            };
            let (range, value) = (Arc::clone(range), u64::from_le_bytes(value));
            let (addr, change, place) = (addr + at, None, 0);
            self.soon.push(Soon { context, range, addr, len, value, change, tie, place });
        }
        Ok(())
    }

    /// What a word holds once everything is stored that is to be.
    pub(super) fn load_word(&mut self, place: &Place, width: Width) -> Result<u64, PortError> {
        let Place { context, ref range, addr, .. } = *place;
        let overlaps = |soon: &Soon| {
            soon.context == context && soon.addr < addr + width.bytes() && addr < soon.end()
        };
        if self.soon.iter().any(overlaps) {
            self.flush()?;
        }
        self.finish_in_order()?;
        Ok(self.contexts[context].copies.words.load_in(range, addr, width)?)
    }

    /// A word is stored with others, whose value is made of what it holds before: what that is is
    /// read with that of others, once they are stored.
    pub(super) fn change_soon(
        &mut self,
        place: &Place,
        atomic: &Atomic,
        order: SoonOrder,
    ) -> Result<(), PortError> {
        let Place { context, ref range, addr, .. } = *place;
        let len = atomic.width.bytes();
        let overlaps = |soon: &&Soon| soon.addr < addr + len && addr < soon.end();
        let of_other = self.soon.first().is_some_and(|first| first.context != context);
        let in_parts = self.soon.iter().rev().find(overlaps);
        let in_parts = in_parts.is_some_and(|soon| (soon.addr, soon.end()) != (addr, addr + len));
        if of_other || in_parts || self.soon.len() == MOST_WRITES {
            self.flush()?;
        }
        let (range, change, len) = (Arc::clone(range), Some(*atomic), len as u8);
        let tie = if order == SoonOrder::Any { Tie::Free } else { Tie::Behind };
        let (value, place) = (0, 0);
        self.soon.push(Soon { context, range, addr, len, value, change, tie, place });
        Ok(())
    }
}
