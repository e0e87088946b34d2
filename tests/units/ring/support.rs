//! Rings in this process' memory, and arbitrary descriptors.

use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;
use nvshmem_transport_libfabric::channel::ring::descriptor::{Descriptor, Place, RegionIndex};
use nvshmem_transport_libfabric::channel::ring::slot::{Published, Slot, lap};
use nvshmem_transport_libfabric::channel::ring::{PublishedIn, Ring, RingMemory};
use proptest::prelude::*;

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

pub(crate) fn place(region: u8, offset: u64) -> Place {
    Place::new(RegionIndex::new(region).unwrap(), offset).unwrap()
}

fn places() -> impl Strategy<Value = Place> {
    let offsets = prop_oneof![0u64..1 << 40, Just(0), Just((1 << 40) - 1)];
    (0u8..255, offsets).prop_map(|(region, offset)| place(region, offset))
}

fn pes() -> impl Strategy<Value = Pe> {
    prop_oneof![0u32..65536, Just(0), Just(65535)].prop_map(Pe)
}

fn lengths() -> impl Strategy<Value = u32> {
    prop_oneof![1..=u32::MAX, Just(1), Just(u32::MAX)]
}

fn values() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0..1u64 << 47, Just((1 << 47) - 1), Just(1 << 47), Just(u64::MAX)]
}

fn atomics() -> impl Strategy<Value = Descriptor> {
    let plain = [AtomicOp::Set, AtomicOp::Add, AtomicOp::And, AtomicOp::Or, AtomicOp::Xor];
    let fetching = [
        AtomicOp::FetchAdd,
        AtomicOp::FetchAnd,
        AtomicOp::FetchOr,
        AtomicOp::FetchXor,
        AtomicOp::Swap,
        AtomicOp::CompareSwap,
        AtomicOp::Fetch,
    ];
    let ops = prop_oneof![
        proptest::sample::select(plain.to_vec()).prop_map(|op| (op, false)).boxed(),
        proptest::sample::select(fetching.to_vec()).prop_map(|op| (op, true)).boxed(),
    ];
    let widths = prop_oneof![Just(Width::Four), Just(Width::Eight)];
    (pes(), places(), widths, ops, values(), values(), places()).prop_map(
        |(pe, dst, width, (op, fetches), value, compare, fetch)| {
            let value = if op == AtomicOp::Fetch { 0 } else { value & width.mask() };
            let compare = if op == AtomicOp::CompareSwap { compare & width.mask() } else { 0 };
            let fetch = fetches.then_some(fetch);
            Descriptor::Atomic { pe, dst, width, op, value, compare, fetch }
        },
    )
}

pub(crate) fn descriptors() -> impl Strategy<Value = Descriptor> {
    let signals = prop_oneof![Just(AtomicOp::SignalSet), Just(AtomicOp::SignalAdd)];
    prop_oneof![
        (pes(), places(), places(), lengths()).prop_map(|(pe, dst, src, bytes)| Descriptor::Put {
            pe,
            dst,
            src,
            bytes
        }),
        (pes(), places(), places(), lengths()).prop_map(|(pe, dst, src, bytes)| Descriptor::Get {
            pe,
            dst,
            src,
            bytes
        }),
        (pes(), places(), places(), lengths(), places(), signals, values()).prop_map(
            |(pe, dst, src, bytes, signal, op, value)| Descriptor::PutSignal {
                pe,
                dst,
                src,
                bytes,
                signal,
                op,
                value
            }
        ),
        (pes(), places(), proptest::sample::select(vec![1, 2, 4, 8]), values()).prop_map(
            |(pe, dst, bytes, value)| {
                let value = if bytes == 8 { value } else { value & ((1 << (8 * bytes)) - 1) };
                Descriptor::PutValue { pe, dst, bytes, value }
            }
        ),
        atomics(),
        proptest::option::of(pes()).prop_map(|pe| Descriptor::Fence { pe }),
        pes().prop_map(|pe| Descriptor::Quiet { pe }),
    ]
}
