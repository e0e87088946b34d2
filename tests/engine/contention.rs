//! Little room: what operations of different kinds, and to different peers, do to one another when
//! some find none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::prelude::*;

/// A failed lane tries for a while to tell its peers, and not at each call again.
#[test]
fn failed_lane_waits_once() {
    let failed = |connecting, refuses| {
        let mut job = Job::new(1, &PLAIN, Script { connecting: (connecting, connecting), ..CALM });
        job.release_heap(0);
        job.inc(1, 0, 0);
        job.iterate_some(&[1], 3000);
        job.fabric.refuse(Pe(1), refuses);
        let mut before = job.fabric.now();
        while job.members[0].lane.progress().is_ok() {
            before = job.fabric.now();
        }
        let waited = job.fabric.now() - before;
        (job, waited)
    };
    let (mut job, waited) = failed(1_000_000, false);
    assert!(waited < 100_000_000, "{waited} ns, and PE 1 was told");
    let told = job.settle(&[1], (1, 0), 1000);
    assert!(matches!(told, Err(EngineError::PeerRefused { .. })), "{told:?}");
    let (mut job, _) = failed(0, true);
    let before = job.fabric.now();
    for _ in 0..10 {
        job.members[0].lane.progress().unwrap_err();
    }
    let waited = job.fabric.now() - before;
    assert!(waited < 100_000_000, "{waited} ns in ten calls");
}

/// Messages of the fast path keep to the window, and leave slots to other peers.
#[test]
fn silent_peers_hold_few_slots() {
    let mut job = Job::with(Shape { n_pes: 14, fast: true, heap: 64, ..PLAIN });
    let held = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13].map(|pe| {
        assert!(job.lane(0).has_room());
        (0..2).for_each(|_| job.inc(0, pe, 0));
        job.until_quiet(0, pe);
        job.fabric.stall(Pe(pe));
        let add = job.targets.atomic(pe, 0, AtomicOp::Inc, 0);
        (0..1000).take_while(|_| job.members[0].lane.try_atomic(&add)).count()
    });
    assert_eq!(held, [512, 512, 512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 1]);
    assert!(!job.lane(0).has_room());
}

/// A long operation is queued at once, and behind it one that cannot be done is an error at once.
#[test]
fn long_operations_are_queued_at_once() {
    let mut job = Job::with(Shape { rails: 1, depth: 2, max_segment: 64, ..PLAIN });
    job.fabric.stall(Pe(1));
    let before = job.fabric.now();
    job.put(0, 1, 0, 4096).unwrap();
    job.put(0, 1, 8192, 64).unwrap();
    let waited = job.fabric.now() - before;
    assert!(waited < 100_000 && job.lane(0).pending(Pe(1)) == 2, "{waited} ns");
    let part = job.targets.part(job.members[0].scratch + job.heap - 8, 1, 0, 64);
    let refused = job.members[0].lane.start(&part).unwrap_err();
    assert!(refused.to_string().contains("not inside the region"), "{refused}");
    job.fabric.resume(Pe(1));
    job.quiet(0, 1).unwrap();
}

/// A submitter that finds the queues full gives up once another thread says so.
#[test]
fn abandoned_submitters_give_up() {
    let mut job = Job::with(Shape { n_pes: 6, ..PLAIN });
    let flag = Arc::new(AtomicBool::new(false));
    job.lane(0).set_abandon(Arc::clone(&flag));
    job.fabric.refuse(Pe(1), true);
    job.put_value(0, 1, 0, 1).unwrap();
    flag.store(true, Ordering::Relaxed);
    let given_up = (0..5000).find_map(|_| job.put_value(0, 1, 0, 1).err());
    assert!(given_up.is_some_and(|error| error == EngineError::Abandoned && !error.is_in_use()));
    assert_eq!(job.lane(0).pending(Pe(1)), 2048);
    for pe in 2..=4 {
        job.fabric.refuse(Pe(pe), true);
        flag.store(false, Ordering::Relaxed);
        job.put_value(0, pe, 0, 1).unwrap();
        flag.store(true, Ordering::Relaxed);
        while job.put_value(0, pe, 0, 1).is_ok() {}
    }
    let lane = job.lane(0);
    assert!(lane.is_saturated(Pe(4)) && !lane.is_saturated(Pe(5)), "it has nothing queued");
}

/// Nothing else of its peer is left to wake a put that had to wait for space.
#[test]
fn put_leaves_after_wait_for_space() {
    let mut job = Job::with(Shape { n_pes: 14, rails: 1, ..PLAIN });
    let mut queued = 0;
    for pe in 1..13 {
        job.fabric.refuse(Pe(pe), true);
        while queued + job.lane(0).pending(Pe(pe)) < 4095 {
            job.put_value(0, pe, 0, 1).unwrap();
            queued += 1;
        }
    }
    job.put_value(0, 13, 0, 1).unwrap();
    job.fence(0, 13);
    (1..3).for_each(|at| job.put_value(0, 13, 8 * at, 1).unwrap());
    job.settle(&[0], (0, 13), 1000).unwrap();
    assert_eq!((queued, job.heap(13, 16, 8)), (4095, 1_u64.to_le_bytes().to_vec()));
}

/// More of anything than there are places for, to a PE that does nothing, or for which the fabric
/// has no room, as while it connects: the calls return, other PEs are served, and when the PE goes
/// on, all of it is done, in order.
#[test]
fn stopped_peer_delays_no_other() {
    const MANY: usize = 1500;
    for (case, refuses) in (0..5).flat_map(|case| [(case, false), (case, true)]) {
        let signals = if case == 1 { SignalChoice::Counted } else { SignalChoice::Auto };
        let mut job = Job::with(Shape { n_pes: 3, heap: 1 << 16, signals, ..PLAIN });
        job.fill_scratch(0, &[0x5a; 1 << 15]);
        if refuses {
            // PE 0 owes it a reply and an acknowledgement.
            job.fetch(1, 0, 0).unwrap();
            job.fabric.refuse(Pe(1), true);
            job.progress_until(&[0], |job| job.word(0, 0) == 1);
        } else {
            job.fabric.stall(Pe(1));
        }
        for number in 0..MANY {
            let at = number * 16 % (1 << 15);
            match case {
                0 => job.fetch(0, 1, 1 << 15),
                1 => job.put_signal(0, 1, &[(at, 300)], 1 << 15),
                2 => job.put_signal(0, 1, &[(at, 16)], 1 << 15),
                3 => job.put(0, 1, at, 16),
                _ => job.amo(0, 1, 1 << 15, AtomicOp::SignalAdd, 1),
            }
            .unwrap_or_else(|error| panic!("{case}: {error}"));
            if number == MANY / 2 {
                job.fence(0, 1);
            }
        }
        job.put_value(0, 2, 0, 7).unwrap();
        job.fetch(0, 2, 8).unwrap();
        job.fetch(2, 0, 16).unwrap();
        job.progress_until(&[0, 2], |job| job.is_quiet(2, 0).unwrap());
        job.progress_until(&[0, 2], |job| job.is_quiet(0, 2).unwrap());
        assert_eq!(job.heap(2, 0, 8), 7u64.to_le_bytes());
        assert!(!job.is_quiet(0, 1).unwrap(), "{case}");
        job.fabric.resume(Pe(1));
        job.fabric.refuse(Pe(1), false);
        job.progress_until(&[0, 1], |job| job.is_quiet(0, 1).unwrap());
        job.progress_until(&[0, 1], |job| job.is_quiet(1, 0).unwrap());
        if case != 3 {
            assert_eq!(job.word(1, 1 << 15), MANY as u64, "{case}");
        }
        assert!(!job.lane(0).has_work());
    }
}

/// Operations of the proxy thread for the same PE that are pending at a faster pace than it takes
/// them, so that there are always some: what user threads have handed over has its turn all the
/// same, in its order, and passes what is for a PE that has stopped.
#[test]
fn user_threads_get_their_turn() {
    let shape = Shape { n_pes: 3, staged: u32::MAX, heap: 1 << 14, bounce: (1000, 4, 4), ..PLAIN };
    let (mut job, host) = Job::new(1, &shape, Script { delay: (500_000, 1_000_000), ..CALM })
        .with_user_threads(PATIENCE);
    let put = |job: &Job, pe: u32, at: usize, fill: u8, len: usize| {
        let from = job.members[0].scratch + 256 * usize::from(fill);
        job.fabric.store(Pe(0), from, &vec![fill; len]);
        host.start(&job.targets.part(from, pe, at, len)).unwrap();
    };
    job.fabric.stall(Pe(2));
    (0..50).for_each(|_| put(&job, 2, 0, 20, 4000));
    let goes_on = |job: &mut Job| {
        while job.lane(0).pending(Pe(1)) < 32 {
            job.fetch(0, 1, 0).unwrap();
        }
        job.fabric.pass_time(100_000);
        for pe in [0, 1, 0, 1, 0, 1, 0, 1] {
            job.progress(pe, 1);
        }
        assert!(job.lane(0).pending(Pe(1)) > 0, "or it is no test");
    };
    goes_on(&mut job);
    // A short put, a long one and, after a fence, another to the same bytes.
    put(&job, 1, 1024, 1, 8);
    put(&job, 1, 2048, 2, 3000);
    host.fence(Pe(1)).unwrap();
    put(&job, 1, 2048, 3, 3000);
    let done = |job: &Job| job.heap(1, 1024, 8) == [1; 8] && job.heap(1, 2048, 3000) == [3; 3000];
    let mut turns = 0;
    while !done(&job) {
        goes_on(&mut job);
        turns += 1;
        assert!(turns < 2000, "user threads wait for as long as somebody else goes on");
    }
    assert!(job.heap(2, 0, 4000) == [0; 4000]);
    job.fabric.resume(Pe(2));
    while job.lane(0).has_work() {
        job.iterate_slowly(&[0, 1, 2], 10, 100_000);
    }
    host.quiet(Pe(2)).unwrap();
    assert!(job.heap(2, 0, 4000) == [20; 4000]);
    assert!(done(&job), "and nothing comes behind what was behind the fence");
}

fn put_on(job: &mut Job, number: usize) {
    job.put(0, 1, number % 64 * 16, 16).unwrap();
}

/// The first call without a place waits, since a peer that keeps up frees one; later ones do not.
#[test]
fn callers_wait_once_for_a_place() {
    for counted in [false, true] {
        let mut job = Job::with(Shape { signals: SignalChoice::Counted, ..PLAIN });
        let waited = (0..20).map(|_| {
            let start = job.fabric.now();
            let started = match counted {
                true => job.put_signal(0, 1, &[(64, 200)], 8),
                false => job.fetch(0, 1, 0),
            };
            started.unwrap();
            job.fabric.now() - start >= 1_000_000
        });
        let waited: Vec<bool> = waited.collect();
        let first = waited.iter().position(|waited| *waited);
        assert_eq!(first, Some(16), "counted: {counted}");
        assert_eq!(waited.iter().filter(|waited| **waited).count(), 1, "counted: {counted}");
        assert_eq!(job.lane(0).pending(Pe(1)), 4, "counted: {counted}");
        job.progress_until(&[0, 1], |job| job.is_quiet(0, 1).unwrap());
    }
}

/// Operations of a PE that goes on are pending until it has caught up, though more come.
#[test]
fn parking_ends_under_load() {
    for many in [20, 60, 2000] {
        let shape = Shape { rails: 1, depth: 16, ..PLAIN };
        let mut job = Job::new(1, &shape, Script { delay: (1_000, 1_000), ..CALM });
        job.fabric.stall(Pe(1));
        for number in 0..many {
            put_on(&mut job, number);
        }
        let pending = job.lane(0).pending(Pe(1));
        assert!(pending > 0 && pending >= many - 16, "{pending} of {many}");
        job.fabric.resume(Pe(1));
        let mut calls = 0;
        while job.lane(0).pending(Pe(1)) > 0 {
            put_on(&mut job, calls);
            job.fabric.pass_time(100);
            calls += 1;
            assert!(calls <= pending + 32, "{} left after {calls}", job.lane(0).pending(Pe(1)));
        }
        job.progress_until(&[0, 1], |job| job.is_quiet(0, 1).unwrap());
    }
}

#[test]
fn batch_ends_while_others_go_on() {
    for_seeds("batch_ends_while_others_go_on", &[], 40, |seed| {
        let mut random = Random::new(seed * 0x9e37_79b9 + 21);
        // Not staged: that takes many trips, and each waits behind all that the others post.
        let shape = Shape { n_pes: 2, staged: 0, ..random_shape(&mut random) };
        // Nor through a queue with one place for everything: that cannot be shared out, and waits
        // for as long as others keep it busy.
        let script = Script { delay: (1_000, 50_000), ..random_script(&mut random) };
        let mut job = Job::new(seed, &Shape { depth: shape.depth.max(3), ..shape }, script);
        let mut words = Vec::new();
        let (batch, ()) = job.in_batch(|job| {
            for at in (0..6).map(|number| number * 1024) {
                let len = [1, 8, 60, 200, 900][random.below(5)];
                let kind = random.below(4);
                match kind {
                    0 => job.put(0, 1, at + 64, len),
                    1 => job.get(0, 1, at + 64, len),
                    2 => job.fetch(0, 1, at),
                    _ => job.put_signal(0, 1, &[(at + 64, len)], at),
                }
                .unwrap();
                words.extend((kind > 1).then_some(at));
            }
        });
        let mut iterations = 0;
        while !job.lane(0).is_batch_done(batch) {
            job.put(0, 1, 64 << 10, 40).unwrap();
            job.amo(0, 1, 100 << 10, AtomicOp::Add, 1).unwrap();
            job.progress(0, 1);
            job.progress(1, 1);
            job.fabric.pass_time(200_000);
            job.lane(0).request_acks();
            iterations += 1;
            assert!(iterations < 20_000, "the batch does not end");
        }
        assert!(words.iter().all(|at| job.word(1, *at) == 1), "the words of {words:?}");
        job.lane(0).end_batch(batch);
        assert_eq!(job.lane(0).begin_batch(), Some(batch), "it is free again");
        job.until_quiet(0, 1);
    });
}

#[test]
fn refused_signal_is_work() {
    let mut job = Job::with(Shape { signals: SignalChoice::Chained, ..PLAIN });
    job.put_signal(0, 1, &[(64, 5000)], 0).unwrap();
    job.fabric.refuse(Pe(1), true);
    job.iterate_some(&[0, 1], 100);
    assert!(job.members[0].lane.has_work(), "the signal has not left");
    job.fabric.refuse(Pe(1), false);
    job.progress_until(&[0, 1], |job| job.word(1, 0) == 1);
}

/// Queued puts and due replies, where a transmit queue has one entry and neither ends.
#[test]
fn replies_and_puts_take_turns() {
    let shape = Shape { n_pes: 3, rails: 1, depth: 1, ..PLAIN };
    // With constant delays the entry is free in every second iteration.
    for delay in [(1000, 3000), (1000, 1000)] {
        let mut job = Job::new(1, &shape, Script { shared_queue: true, delay, ..CALM });
        job.fabric.refuse(Pe(1), true);
        (0..1000).for_each(|number| put_on(&mut job, number));
        job.fabric.refuse(Pe(1), false);
        for _ in 0..1000 {
            if job.lane(2).pending(Pe(0)) < 4 {
                job.fetch(2, 0, 0).unwrap();
            }
            job.iterate_some(&[0, 2], 1);
        }
        let (fetched, left) = (job.word(0, 0), job.lane(0).pending(Pe(1)));
        assert!(fetched > 100 && (1..900).contains(&left), "{fetched} fetched, {left} puts left");
    }
}

/// As above, with the reads of a peer's staged put, which has many segments.
#[test]
fn staged_reads_take_turns() {
    let shape = Shape { n_pes: 4, rails: 1, depth: 1, max_segment: 64, ..PLAIN };
    // PE 0's heap, and PE 2's scratch memory.
    let shape = Shape { staged: 0b10_0001, bounce: (1 << 16, 1, 1), ..shape };
    for (delay, puts) in [((1000, 3000), 0), ((1000, 1000), 0), ((1000, 3000), 1000)] {
        let mut job = Job::new(1, &shape, Script { shared_queue: true, delay, ..CALM });
        job.fabric.refuse(Pe(1), true);
        (0..puts).for_each(|number| put_on(&mut job, number));
        job.put(2, 0, 8, 64_000).unwrap();
        job.fabric.refuse(Pe(1), false);
        for _ in 0..1000 {
            if job.lane(3).pending(Pe(0)) < 4 {
                job.fetch(3, 0, 0).unwrap();
            }
            job.iterate_some(&[0, 2, 3], 1);
        }
        let deliveries = job.fabric.deliveries();
        let read = deliveries.iter().filter(|of| of.direction == Direction::Read).count();
        let (fetched, left) = (job.word(0, 0), job.lane(0).pending(Pe(1)));
        let case = format!("{fetched} fetched, {read} segments read, {left} of {puts} puts left");
        assert!(fetched > 50 && read > 50 && !job.is_quiet(2, 0).unwrap(), "{case}");
        assert!(puts == 0 || (1..puts - 50).contains(&left), "{case}");
    }
}

#[test]
fn waiting_submitter_ignores_others_failures() {
    let mut job = Job::with(Shape { n_pes: 3, ..PLAIN });
    job.fabric.fail_calls(PortCall::Deliver, 0, 1);
    job.put_value(0, 2, 0, 1).unwrap();
    job.fabric.refuse(Pe(1), true);
    job.put_value(0, 1, 0, 7).unwrap();
    assert!(job.lane(0).failure().is_some(), "it has failed meanwhile");
}

/// An acknowledgement finds no place free; the replies that come after it do.
#[test]
fn late_replies_free_places() {
    let mut job = Job::with(Shape { rails: 1, ..PLAIN });
    (0..20).for_each(|_| job.fetch(0, 1, 0).unwrap());
    job.fabric.hold_up_messages(Pe(1), 1_000_000);
    job.progress_until(&[1], |job| job.word(1, 0) == 16);
    job.iterate_slowly(&[1], 10, 0);
    job.fabric.hold_up_messages(Pe(1), 0);
    job.inc(1, 0, 0);
    assert_eq!(job.settle(&[0, 1], (0, 1), 1000), Ok(()));
    assert!(job.fabric.now() < 100_000_000, "the watchdog alone has woken it");
}
