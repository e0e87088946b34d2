//! Puts and gets of staged memory: that every byte arrives, who is told of what fails, and user
//! threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Instant;

use super::{ALL, fill, patterned};
use crate::prelude::*;

#[test]
fn words_are_stored_together() {
    const WORDS: usize = 64;
    let mut job = Job::with(Shape { staged: ALL, heap: 1 << 14, ..PLAIN });
    for at in 0..WORDS {
        // Apart, so that each is a message.
        job.put_value(0, 1, 16 * at, at as u64 + 1).unwrap();
    }
    job.progress(0, 3);
    // All of them are there before PE 1 looks.
    job.fabric.pass_time(1_000_000_000);
    job.until_quiet(0, 1);
    (0..WORDS).for_each(|at| assert_eq!(job.word(1, 16 * at), at as u64 + 1));
    let settled = job.fabric.world().settled;
    assert!((1..=8).contains(&settled), "{WORDS} words in {settled} calls");
}

/// Here or at the peer, it is an error of this PE about that peer.
#[test]
fn failed_copy_names_its_peer() {
    const HERE: &str = "staging the local side failed";
    const THERE: &str = "the peer cannot do its part";
    // Copies go out of the source, and into the target.
    for (begin, after, parts) in [
        (Job::put as fn(&mut Job, u32, u32, usize, usize) -> Outcome, 0, ["put of 1000", HERE]),
        (Job::put, 1, ["", THERE]),
        (Job::get, 0, ["get of 1000", THERE]),
        (Job::get, 1, ["get of 1000", HERE]),
    ] {
        let mut job = Job::with(Shape { staged: ALL, heap: 1 << 14, ..PLAIN });
        job.fabric.world().fail_copies = (after, 1);
        begin(&mut job, 0, 1, 0, 1000).unwrap();
        let error = job.settle(&[1, 0], (0, 1), 0).unwrap_err().to_string();
        assert!(error.contains("PE 1") && error.contains("failed by the script"), "{error}");
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        assert!(job.quiet(0, 1).is_err(), "and again at the next quiet");
    }
}

/// Messages that leave before the refusal do not acknowledge the message whose write was lost.
#[test]
fn lost_writes_are_not_acknowledged() {
    let mut job = Job::with(Shape { staged: 0b0100, rails: 1, ..PLAIN });
    job.inc(0, 1, 0);
    job.until_quiet(0, 1);
    job.inc(0, 1, 0);
    job.fabric.world().fail_settling = true;
    job.fabric.refuse(Pe(0), true);
    job.iterate_some(&[1], 100);
    job.fabric.refuse(Pe(0), false);
    job.inc(1, 0, 0);
    assert!(job.settle(&[0, 1], (0, 1), 0).is_err(), "the write was lost");
}

/// A lost write to an own word fails the PE itself, whoever completes the deferred writes.
#[test]
fn lost_own_words_are_told() {
    for by_message in [false, true] {
        let mut job = Job::with(Shape { staged: 0b0101, rails: 1, ..PLAIN });
        job.inc(0, 0, 0);
        job.until_quiet(0, 0);
        job.fabric.world().fail_settling = true;
        if by_message {
            job.inc(1, 0, 8);
            job.iterate_some(&[1], 10);
        }
        job.inc(0, 0, 0);
        let error = job.settle(&[0, 1], (0, 0), 0).unwrap_err().to_string();
        assert!(error.contains("atomic") && error.contains("PE 0"), "{error}");
        assert!(error.contains("failed by the script"), "{error}");
    }
    let mut job = Job::with(Shape { staged: 0b0101, rails: 1, ..PLAIN });
    job.inc(0, 0, 0);
    job.until_quiet(0, 0);
    job.fabric.world().fail_settling = true;
    job.inc(1, 0, 8);
    job.iterate_some(&[1, 0], 10);
    assert!(job.lane(0).failure().is_some(), "a peer's word is lost");
    assert_eq!(job.is_quiet(0, 0), Ok(true), "no own word is");
}

/// Asks, puts out of bounce buffers and reads into them, of which the first part fails.
#[test]
fn nothing_leaves_behind_failed_part() {
    for (staged, begin, call) in [
        (0b0100, Job::get as fn(&mut Job, u32, u32, usize, usize) -> Outcome, PortCall::Send),
        (0b0010, Job::put, PortCall::Post),
        (0b0010, Job::get, PortCall::Post),
    ] {
        let shape = Shape { staged, bounce: (1024, 4, 4), heap: 1 << 14, ..PLAIN };
        let mut job = Job::new(1, &shape, Script { delay: (1000, 1000), ..CALM });
        job.fabric.trace_calls();
        job.fabric.fail_calls(call, 0, 1);
        if begin(&mut job, 0, 1, 0, 4096).is_ok() {
            job.settle(&[1, 0], (0, 1), 0).unwrap_err();
        }
        job.iterate_slowly(&[0, 1], 1000, 0);
        assert_eq!(job.posts(0), 0, "{staged:b}, {call:?}");
        assert!(!job.members[0].lane.has_work());
    }
}

/// User threads whose operations go both ways, by their own lane and handed over, as the memory has
/// it: what comes behind a fence lies on top of what was before it, whichever way each went. In a
/// job without devices, what is handed over is of memory that nobody has registered.
#[test]
fn user_threads_operations_keep_order() {
    const PART: usize = 4096;
    const THREADS: usize = 4;
    for_seeds("user_threads_operations_keep_order", &[], 40, |seed| {
        let mut random = Random::new(seed * 0x2545_f491 + 5);
        let shape = Shape {
            // PE 1's heap and PE 0's local memory are of either kind.
            staged: [0, 0b0010, 0b0100, 0b0110, ALL][random.below(5)],
            needs_desc: random.below(2) == 0,
            max_segment: [64, 1000, 1 << 20][random.below(3)],
            depth: [2, 16][random.below(2)],
            fast: true,
            heap: THREADS * PART,
            rails: 1,
            ..PLAIN
        };
        let script = Script { again_percent: [0, 20][random.below(2)], ..CALM };
        let job = Job::new(seed, &shape, script);
        fill(&job, 2);
        let (Job { fabric, members, targets, heap, .. }, host) = job.with_user_threads(PATIENCE);
        let (mut scratch, base) = (members[0].scratch, members[1].base);
        if shape.staged == 0 {
            let bare = fabric.alloc(Pe(0), heap);
            fabric.store(Pe(0), bare, &fabric.load(Pe(0), scratch, heap));
            scratch = bare;
        }
        let done = AtomicBool::new(false);
        let user = |thread: usize| {
            let mut random = Random::new(seed ^ (thread as u64 + 1) << 24);
            let mine = thread * PART;
            let mut expected = vec![0; PART];
            let found = |at, len| fabric.load(Pe(1), base + mine + at, len);
            for _ in 0..24 {
                let at = random.below(PART - 8);
                let len = 1 + random.below((PART - at).min(2000));
                let from = mine + random.below(PART - len);
                let mut put = targets.part(scratch + from, 1, mine + at, len);
                let mut bytes = patterned(0, from..from + len);
                if random.below(2) == 0 {
                    let word = random.below(1 << 30) as u64 | 1 << 60;
                    (put.local, put.len) = (LocalSide::Value(word), 8);
                    bytes = word.to_le_bytes().to_vec();
                }
                expected[at..at + put.len].copy_from_slice(&bytes);
                if random.below(4) == 0 {
                    host.complete(&put)?;
                    assert!(found(at, put.len) == bytes, "thread {thread}, waited for");
                } else {
                    host.start(&put)?
                }
                host.fence(Pe(1))?;
                if random.below(6) == 0 {
                    host.quiet(Pe(1))?;
                    assert!(found(0, PART) == expected, "thread {thread}, before its end");
                }
            }
            host.quiet(Pe(1))?;
            assert!(found(0, PART) == expected, "thread {thread}");
            Ok::<(), EngineError>(())
        };
        std::thread::scope(|scope| {
            for mut member in members {
                let (fabric, done, host) = (&fabric, &done, &host);
                scope.spawn(move || {
                    // All of it: its registrations last as long as its lane.
                    let member = &mut member;
                    while !done.load(Ordering::SeqCst) {
                        member.lane.progress().unwrap();
                        // A proxy thread lends a hand.
                        host.try_progress().unwrap();
                        fabric.pass_time(100);
                        std::thread::yield_now();
                    }
                });
            }
            let user = &user;
            let users = (0..THREADS).map(|thread| scope.spawn(move || user(thread)));
            let users: Vec<_> = users.collect();
            let ended: Vec<_> = users.into_iter().map(ScopedJoinHandle::join).collect();
            done.store(true, Ordering::SeqCst);
            ended.into_iter().for_each(|ended| ended.unwrap().unwrap());
        });
    });
}

#[test]
fn user_thread_hears_of_losses() {
    let (mut job, host) =
        Job::with(Shape { n_pes: 3, staged: ALL, rails: 1, heap: 1 << 14, ..PLAIN })
            .with_user_threads(PATIENCE);
    let local = job.members[0].scratch;
    let told = host.start(&job.targets.part(local, 1, (1 << 14) - 8, 64));
    host.start(&job.targets.part(local, 2, 0, 64)).unwrap();
    (0..1000).for_each(|_| job.iterate());
    while job.members[0].lane.has_work() {
        job.iterate();
    }
    // At once, or at each quiet.
    let error = told.clone().and_then(|()| host.quiet(Pe(1))).unwrap_err().to_string();
    assert!(error.contains("not inside the region"), "{error}");
    assert!(told.is_err() || host.quiet(Pe(1)).is_err(), "and again");
    host.quiet(Pe(2)).unwrap();
    job.fabric.world().fail_copies = (0, 1);
    host.start(&job.targets.part(local, 1, 0, 1000)).unwrap();
    job.iterate_some(&[0, 1], 1000);
    for _ in 0..2 {
        let error = host.quiet(Pe(1)).unwrap_err().to_string();
        assert!(error.contains("failed by the script"), "{error}");
    }
    // Of each peer's operations the first loss is kept.
    job.fabric.world().fail_copies = (0, 1);
    host.start(&job.targets.part(local, 2, 0, 1000)).unwrap();
    job.iterate_some(&[0, 2], 1000);
    host.quiet(Pe(2)).unwrap_err();
}

/// A user thread waits for as long as the proxy thread iterates: deadlines of operations are its.
#[test]
fn user_thread_waits_for_slow_operation() {
    let limit = Duration::from_millis(500);
    let (mut job, host) =
        Job::with(Shape { staged: ALL, rails: 1, ..PLAIN }).with_user_threads(Some(limit));
    let targets = job.targets.clone();
    let part = targets.part(job.members[0].scratch, 1, 0, 64);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| host.complete(&part));
        let began = Instant::now();
        while began.elapsed() < 2 * limit {
            job.progress(0, 1);
        }
        let mut busy = 0;
        while !waits.is_finished() {
            busy += u32::from(job.lane(0).has_work());
            job.iterate();
        }
        assert_eq!(waits.join().unwrap(), Ok(()));
        assert!(busy < 1000, "the watchdog alone had it acknowledged");
    });
}

/// An acknowledgement or a refusal that the fabric does not take when it is due.
#[test]
fn answers_are_tried_again() {
    for is_refused in [false, true] {
        let mut job = Job::with(PLAIN);
        if is_refused {
            job.release_heap(1);
        }
        job.inc(0, 1, 0);
        job.lane(0).request_acks();
        job.progress(0, 1);
        job.fabric.fail_calls(PortCall::Send, 0, 1);
        let ended = job.settle(&[0, 1], (0, 1), 1_000_000);
        assert!(job.fabric.now() < 5_000_000_000, "it is not told: {is_refused}");
        assert!(job.lane(1).failure().is_some(), "a send has failed");
        let is_told = matches!(ended, Err(EngineError::PeerRefused { pe: Pe(1), .. }));
        assert!(if is_refused { is_told } else { ended == Ok(()) }, "{ended:?}");
    }
}
