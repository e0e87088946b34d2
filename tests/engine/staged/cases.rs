//! Puts and gets of staged memory: that every byte arrives, who is told of what fails, and user
//! threads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::Lane;
use engine::lane::host::HostLane;
use engine::lane::host::handoff::handover;
use engine::port::Direction;
use engine::port::copies::Reach;
use engine::request::{LocalSide, Request, ResultPlace};
use sim_fabric::{Call, Event, FakeFabric, PortCall, Script};
use test_support::seeds::for_seeds;

use super::{ALL, fill, pattern};
use crate::job::{Job, Member, Random, Shape, host_config, limits};
use crate::signals::{Targets, race, random_script, random_shape};

/// Puts and gets of any length at any place, values among them, between PEs of any kinds of memory.
/// Quiet means that every byte is where it belongs.
#[test]
fn every_byte_goes_where_it_belongs() {
    const PART: usize = 8192;
    for_seeds("every_byte_goes_where_it_belongs", &[], 150, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 17);
        let mut shape = Shape { heap: 1 << 15, ..random_shape(&mut random) };
        shape.staged = [ALL, ALL, random.below(1 << 8) as u32][random.below(3)];
        let n = shape.n_pes;
        // All through one bounce buffer, over slow rails or where most posts find no room, a put
        // may well wait for a minute behind others.
        let script = random_script(&mut random);
        let again_percent = script.again_percent.min(50);
        let script = Script { slow_rails: Vec::new(), again_percent, ..script };
        let job = Job::new(seed, &shape, script);
        fill(&job, n);
        let heaps: Vec<usize> = job.members.iter().map(|member| member.base).collect();
        let checks = job.fabric.clone();
        race(job, seed, |me, member, targets| {
            let mut random = Random(seed ^ u64::from(me + 1) << 20);
            // A part of every heap is this PE's, and half of it is written, half is read back.
            let mine = me as usize * PART;
            for _ in 0..30 {
                let to = random.below(n as usize) as u32;
                let at = mine + random.below(PART / 2);
                let len = 1 + random.below((PART / 2 - (at - mine)).min(5000));
                let mut put = targets.part(member.scratch + at, to, at, len);
                if len <= 8 {
                    let bytes = std::array::from_fn(|i| pattern(me, at + i));
                    put.local = LocalSide::Value(u64::from_le_bytes(bytes));
                }
                member.lane.start(&put)?;
                if random.below(3) == 0 {
                    member.lane.quiet(Pe(to))?;
                    let found = checks.load(Pe(to), heaps[to as usize] + at, len);
                    let expected: Vec<u8> = (at..at + len).map(|at| pattern(me, at)).collect();
                    assert_eq!(found, expected, "PE {me} to PE {to}: {len} bytes at {at}");
                    let back = mine + PART / 2 + random.below(PART / 2 - len.min(PART / 2 - 1));
                    let len = len.min(mine + PART - back);
                    let get = Request {
                        direction: Direction::Read,
                        local: LocalSide::Memory(member.scratch + back),
                        len,
                        ..targets.part(member.scratch, to, at, len)
                    };
                    if random.below(2) == 0 {
                        member.lane.complete(&get)?;
                    } else {
                        member.lane.start(&get)?;
                        member.lane.quiet(Pe(to))?;
                    }
                    let found = checks.load(Pe(me), member.scratch + back, len);
                    assert_eq!(found, expected[..len], "PE {me} from PE {to}: {len} at {at}");
                }
            }
            (0..n).try_for_each(|pe| member.lane.quiet(Pe(pe)))
        });
    });
}

/// Puts so many bytes of PE 0's buffer, which is registered nowhere, to PE 1, and gets them back.
fn round_trip(
    member: &mut Member,
    targets: &Targets,
    fabric: &FakeFabric,
    addr: usize,
    len: usize,
) -> Result<(), EngineError> {
    let bytes: Vec<u8> = (0..len).map(|at| pattern(9, at)).collect();
    fabric.store(Pe(0), addr, &bytes);
    let mut request = targets.part(addr, 1, 64, len);
    request.local = LocalSide::Memory(addr);
    member.lane.start(&request)?;
    member.lane.quiet(Pe(1))?;
    assert_eq!(fabric.load(Pe(1), targets.0[1].0 + 64, len), bytes);
    fabric.store(Pe(0), addr, &vec![0; len]);
    request.direction = Direction::Read;
    member.lane.complete(&request)?;
    assert_eq!(fabric.load(Pe(0), addr, len), bytes);
    Ok(())
}

/// Buffers that are registered with nobody, of either kind: of a process with bounce buffers, of
/// one that has no staged memory, and so no bounce buffers, and of a job without devices.
#[test]
fn unregistered_buffers_are_staged() {
    let everywhere = [false, true].map(|buffer| (ALL, buffer));
    for (staged, buffer) in everywhere.into_iter().chain([(0b0100, false), (0, false)]) {
        for (seed, needs_desc) in (1..=10).flat_map(|seed| [(seed, false), (seed, true)]) {
            let fast = seed % 2 == 0;
            let shape = Shape { staged, needs_desc, fast, heap: 1 << 14, ..Shape::default() };
            let job = Job::new(seed, &shape, Script::default());
            let fabric = job.fabric.clone();
            race(job, seed, |me, member, targets| {
                if me == 1 {
                    return Ok(());
                }
                let addr = match buffer {
                    true => fabric.alloc_reached(Pe(0), 5000, Reach::Staged),
                    false => fabric.alloc(Pe(0), 5000),
                };
                let mut lengths = [3, 200, 233, 5000].into_iter();
                lengths.try_for_each(|len| round_trip(member, targets, &fabric, addr, len))
            });
        }
    }
}

#[test]
fn words_that_come_together_are_stored_together() {
    const WORDS: usize = 64;
    for fails in [false, true] {
        let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        if fails {
            job.fabric.fail_settling();
        }
        for at in 0..WORDS {
            // Apart, so that each is a message.
            job.put_value(0, 1, 16 * at, at as u64 + 1, 8).unwrap();
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
        let settled = job.fabric.settled();
        assert!((1..=8).contains(&settled), "{WORDS} words in {settled} calls");
    }
}

#[test]
fn words_that_fail_before_others_are_not_said_to_be_there() {
    for order in [[1, 2], [2, 1]] {
        let shape = Shape { n_pes: 3, rails: 1, staged: 0b01, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        let targets = Targets::of(&job);
        job.fabric.fail_settling();
        for pe in order {
            if pe == 1 {
                job.put_value(1, 0, 0, 7, 8).unwrap();
                job.members[1].lane.progress().unwrap();
            } else {
                let member = &mut job.members[2];
                let mut fetch = targets.atomic(0, 8, AtomicOp::FetchInc, 1);
                fetch.result = Some(ResultPlace { addr: member.base, flag: None });
                member.lane.atomic(&fetch).unwrap();
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
fn a_failed_copy_is_an_error_about_the_right_peer() {
    // Copies go: out of the source, into the target.
    for (after, part) in [(0, "staging the local side failed"), (1, "the peer cannot do its part")]
    {
        let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        fill(&job, 2);
        job.fabric.fail_copies(after, 1);
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
        job.fabric.fail_copies(after, 1);
        job.get(0, 1, 0, 1000).unwrap();
        let error = until_failed(&mut job);
        assert!(error.contains("get of 1000 bytes") && error.contains("PE 1"), "{error}");
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn after_a_failed_copy_nothing_more_goes_to_the_peer() {
    for seed in 1..=20 {
        let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
        let mut job = Job::new(seed, &shape, Script::default());
        fill(&job, 2);
        // Of sixteen pieces the second fails, while at most two have left their bounce buffers.
        job.fabric.fail_copies(1, 1);
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

/// Parts of one operation that lack nothing but room when the first of them fails: asks, puts out of
/// bounce buffers, reads into them.
#[test]
fn nothing_leaves_behind_a_part_that_fails() {
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

#[test]
fn a_copy_refused_at_once_is_the_same_error() {
    let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
    let mut job = Job::new(1, &shape, Script::default());
    job.fabric.refuse_copies(1);
    let failed = job.put(0, 1, 0, 1000).err().map(|error| error.to_string());
    let error = failed.unwrap_or_else(|| until_failed(&mut job));
    assert!(error.contains("PE 1") && error.contains("refused by the script"), "{error}");
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

#[test]
fn a_peer_that_does_not_answer_is_named() {
    let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
    let mut job = Job::new(6, &shape, Script::default());
    // PE 1 never makes progress.
    job.put(0, 1, 0, 4000).unwrap();
    let error = job.quiet(0, 1).unwrap_err().to_string();
    assert!(error.contains("put") && error.contains("PE 1"), "{error}");
}

#[test]
fn places_outside_of_staged_regions_are_refused() {
    let shape = Shape { staged: ALL, heap: 1 << 14, ..Shape::default() };
    let mut job = Job::new(6, &shape, Script::default());
    for len in [8, 1000] {
        let error = job.put(0, 1, (1 << 14) - len + 1, len).unwrap_err().to_string();
        assert!(error.contains("not inside the region"), "{error}");
    }
    // No bytes are no operation.
    job.put(0, 1, 0, 0).unwrap();
    job.get(0, 1, 0, 0).unwrap();
    assert!(!job.members[0].lane.has_work());
    let error = job.put(0, 7, 0, 8).unwrap_err().to_string();
    assert!(error.contains("PE 7"), "{error}");
}

/// User threads hand staged operations over to the proxy lane, and wait for them where they should;
/// in a job without devices those on memory that nobody has registered.
#[test]
fn user_threads_hand_over_what_is_staged() {
    const LEN: usize = 1 << 14;
    for staged in [ALL, 0] {
        let shape = Shape { staged, heap: LEN, rails: 1, ..Shape::default() };
        let mut job = Job::new(4, &shape, Script::default());
        fill(&job, 2);
        let (fabric, targets) = (job.fabric.clone(), Targets::of(&job));
        let config = host_config(&job, staged != 0);
        let (outbox, inbox) = handover(2, None, Some(std::time::Duration::from_secs(60)));
        let host = Lane::new(job.fabric.port(Pe(0), limits(&shape)), config);
        let host = HostLane::new(host).with_outbox(outbox);
        let peer = job.members.pop().unwrap();
        let mut first = job.members.pop().unwrap();
        first.lane = first.lane.with_inbox(inbox);
        let scratch = match staged {
            0 => {
                let bare = fabric.alloc(Pe(0), LEN);
                fabric.store(Pe(0), bare, &fabric.load(Pe(0), first.scratch, LEN));
                bare
            }
            _ => first.scratch,
        };
        let base = peer.base;
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let proxies: Vec<_> = [first, peer]
                .into_iter()
                .map(|mut member| {
                    let (fabric, done) = (&fabric, &done);
                    scope.spawn(move || {
                        // All of it: its registrations last as long as its lane.
                        let member = &mut member;
                        while !done.load(std::sync::atomic::Ordering::SeqCst) {
                            member.lane.progress().unwrap();
                            fabric.pass_time(100);
                            std::thread::yield_now();
                        }
                    })
                })
                .collect();
            let users: Vec<_> = (0..4)
                .map(|thread| {
                    let (host, targets, fabric) = (&host, &targets, &fabric);
                    scope.spawn(move || {
                        for piece in 0..8 {
                            let offset = thread * LEN / 4 + piece * 512;
                            let local = scratch + offset;
                            let mut request = targets.part(local, 1, offset, 512);
                            if piece % 2 == 0 {
                                host.complete(&request).unwrap();
                                let found = fabric.load(Pe(1), base + offset, 512);
                                let expected: Vec<u8> =
                                    (offset..offset + 512).map(|at| pattern(0, at)).collect();
                                assert_eq!(found, expected, "a put that was waited for");
                            } else {
                                host.start(&request).unwrap();
                                host.fence(Pe(1)).unwrap();
                                // Behind the fence, over the first bytes of it.
                                let value = u64::from_le_bytes(std::array::from_fn(|i| {
                                    pattern(0, offset + i)
                                }));
                                request.local = LocalSide::Value(value);
                                request.len = 8;
                                host.start(&request).unwrap();
                            }
                        }
                        host.quiet(Pe(1)).unwrap();
                    })
                })
                .collect();
            for user in users {
                user.join().unwrap();
            }
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            for proxy in proxies {
                proxy.join().unwrap();
            }
        });
        let expected: Vec<u8> = (0..LEN).map(|at| pattern(0, at)).collect();
        assert_eq!(fabric.load(Pe(1), base, LEN), expected);
    }
}

/// User threads whose operations go both ways, by their own lane and handed over, as the memory has
/// it: what comes behind a fence lies on top of what was before it, whichever way each went.
#[test]
fn operations_of_user_threads_go_both_ways_in_order() {
    const PART: usize = 4096;
    const THREADS: usize = 2;
    for_seeds("operations_of_user_threads_go_both_ways_in_order", &[], 40, |seed| {
        let mut random = Random(seed * 0x2545_f491 + 5);
        // PE 1's heap and PE 0's local memory are of either kind; one of them is staged.
        let staged = [0b0010, 0b0100, 0b0110][random.below(3)];
        let needs_desc = random.below(2) == 0;
        let max_segment = [64, 1000, 1 << 20][random.below(3)];
        let heap = THREADS * PART;
        let fast = true;
        let shape =
            Shape { staged, needs_desc, fast, max_segment, heap, rails: 1, ..Shape::default() };
        let script = Script { again_percent: [0, 20][random.below(2)], ..Script::default() };
        let mut job = Job::new(seed, &shape, script);
        fill(&job, 2);
        let (fabric, targets) = (job.fabric.clone(), Targets::of(&job));
        let (outbox, inbox) = handover(2, None, Some(Duration::from_secs(60)));
        let host = Lane::new(job.fabric.port(Pe(0), limits(&shape)), host_config(&job, true));
        let host = HostLane::new(host).with_outbox(outbox);
        let peer = job.members.pop().unwrap();
        let mut first = job.members.pop().unwrap();
        first.lane = first.lane.with_inbox(inbox);
        let (scratch, base) = (first.scratch, peer.base);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for mut member in [first, peer] {
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
                                host.complete(&put)?
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
fn what_a_user_thread_has_lost_is_told_by_peer() {
    let shape = Shape { n_pes: 3, staged: ALL, rails: 1, heap: 1 << 14, ..Shape::default() };
    let job = Job::new(4, &shape, Script::default());
    let (outbox, inbox) = handover(3, None, Some(std::time::Duration::from_secs(60)));
    let host = Lane::new(job.fabric.port(Pe(0), limits(&shape)), host_config(&job, true));
    let host = HostLane::new(host).with_outbox(outbox);
    let targets = Targets::of(&job);
    let mut members = job.members.into_iter();
    let mut first = members.next().unwrap();
    first.lane = first.lane.with_inbox(inbox);
    let mut others: Vec<Member> = members.collect();
    let local = first.scratch;
    let told = host.start(&targets.part(local, 1, (1 << 14) - 8, 64));
    host.start(&targets.part(local, 2, 0, 64)).unwrap();
    let mut turns = 0;
    while first.lane.has_work() || turns < 1000 {
        first.lane.progress().unwrap();
        for member in &mut others {
            member.lane.progress().unwrap();
        }
        turns += 1;
    }
    // At once, or at each quiet.
    let error = told.clone().and_then(|()| host.quiet(Pe(1))).unwrap_err().to_string();
    assert!(error.contains("not inside the region"), "{error}");
    assert!(told.is_err() || host.quiet(Pe(1)).is_err(), "and again");
    host.quiet(Pe(2)).unwrap();
}

#[test]
fn a_proxy_thread_that_is_not_there_is_an_error() {
    let shape = Shape { staged: ALL, rails: 1, ..Shape::default() };
    let job = Job::new(4, &shape, Script::default());
    let config = host_config(&job, true);
    let (outbox, _inbox) = handover(2, None, Some(std::time::Duration::from_millis(20)));
    let host = Lane::new(job.fabric.port(Pe(0), limits(&shape)), config);
    let host = HostLane::new(host).with_outbox(outbox);
    let targets = Targets::of(&job);
    let local = job.members[0].scratch;
    let error = host.complete(&targets.part(local, 1, 0, 64)).unwrap_err().to_string();
    assert!(error.contains("proxy thread") && error.contains("PE 1"), "{error}");
}
