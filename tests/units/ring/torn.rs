//! A descriptor is taken when all of it is there, in whatever order its words arrive.

use std::sync::atomic::Ordering;

use engine::atomic::{AtomicOp, Width};
use engine::ids::Pe;
use nvshmem_transport_libfabric::channel::ring::descriptor::Descriptor;
use nvshmem_transport_libfabric::channel::ring::slot::lap;

use super::support::{Shared, place};

const SLOTS_LOG2: u32 = 6;
const SLOTS: u64 = 1 << SLOTS_LOG2;

fn two_slots(id: u32) -> Descriptor {
    let offset = u64::from(id);
    Descriptor::Atomic {
        pe: Pe(id),
        dst: place(1, offset),
        width: Width::Eight,
        op: AtomicOp::CompareSwap,
        value: offset,
        compare: offset,
        fetch: Some(place(2, offset)),
    }
}

fn one_slot(id: u32) -> Descriptor {
    let offset = u64::from(id);
    Descriptor::PutSignal {
        pe: Pe(id),
        dst: place(1, offset),
        src: place(2, offset),
        bytes: id,
        signal: place(3, offset),
        op: AtomicOp::SignalSet,
        value: offset,
    }
}

fn words(descriptor: &Descriptor, number: u64) -> Vec<u64> {
    let encoded = descriptor.encode();
    let with_lap = |[q0, q1, q2, q3]: [u64; 4], number| {
        let lap = lap(number, SLOTS_LOG2);
        [q0, q1 | lap, q2, q3 | lap]
    };
    let mut words = with_lap(encoded.first, number).to_vec();
    words.extend(encoded.second.iter().flat_map(|second| with_lap(*second, number + 1)));
    words
}

fn orders(steps: usize, allowed: &dyn Fn(&[usize], usize) -> bool) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    let mut order = Vec::new();
    extend(steps, allowed, &mut order, &mut all);
    all
}

fn extend(
    steps: usize,
    allowed: &dyn Fn(&[usize], usize) -> bool,
    order: &mut Vec<usize>,
    all: &mut Vec<Vec<usize>>,
) {
    if order.len() == steps {
        all.push(order.clone());
        return;
    }
    for step in 0..steps {
        if !order.contains(&step) && allowed(order, step) {
            order.push(step);
            extend(steps, allowed, order, all);
            order.pop();
        }
    }
}

/// Writes the words of `descriptor` in each of the orders, over what an older lap has left, and
/// takes after each word. `steps` are groups of words that are written at once. Returns what was
/// taken too early.
fn write_in_orders(
    descriptor: &Descriptor,
    steps: &[&[usize]],
    allowed: &dyn Fn(&[usize], usize) -> bool,
) -> Vec<String> {
    let mut early = Vec::new();
    for order in orders(steps.len(), allowed) {
        let shared = Shared::new(SLOTS_LOG2);
        let mut ring = shared.consumer();
        let put = |number: u64, index: usize, word: u64| {
            let slot = shared.slot(number + index as u64 / 4);
            slot.words[index % 4].store(word, Ordering::Release);
        };
        // The lap before, over all of the ring: other descriptors, of the same kind or the other.
        for number in 0..SLOTS {
            for (index, word) in words(&one_slot(99), number).into_iter().enumerate() {
                put(number, index, word);
            }
            assert_eq!(ring.take(), Some(Ok(one_slot(99))));
        }
        let all = words(descriptor, SLOTS);
        for (written, step) in order.iter().enumerate() {
            for index in steps[*step] {
                put(SLOTS, *index, all[*index]);
            }
            let taken = ring.take();
            if written + 1 < order.len() {
                if let Some(taken) = taken {
                    early.push(format!("{taken:?} after {written} steps of {order:?}"));
                    break;
                }
            } else {
                assert_eq!(taken, Some(Ok(*descriptor)), "after all of {order:?}");
                assert_eq!(ring.taken(), SLOTS + all.len() as u64 / 4);
            }
        }
    }
    early
}

const WORDS: [&[usize]; 8] = [&[0], &[1], &[2], &[3], &[4], &[5], &[6], &[7]];
const HALVES: [&[usize]; 4] = [&[0, 1], &[2, 3], &[4, 5], &[6, 7]];

fn lap_last(before: &[usize], word: usize) -> bool {
    word % 2 == 0 || before.contains(&(word - 1))
}

#[test]
fn descriptors_are_never_mixed() {
    for (descriptor, words, halves) in
        [(one_slot(7), &WORDS[..4], &HALVES[..2]), (two_slots(7), &WORDS[..], &HALVES[..])]
    {
        let early = write_in_orders(&descriptor, words, &lap_last);
        assert!(early.is_empty(), "{early:?}");
        let early = write_in_orders(&descriptor, halves, &|_, _| true);
        assert!(early.is_empty(), "{early:?}");
    }
}

#[test]
fn early_lap_would_tear() {
    let early = write_in_orders(&one_slot(7), &WORDS[..4], &|_, _| true);
    assert!(!early.is_empty(), "this test would not see a mixed descriptor");
}
