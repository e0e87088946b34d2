//! Interleavings that few random schedules come to.

use crate::prelude::*;

const DEADLINE: Duration = Duration::from_secs(10);

/// No operation is queued behind the signal whose acknowledgement would make it leave.
#[test]
fn held_signal_leaves_when_window_opens() {
    const WINDOW: usize = 512;
    let mut job = Job::with(PLAIN);
    job.fabric.stall(Pe(1));
    job.put_value(0, 1, 64, 7).unwrap();
    job.amo(0, 1, 0, AtomicOp::SignalAdd, 1).unwrap();
    (0..WINDOW).for_each(|_| job.inc(0, 1, 8));
    assert_eq!(job.lane(0).pending(Pe(1)), 0);
    job.fabric.resume(Pe(1));
    // The put ends while the window is full.
    job.iterate_some(&[0], 200);
    assert_eq!(job.settle(&[0, 1], (0, 1), 1000), Ok(()));
    assert_eq!(job.word(1, 0), 1);
}

/// Even if the request overtakes the message, or the fabric refuses the acknowledgement at first.
#[test]
fn later_messages_are_acknowledged() {
    for overtakes in [true, false] {
        let mut job = Job::with(Shape { signals: SignalChoice::Counted, ..PLAIN });
        // Its data does not arrive.
        job.fabric.hold_immediate_data(true);
        job.put_signal(0, 1, &[(64, 300)], 0).unwrap();
        job.iterate_some(&[0, 1], 200);
        job.fabric.hold_up_messages(Pe(0), if overtakes { 1_000_000 } else { 0 });
        let (batch, ()) = job.in_batch(|job| job.inc(0, 1, 8));
        job.fabric.hold_up_messages(Pe(0), 0);
        job.lane(0).request_acks();
        if !overtakes {
            job.iterate_some(&[0], 200);
            job.fabric.refuse(Pe(0), true);
            job.iterate_some(&[1], 200);
            job.fabric.refuse(Pe(0), false);
            job.inc(1, 0, 8);
        }
        job.iterate_some(&[0, 1], 2000);
        assert_eq!(job.word(1, 8), 1);
        assert!(job.lane(0).is_batch_done(batch), "its acknowledgement waits, or is lost");
        job.fabric.hold_immediate_data(false);
        assert_eq!(job.settle(&[0, 1], (0, 1), 1000), Ok(()));
    }
}

/// More fences than groups: those behind wait for no watchdog.
#[test]
fn exhausted_groups_ask_for_acks() {
    let mut job = Job::with(PLAIN);
    for _ in 0..40 {
        job.inc(0, 1, 8);
        job.fence(0, 1);
    }
    job.put_value(0, 1, 64, 7).unwrap();
    let before = job.fabric.now();
    while job.heap(1, 64, 8) != 7_u64.to_le_bytes() {
        job.iterate_some(&[0, 1], 1);
        assert!(job.fabric.now() - before < 10_000_000, "nobody has asked");
    }
}

#[test]
fn blocking_calls_time_out() {
    for direction in [Direction::Write, Direction::Read] {
        let mut job = Job::with(Shape { staged: 0b10, deadline: Some(DEADLINE), ..PLAIN });
        job.fabric.stall(Pe(1));
        let part = job.targets.part(job.members[0].scratch, 1, 64, 1000);
        let ended = job.members[0].lane.complete(&Request { direction, ..part });
        assert!(matches!(ended, Err(EngineError::Timeout { pe: Pe(1), .. })), "{ended:?}");
    }
}

/// A part of it has left; the rest finds no place in the queues of a failed lane.
#[test]
fn half_started_put_ends() {
    /// Each peer leaves half of the places to others.
    const PES: u32 = 18;
    let mut job = Job::with(Shape {
        n_pes: PES,
        rails: 1,
        depth: 1,
        max_segment: 64,
        signals: SignalChoice::Chained,
        deadline: Some(DEADLINE),
        ..PLAIN
    });
    job.fabric.fail_calls(PortCall::Deliver, 0, 1);
    job.put_value(0, 1, 0, 1).unwrap();
    assert!(job.quiet(0, 1).is_err());
    for pe in 3..PES {
        job.fabric.refuse(Pe(pe), true);
        while job.put_value(0, pe, 0, 1).is_ok() {}
    }
    let (batch, put) = job.in_batch(|job| job.put_signal(0, 2, &[(64, 256)], 0));
    assert!(put.is_err());
    job.iterate_some(&[0, 2], 1000);
    assert!(job.members[0].lane.is_batch_done(batch), "it is counted for ever");
    assert_eq!(job.word(2, 0), 0);
    assert!(job.quiet(0, 2).is_err());
}

/// The owner has executed what asked for the bytes, and given up who asked: nothing is under way
/// that anybody would acknowledge, and others go on.
#[test]
fn unanswered_get_times_out() {
    let mut job = Job::with(Shape {
        n_pes: 4,
        staged: 0b1100,
        bounce: (1024, 1, 1),
        deadline: Some(DEADLINE),
        ..PLAIN
    });
    // The only bounce buffer of PE 1.
    job.fabric.stall(Pe(2));
    job.put(1, 2, 0, 1000).unwrap();
    job.iterate_some(&[1], 200);
    job.get(0, 1, 0, 1000).unwrap();
    job.iterate_some(&[0, 1], 200);
    job.members[0].lane.request_acks();
    job.iterate_some(&[0, 1], 200);
    job.fabric.fail_calls(PortCall::Post, 0, 1);
    assert!(job.put_value(1, 0, 0, 1).is_err());
    let began = job.fabric.now();
    let failed = loop {
        if let Err(failed) = job.is_quiet(0, 1) {
            break failed;
        }
        job.inc(0, 3, 0);
        job.iterate_some(&[0, 1, 3], 20);
        job.fabric.pass_time(50_000_000);
        let waited = Duration::from_nanos(job.fabric.now() - began);
        assert!(waited < 2 * DEADLINE, "it waits for ever");
    };
    assert!(matches!(failed, EngineError::Timeout { pe: Pe(1), what: "get", .. }), "{failed}");
}

#[test]
fn half_a_window_is_acknowledged_unasked() {
    for (messages, answers) in [(255, 0), (256, 1)] {
        let mut job = Job::with(Shape { rails: 1, ..PLAIN });
        job.fabric.trace_calls();
        (0..messages).for_each(|_| job.inc(0, 1, 8));
        job.progress_until(&[1], |job| job.word(1, 8) == messages);
        assert_eq!(job.posts(1), answers, "{messages}");
    }
}

/// Its segments found no room, and nobody reads its bounce buffer.
#[test]
fn dropped_put_frees_its_buffer() {
    let mut job = Job::with(Shape {
        n_pes: 3,
        staged: 0b01,
        bounce: (1024, 1, 1),
        rails: 1,
        deadline: Some(DEADLINE),
        ..PLAIN
    });
    job.fabric.refuse(Pe(1), true);
    let base = job.members[0].base;
    let put = |job: &mut Job, pe| {
        job.members[0].lane.start(&job.targets.part(base, pe, 64, 1000)).unwrap();
    };
    put(&mut job, 1);
    job.settle(&[0], (0, 1), 50_000_000).unwrap_err();
    put(&mut job, 2);
    assert_eq!(job.settle(&[0, 2], (0, 2), 1000), Ok(()));
}
