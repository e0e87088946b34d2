//! What a NIC has written to memory of devices and nobody sees yet.

use std::sync::atomic::{AtomicU64, Ordering};

use super::SharedLock;
use super::mapping::{Mapping, Shared};

const MAX_BYTES: usize = 9 << 10;

/// The head of the file of a NIC's writes; they follow it, the oldest first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PostedWrites {
    lock: SharedLock,
    head: AtomicU64,
    tail: AtomicU64,
}

// SAFETY: atomics throughout, with no pointer.
unsafe impl Shared for PostedWrites {}

#[derive(Debug)]
#[repr(C)]
struct Slot {
    process: AtomicU64,
    address: AtomicU64,
    bytes: AtomicU64,
    data: [AtomicU64; MAX_BYTES / 8],
}

// SAFETY: as above.
unsafe impl Shared for Slot {}

/// A write to memory of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Write {
    pub(crate) process: u32,
    pub(crate) address: u64,
    pub(crate) data: Vec<u8>,
}

impl Slot {
    fn set(&self, write: &Write) {
        assert!(write.data.len() <= MAX_BYTES, "a packet is not longer");
        self.process.store(write.process.into(), Ordering::Relaxed);
        self.address.store(write.address, Ordering::Relaxed);
        self.bytes.store(write.data.len() as u64, Ordering::Relaxed);
        for (place, part) in self.data.iter().zip(write.data.chunks(8)) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            place.store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }

    fn get(&self) -> Write {
        let bytes = self.bytes.load(Ordering::Relaxed) as usize;
        let words = self.data.iter().take(bytes.div_ceil(8));
        let mut data: Vec<u8> =
            words.flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
        data.truncate(bytes);
        Write {
            process: self.process.load(Ordering::Relaxed) as u32,
            address: self.address.load(Ordering::Relaxed),
            data,
        }
    }
}

impl Mapping<PostedWrites> {
    /// Bytes of so many writes.
    pub(crate) fn bytes(count: u32) -> usize {
        count as usize * size_of::<Slot>()
    }

    pub(crate) fn push(&self, write: &Write, carry_out: impl FnOnce(Write)) {
        let slots = self.entries::<Slot>();
        self.lock.with(|| {
            let (head, tail) =
                (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
            let slot = &slots[tail as usize % slots.len()];
            if tail - head == slots.len() as u64 {
                carry_out(slot.get());
                self.head.store(head + 1, Ordering::Relaxed);
            }
            slot.set(write);
            self.tail.store(tail + 1, Ordering::Relaxed);
        });
    }

    pub(crate) fn flush(&self, mut carry_out: impl FnMut(Write)) {
        let slots = self.entries::<Slot>();
        self.lock.with(|| {
            let (head, tail) =
                (self.head.load(Ordering::Relaxed), self.tail.load(Ordering::Relaxed));
            for at in head..tail {
                carry_out(slots[at as usize % slots.len()].get());
            }
            self.head.store(tail, Ordering::Relaxed);
        });
    }
}
