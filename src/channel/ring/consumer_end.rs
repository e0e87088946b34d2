//! The consumer's end of a ring.
//!
//! Producers are kernels, or CPU threads with the same code; the protocol is described in
//! `include/nvshmem_libfabric_ring.h`. The consumer takes slots in the order of their numbers,
//! publishes free slots by `tail`, and delivered operations by `done`. It never waits.

use std::ptr::NonNull;

use channel_sys as c;
use thiserror::Error;

use crate::channel::ring::descriptor::{BadDescriptor, Descriptor, Put};
use crate::channel::ring::encoding;
use crate::channel::ring::slot::{self, Published, Slot, Words};
use crate::channel::ring::sync::{Ordering, drain_writes};
use engine::ids::Pe;

/// State of the proxy thread for kernels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum State {
    Running = c::NLF_STATE_RUNNING,
    Stopped = c::NLF_STATE_STOPPED,
    /// An operation has failed, so the context has.
    Failed = c::NLF_STATE_FAILED,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishedIn {
    Host,
    /// A mapping of a device's memory, where the CPU holds writes back to combine them. Each
    /// publication is pushed out, after earlier writes to the host's memory.
    WriteCombined,
}

/// The memory of a ring, as its consumer sees it.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    /// 2 to the power of `slots_log2` slots, all zeroes at first, on a 32-byte boundary.
    pub slots: NonNull<Slot>,
    pub slots_log2: u32,
    /// Memory that producers read; all zeroes at first.
    pub published: NonNull<Published>,
    pub published_in: PublishedIn,
}

/// Why there is no ring of that size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error(
    "a ring has a power of two of slots, from {} to {}, not {slots}",
    c::NLF_MIN_SLOTS,
    c::NLF_MAX_SLOTS
)]
pub struct RingSizeError {
    pub slots: u64,
}

pub fn slots_log2(slots: u64) -> Result<u32, RingSizeError> {
    let sizes = u64::from(c::NLF_MIN_SLOTS)..=u64::from(c::NLF_MAX_SLOTS);
    if slots.is_power_of_two() && sizes.contains(&slots) {
        Ok(slots.trailing_zeros())
    } else {
        Err(RingSizeError { slots })
    }
}

/// The consumer of a ring. One thread at a time uses it, not always the same.
#[derive(Debug)]
pub struct Ring {
    memory: RingMemory,
    mask: u64,
    /// Slots taken, so also the number of the next one. Every slot before it was there.
    taken: u64,
    /// Last value of `tail`: at most `taken`.
    tail: u64,
    /// Last value of `done`: at most `taken`.
    done: u64,
}

// SAFETY: the memory belongs to no thread, and `Ring::new`'s caller promises one consumer.
unsafe impl Send for Ring {}

impl Ring {
    /// The consumer of an empty ring.
    ///
    /// # Safety
    /// The memory is what [`RingMemory`] says, and stays so as long as the result lives. Only
    /// producers that keep to the ring's protocol write slots, and nobody else publishes there.
    pub unsafe fn new(memory: RingMemory) -> Result<Self, RingSizeError> {
        let slots = 1u64.checked_shl(memory.slots_log2).unwrap_or(0);
        slots_log2(slots)?;
        // SAFETY: the caller's promises, and the size is in bounds.
        Ok(unsafe { Self::over(memory) })
    }

    /// [`Ring::new`] of a ring that may be smaller than kernels' rings.
    ///
    /// # Safety
    /// That of [`Ring::new`], and `slots_log2` is at most 62.
    pub(crate) unsafe fn over(memory: RingMemory) -> Self {
        let mask = (1 << memory.slots_log2) - 1;
        Self { memory, mask, taken: 0, tail: 0, done: 0 }
    }

    /// True if the next slot is written. A descriptor of two may still lack the second.
    #[inline(always)]
    pub fn has_next(&self) -> bool {
        self.load(self.taken).is_some()
    }

    /// Takes the next descriptor if it is a put; other descriptors are for [`Ring::take`].
    #[inline(always)]
    pub fn take_put(&mut self) -> Option<Put> {
        let put = Put::decode(&self.load(self.taken)?)?;
        self.taken += 1;
        Some(put)
    }

    /// The PE of the next descriptor, if it has one.
    pub fn next_pe(&mut self) -> Option<Pe> {
        let taken = self.taken;
        let next = self.take();
        self.taken = taken;
        match next?.ok()? {
            Descriptor::Put { pe, .. }
            | Descriptor::PutValue { pe, .. }
            | Descriptor::Get { pe, .. }
            | Descriptor::PutSignal { pe, .. }
            | Descriptor::Atomic { pe, .. }
            | Descriptor::Quiet { pe } => Some(pe),
            Descriptor::Fence { pe } => pe,
        }
    }

    /// Takes the next descriptor, whose slots stay occupied until [`Ring::publish_tail`]. None if
    /// it is not written, or only in part.
    ///
    /// # Errors
    /// Words that are no descriptor. They are taken, as one slot; the next slot is undefined, as it
    /// may be the second of two.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Result<Descriptor, BadDescriptor>> {
        let first = self.load(self.taken)?;
        if let Some(put) = Put::decode(&first) {
            self.taken += 1;
            return Some(Ok(put.into()));
        }
        if let Some(put) = encoding::decode_put_signal(&first) {
            self.taken += 1;
            return Some(Ok(put));
        }
        if let Some(get) = encoding::decode_get(&first) {
            self.taken += 1;
            return Some(Ok(get));
        }
        self.take_other(&first)
    }

    #[inline(never)]
    fn take_other(&mut self, first: &Words) -> Option<Result<Descriptor, BadDescriptor>> {
        let mut second = Words::default();
        let mut slots = 1;
        if encoding::is_extended(first) {
            second = self.load(self.taken + 1)?;
            slots = 2;
        }
        let decoded = encoding::decode(first, &second);
        self.taken += if decoded.is_ok() { slots } else { 1 };
        Some(decoded.map_err(|wrong| BadDescriptor { wrong, words: *first }))
    }

    /// Slots taken; after [`Ring::take`] also the value of `done` that completes its descriptor.
    #[inline]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the last number given to [`Ring::publish_done`].
    #[inline]
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Publishes that all slots taken are free: once for a batch, and when there is nothing to
    /// take, since a producer may be waiting for less than a batch.
    #[inline]
    pub fn publish_tail(&mut self) {
        if self.tail != self.taken {
            self.tail = self.taken;
            self.publish(|published| published.tail.store(self.taken, Ordering::Release));
        }
    }

    /// Publishes that the operations of all slots before `done` are delivered. A smaller number
    /// than before, or one above [`Ring::taken`], is ignored. A release: a producer that sees it
    /// sees earlier writes of the CPU, and of NICs that the CPU has seen.
    #[inline]
    pub fn publish_done(&mut self, done: u64) {
        debug_assert!(done <= self.taken, "{done} slots done of {} taken", self.taken);
        if done > self.done && done <= self.taken {
            self.done = done;
            self.publish(|published| published.done.store(done, Ordering::Release));
        }
    }

    /// Publishes that the [`Descriptor::Quiet`] in a slot is complete. Those whose slots have the
    /// same number modulo `NLF_QUIETS` are published in the order of their slots.
    pub fn publish_quiet(&mut self, slot: u64) {
        let word = (slot % u64::from(c::NLF_QUIETS)) as usize;
        self.publish(|published| published.quiet[word].store(slot + 1, Ordering::Release));
    }

    /// Publishes the state of the proxy thread. Producers check it when they wait.
    pub fn publish_state(&mut self, state: State) {
        self.publish(|published| published.state.store(state as u32, Ordering::Release));
    }

    #[inline(always)]
    fn load(&self, number: u64) -> Option<Words> {
        let index = number & self.mask;
        // SAFETY: the index is below the number of slots, which live as long, as `new` demands.
        let slot = unsafe { self.memory.slots.add(index as usize).as_ref() };
        slot.load(slot::lap(number, self.memory.slots_log2))
    }

    #[inline(always)]
    fn publish(&self, store: impl FnOnce(&Published)) {
        let combined = self.memory.published_in == PublishedIn::WriteCombined;
        if combined {
            drain_writes();
        }
        // SAFETY: lives as long as this, as the caller of `new` has promised.
        store(unsafe { self.memory.published.as_ref() });
        if combined {
            drain_writes();
        }
    }
}
