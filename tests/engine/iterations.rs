//! Iterations of the loop: the order of things inside one.

use crate::prelude::*;
use crate::staged::ALL;

/// Who waits for one peer after the other waits once: all are asked at the first.
#[test]
fn quiet_of_many_peers() {
    let iterations = |peers: u32| {
        let mut job = Job::with(Shape { n_pes: 33, rails: 1, heap: 64, ..PLAIN });
        for pe in 1..=peers {
            job.inc(0, pe, 0);
        }
        let mut iterations = 0_u32;
        for pe in 1..=peers {
            while !job.is_quiet(0, pe).unwrap() {
                job.iterate();
                iterations += 1;
            }
        }
        iterations
    };
    let (one, all) = (iterations(1), iterations(32));
    println!("MEASURE quiet_32_peers_over_1 {:.3} ratio", f64::from(all) / f64::from(one));
    assert!(all <= one + one / 2, "{all} iterations for 32 peers, and {one} for one");
}

/// What an iteration has posted or sent may end at once, so nobody rests after it.
#[test]
fn posting_iterations_are_busy() {
    let iterate = |job: &mut Job| job.lane(0).progress().unwrap();
    let mut job = Job::with(Shape { rails: 1, ..PLAIN });
    assert!(!iterate(&mut job), "nothing was ever started");
    job.fabric.refuse(Pe(1), true);
    job.put_value(0, 1, 0, 7).unwrap();
    assert!(!iterate(&mut job), "it waits for its peer");
    job.fabric.refuse(Pe(1), false);
    assert!(iterate(&mut job), "it is posted");
    job.quiet(0, 1).unwrap();
    job.inc(0, 1, 0);
    assert!(!iterate(&mut job), "it has left already");
    job.lane(0).request_acks();
    assert!(iterate(&mut job), "the peer is asked");

    // A held signal, and what PE 2 is asked beside a put that PE 1 does not take.
    let mut job = Job::with(Shape { n_pes: 3, ..PLAIN });
    job.put_value(0, 1, 0, 7).unwrap();
    job.amo(0, 1, 8, AtomicOp::SignalAdd, 1).unwrap();
    job.fabric.refuse(Pe(1), true);
    job.progress_until(&[0], |job| job.fabric.in_flight() == 0);
    while iterate(&mut job) {}
    job.fabric.refuse(Pe(1), false);
    assert!(iterate(&mut job), "the signal leaves");
    job.fabric.refuse(Pe(1), true);
    let tried = |job: &Job| job.members[0].lane.counters().map(|r| r.again).collect::<Vec<_>>();
    let (before, queued) = (tried(&job), job.counted(0, |rail| rail.queued));
    job.put_value(0, 1, 16, 7).unwrap();
    assert!(tried(&job).iter().zip(before).all(|(now, before)| *now > before), "on each rail");
    assert_eq!(job.counted(0, |rail| rail.queued), queued + 1);
    for _ in 0..2 {
        job.inc(0, 2, 0);
        job.lane(0).request_acks();
        assert!(iterate(&mut job), "PE 2 is asked");
    }

    let shape = PLAIN;
    let (mut job, host) = Job::new(1, &shape, CALM).with_user_threads(PATIENCE);
    let host = host.with_detours([Pe(1)]);
    host.start(&job.targets.part(job.members[0].scratch, 1, 0, 64)).unwrap();
    assert!(iterate(&mut job), "it was handed over");
}

/// An iteration asks in vain for a few peers; the others are next.
#[test]
fn failed_sends_per_iteration_are_bounded() {
    const PES: u32 = 13;
    const MOST: u64 = 8;
    let shape = Shape { n_pes: PES, rails: 1, heap: 64, ..PLAIN };
    let refused_in_a_turn = |job: &mut Job| {
        (1..PES).for_each(|pe| job.fabric.refuse(Pe(pe), true));
        let before = job.counted(0, |rail| rail.again);
        job.progress(0, 1);
        job.counted(0, |rail| rail.again) - before
    };
    let mut asks = Job::new(1, &shape, CALM);
    (1..PES).for_each(|pe| asks.inc(0, pe, 0));
    asks.lane(0).request_acks();
    assert_eq!(refused_in_a_turn(&mut asks), MOST);

    let mut answers = Job::new(1, &shape, CALM);
    (1..PES).for_each(|pe| answers.fetch(pe, 0, 0).unwrap());
    answers.fabric.pass_time(1_000_000_000);
    assert_eq!(refused_in_a_turn(&mut answers), MOST);

    for staged in [0, ALL] {
        let mut puts =
            Job::with(Shape { staged, bounce: (1024, 16, 16), heap: 4096, ..shape.clone() });
        (1..PES).for_each(|pe| puts.fabric.refuse(Pe(pe), true));
        (1..PES).for_each(|pe| puts.put(0, pe, 0, 1000).unwrap());
        puts.iterate_some(&[0], 200);
        assert_eq!(refused_in_a_turn(&mut puts), MOST, "{staged:b}");
    }
}

/// However many are acknowledged together, with one message.
#[test]
fn acknowledged_messages_free_their_slots() {
    const ROUNDS: u64 = 40;
    let mut job = Job::with(Shape { rails: 1, ..PLAIN });
    job.fabric.trace_calls();
    job.inc(1, 0, 0);
    for _ in 0..ROUNDS {
        (0..100).for_each(|_| job.inc(0, 1, 0));
        assert_eq!(job.settle(&[0, 1], (0, 1), 1000), Ok(()));
    }
    assert_eq!(job.word(1, 0), 100 * ROUNDS);
    let posts = job.posts(1);
    assert!(posts <= ROUNDS as usize + 2, "{posts} messages of PE 1");
}

/// Puts of PE 0 a second of the fabric's clock, where of a hundred calls so many find no room. Time
/// passes with each poll alone, so what has to be tried again takes time.
fn rate(seed: u64, again_percent: u32) -> f64 {
    const PUTS: u32 = 20_000;
    let script = Script { again_percent, ..CALM };
    let mut job = Job::new(seed, &Shape { needs_desc: false, ..PLAIN }, script);
    for _ in 0..PUTS {
        job.put(0, 1, 0, 8).unwrap();
        job.progress(0, 1);
    }
    while !job.is_quiet(0, 1).unwrap() {
        job.progress(0, 1);
    }
    f64::from(PUTS) * 1e9 / job.fabric.now() as f64
}

/// Where one call in ten finds no room, others go on meanwhile.
#[test]
fn refusals_cost_little_message_rate() {
    for_seeds("storm_rate_over_calm", &[], 2, |seed| {
        let ratio = rate(seed, 10) / rate(seed, 0);
        println!("MEASURE storm_rate_over_calm {ratio:.3} ratio");
        assert!(ratio >= 0.8, "{ratio}");
    });
}

/// Another thread that looks whether the lane's thread lives must not take a long wait for a stall.
#[test]
fn waits_count_their_iterations() {
    let mut job = Job::with(PLAIN);
    let pulse = job.lane(0).pulse();
    job.put(0, 1, 0, 8).unwrap();
    assert_eq!(pulse.count(), 0);
    job.quiet(0, 1).unwrap();
    let count = pulse.count();
    assert!(count > 0 && count % 2 == 0, "{count}");
}
