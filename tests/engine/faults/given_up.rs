//! What is under way to a peer that was declared failed: it takes no room of others, and no wait is
//! without an end.

use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use sim_fabric::Script;

use crate::job::{Job, Shape};
use crate::signals::Targets;

const DEADLINE: Duration = Duration::from_secs(10);

/// In [`Shape::staged`].
const HEAP_OF_0: u32 = 1;
const SCRATCH_OF_0: u32 = 1 << 1;
const HEAP_OF_1: u32 = 1 << 2;

/// Three PEs with a queue of one operation each.
fn narrow(staged: u32) -> Shape {
    let deadline = Some(DEADLINE);
    Shape {
        n_pes: 3,
        rails: 1,
        depth: 1,
        staged,
        bounce: (1024, 3, 1),
        deadline,
        ..Shape::default()
    }
}

/// Iterations some PEs until PE 0 is quiet towards another or has given it up: what of it.
fn quiet(job: &mut Job, turning: &[usize], pe: u32) -> Result<(), EngineError> {
    while !job.members[0].lane.is_quiet(Pe(pe))? {
        for member in turning {
            let _ = job.members[*member].lane.progress();
        }
        job.fabric.pass_time(2_000_000);
        let now = Duration::from_nanos(job.fabric.now());
        assert!(now < 5 * DEADLINE, "PE 0 waits for PE {pe} for ever");
    }
    Ok(())
}

fn iterate(job: &mut Job, turning: &[usize]) {
    for _ in 0..2000 {
        for member in turning {
            let _ = job.members[*member].lane.progress();
        }
        job.fabric.pass_time(100_000);
    }
}

/// Gets of staged memory whose owner does not answer have all the room there is; none once it was
/// declared failed.
#[test]
fn what_a_peer_does_not_answer_takes_no_room_of_others() {
    let mut job = Job::new(1, &narrow(HEAP_OF_1), Script::default());
    job.fill_scratch(0, &[7; 64]);
    for at in 0..2 {
        job.get(0, 1, 4096 * at, 1000).unwrap();
    }
    job.put(0, 2, 0, 64).unwrap();
    assert!(!job.members[0].lane.is_quiet(Pe(2)).unwrap(), "there is room all the same");
    assert!(matches!(quiet(&mut job, &[0], 1), Err(EngineError::Timeout { pe: Pe(1), .. })));
    quiet(&mut job, &[0], 2).unwrap();
    assert_eq!(job.heap(2, 0, 64), [7; 64]);
    iterate(&mut job, &[0]);
    assert!(!job.members[0].lane.has_work());
    // It goes on too late.
    iterate(&mut job, &[0, 1, 2]);
    assert!(!job.members[0].lane.has_work());
}

/// The same for puts. Their peer may still read their bounce buffers, which are nobody else's until
/// it has.
#[test]
fn bounce_buffers_that_a_peer_may_still_read_are_kept_for_it_and_take_no_room() {
    let mut job = Job::new(2, &narrow(SCRATCH_OF_0 | HEAP_OF_1), Script::default());
    let bytes: Vec<u8> = (0..3000).map(|at| (at / 1000 + 1) as u8).collect();
    job.fill_scratch(0, &bytes);
    for at in 0..2 {
        job.put(0, 1, 1000 * at, 1000).unwrap();
    }
    job.put(0, 2, 2000, 1000).unwrap();
    assert!(quiet(&mut job, &[0], 1).is_err());
    quiet(&mut job, &[0], 2).unwrap();
    assert_eq!(job.heap(2, 2000, 1000), [3; 1000]);
    iterate(&mut job, &[0]);
    assert!(job.members[0].lane.has_work(), "two bounce buffers are kept");
    iterate(&mut job, &[0, 1]);
    assert_eq!(job.heap(1, 0, 2000), bytes[..2000], "what was put there, if anything");
    assert!(!job.members[0].lane.has_work(), "it has read them");
}

/// A peer that has asked for bytes and does not take them, or to which the fabric takes nothing:
/// PE 0 has nothing else to do with it, and finds out.
#[test]
fn peer_that_takes_no_answers_is_given_up() {
    for is_refused in [false, true] {
        let mut job = Job::new(2, &narrow(HEAP_OF_0), Script::default());
        job.get(1, 0, 0, 1000).unwrap();
        job.members[1].lane.progress().unwrap();
        job.fabric.refuse(Pe(1), is_refused);
        let failed = loop {
            if let Err(failed) = job.members[0].lane.progress() {
                break failed;
            }
            job.fabric.pass_time(2_000_000);
            let now = Duration::from_nanos(job.fabric.now());
            assert!(now < 2 * DEADLINE, "nobody finds out: {is_refused}");
        };
        let is_named =
            matches!(*failed, EngineError::Timeout { pe: Pe(1), what: "answer to a get", .. });
        assert!(is_named, "{failed}");
        iterate(&mut job, &[0]);
        // What has left it may still read.
        assert_eq!(job.members[0].lane.has_work(), !is_refused);
        iterate(&mut job, &[0, 1]);
        assert!(!job.members[0].lane.has_work(), "it has read it");
    }
}

/// Nor do messages, and the fetches among them, keep what they have for acknowledgements that
/// nobody waits for.
#[test]
fn messages_to_a_peer_that_has_failed_end() {
    let mut job = Job::new(3, &narrow(0), Script::default());
    let (targets, place) = (Targets::of(&job), job.members[0].scratch);
    for _ in 0..600 {
        job.inc(0, 1, 0);
    }
    job.members[0].lane.atomic(&targets.fetch(1, 0, place)).unwrap();
    assert!(quiet(&mut job, &[0], 1).is_err());
    iterate(&mut job, &[0]);
    assert!(!job.members[0].lane.has_work());
    job.fill_scratch(0, &[0x77; 8]);
    iterate(&mut job, &[0, 1]);
    assert_eq!(job.fabric.load(Pe(0), place, 8), [0x77; 8]);
    let add = targets.atomic(2, 0, AtomicOp::Inc, 0);
    job.members[0].lane.atomic(&add).unwrap();
    quiet(&mut job, &[0, 2], 2).unwrap();
}

/// What the fabric has it keeps, also of a peer that was declared failed. Should that be all the
/// room there is, those who wait for room are told.
#[test]
fn who_waits_for_room_that_never_comes_is_told() {
    let mut job = Job::new(4, &narrow(0), Script::default());
    job.fabric.stall(Pe(1));
    for pe in [1, 2] {
        job.put_value(0, pe, 0, 1, 8).unwrap();
    }
    assert!(matches!(quiet(&mut job, &[0], 1), Err(EngineError::Timeout { pe: Pe(1), .. })));
    assert!(matches!(quiet(&mut job, &[0], 2), Err(EngineError::Timeout { pe: Pe(2), .. })));
}

/// A peer that lives, and for which the fabric has no room on any rail: its operations go from one
/// rail to the other, which is no movement.
#[test]
fn going_from_rail_to_rail_is_no_movement() {
    for staged in [0, SCRATCH_OF_0] {
        let shape = Shape { rails: 2, ..narrow(staged) };
        let mut job = Job::new(5, &shape, Script::default());
        job.fabric.refuse(Pe(1), true);
        job.put(0, 1, 0, 1000).unwrap();
        let failed = quiet(&mut job, &[0, 1, 2], 1).unwrap_err().to_string();
        assert!(failed.contains("PE 1"), "{failed}");
        let now = Duration::from_nanos(job.fabric.now());
        assert!(now < 2 * DEADLINE, "staged {staged}: {now:?}");
    }
}
