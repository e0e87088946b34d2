//! Requests on an idle lane of the scripted fabric: an iteration ends all batches.

use std::collections::HashSet;

use super::*;
use engine::ids::RailId;
use engine::port::Access;
use engine::regions::RegionTable;
use engine::request::{LocalSide, Request};
use sim_fabric::{FakeFabric, FakePort, RAIL, Script, lane_config, straight_paths};

fn lane() -> Lane<FakePort> {
    let fabric = FakeFabric::new(1, 2, Script::default());
    let regions = RegionTable::new(fabric.memory(Pe(0), 1), Pe(0));
    let config = lane_config(Pe(0), straight_paths(2, 1), regions.directory());
    Lane::new(fabric.port(Pe(0), vec![RAIL]), config)
}

const LONG: (Direction, usize) = (Direction::Write, LONGEST_SHARING + 1);

fn begin(
    requests: &mut Requests,
    lane: &mut Lane<FakePort>,
    rank: u32,
    count: usize,
) -> Vec<(RequestId, Batch)> {
    (0..count).map(|_| requests.begin(lane, rank, LONG)).collect()
}

fn batches(begun: &[(RequestId, Batch)]) -> HashSet<u8> {
    begun.iter().map(|(_, batch)| number(*batch)).collect()
}

fn number(batch: Batch) -> u8 {
    let text = format!("{batch:?}");
    text.trim_matches(|one: char| !one.is_ascii_digit()).parse().unwrap_or(0)
}

#[test]
fn ranks_share_no_batch() {
    let (mut lane, mut requests) = (lane(), Requests::new(64));
    let busy = begin(&mut requests, &mut lane, 0, 1000);
    let of_busy = batches(&busy);
    assert!((32..128).contains(&of_busy.len()), "{}", of_busy.len());
    let mut taken = of_busy;
    for rank in 1..64 {
        let its = batches(&begin(&mut requests, &mut lane, rank, 5));
        assert!(its.is_disjoint(&taken) && !its.contains(&0), "rank {rank}");
        taken.extend(its);
    }
    // What is over is free for others.
    let ended = Ended::new();
    requests.iterated(&mut lane, &ended);
    assert!(busy.iter().all(|(request, _)| ended.is_done(*request) == Some(true)));
    assert!(batches(&begin(&mut requests, &mut lane, 63, 100)).len() > 16);
}

#[test]
fn excess_ranks_wait_for_everything() {
    let (mut lane, mut requests) = (lane(), Requests::new(600));
    let mut taken = HashSet::new();
    for rank in (2..600).chain([1]) {
        let its = batches(&begin(&mut requests, &mut lane, rank, 3));
        assert!(its == HashSet::from([0]) || its.is_disjoint(&taken), "rank {rank}");
        taken.extend(its);
    }
    let (request, batch) = requests.begin(&mut lane, 1, LONG);
    assert_eq!(batch, Batch::NONE);
    assert_eq!(Ended::new().is_done(request), None, "the lane knows");
    assert!(requests.is_quiet(&mut lane, request), "nothing is outstanding with it");
}

#[test]
fn uses_of_batches_are_told_apart() {
    let (mut lane, mut requests, ended) = (lane(), Requests::new(2), Ended::new());
    let mut all = HashSet::new();
    for _ in 0..3 {
        let begun = begin(&mut requests, &mut lane, 1, 100);
        assert!(begun.iter().all(|(request, _)| ended.is_done(*request) == Some(false)));
        assert!(!requests.is_empty());
        requests.iterated(&mut lane, &ended);
        assert!(begun.iter().all(|(request, _)| ended.is_done(*request) == Some(true)));
        assert!(requests.is_empty());
        assert!(begun.iter().all(|(request, _)| all.insert(request.pointer())), "a new request");
    }
}

#[test]
fn refused_operations_leave_no_request() {
    let (mut lane, mut requests, ended) = (lane(), Requests::new(2), Ended::new());
    for rank in [0, 1, 2, u32::MAX] {
        let (request, _) = requests.begin(&mut lane, rank, LONG);
        requests.take_back(&mut lane, request, &ended);
        assert!(requests.is_empty(), "rank {rank}");
        assert_eq!(requests.free.len(), MAX_BATCHES);
    }
}

#[test]
fn consecutive_short_operations_share_batch() {
    let (mut lane, mut requests) = (lane(), Requests::new(2));
    let [put, get] = [(Direction::Write, 0), (Direction::Read, 8)];
    let mut after = |iterations, what| {
        requests.iterations += iterations;
        number(requests.begin(&mut lane, 1, what).1)
    };
    for (short, other) in [(put, get), (get, put)] {
        let first = after(2, short);
        for _ in 1..MAX_SHARING {
            assert_eq!(after(1, short), first);
        }
        let second = after(0, short);
        assert_ne!(second, first, "as many as may");
        let third = after(2, short);
        assert_ne!(third, second, "an iteration brought none");
        assert_ne!(after(0, LONG), third);
        let fourth = after(0, other);
        assert_ne!(after(0, short), fourth);
    }
}

#[test]
fn tests_without_progress_are_noticed() {
    let (mut lane, mut requests, ended) = (lane(), Requests::new(2), Ended::new());
    // They share a batch.
    let [one, other] = [0; 2].map(|rank| requests.begin(&mut lane, rank, (Direction::Write, 8)).0);
    assert!(!ended.is_tested_again(one) && !ended.is_tested_again(other));
    assert!(ended.is_tested_again(one) && ended.is_tested_again(one));
    ended.progress_called();
    assert!(!ended.is_tested_again(one), "NCCL has called for progress");
}

/// Without a call for progress between, as two flushes in a row.
#[test]
fn each_of_two_is_awaited() {
    let (mut lane, mut requests, ended) = (lane(), Requests::new(2), Ended::new());
    let one = requests.begin(&mut lane, 0, LONG).0;
    assert!(!ended.is_tested_again(one) && ended.is_tested_again(one));
    requests.iterated(&mut lane, &ended);
    assert_eq!(ended.is_done(one), Some(true));
    ended.told(one);
    let other = requests.begin(&mut lane, 0, LONG).0;
    assert!(!ended.is_tested_again(other) && ended.is_tested_again(other));
}

/// A pass tests each request once, also of those without a batch, or that share the last.
#[test]
fn passes_are_no_waits() {
    let (mut lane, mut requests, ended) = (lane(), Requests::new(600), Ended::new());
    (2..600).for_each(|rank| drop(begin(&mut requests, &mut lane, rank, 3)));
    for (rank, count) in [(1, 10), (2, 1000)] {
        let pass = begin(&mut requests, &mut lane, rank, count);
        assert!(pass.iter().all(|(request, _)| !ended.is_tested_again(*request)), "{rank}");
        ended.progress_called();
    }
}

#[test]
fn lost_operation_is_never_done() {
    let fabric = FakeFabric::new(1, 2, Script::default());
    let [mine, theirs] = [0, 1].map(|pe| RegionTable::new(fabric.memory(Pe(pe), 1), Pe(pe)));
    let [from, to] = [0, 1].map(|pe| fabric.alloc(Pe(pe), 4096));
    mine.register(from, 4096, Access::LocalAndRemote).unwrap();
    let remote_handle = &theirs.register(to, 4096, Access::LocalAndRemote).unwrap();
    let config = lane_config(Pe(0), straight_paths(2, 1), mine.directory());
    let mut lane = Lane::new(fabric.port(Pe(0), vec![RAIL]), config);
    let (mut requests, ended) = (Requests::new(2), Ended::new());
    let (request, batch) = requests.begin(&mut lane, 1, LONG);
    lane.enter_batch(batch);
    let (direction, local) = (Direction::Write, LocalSide::Memory(from));
    let (pe, remote_addr) = (Pe(1), to as u64);
    lane.start(&Request { direction, pe, remote_handle, remote_addr, local, len: 64 }).unwrap();
    lane.enter_batch(Batch::NONE);
    fabric.fail_rail(Pe(0), RailId(0));
    while lane.failure().is_none() {
        let _ = lane.progress();
        fabric.pass_time(100_000);
        requests.iterated(&mut lane, &ended);
        assert_eq!(ended.is_done(request), Some(false));
    }
}
