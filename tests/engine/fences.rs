//! Fences: what one costs and whom it holds.

use engine::ids::Pe;
use sim_fabric::Script;

use super::job::{Job, Shape};

#[test]
fn a_fence_holds_its_own_peer_and_nobody_else() {
    let shape = Shape { n_pes: 3, rails: 2, depth: 32, ..Shape::default() };
    let mut job = Job::new(1, &shape, Script::default());
    job.fabric.stall(Pe(1));
    job.put_value(0, 1, 0, 1, 8).unwrap();
    job.fence(0, 1);
    job.put_value(0, 1, 8, 2, 8).unwrap();
    let posted_before = job.fabric.in_flight();
    assert_eq!(posted_before, 1, "the write behind the fence stays here");

    // Peer 2 is served while peer 1 is stuck, fences and all.
    for at in 0..20 {
        job.put_value(0, 2, at * 8, at as u64 + 100, 8).unwrap();
        job.fence(0, 2);
    }
    job.quiet(0, 2).unwrap();
    assert_eq!(job.heap(2, 19 * 8, 8), 119u64.to_le_bytes());
    assert!(!job.members[0].lane.is_quiet(Pe(1)).unwrap());
    assert_eq!(job.heap(1, 0, 16), [0; 16]);

    job.fabric.resume(Pe(1));
    job.quiet(0, 1).unwrap();
    assert_eq!(job.heap(1, 8, 8), 2u64.to_le_bytes());
}

#[test]
fn a_fence_with_nothing_before_it_holds_nothing() {
    let mut job = Job::new(2, &Shape::default(), Script::default());
    job.fence(0, 1);
    job.put_value(0, 1, 0, 7, 8).unwrap();
    assert_eq!(job.fabric.in_flight(), 1);
    job.quiet(0, 1).unwrap();
    job.fence(0, 1);
    job.put_value(0, 1, 0, 8, 8).unwrap();
    assert_eq!(job.fabric.in_flight(), 1);
}

#[test]
fn a_fence_does_not_hold_gets() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    job.fabric.stall(Pe(1));
    job.put_value(0, 1, 0, 7, 8).unwrap();
    job.fence(0, 1);
    job.get(0, 1, 64, 64).unwrap();
    assert_eq!(job.fabric.in_flight(), 2);
}

#[test]
fn an_empty_quiet_and_a_fence_touch_nothing() {
    let mut job = Job::new(5, &Shape::default(), Script::default());
    let before = job.fabric.now();
    for pe in 0..2 {
        job.quiet(0, pe).unwrap();
        job.fence(0, pe);
    }
    assert_eq!(job.fabric.now(), before, "the fabric's clock moves with every poll");
}
