//! Requests on an idle lane of the scripted fabric: a batch is over once its requests are tested.

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

const PUT: Option<usize> = Some(8);

fn begin(
    requests: &mut Requests,
    lane: &mut Lane<FakePort>,
    rank: u32,
    count: usize,
) -> Vec<(RequestId, Batch)> {
    (0..count).map(|_| requests.begin(lane, rank, None)).collect()
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
    assert!(busy.iter().all(|(request, _)| requests.is_done(&mut lane, *request)));
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
    let last = requests.begin(&mut lane, 1, None);
    assert_eq!(last.1, Batch::NONE);
    assert!(requests.is_done(&mut lane, last.0), "nothing is outstanding with it");
}

#[test]
fn requests_end_in_any_order() {
    let (mut lane, mut requests) = (lane(), Requests::new(2));
    let mut begun = begin(&mut requests, &mut lane, 1, 300);
    begun.rotate_left(77);
    for (request, _) in begun {
        assert!(!requests.is_empty());
        assert!(requests.is_done(&mut lane, request));
        assert!(requests.is_done(&mut lane, request), "and stays so");
    }
    assert!(requests.is_empty());
    assert!(
        requests.is_done(&mut lane, RequestId(0)) && requests.is_done(&mut lane, RequestId(9999))
    );
}

#[test]
fn refused_operations_leave_no_request() {
    let (mut lane, mut requests) = (lane(), Requests::new(2));
    for rank in [0, 1, 2, u32::MAX] {
        requests.begin(&mut lane, rank, None);
        requests.take_back(&mut lane);
        assert!(requests.is_empty(), "rank {rank}");
        assert_eq!(requests.free.len(), MAX_BATCHES);
    }
}

#[test]
fn consecutive_short_puts_share_batch() {
    let (mut lane, mut requests) = (lane(), Requests::new(2));
    let mut put_after = |iterations, requests: &mut Requests, put| {
        (0..iterations).for_each(|_| requests.iterated(&mut lane));
        number(requests.begin(&mut lane, 1, put).1)
    };
    let first = put_after(0, &mut requests, PUT);
    for _ in 1..MAX_SHARING {
        assert_eq!(put_after(1, &mut requests, PUT), first);
    }
    let second = put_after(0, &mut requests, PUT);
    assert_ne!(second, first, "as many as may");
    let third = put_after(2, &mut requests, PUT);
    assert_ne!(third, second, "an iteration brought none");
    let long = Some(LONGEST_SHARING + 1);
    assert_ne!(put_after(0, &mut requests, long), third);
    let get = put_after(0, &mut requests, None);
    assert_ne!(put_after(0, &mut requests, PUT), get);
}

#[test]
fn tests_without_progress_are_noticed() {
    let (mut lane, mut requests) = (lane(), Requests::new(2));
    let [one, other] = [0, 1].map(|rank| requests.begin(&mut lane, rank, None).0);
    assert!(!requests.is_tested_again(one, 7) && !requests.is_tested_again(other, 7));
    assert!(requests.is_tested_again(one, 7) && requests.is_tested_again(one, 7));
    assert!(!requests.is_tested_again(one, 8), "NCCL has called for progress");
}
