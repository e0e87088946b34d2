//! Puts and gets of staged memory: that every byte arrives, who is told of what fails, and user
//! threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::error::EngineError;
use engine::ids::Pe;
use engine::request::LocalSide;
use sim_fabric::{Call, Event, PortCall, Script};
use test_support::seeds::for_seeds;

use super::{ALL, fill, pattern};
use crate::job::Targets;
use crate::job::{Job, PATIENCE, Shape};
use crate::race::Random;

#[test]
fn words_are_stored_together() {
    const WORDS: usize = 64;
    for fails in [false, true] {
        let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        if fails {
            job.fabric.world().fail_settling = true;
        }
        for at in 0..WORDS {
            // Apart, so that each is a message.
            job.put_value(0, 1, 16 * at, at as u64 + 1).unwrap();
        }
        job.members[0].lane.progress().unwrap();
        if fails {
            let error = until_failed(&mut job);
            assert!(error.contains("cannot be executed"), "{error}");
            assert!(error.contains("failed by the script"), "{error}");
            for _ in 0..500 {
                for member in &mut job.members {
                    let _ = member.lane.progress();
                }
                let quiet = job.members[0].lane.is_quiet(Pe(1));
                assert!(!matches!(quiet, Ok(true)), "they are not there");
            }
            continue;
        }
        // All of them are there before PE 1 looks.
        job.fabric.pass_time(1_000_000_000);
        while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
            for member in job.members.iter_mut().rev() {
                member.lane.progress().unwrap();
            }
        }
        for at in 0..WORDS {
            assert_eq!(job.heap(1, 16 * at, 8), (at as u64 + 1).to_le_bytes());
        }
        let settled = job.fabric.world().settled;
        assert!((1..=8).contains(&settled), "{WORDS} words in {settled} calls");
    }
}

#[test]
fn failed_words_are_not_acknowledged() {
    for order in [[1, 2], [2, 1]] {
        let shape = Shape { n_pes: 3, rails: 1, staged: 0b01, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        let targets = Targets::of(&job);
        job.fabric.world().fail_settling = true;
        for pe in order {
            if pe == 1 {
                job.put_value(1, 0, 0, 7).unwrap();
                job.members[1].lane.progress().unwrap();
            } else {
                let member = &mut job.members[2];
                member.lane.atomic(&targets.fetch(0, 8, member.base)).unwrap();
            }
            job.fabric.pass_time(1_000_000_000);
        }
        // Both have come when PE 0 looks.
        assert!(job.members[0].lane.progress().is_err(), "{order:?}");
        for _ in 0..500 {
            for member in &mut job.members {
                let _ = member.lane.progress();
            }
            let quiet = job.members[1].lane.is_quiet(Pe(0));
            assert!(!matches!(quiet, Ok(true)), "{order:?}: it is not there");
        }
    }
}

/// A copy that fails, here or at the peer, is an error of this PE about that peer; the bytes are
/// not said to be there.
#[test]
fn failed_copy_names_its_peer() {
    // Copies go: out of the source, into the target.
    for (after, part) in [(0, "staging the local side failed"), (1, "the peer cannot do its part")]
    {
        let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        fill(&job, 2);
        job.fabric.world().fail_copies = (after, 1);
        job.put(0, 1, 0, 1000).unwrap();
        let error = until_failed(&mut job);
        assert!(error.contains("PE 1") && error.contains(part), "{error}");
        assert!(error.contains("failed by the script"), "{error}");
        assert!(job.quiet(0, 1).is_err(), "and again at the next quiet");
    }
    for (after, part) in [(0, "the peer cannot do its part"), (1, "staging the local side failed")]
    {
        let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        job.fabric.world().fail_copies = (after, 1);
        job.get(0, 1, 0, 1000).unwrap();
        let error = until_failed(&mut job);
        assert!(error.contains("get of 1000 bytes") && error.contains("PE 1"), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn nothing_follows_a_failed_copy() {
    for seed in 1..=20 {
        let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(seed, &shape, Script::default());
        fill(&job, 2);
        // Of sixteen pieces the second fails, while at most two have left their bounce buffers.
        job.fabric.world().fail_copies = (1, 1);
        job.put(0, 1, 0, 16 * 1024).unwrap();
        until_failed(&mut job);
        for _ in 0..10_000 {
            for member in &mut job.members {
                let _ = member.lane.progress();
            }
        }
        let arrived = |event: &Event| matches!(event, Event::Copied { pe: Pe(1), .. });
        let arrived = job.fabric.events().iter().filter(|event| arrived(event)).count();
        assert!(arrived <= 1, "{arrived} pieces arrived, seed {seed}");
    }
}

/// Parts of one operation that lack nothing but room when the first of them fails: asks, puts out
/// of bounce buffers, reads into them.
#[test]
fn nothing_leaves_behind_failed_part() {
    for (staged, begin, call) in [
        (0b0100, Job::get as fn(&mut Job, u32, u32, usize, usize) -> _, PortCall::Send),
        (0b0010, Job::put, PortCall::Post),
        (0b0010, Job::get, PortCall::Post),
    ] {
        let shape = Shape { staged, bounce: (1024, 4, 4), heap: 1 << 14, ..Shape::default() };
        let script = Script { delay: (1000, 1000), ..Script::default() };
        let mut job = Job::new(1, &shape, script);
        job.fabric.trace_calls();
        job.fabric.fail_calls(call, 0, 1);
        if begin(&mut job, 0, 1, 0, 4096).is_ok() {
            until_failed(&mut job);
        }
        for _ in 0..1000 {
            job.members.iter_mut().for_each(|member| drop(member.lane.progress()));
        }
        let calls = job.fabric.calls();
        let posts = calls.iter().filter(|call| matches!(call, Call::Post(Pe(0), _))).count();
        assert_eq!(posts, 0, "{staged:b}, {call:?}");
        assert!(!job.members[0].lane.has_work());
    }
}

/// Turns all lanes until PE 0's fails.
fn until_failed(job: &mut Job) -> String {
    for _ in 0..100_000 {
        for member in job.members.iter_mut().rev() {
            if let Err(error) = member.lane.progress() {
                return error.to_string();
            }
        }
    }
    panic!("PE 0 does not fail");
}

/// User threads whose operations go both ways, by their own lane and handed over, as the memory has
/// it: what comes behind a fence lies on top of what was before it, whichever way each went. In a
/// job without devices, what is handed over is of memory that nobody has registered.
#[test]
fn user_threads_operations_keep_order() {
    const PART: usize = 4096;
    const THREADS: usize = 2;
    for_seeds("user_threads_operations_keep_order", &[], 40, |seed| {
        let mut random = Random(seed * 0x2545_f491 + 5);
        // PE 1's heap and PE 0's local memory are of either kind.
        let staged = [0, 0b0010, 0b0100, 0b0110, ALL][random.below(5)];
        let needs_desc = random.below(2) == 0;
        let max_segment = [64, 1000, 1 << 20][random.below(3)];
        let heap = THREADS * PART;
        let fast = true;
        let shape =
            Shape { staged, needs_desc, fast, max_segment, heap, rails: 1, ..Shape::default() };
        let script = Script { again_percent: [0, 20][random.below(2)], ..Script::default() };
        let job = Job::new(seed, &shape, script);
        fill(&job, 2);
        let (job, host) = job.with_user_threads(&shape, PATIENCE);
        let Job { fabric, members, .. } = &job;
        let targets = Targets::of(&job);
        let (mut scratch, base) = (members[0].scratch, members[1].base);
        if staged == 0 {
            let bare = fabric.alloc(Pe(0), heap);
            fabric.store(Pe(0), bare, &fabric.load(Pe(0), scratch, heap));
            scratch = bare;
        }
        let fabric = fabric.clone();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for mut member in job.members {
                let (fabric, done) = (&fabric, &done);
                scope.spawn(move || {
                    // All of it: its registrations last as long as its lane.
                    let member = &mut member;
                    while !done.load(Ordering::SeqCst) {
                        member.lane.progress().unwrap();
                        fabric.pass_time(100);
                        std::thread::yield_now();
                    }
                });
            }
            let users: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (host, fabric, targets) = (&host, &fabric, &targets);
                    scope.spawn(move || {
                        let mut random = Random(seed ^ (thread as u64 + 1) << 24);
                        let mine = thread * PART;
                        let mut expected = vec![0; PART];
                        for _ in 0..24 {
                            let at = random.below(PART - 8);
                            let len = 1 + random.below((PART - at).min(2000));
                            let from = random.below(PART - len);
                            let mut put = targets.part(scratch + mine + from, 1, mine + at, len);
                            let mut bytes: Vec<u8> =
                                (0..len).map(|byte| pattern(0, mine + from + byte)).collect();
                            if random.below(2) == 0 {
                                let word = random.below(1 << 30) as u64 | 1 << 60;
                                (put.local, put.len) = (LocalSide::Value(word), 8);
                                bytes = word.to_le_bytes().to_vec();
                            }
                            expected[at..at + put.len].copy_from_slice(&bytes);
                            if random.below(4) == 0 {
                                host.complete(&put)?;
                                let found = fabric.load(Pe(1), base + mine + at, put.len);
                                assert!(found == bytes, "thread {thread}, waited for");
                            } else {
                                host.start(&put)?
                            }
                            host.fence(Pe(1))?;
                            if random.below(6) == 0 {
                                host.quiet(Pe(1))?;
                                let found = fabric.load(Pe(1), base + mine, PART);
                                assert!(found == expected, "thread {thread}, before its end");
                            }
                        }
                        host.quiet(Pe(1))?;
                        let found = fabric.load(Pe(1), base + mine, PART);
                        assert!(found == expected, "thread {thread}");
                        Ok::<(), EngineError>(())
                    })
                })
                .collect();
            let ended: Vec<_> =
                users.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            done.store(true, Ordering::SeqCst);
            for ended in ended {
                ended.unwrap().unwrap();
            }
        });
    });
}

#[test]
fn user_thread_hears_of_losses() {
    let shape = Shape { n_pes: 3, staged: ALL, rails: 1, heap: 1 << 14, ..Shape::default() };
    let job = Job::new(4, &shape, Script::default());
    let (mut job, host) = job.with_user_threads(&shape, PATIENCE);
    let targets = Targets::of(&job);
    let local = job.members[0].scratch;
    let told = host.start(&targets.part(local, 1, (1 << 14) - 8, 64));
    host.start(&targets.part(local, 2, 0, 64)).unwrap();
    (0..1000).for_each(|_| job.iterate());
    while job.members[0].lane.has_work() {
        job.iterate();
    }
    // At once, or at each quiet.
    let error = told.clone().and_then(|()| host.quiet(Pe(1))).unwrap_err().to_string();
    assert!(error.contains("not inside the region"), "{error}");
    assert!(told.is_err() || host.quiet(Pe(1)).is_err(), "and again");
    host.quiet(Pe(2)).unwrap();
}

#[test]
fn missing_proxy_thread_is_an_error() {
    let shape = Shape { staged: ALL, rails: 1, ..Shape::default() };
    let job = Job::new(4, &shape, Script::default());
    let (job, host) = job.with_user_threads(&shape, Some(Duration::from_millis(20)));
    let targets = Targets::of(&job);
    let local = job.members[0].scratch;
    let error = host.complete(&targets.part(local, 1, 0, 64)).unwrap_err().to_string();
    assert!(error.contains("proxy thread") && error.contains("PE 1"), "{error}");
}
