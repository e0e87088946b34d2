//! Invariants that hold in every execution.

use std::panic::{AssertUnwindSafe, catch_unwind};

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

use crate::atomic::{AtomicOp, Width};
use crate::channel::ring::descriptor::{Descriptor, RegionAddr, RegionIndex};
use crate::channel::ring::region_entry::ShownRegion;
use crate::channel::ring::{Ring, State};
use crate::check;
use crate::ids::Pe;
use crate::producer::{Entry, Last, Shared};

fn region_addr(offset: u64) -> RegionAddr {
    let region = RegionIndex::new(7).expect("a region");
    RegionAddr::new(region, offset).expect("within bounds")
}

fn put(id: u32) -> Descriptor {
    Descriptor::PutSignal {
        pe: Pe(id),
        dst: region_addr(u64::from(id)),
        src: region_addr(u64::from(id) << 8),
        bytes: id,
        signal: region_addr(u64::from(id) << 16),
        op: AtomicOp::SignalAdd,
        value: u64::from(id),
    }
}

fn atomic(id: u32) -> Descriptor {
    Descriptor::Atomic {
        pe: Pe(id),
        dst: region_addr(u64::from(id)),
        width: Width::Eight,
        op: AtomicOp::CompareSwap,
        value: u64::from(id),
        compare: u64::from(id),
        fetch: Some(region_addr(u64::from(id) << 8)),
    }
}

fn take(ring: &mut Ring, count: usize) -> Vec<Descriptor> {
    let mut taken = Vec::new();
    while taken.len() < count {
        match ring.take() {
            Some(descriptor) => {
                taken.push(descriptor.expect("a descriptor, and not parts of two"));
                ring.publish_tail();
            }
            None => thread::yield_now(),
        }
    }
    taken
}

fn produce(slots_log2: u32, by_producer: &[&[Descriptor]], last: Last) {
    let shared = Shared::new(slots_log2);
    let mut ring = shared.consumer();
    let spawn = |descriptors: &&[Descriptor]| {
        let (shared, descriptors) = (Arc::clone(&shared), descriptors.to_vec());
        thread::spawn(move || {
            for descriptor in &descriptors {
                shared.push(descriptor, last);
            }
        })
    };
    let producers: Vec<_> = by_producer.iter().map(spawn).collect();
    let taken = take(&mut ring, by_producer.iter().map(|one| one.len()).sum());
    for producer in producers {
        producer.join().expect("the producer");
    }
    assert!(ring.take().is_none(), "more than was put in");
    for descriptors in by_producer {
        let mine: Vec<_> = taken.iter().filter(|one| descriptors.contains(one)).collect();
        assert_eq!(mine, descriptors.iter().collect::<Vec<_>>(), "of one producer, in its order");
    }
}

#[test]
fn two_producers_keep_their_order() {
    check(|| produce(2, &[&[put(1), put(2)], &[put(3)]], Last::Lap));
}

#[test]
fn mixed_slots_do_not_mix() {
    check(|| produce(2, &[&[atomic(1)], &[put(2)]], Last::Lap));
}

#[test]
fn laps_are_told_apart() {
    check(|| produce(0, &[&[put(1), put(2), put(3)]], Last::Lap));
}

#[test]
fn descriptors_wrap_around() {
    check(|| produce(1, &[&[put(1), atomic(2)]], Last::Lap));
}

#[test]
fn two_slots_wait_for_room() {
    check(|| produce(1, &[&[atomic(1), atomic(2)]], Last::Lap));
}

#[test]
fn early_lap_is_found() {
    let torn = catch_unwind(AssertUnwindSafe(|| {
        check(|| produce(0, &[&[put(1), put(2)]], Last::Other));
    }));
    assert!(torn.is_err(), "the model does not see what the protocol is there to prevent");
}

struct Landed(UnsafeCell<u64>);

// SAFETY: loom reports it when two threads use it at once.
unsafe impl Sync for Landed {}

#[test]
fn done_publishes_deliveries() {
    check(|| {
        let shared = Shared::new(1);
        let landed = Arc::new(Landed(UnsafeCell::new(0)));
        let mut ring = shared.consumer();
        let producer = {
            let (shared, landed) = (Arc::clone(&shared), Arc::clone(&landed));
            thread::spawn(move || {
                let head = shared.push(&atomic(1), Last::Lap);
                while shared.published.done.load(Ordering::Acquire) < head {
                    thread::yield_now();
                }
                // SAFETY: loom checks that nobody writes meanwhile.
                assert_eq!(landed.0.with(|word| unsafe { *word }), 5);
            })
        };
        take(&mut ring, 1);
        // SAFETY: loom checks that nobody else uses it meanwhile.
        landed.0.with_mut(|word| unsafe { *word = 5 });
        ring.publish_done(ring.taken());
        producer.join().expect("the producer");
    });
}

#[test]
fn waiting_producer_sees_stop() {
    check(|| {
        let shared = Shared::new(0);
        let mut ring = shared.consumer();
        let waiting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                while shared.published.state.load(Ordering::Acquire) != State::Stopped as u32 {
                    thread::yield_now();
                }
                // What was taken before the end is known to be.
                shared.published.done.load(Ordering::Relaxed)
            })
        };
        shared.push(&put(1), Last::Lap);
        take(&mut ring, 1);
        ring.publish_done(1);
        ring.publish_state(State::Stopped);
        assert_eq!(waiting.join().expect("the producer"), 1);
    });
}

#[test]
fn reused_index_has_new_base() {
    check(|| {
        let entry = Arc::new(Entry::default());
        let set = |base, len| {
            let pushed: Result<(), ()> =
                entry.entry().set(ShownRegion { base, len, symmetric: true }, || Ok(()));
            pushed.expect("it is here");
        };
        set(1000, 1);
        let producer = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || entry.load())
        };
        set(2000, 2);
        set(3000, 1);
        let seen = producer.join().expect("the producer");
        let regions = [(1000, 1), (2000, 2), (3000, 1)];
        assert!(seen.1 == 0 || regions.contains(&seen), "{seen:?}");
    });
}
