//! A ring in loom's memory, and producers of it.

use std::ptr::NonNull;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

use crate::channel::ring::descriptor::Descriptor;
use crate::channel::ring::region_entry::RegionEntry;
use crate::channel::ring::slot::{LAP_WORDS, Published, Slot, Words, lap};
use crate::channel::ring::{PublishedIn, Ring, RingMemory};

/// Which word of a half a producer writes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Last {
    /// As the protocol asks: that with the lap comes last, and is a release.
    Lap,
    /// The wrong way round.
    Other,
}

#[derive(Debug)]
pub struct Shared {
    slots: Vec<Slot>,
    slots_log2: u32,
    pub published: Published,
    head: AtomicU64,
    tail_seen: AtomicU64,
}

impl Shared {
    pub fn new(slots_log2: u32) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..1 << slots_log2).map(|_| Slot::default()).collect(),
            slots_log2,
            published: Published::default(),
            head: AtomicU64::new(0),
            tail_seen: AtomicU64::new(0),
        })
    }

    /// The consumer. The test keeps `self` longer.
    pub fn consumer(&self) -> Ring {
        let memory = RingMemory {
            slots: NonNull::from(&self.slots[0]),
            slots_log2: self.slots_log2,
            published: NonNull::from(&self.published),
            published_in: PublishedIn::Host,
        };
        // SAFETY: the test keeps `self` longer; it makes one consumer, and producers are below.
        unsafe { Ring::over(memory) }
    }

    /// Reserves, waits for room and writes: one producer's part. Returns the head after it.
    pub fn push(&self, descriptor: &Descriptor, last: Last) -> u64 {
        let encoded = descriptor.encode();
        let count = 1 + u64::from(encoded.second.is_some());
        let number = self.head.fetch_add(count, Ordering::Relaxed);
        self.wait_for_room(number + count);
        // Slots and halves in no order.
        if let Some(second) = encoded.second {
            self.write(number + 1, second, last);
        }
        self.write(number, encoded.first, last);
        number + count
    }

    fn wait_for_room(&self, end: u64) {
        let capacity = 1 << self.slots_log2;
        if end - self.tail_seen.load(Ordering::Acquire) <= capacity {
            return;
        }
        loop {
            let tail = self.published.tail.load(Ordering::Acquire);
            self.tail_seen.fetch_max(tail, Ordering::AcqRel);
            if end - tail <= capacity {
                return;
            }
            thread::yield_now();
        }
    }

    fn write(&self, number: u64, words: Words, last: Last) {
        let slot = &self.slots[number as usize & ((1 << self.slots_log2) - 1)];
        let lap = lap(number, self.slots_log2);
        // Nothing orders the halves.
        let [one, other] = LAP_WORDS;
        for with_lap in if number % 2 == 0 { [other, one] } else { [one, other] } {
            let other = with_lap - 1;
            if last == Last::Lap {
                slot.words[other].store(words[other], Ordering::Relaxed);
                slot.words[with_lap].store(words[with_lap] | lap, Ordering::Release);
            } else {
                slot.words[with_lap].store(words[with_lap] | lap, Ordering::Relaxed);
                slot.words[other].store(words[other], Ordering::Release);
            }
        }
    }
}

/// The words of an entry of the table of regions.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    base: AtomicU64,
    size: AtomicU64,
}

impl Entry {
    pub(crate) fn entry(&self) -> RegionEntry<'_> {
        RegionEntry { base: &self.base, size: &self.size }
    }

    /// Base and length, as `nlfp_load_region` has CPU threads load them.
    pub(crate) fn load(&self) -> (u64, u64) {
        let mut again = self.size.load(Ordering::Acquire);
        loop {
            let size = again;
            let base = self.base.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            again = self.size.load(Ordering::Acquire);
            if again == size {
                return (base, size & channel_sys::NLF_REGION_LENGTH);
            }
        }
    }
}
