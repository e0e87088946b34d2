//! Requests that their target cannot execute: who has sent them is told, and nothing else happens.

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use engine::port::Direction;
use sim_fabric::{PortCall, Script};

use super::ALL;
use crate::job::{Job, Shape};
use crate::signals::Targets;

#[test]
fn a_request_that_cannot_be_carried_out_fails_its_sender() {
    let mut job = Job::new(2, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let handle = job.members[1].handle;
    job.members[1].regions.release(&handle).unwrap();
    job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
    let error = job.members[0].lane.progress().err();
    assert!(error.is_none(), "it has only been sent");
    let error = (0..10_000)
        .find_map(|_| {
            let _ = job.members[1].lane.progress();
            job.members[0].lane.progress().err()
        })
        .unwrap()
        .to_string();
    assert!(error.contains("PE 1") && error.contains("not registered"), "{error}");
}

#[test]
fn a_refused_request_is_never_done() {
    for seed in 1..=200 {
        let shape = Shape { rails: 4, depth: 2, ..Shape::default() };
        let mut job = Job::new(seed, &shape, Script { delay: (1, 100_000), ..Script::default() });
        let targets = Targets::of(&job);
        let handle = job.members[1].handle;
        job.members[1].regions.release(&handle).unwrap();
        job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
        let failed = (0..1_000_000).any(|_| {
            // What the target sends meanwhile acknowledges what it has had.
            let _ = job.members[1].lane.atomic(&targets.atomic(0, 0, AtomicOp::Inc, 0));
            let _ = job.members[1].lane.progress();
            let _ = job.members[0].lane.progress();
            let quiet = job.members[0].lane.is_quiet(Pe(1));
            assert_ne!(quiet, Ok(true), "seed {seed}");
            quiet.is_err()
        });
        assert!(failed, "seed {seed}: nobody is told");
    }
}

/// An acknowledgement or a refusal that the fabric does not take when it is due: the peer waits for
/// nothing else.
#[test]
fn answers_are_tried_again() {
    for is_refused in [false, true] {
        let mut job = Job::new(2, &Shape::default(), Script::default());
        let targets = Targets::of(&job);
        let handle = job.members[1].handle;
        if is_refused {
            job.members[1].regions.release(&handle).unwrap();
        }
        job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
        job.members[0].lane.want_acks();
        job.members[0].lane.progress().unwrap();
        job.fabric.fail_calls(PortCall::Send, 0, 1);
        let mut ended = Ok(false);
        while ended == Ok(false) {
            job.members.iter_mut().for_each(|member| drop(member.lane.progress()));
            job.fabric.pass_time(1_000_000);
            assert!(job.fabric.now() < 5_000_000_000, "it is not told: {is_refused}");
            ended = job.members[0].lane.is_quiet(Pe(1));
        }
        assert!(job.members[1].lane.failure().is_some(), "a send has failed");
        let is_told = matches!(ended, Err(EngineError::PeerRefused { pe: Pe(1), .. }));
        assert!(if is_refused { is_told } else { ended == Ok(true) }, "{ended:?}");
    }
}

/// The same of bytes that the target is to read, or to send.
#[test]
fn a_put_or_a_get_that_cannot_be_carried_out_fails_its_sender() {
    for (direction, what) in [(Direction::Write, "put"), (Direction::Read, "get")] {
        // Few bytes go in a message of their own.
        for len in [100, 1000] {
            let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
            let mut job = Job::new(2, &shape, Script::default());
            let handle = job.members[1].handle;
            job.members[1].regions.release(&handle).unwrap();
            match direction {
                Direction::Write => job.put(0, 1, 0, len).unwrap(),
                Direction::Read => job.get(0, 1, 0, len).unwrap(),
            }
            let error = (0..10_000).find_map(|_| {
                job.members.iter_mut().for_each(|member| drop(member.lane.progress()));
                job.members[0].lane.is_quiet(Pe(1)).err()
            });
            let error = error.unwrap().to_string();
            assert!(error.contains("PE 1") && error.contains("not registered"), "{error}");
            assert!(error.contains(what), "{error}");
        }
    }
}
