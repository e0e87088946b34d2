//! Rings in this process' memory, and arbitrary descriptors.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;
use nvshmem_transport_libfabric::channel::ring::descriptor::{Descriptor, RegionAddr, RegionIndex};
use nvshmem_transport_libfabric::channel::ring::slot::{Published, Slot, lap};
use nvshmem_transport_libfabric::channel::ring::{PublishedIn, Ring, RingMemory};
use test_support::random::Random;

/// Memory for the widest store that writes it.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Pair([Slot; 2]);

/// A ring's memory.
#[derive(Debug)]
pub(crate) struct Shared {
    pairs: Box<[Pair]>,
    pub(crate) published: Box<Published>,
    pub(crate) slots_log2: u32,
}

impl Shared {
    pub(crate) fn new(slots_log2: u32) -> Self {
        let pairs = (0..1 << (slots_log2 - 1)).map(|_| Pair::default()).collect();
        Self { pairs, published: Box::default(), slots_log2 }
    }

    pub(crate) fn slot(&self, number: u64) -> &Slot {
        let index = number as usize & ((1 << self.slots_log2) - 1);
        &self.pairs[index / 2].0[index % 2]
    }

    pub(crate) fn store(&self, number: u64, words: [u64; 4]) {
        let lap = lap(number, self.slots_log2);
        let slot = self.slot(number);
        for index in [0, 2] {
            slot.words[index].store(words[index], Ordering::Relaxed);
            let with_lap = words[index + 1] & !(1 << 63) | lap;
            slot.words[index + 1].store(with_lap, Ordering::Release);
        }
    }

    pub(crate) fn write(&self, number: u64, descriptor: &Descriptor) -> u64 {
        let encoded = descriptor.encode();
        self.store(number, encoded.first);
        let Some(second) = encoded.second else { return number + 1 };
        self.store(number + 1, second);
        number + 2
    }

    pub(crate) fn memory(&self) -> RingMemory {
        RingMemory {
            slots: NonNull::from(&self.pairs[0].0[0]),
            slots_log2: self.slots_log2,
            published: NonNull::from(&*self.published),
            published_in: PublishedIn::Host,
        }
    }

    pub(crate) fn consumer(&self) -> Ring {
        // SAFETY: the slots are one allocation of that size, aligned and zeroed, which the test
        // keeps.
        unsafe { Ring::new(self.memory()) }.unwrap()
    }
}

pub(crate) fn region_addr(region: u8, offset: u64) -> RegionAddr {
    RegionAddr::new(RegionIndex::new(region).unwrap(), offset).unwrap()
}

/// A descriptor whose fields are at their bounds or between them.
pub(crate) fn descriptor(random: &mut Random) -> Descriptor {
    let mut below = |bound: usize| random.below(bound);
    let pe = Pe([0, 65_535, below(65_536) as u32][below(3)]);
    let bytes = [1, u32::MAX, 1 + below(1 << 31) as u32][below(3)];
    let [dst, src, other] = [(); 3].map(|()| {
        let offset = [0, (1 << 40) - 1, below(1 << 40) as u64][below(3)];
        region_addr(below(255) as u8, offset)
    });
    let mut value = || match below(5) {
        0 => u64::MAX,
        inline => [(1 << 47) - 1, 1 << 47, below(1 << 50) as u64, 0][inline - 1],
    };
    let (value, compare) = (value(), value());
    match below(7) {
        0 => Descriptor::Put { pe, dst, src, bytes },
        1 => Descriptor::Get { pe, dst, src, bytes },
        2 => {
            let op = [AtomicOp::SignalSet, AtomicOp::SignalAdd][below(2)];
            Descriptor::PutSignal { pe, dst, src, bytes, signal: other, op, value }
        }
        3 => {
            let bytes = 1 << below(4);
            Descriptor::PutValue { pe, dst, bytes, value: value & (u64::MAX >> (64 - 8 * bytes)) }
        }
        4 => {
            let width = [Width::Four, Width::Eight][below(2)];
            let op = OPS[below(OPS.len())];
            let value = if op == AtomicOp::Fetch { 0 } else { value & width.mask() };
            let compare = if op == AtomicOp::CompareSwap { compare & width.mask() } else { 0 };
            let fetch = op.fetches().then_some(other);
            Descriptor::Atomic { pe, dst, width, op, value, compare, fetch }
        }
        5 => Descriptor::Fence { pe: (below(2) == 0).then_some(pe) },
        _ => Descriptor::Quiet { pe },
    }
}

const OPS: [AtomicOp; 12] = [
    AtomicOp::Set,
    AtomicOp::Add,
    AtomicOp::And,
    AtomicOp::Or,
    AtomicOp::Xor,
    AtomicOp::FetchAdd,
    AtomicOp::FetchAnd,
    AtomicOp::FetchOr,
    AtomicOp::FetchXor,
    AtomicOp::Swap,
    AtomicOp::CompareSwap,
    AtomicOp::Fetch,
];
