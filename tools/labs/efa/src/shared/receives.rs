//! A receive queue, from which whoever sends takes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::SharedLock;
use super::mapping::{Mapping, Shared};

/// Most buffers of one receive.
pub(crate) const MAX_RECEIVE_BUFFERS: usize = 3;

/// The head of the file of a queue pair; the receives follow it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ReceiveQueue {
    lock: SharedLock,
    pub(crate) process: AtomicU32,
    /// The completion queue, by the number in its file's name.
    pub(crate) completions: AtomicU32,
    /// Writes with immediate data take no receive.
    pub(crate) unsolicited: AtomicU32,
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: atomics throughout, with no pointer.
unsafe impl Shared for ReceiveQueue {}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Slot {
    id: AtomicU64,
    buffers: [(AtomicU64, AtomicU64); MAX_RECEIVE_BUFFERS],
}

// SAFETY: as above.
unsafe impl Shared for Slot {}

/// A buffer for what arrives.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Receive {
    pub(crate) id: u64,
    /// Address and length of each part; no length, no part.
    pub(crate) buffers: [(u64, u64); MAX_RECEIVE_BUFFERS],
}

impl Mapping<ReceiveQueue> {
    pub(crate) fn bytes(capacity: u32) -> usize {
        capacity as usize * size_of::<Slot>()
    }

    pub(crate) fn push(&self, receive: &Receive) {
        let slots = self.entries::<Slot>();
        self.lock.with(|| {
            let tail = self.tail.load(Ordering::Relaxed);
            let slot = &slots[tail as usize % slots.len()];
            slot.id.store(receive.id, Ordering::Relaxed);
            for (place, buffer) in slot.buffers.iter().zip(receive.buffers) {
                place.0.store(buffer.0, Ordering::Relaxed);
                place.1.store(buffer.1, Ordering::Relaxed);
            }
            self.tail.store(tail + 1, Ordering::Relaxed);
        });
    }

    pub(crate) fn take(&self) -> Option<Receive> {
        let slots = self.entries::<Slot>();
        self.lock.with(|| {
            let head = self.head.load(Ordering::Relaxed);
            if head == self.tail.load(Ordering::Relaxed) {
                return None;
            }
            let slot = &slots[head as usize % slots.len()];
            let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
            let mut receive = Receive { id: load(&slot.id), ..Receive::default() };
            for (buffer, place) in receive.buffers.iter_mut().zip(&slot.buffers) {
                *buffer = (load(&place.0), load(&place.1));
            }
            self.head.store(head + 1, Ordering::Relaxed);
            Some(receive)
        })
    }
}
