//! Rings in this process' memory, a lane on the scripted fake fabric, and a peer.

mod turns;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::channel::memory::shared::{Shared, Sizes};
use crate::channel::proxy::region_table::{PeerRegion, Region};
use crate::channel::ring::descriptor::{RegionAddr, RegionIndex};
use crate::channel::ring::slot::{Slot, lap};
use cuda::WordsOptions;
use engine::atomic::{AtomicOp, Width};
use engine::port::Access;
use engine::regions::RegionTable;
use sim_fabric::{
    FakeFabric, FakeMemory, FakePort, PortCall, RAIL, Script, lane_config, straight_paths,
};

const LEN: usize = 1 << 17;

struct Pair {
    fabric: FakeFabric,
    lanes: Vec<Lane<FakePort>>,
    bases: [usize; 2],
    _tables: [Arc<RegionTable<FakeMemory>>; 2],
}

fn push(shared: &Shared, ring: usize, descriptor: &Descriptor) -> u64 {
    let encoded = descriptor.encode();
    let words: Vec<_> = std::iter::once(encoded.first).chain(encoded.second).collect();
    // SAFETY: the context lives, and this thread alone produces.
    unsafe {
        let context = &*shared.context();
        let ring = &*context.rings.add(ring);
        let head = AtomicU64::from_ptr(&raw mut (*ring.producers).head);
        let number = head.fetch_add(words.len() as u64, Ordering::Relaxed);
        for (number, words) in (number..).zip(&words) {
            let at = number as usize & ((1 << context.slots_log2) - 1);
            let slot = &*ring.slots.add(at).cast::<Slot>();
            let lap = lap(number, context.slots_log2);
            for at in [0, 2] {
                slot.words[at].store(words[at], Ordering::Relaxed);
                slot.words[at + 1].store(words[at + 1] | lap, Ordering::Release);
            }
        }
        number + words.len() as u64
    }
}

/// Two PEs on a fabric that does nothing by itself, and so many rings of the first.
fn still(rings: u32) -> (Pair, Shared, Consumer) {
    let fabric = FakeFabric::new(3, 2, Script::default());
    let pes = [Pe(0), Pe(1)];
    let tables = pes.map(|me| RegionTable::new(fabric.memory(me, 1), me));
    let bases = pes.map(|me| fabric.alloc(me, LEN));
    let lane = |me: Pe| {
        let config = lane_config(me, straight_paths(2, 1), tables[me.index()].directory());
        Lane::new(fabric.port(me, vec![RAIL]), config)
    };
    let lanes = pes.map(lane).into();
    let peers = pes.map(|pe| {
        let (table, base) = (&tables[pe.index()], bases[pe.index()]);
        let handle = table.register(base, LEN, Access::LocalAndRemote).unwrap();
        PeerRegion { base: base as u64, handle }
    });
    let region = Region { base: bases[0], len: LEN as u64, peers: peers.into() };
    let sizes = Sizes::new(rings, 64).unwrap();
    let shared = Shared::new(sizes, 0, 2, 0, &WordsOptions::default()).unwrap();
    // SAFETY: once, and the tests keep the memory longer.
    let mut consumer = Consumer::new(unsafe { shared.rings() }.unwrap());
    consumer.regions.set(0, Some(Box::new(region)));
    (Pair { fabric, lanes, bases, _tables: tables }, shared, consumer)
}

/// A put of 8 bytes to PE 1, or a get from it.
fn small(is_get: bool) -> Descriptor {
    let addr = |offset| RegionAddr::new(RegionIndex::new(0).unwrap(), offset).unwrap();
    let (pe, dst, src, bytes) = (Pe(1), addr(64), addr(1024), 8);
    if is_get {
        Descriptor::Get { pe, dst, src, bytes }
    } else {
        Descriptor::Put { pe, dst, src, bytes }
    }
}

fn progress_until(
    consumer: &mut Consumer,
    lane: &mut Lane<FakePort>,
    mut over: impl FnMut(&mut Consumer, &mut Lane<FakePort>) -> bool,
) {
    let mut iterations = 0;
    while !over(consumer, lane) {
        consumer.take(lane).map_err(|failed| failed.why).unwrap();
        let _ = lane.progress();
        iterations += 1;
        assert!(iterations < 100_000, "it does not end");
    }
}

#[test]
fn failed_lane_publishes_nothing() {
    let (mut pair, shared, mut consumer) = still(1);
    push(&shared, 0, &small(false));
    pair.fabric.fail_calls(PortCall::Deliver, 0, 1);
    let lane = &mut pair.lanes[0];
    progress_until(&mut consumer, lane, |_, lane| lane.failure().is_some());
    let first = consumer.rings[0].open.front().map(|open| open.batch).unwrap();
    assert!(lane.is_batch_done(first), "by the lane's books, the put has ended");
    assert_eq!(consumer.retire(lane, || Ok::<(), ()>(())), Ok(false));
    assert_eq!(shared.done(0), 0);
}

#[test]
fn landed_data_is_visible_before_publishing() {
    for gets in [[true, false, false], [false, true, false], [false, false, true], [false; 3]] {
        let (mut pair, shared, mut consumer) = still(1);
        let lane = &mut pair.lanes[0];
        let mut end = 0;
        for (before, is_get) in gets.into_iter().enumerate() {
            end = push(&shared, 0, &small(is_get));
            // Taken by itself, so it is a batch of its own.
            progress_until(&mut consumer, lane, |consumer, _| {
                consumer.rings[0].open.len() > before
            });
        }
        progress_until(&mut consumer, lane, |consumer, lane| {
            consumer.rings[0].open.iter().all(|open| lane.is_batch_done(open.batch))
        });
        let mut published_before = None;
        let retired = consumer.retire(lane, || {
            published_before = Some(shared.done(0));
            Ok::<(), ()>(())
        });
        assert_eq!(retired, Ok(true));
        assert_eq!(published_before, gets.contains(&true).then_some(0), "{gets:?}");
        assert_eq!(shared.done(0), end);
    }
}

/// What comes to this PE's memory: bytes that are read, and words that are fetched.
#[test]
fn only_reads_and_fetches_land() {
    let word = |op, fetch: bool| {
        let addr = |offset| RegionAddr::new(RegionIndex::new(0).unwrap(), offset).unwrap();
        let (pe, dst, width, fetch) = (Pe(1), addr(8), Width::Eight, fetch.then(|| addr(64)));
        Descriptor::Atomic { pe, dst, width, op, value: 1, compare: 0, fetch }
    };
    for (descriptor, lands) in [
        (small(true), true),
        (small(false), false),
        (word(AtomicOp::FetchAdd, true), true),
        (word(AtomicOp::Swap, true), true),
        (word(AtomicOp::Add, false), false),
        (Descriptor::Fence { pe: None }, false),
    ] {
        let (mut pair, shared, mut consumer) = still(1);
        let end = push(&shared, 0, &descriptor);
        let (mine, theirs) = pair.lanes.split_at_mut(1);
        let (mine, theirs) = (&mut mine[0], &mut theirs[0]);
        let mut landed = 0;
        progress_until(&mut consumer, mine, |consumer, lane| {
            theirs.progress().unwrap();
            let landed = || {
                landed += 1;
                Ok::<(), ()>(())
            };
            consumer.retire(lane, landed).unwrap();
            shared.done(0) == end
        });
        assert_eq!(landed, u32::from(lands), "{descriptor:?}");
    }
}

/// The rings are drained when all that was there is delivered, which is later than when it is
/// taken, and what is pushed behind it is not waited for.
#[test]
fn rings_drain_when_taken_work_ends() {
    let (mut pair, shared, mut consumer) = still(2);
    let lane = &mut pair.lanes[0];
    let head = push(&shared, 1, &small(false));
    consumer.set_limits([0, head]);
    let late = push(&shared, 0, &small(false));
    assert_eq!((consumer.is_drained(), consumer.left()), (false, head), "it is not taken");
    progress_until(&mut consumer, lane, |consumer, _| !consumer.rings[1].open.is_empty());
    assert_eq!((consumer.is_drained(), consumer.left()), (false, head), "it is under way");
    progress_until(&mut consumer, lane, |consumer, lane| {
        let first = consumer.rings[1].open.front().unwrap().batch;
        lane.is_batch_done(first)
    });
    assert_eq!((consumer.is_drained(), consumer.left()), (false, head), "nobody is told");
    consumer.retire(lane, || Ok::<(), ()>(())).unwrap();
    assert_eq!((consumer.is_drained(), consumer.left()), (true, 0));
    assert_eq!((shared.done(1), shared.done(0)), (head, 0), "{late}: too late");
}

/// Who waits for one PE is told though another one is slow, in the order of those that share a
/// word; and by `done` when all is over.
#[test]
fn slow_peer_delays_no_other_quiet() {
    let (mut pair, shared, mut consumer) = still(1);
    let (mine, theirs) = pair.lanes.split_at_mut(1);
    let (mine, theirs) = (&mut mine[0], &mut theirs[0]);
    // SAFETY: the context lives.
    let told = || unsafe { (*(*(*shared.context()).rings).published).quiet };
    push(&shared, 0, &fetch_or_put(true));
    push(&shared, 0, &fetch_or_put(false));
    let peer = push(&shared, 0, &Descriptor::Quiet { pe: Pe(1) });
    let own = push(&shared, 0, &Descriptor::Quiet { pe: Pe(0) });
    push(&shared, 0, &fetch_or_put(false));
    push(&shared, 0, &fetch_or_put(false));
    // In the word of the one that waits for PE 1.
    let behind = push(&shared, 0, &Descriptor::Quiet { pe: Pe(0) });
    let mut landed = 0;
    let mut retire = |consumer: &mut Consumer, lane: &mut Lane<FakePort>| {
        let landed = || {
            landed += 1;
            Ok::<(), ()>(())
        };
        consumer.retire(lane, landed).unwrap();
    };
    progress_until(&mut consumer, mine, |consumer, lane| {
        retire(consumer, lane);
        told()[(own - 1) as usize % 4] == own
    });
    for _ in 0..1000 {
        mine.progress().unwrap();
        retire(&mut consumer, mine);
    }
    assert_eq!(behind, peer + 4);
    assert_eq!(told()[(peer - 1) as usize % 4], 0, "its fetch is under way");
    assert_eq!(shared.done(0), 0);
    progress_until(&mut consumer, mine, |consumer, lane| {
        theirs.progress().unwrap();
        retire(consumer, lane);
        shared.done(0) == behind
    });
    assert!(consumer.rings[0].quiets.is_empty());
    assert!(landed >= 2, "with the one, and with the ring");
}

/// A fetch of a word of PE 1, or a put of 8 bytes to this PE.
fn fetch_or_put(is_fetch: bool) -> Descriptor {
    let addr = |offset| RegionAddr::new(RegionIndex::new(0).unwrap(), offset).unwrap();
    let (width, op) = (Width::Eight, AtomicOp::FetchAdd);
    if is_fetch {
        let (pe, dst, fetch) = (Pe(1), addr(8), Some(addr(64)));
        Descriptor::Atomic { pe, dst, width, op, value: 1, compare: 0, fetch }
    } else {
        Descriptor::Put { pe: Pe(0), dst: addr(2048), src: addr(4096), bytes: 8 }
    }
}

/// A ring whose operations are for a PE that does nothing is not emptied for ever; others are
/// served all along, and when the PE goes on, all of it is done.
#[test]
fn stopped_peer_delays_no_other_ring() {
    const FETCHES: u64 = 6000;
    let (mut pair, shared, mut consumer) = still(2);
    let mut lanes = std::mem::take(&mut pair.lanes).into_iter();
    let (Some(mut mine), Some(mut theirs)) = (lanes.next(), lanes.next()) else { unreachable!() };
    // SAFETY: the context lives.
    let tail = |ring| unsafe { (*(*(*shared.context()).rings.add(ring)).published).tail };
    let (mut heads, mut fetches, mut iterations) = ([0, 0], 0, 0);
    let iterate = |mine: &mut Lane<FakePort>, consumer: &mut Consumer| {
        consumer.take(mine).map_err(|failed| failed.why).unwrap();
        mine.progress().unwrap();
        consumer.retire(mine, || Ok::<(), ()>(())).unwrap();
    };
    while iterations < 3000 {
        while fetches < FETCHES && heads[0] + 2 - tail(0) <= 64 {
            heads[0] = push(&shared, 0, &fetch_or_put(true));
            fetches += 1;
        }
        if iterations % 10 == 0 {
            heads[1] = push(&shared, 1, &fetch_or_put(false));
        }
        iterate(&mut mine, &mut consumer);
        iterations += 1;
    }
    assert!(fetches < FETCHES, "what is parked is bounded");
    for _ in 0..10_000 {
        iterate(&mut mine, &mut consumer);
    }
    assert_eq!(shared.done(1), heads[1], "the other ring");
    assert_eq!(shared.done(0), 0);
    let word = |pair: &Pair| pair.fabric.load(Pe(1), pair.bases[1] + 8, 8);
    for _ in 0..1_000_000 {
        while fetches < FETCHES && heads[0] + 2 - tail(0) <= 64 {
            heads[0] = push(&shared, 0, &fetch_or_put(true));
            fetches += 1;
        }
        iterate(&mut mine, &mut consumer);
        theirs.progress().unwrap();
        if shared.done(0) == heads[0] && fetches == FETCHES {
            break;
        }
    }
    assert_eq!((shared.done(0), word(&pair)), (heads[0], FETCHES.to_le_bytes().to_vec()));
}
