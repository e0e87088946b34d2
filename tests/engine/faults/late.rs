//! What comes after a failure: it touches no memory that its owner may have back.

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use engine::port::Direction;
use engine::request::{Request, ResultPlace};
use sim_fabric::{Event, FakeFabric, PortCall, Script};

use crate::job::{Job, Member, Shape};
use crate::signals::Targets;

const LEN: usize = 4096;

/// Iterations lanes, whatever they say, and lets time pass.
fn iterate(members: &mut [Member], fabric: &FakeFabric, iterations: u32) {
    for _ in 0..iterations {
        for member in members.iter_mut() {
            let _ = member.lane.progress();
        }
        fabric.pass_time(1_000_000);
    }
}

/// The memory of PE 0's operations is released; its owner has it back and fills it anew.
fn take_back(members: &[Member], fabric: &FakeFabric) {
    members[0].regions.release(&members[0].scratch_handle).unwrap();
    fabric.store(Pe(0), members[0].scratch, &[0x77; LEN]);
}

fn is_untouched(members: &[Member], fabric: &FakeFabric) -> bool {
    fabric.load(Pe(0), members[0].scratch, LEN) == [0x77; LEN]
}

fn is_in_use(released: Result<(), EngineError>) -> bool {
    match released {
        Err(EngineError::InUse { pe: Pe(1), .. }) => true,
        Ok(()) => false,
        Err(other) => panic!("{other}"),
    }
}

/// A peer that stops beyond every deadline, and goes on when its operations were given up.
#[test]
fn memory_stays_registered_while_a_failed_operation_may_touch_it() {
    for direction in [Direction::Read, Direction::Write] {
        let mut job = Job::new(1, &Shape::default(), Script::default());
        job.fabric.stall(Pe(1));
        match direction {
            Direction::Read => job.get(0, 1, 0, LEN).unwrap(),
            Direction::Write => job.put(0, 1, 0, LEN).unwrap(),
        }
        assert!(matches!(job.quiet(0, 1), Err(EngineError::Timeout { .. })));
        let Job { fabric, mut members, .. } = job;
        let handle = members[0].scratch_handle;
        assert!(is_in_use(members[0].regions.release(&handle)), "{direction:?}");
        assert!(is_in_use(members[0].regions.release(&handle)), "and again");
        // What nothing has touched is given back as ever.
        members[0].regions.release(&members[0].handle).unwrap();
        fabric.resume(Pe(1));
        iterate(&mut members, &fabric, 100);
        assert!(!members[0].lane.has_work(), "it has ended");
        take_back(&members, &fabric);
        iterate(&mut members, &fabric, 100);
        assert!(is_untouched(&members, &fabric));
    }
}

#[test]
fn memory_stays_registered_while_a_failed_operation_of_a_user_thread_may_touch_it() {
    let shape = Shape::default();
    let job = Job::new(2, &shape, Script::default());
    let host = job.host_lane(&shape);
    let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
    let handle = members[0].scratch_handle;
    let part = targets.part(members[0].scratch, 1, 0, LEN);
    fabric.stall(Pe(1));
    host.start(&Request { direction: Direction::Read, ..part }).unwrap();
    let failed = loop {
        match host.try_progress() {
            Ok(_) => fabric.pass_time(10_000_000),
            Err(failed) => break failed,
        }
    };
    assert!(matches!(*failed, EngineError::Timeout { .. }), "{failed}");
    assert!(is_in_use(members[0].regions.release(&handle)));
    fabric.resume(Pe(1));
    while host.has_work() {
        let _ = host.try_progress();
        fabric.pass_time(1_000_000);
    }
    take_back(&members, &fabric);
    iterate(&mut members, &fabric, 100);
    assert!(is_untouched(&members, &fabric));
}

#[test]
fn a_word_that_comes_after_its_fetch_has_failed_is_dropped() {
    // The second is told of before the lane iterates again, and takes what has come.
    for refused in [false, true] {
        let mut job = Job::new(4, &Shape::default(), Script::default());
        let targets = Targets::of(&job);
        let addr = job.members[0].scratch;
        let mut fetch = targets.atomic(1, 0, AtomicOp::FetchAdd, 1);
        fetch.result = Some(ResultPlace { addr, flag: Some(1) });
        // The request gets there, and nothing comes back.
        job.fabric.stall(Pe(0));
        job.members[0].lane.atomic(&fetch).unwrap();
        while job.heap(1, 0, 8) != 1_u64.to_le_bytes() {
            job.members[1].lane.progress().unwrap();
            job.fabric.pass_time(1_000_000);
        }
        if refused {
            job.fabric.fail_calls(PortCall::Post, 0, 1);
            assert!(matches!(job.put(0, 1, 0, 8), Err(EngineError::Segment { .. })));
        } else {
            assert!(matches!(job.quiet(0, 1), Err(EngineError::Timeout { .. })));
        }
        let Job { fabric, mut members, .. } = job;
        take_back(&members, &fabric);
        fabric.resume(Pe(0));
        iterate(&mut members, &fabric, 100);
        assert!(is_untouched(&members, &fabric), "neither the word nor its flag: {refused}");
    }
}

/// A get through bounce memory on both sides, cut off at every point of its way: its bytes are in
/// the bounce memory or on their way there, or are being copied.
#[test]
fn staged_bytes_that_come_after_a_failure_are_dropped() {
    for len in [100, 1000, LEN] {
        for iterations in 0..40 {
            let shape = Shape { staged: 0b1111, heap: 1 << 14, ..Shape::default() };
            let mut job = Job::new(6, &shape, Script::default());
            job.get(0, 1, 0, len).unwrap();
            for _ in 0..iterations {
                job.iterate();
                job.fabric.pass_time(2_000);
            }
            for pe in [Pe(0), Pe(1)] {
                job.fabric.stall(pe);
            }
            let copied = |fabric: &FakeFabric| {
                let here = |event: &&Event| matches!(event, Event::Copied { pe: Pe(0), .. });
                fabric.events().iter().filter(here).count()
            };
            if job.quiet(0, 1).is_ok() {
                continue;
            }
            let Job { fabric, mut members, .. } = job;
            while members[0].regions.release(&members[0].scratch_handle).is_err() {
                iterate(&mut members, &fabric, 1);
                for pe in [Pe(0), Pe(1)] {
                    fabric.resume(pe);
                }
            }
            let before = copied(&fabric);
            for pe in [Pe(0), Pe(1)] {
                fabric.resume(pe);
            }
            iterate(&mut members, &fabric, 100);
            assert_eq!(
                copied(&fabric),
                before,
                "{len} bytes, cut off after {iterations} iterations"
            );
        }
    }
}

/// Who hears of a failure may never run the lane again: what is being copied then ends before that.
#[test]
fn copies_end_before_a_failed_lane_is_left_alone() {
    let shape = Shape { staged: 0b1111, heap: 1 << 14, ..Shape::default() };
    let mut job = Job::new(7, &shape, Script::default());
    job.put(0, 1, 0, 1000).unwrap();
    job.members[0].lane.progress().unwrap();
    job.fabric.fail_calls(PortCall::Copy, 0, 1);
    let refused =
        job.put(0, 1, 1000, 1000).and_then(|()| Ok(job.members[0].lane.progress().map(drop)?));
    assert!(matches!(refused, Err(EngineError::Staging { .. })), "{refused:?}");
    take_back(&job.members, &job.fabric);
}
