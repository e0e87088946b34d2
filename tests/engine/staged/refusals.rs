//! Requests that their target cannot execute: who has sent them is told, and nothing else happens.

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use sim_fabric::{PortCall, Script};

use crate::job::Targets;
use crate::job::{Job, Shape};

#[test]
fn a_refused_request_is_never_done() {
    for seed in 1..=200 {
        let shape = Shape { rails: 4, depth: 2, ..Shape::default() };
        let mut job = Job::new(seed, &shape, Script { delay: (1, 100_000), ..Script::default() });
        let targets = Targets::of(&job);
        let handle = job.members[1].handle;
        job.members[1].regions.release(&handle).unwrap();
        job.inc(0, 1, 0);
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
        let handle = job.members[1].handle;
        if is_refused {
            job.members[1].regions.release(&handle).unwrap();
        }
        job.inc(0, 1, 0);
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
