//! Peers that are given up: when that happens, on the fake's clock, and that what is under way to
//! them takes no room of others and ends.

use super::Operation;
use crate::prelude::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// How much later than its deadline a wait may be given up, and how much earlier: the clock of
/// segments goes in quarters of a second, connections are looked at as often, and the clock is read
/// in turns.
const LATER: Duration = Duration::from_secs(1);
const EARLIER: Duration = Duration::from_millis(600);

/// In [`Shape::staged`].
const HEAP_OF_0: u32 = 1;
const SCRATCH_OF_0: u32 = 1 << 1;
const HEAP_OF_1: u32 = 1 << 2;

fn is_in_time(took: Duration, deadline: Duration) -> bool {
    (deadline - EARLIER..=deadline + LATER).contains(&took)
}

/// Three PEs with a queue of one operation each.
fn narrow(staged: u32) -> Shape {
    Shape {
        n_pes: 3,
        rails: 1,
        depth: 1,
        staged,
        bounce: (1024, 3, 1),
        deadline: Some(DEADLINE),
        ..PLAIN
    }
}

/// Outcome of PE 0's operations to another, while some PEs make progress.
fn quiet(job: &mut Job, pes: &[u32], pe: u32) -> Outcome {
    job.settle(pes, (0, pe), 2_000_000)
}

fn iterate(job: &mut Job, pes: &[u32]) {
    job.iterate_slowly(pes, 2000, 100_000);
}

/// Whatever is under way, over however many rails, and however long a progress iteration takes.
#[test]
fn silent_peer_fails_in_time() {
    const SOON: Duration = Duration::from_secs(2);
    for (rails, staged) in [1, 2, 4].into_iter().flat_map(|n| [0, 0b0100, 0b0110].map(|s| (n, s))) {
        for iteration in [100_000, 3_000_000, 20_000_000, 300_000_000] {
            for what in Operation::ALL {
                let mut job = Job::with(Shape { rails, staged, deadline: Some(SOON), ..PLAIN });
                job.fabric.stall(Pe(1));
                job.iterate_slowly(&[0], 300, iteration);
                let began = job.fabric.now();
                what.begin(&mut job).unwrap();
                let failed = job.settle(&[0], (0, 1), iteration);
                let took = Duration::from_nanos(job.fabric.now() - began);
                let is_it = |named: &str| staged != 0 || named == what.name();
                let is_it = matches!(failed, Err(EngineError::Timeout { pe: Pe(1), what, .. })
                    if is_it(what));
                assert!(
                    is_it && is_in_time(took, SOON),
                    "{what:?}, {rails} rails, staged {staged:#b}, iterations of {iteration} ns: \
                     {failed:?} after {took:?}"
                );
            }
        }
    }
}

#[test]
fn idle_lane_notices_ended_peer() {
    for allows_peer_exit in [false, true] {
        let mut job = Job::new(1, &narrow(0), CALM);
        let lane = &mut job.members[0].lane;
        if allows_peer_exit {
            lane.allow_peer_exit();
        }
        let mut until_failed = || {
            let start = job.fabric.now();
            let failed = (0..2 * DEADLINE.as_millis()).find_map(|_| {
                job.fabric.pass_time(1_000_000);
                lane.progress().err()
            });
            (failed, Duration::from_nanos(job.fabric.now() - start))
        };
        assert!(until_failed().0.is_none(), "all are there");
        job.fabric.world().ended.insert(Pe(1));
        let (failed, waited) = until_failed();
        assert_eq!(failed.is_none(), allows_peer_exit);
        if let Some(failed) = failed {
            assert!(failed.to_string().contains("PE 1 has ended"), "{failed}");
            assert!(is_in_time(waited, DEADLINE), "{waited:?}");
        }
    }
}

/// Whatever is under way to a failed peer ends, late or not, and has no room of others; but buffers
/// that the peer may still read are nobody else's until it has.
#[test]
fn failed_peer_takes_no_room() {
    let gets: fn(&mut Job) = |job| (0..2).for_each(|at| job.get(0, 1, 4096 * at, 1000).unwrap());
    let puts: fn(&mut Job) = |job| (0..2).for_each(|at| job.put(0, 1, 1000 * at, 1000).unwrap());
    let messages: fn(&mut Job) = |job| {
        (0..600).for_each(|_| job.inc(0, 1, 4096));
        job.fetch(0, 1, 4096).unwrap();
    };
    let bytes: Vec<u8> = (0..3000).map(|at| (at / 1000 + 1) as u8).collect();
    for (staged, begin, are_kept) in
        [(HEAP_OF_1, gets, false), (SCRATCH_OF_0 | HEAP_OF_1, puts, true), (0, messages, false)]
    {
        let mut job = Job::new(2, &narrow(staged), CALM);
        job.fill_scratch(0, &bytes);
        begin(&mut job);
        job.put(0, 2, 2000, 1000).unwrap();
        let failed = quiet(&mut job, &[0], 1);
        assert!(matches!(failed, Err(EngineError::Timeout { pe: Pe(1), .. })), "{failed:?}");
        quiet(&mut job, &[0], 2).unwrap();
        assert_eq!(job.heap(2, 2000, 1000), [3; 1000]);
        iterate(&mut job, &[0]);
        assert_eq!(job.lane(0).has_work(), are_kept, "{staged:b}");
        job.fill_scratch(0, &[0x77; 8192]);
        iterate(&mut job, &[0, 1, 2]);
        assert!(!job.lane(0).has_work(), "{staged:b}");
        assert_eq!(job.scratch(0, 0, 8192), [0x77; 8192], "it is the program's again");
        assert!(!are_kept || job.heap(1, 0, 2000) == bytes[..2000]);
    }
}

/// A peer that has asked for bytes and does not take them, or to which the fabric takes nothing:
/// PE 0 has nothing else to do with it, and finds out.
#[test]
fn peer_taking_no_answers_fails() {
    for is_refused in [false, true] {
        let mut job = Job::new(2, &narrow(HEAP_OF_0), CALM);
        job.get(1, 0, 0, 1000).unwrap();
        job.members[1].lane.progress().unwrap();
        job.fabric.refuse(Pe(1), is_refused);
        let failed = (0..10_000).find_map(|_| {
            job.fabric.pass_time(2_000_000);
            job.members[0].lane.progress().err()
        });
        let failed = failed.expect("it finds out");
        let is_named =
            matches!(*failed, EngineError::Timeout { pe: Pe(1), what: "answer to a get", .. });
        assert!(is_named, "{failed}");
        iterate(&mut job, &[0]);
        // What has left it may still read.
        assert_eq!(job.lane(0).has_work(), !is_refused);
        iterate(&mut job, &[0, 1]);
        assert!(!job.lane(0).has_work(), "it has read it");
    }
}

#[test]
fn wait_for_lost_room_fails() {
    let mut job = Job::new(4, &narrow(0), CALM);
    job.fabric.stall(Pe(1));
    for pe in [1, 2] {
        job.put_value(0, pe, 0, 1).unwrap();
    }
    for pe in [1, 2] {
        let failed = quiet(&mut job, &[0], pe);
        let expected = if pe == 1 { "posted" } else { "queued: others hold what it waits for" };
        let is_it = |pe_of, state| pe_of == Pe(pe) && state == expected;
        assert!(matches!(failed, Err(EngineError::Timeout { pe, state, .. }) if is_it(pe, state)));
    }
}

/// A peer that lives, and for which the fabric has no room on any rail: its operations go from one
/// rail to the other, and those of another peer end, which is no movement of its own.
#[test]
fn changing_rails_is_no_movement() {
    for staged in [0, SCRATCH_OF_0] {
        let mut job = Job::with(Shape { rails: 2, ..narrow(staged) });
        job.fabric.refuse(Pe(1), true);
        job.put(0, 1, 0, 1000).unwrap();
        let failed = loop {
            // It may be told that the lane has failed.
            let _ = job.put_value(0, 2, 0, 1);
            match job.is_quiet(0, 1) {
                Ok(quiet) => assert!(!quiet),
                Err(failed) => break failed,
            }
            job.iterate_slowly(&[0, 1, 2], 1, 2_000_000);
            let now = Duration::from_nanos(job.fabric.now());
            assert!(now < 2 * DEADLINE, "staged {staged}: {now:?}");
        };
        assert!(matches!(failed, EngineError::Timeout { pe: Pe(1), .. }), "{failed}");
    }
}

/// The target of a staged put reads it, which no order group counts.
#[test]
fn reads_from_silent_peer_end() {
    let mut job = Job::with(Shape { staged: 0b1111, shared: 0, deadline: Some(DEADLINE), ..PLAIN });
    job.put(0, 1, 0, 5000).unwrap();
    // The peer stops as soon as its bytes are being read.
    job.progress_until(&[0, 1], |job| job.counted(1, |rail| rail.posted) > 0);
    job.fabric.stall(Pe(0));
    job.iterate_slowly(&[1], 140, 100_000_000);
    let failed = job.put_value(1, 0, 0, 1);
    assert!(matches!(failed, Err(EngineError::Timeout { pe: Pe(0), .. })), "{failed:?}");
}
