//! Fences: what one costs and whom it holds.

use engine::ids::Pe;
use sim_fabric::Script;

use super::job::{Job, Shape};

#[test]
fn empty_fence_holds_nothing() {
    let mut job = Job::new(2, &Shape::default(), Script::default());
    job.fence(0, 1);
    job.put_value(0, 1, 0, 7).unwrap();
    assert_eq!(job.fabric.in_flight(), 1);
    job.quiet(0, 1).unwrap();
    job.fence(0, 1);
    job.put_value(0, 1, 0, 8).unwrap();
    assert_eq!(job.fabric.in_flight(), 1);
}

#[test]
fn fence_holds_no_gets() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    job.fabric.stall(Pe(1));
    job.put_value(0, 1, 0, 7).unwrap();
    job.fence(0, 1);
    job.get(0, 1, 64, 64).unwrap();
    assert_eq!(job.fabric.in_flight(), 2);
}

#[test]
fn idle_quiet_polls_nothing() {
    let mut job = Job::new(5, &Shape::default(), Script::default());
    let before = job.fabric.now();
    for pe in 0..2 {
        job.quiet(0, pe).unwrap();
        job.fence(0, pe);
    }
    assert_eq!(job.fabric.now(), before, "the fabric's clock moves with every poll");
}
