//! Requests on an idle lane of the scripted fabric: an iteration ends all batches.

use std::collections::HashSet;

use super::*;
use engine::regions::RegionTable;
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
