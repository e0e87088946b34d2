//! PEs of one host that share their bounce memory: each copies from the other's bounce buffers, and
//! the fabric moves messages alone.

use std::time::Duration;

use engine::ids::Pe;
use engine::port::copies::Reach;
use engine::rails::counters::StagedCounters;
use engine::request::{LocalSide, Request};
use engine::wire::staged::MAX_PAYLOAD;
use sim_fabric::Script;

use super::{ALL, fill, pattern};
use crate::job::Targets;
use crate::job::{Job, Shape};

const SHARED: u32 = u32::MAX;

fn shape(n_pes: u32) -> Shape {
    let longest_message = engine::port::packet::MAX_LONG_MESSAGE;
    Shape { n_pes, staged: ALL, shared: SHARED, rails: 1, longest_message, ..Shape::default() }
}

fn job(shape: &Shape) -> Job {
    let mut job = Job::new(5, shape, Script::default());
    fill(&job, shape.n_pes);
    for me in 0..shape.n_pes {
        for pe in (0..shape.n_pes).filter(|pe| *pe != me) {
            job.put(me, pe, job.heap - 8 * (1 + me as usize), 8).unwrap();
        }
    }
    (0..shape.n_pes).for_each(|me| end(&mut job, me));
    job
}

fn end(job: &mut Job, me: u32) {
    let others: Vec<Pe> = (0..job.members.len() as u32).filter(|pe| *pe != me).map(Pe).collect();
    while !others.iter().all(|pe| job.members[me as usize].lane.is_quiet(*pe).unwrap()) {
        job.iterate();
    }
}

fn counters(job: &Job) -> Vec<StagedCounters> {
    job.members.iter().map(|member| member.lane.staged_counters()).collect()
}

fn moved(job: &Job, before: &[StagedCounters]) -> StagedCounters {
    let now = counters(job);
    let all = |of: fn(&StagedCounters) -> u64| {
        now.iter().map(of).sum::<u64>() - before.iter().map(of).sum::<u64>()
    };
    StagedCounters {
        by_fabric: all(|of| of.by_fabric),
        in_messages: all(|of| of.in_messages),
        shared: all(|of| of.shared),
        by_cpu: all(|of| of.by_cpu),
    }
}

/// Many bounce buffers of a long put, one of a short one, and either way: not a byte in a message
/// or by the fabric.
#[test]
fn shared_memory_carries_every_byte() {
    for len in [MAX_PAYLOAD + 1, 1000, 1024, 20_000] {
        for is_put in [true, false] {
            let mut job = job(&shape(2));
            let got: Vec<u8> = (0..len).map(|at| pattern(7, at)).collect();
            job.fabric.store(Pe(1), job.members[1].base, &got);
            let before = counters(&job);
            let delivered = job.fabric.deliveries().len();
            let begin = if is_put { Job::put } else { Job::get };
            begin(&mut job, 0, 1, 0, len).unwrap();
            end(&mut job, 0);
            let shared = StagedCounters { shared: len as u64, ..StagedCounters::default() };
            assert_eq!(moved(&job, &before), shared, "{len}");
            assert_eq!(job.fabric.deliveries().len(), delivered, "{len}");
            if is_put {
                let expected: Vec<u8> = (0..len).map(|at| pattern(0, at)).collect();
                assert!(job.heap(1, 0, len) == expected);
            } else {
                assert!(job.fabric.load(Pe(0), job.members[0].scratch, len) == got);
            }
        }
    }
}

#[test]
fn host_memory_at_this_end_is_served_too() {
    let mut job = job(&shape(2));
    let targets = Targets::of(&job);
    let local = job.fabric.alloc_reached(Pe(0), 5000, Reach::Direct);
    let bytes: Vec<u8> = (0..5000).map(|at| pattern(6, at)).collect();
    job.fabric.store(Pe(0), local, &bytes);
    let place = LocalSide::Memory(local);
    let part = targets.part(0, 1, 0, 5000);
    let before = counters(&job);
    job.members[0].lane.start(&Request { local: place, ..part }).unwrap();
    end(&mut job, 0);
    assert!(job.heap(1, 0, 5000) == bytes);
    job.fabric.store(Pe(0), local, &[0; 5000]);
    let direction = engine::port::Direction::Read;
    job.members[0].lane.start(&Request { local: place, direction, ..part }).unwrap();
    end(&mut job, 0);
    assert!(job.fabric.load(Pe(0), local, 5000) == bytes);
    let StagedCounters { by_fabric, shared, .. } = moved(&job, &before);
    assert_eq!((by_fabric, shared), (0, 10_000));
}

/// In one job: PE 2 shares nothing, and has what it always had.
#[test]
fn peer_without_sharing_uses_fabric() {
    let mut job = job(&Shape { shared: 0b011, ..shape(3) });
    for (me, pe) in [(0, 1), (0, 2), (2, 1), (1, 0)] {
        let before = counters(&job);
        job.put(me, pe, 0, 5000).unwrap();
        end(&mut job, me);
        let StagedCounters { by_fabric, in_messages, shared, .. } = moved(&job, &before);
        let both = me != 2 && pe != 2;
        assert_eq!(shared, if both { 5000 } else { 0 }, "{me} to {pe}");
        assert_eq!(by_fabric + in_messages, if both { 0 } else { 5000 }, "{me} to {pe}");
        let expected: Vec<u8> = (0..5000).map(|at| pattern(me, at)).collect();
        assert!(job.heap(pe, 0, 5000) == expected, "{me} to {pe}");
    }
}

#[test]
fn full_target_takes_shared_puts() {
    let mut job = job(&Shape { bounce: (8192, 2, 1), shared: 0b011, ..shape(3) });
    // PE 1's only bounce buffer for bytes on their way in waits for those of a PE whose memory
    // nobody reads.
    job.fabric.stall(Pe(2));
    job.put(2, 1, 40_000, 8192).unwrap();
    (0..1000).for_each(|_| job.iterate());
    assert!(job.heap(1, 40_000, 8192) == [0; 8192]);
    job.put(0, 1, 0, 30_000).unwrap();
    end(&mut job, 0);
    let expected: Vec<u8> = (0..30_000).map(|at| pattern(0, at)).collect();
    assert!(job.heap(1, 0, 30_000) == expected);
}

fn alive(job: &mut Job, pes: [usize; 2]) {
    for pe in pes {
        let _ = job.members[pe].lane.progress();
    }
    job.fabric.pass_time(1_000_000);
}

/// Of a PE that was declared failed, which holds all bounce buffers of PE 0, while PE 0 puts to
/// another.
fn dead_peer(has_ended: bool) -> (Job, bool) {
    let deadline = Some(Duration::from_secs(2));
    let mut job = job(&Shape { bounce: (1024, 2, 2), deadline, ..shape(3) });
    job.put(0, 1, 0, 2048).unwrap();
    for _ in 0..1000 {
        alive(&mut job, [0, 2]);
    }
    if has_ended {
        job.fabric.world().ended.insert(Pe(1));
    }
    while job.members[0].lane.is_quiet(Pe(1)).is_ok() {
        alive(&mut job, [0, 2]);
    }
    job.put(0, 2, 0, 5000).unwrap();
    let done = (0..1000).any(|_| {
        alive(&mut job, [0, 2]);
        job.members[0].lane.is_quiet(Pe(2)) == Ok(true)
    });
    (job, done)
}

#[test]
fn dead_peer_returns_bounce_buffers() {
    let expected: Vec<u8> = (0..5000).map(|at| pattern(0, at)).collect();
    let (job, done) = dead_peer(true);
    assert!(done);
    assert!(job.heap(2, 0, 5000) == expected);
    let (mut job, done) = dead_peer(false);
    assert!(!done, "a peer that is silent may still read");
    job.fabric.world().ended.insert(Pe(1));
    let done = (0..10_000).any(|_| {
        alive(&mut job, [0, 2]);
        job.members[0].lane.is_quiet(Pe(2)) == Ok(true)
    });
    assert!(done, "it has died later");
    assert!(job.heap(2, 0, 5000) == expected);
}

/// One that has asked for bytes and never takes them: PE 0 has a bounce buffer for each.
#[test]
fn dead_reader_returns_bounce_buffers() {
    let deadline = Some(Duration::from_secs(2));
    let mut job = job(&Shape { bounce: (1024, 2, 2), deadline, ..shape(3) });
    job.get(1, 0, 0, 2048).unwrap();
    job.members[1].lane.progress().unwrap();
    (0..100).for_each(|_| alive(&mut job, [0, 2]));
    // PE 0 finds out that PE 1 is gone by an operation of its own.
    job.put_value(0, 1, 0, 1).unwrap();
    while job.members[0].lane.is_quiet(Pe(1)).is_ok() {
        alive(&mut job, [0, 2]);
    }
    job.put(0, 2, 0, 5000).unwrap();
    (0..1000).for_each(|_| alive(&mut job, [0, 2]));
    assert_eq!(job.members[0].lane.is_quiet(Pe(2)), Ok(false), "PE 1 has both bounce buffers");
    job.fabric.world().ended.insert(Pe(1));
    while !job.members[0].lane.is_quiet(Pe(2)).unwrap() {
        alive(&mut job, [0, 2]);
    }
    let expected: Vec<u8> = (0..5000).map(|at| pattern(0, at)).collect();
    assert!(job.heap(2, 0, 5000) == expected);
}

#[test]
fn sender_may_die_at_any_step() {
    for steps in 0..40 {
        let deadline = Some(Duration::from_secs(2));
        let mut job = job(&Shape { deadline, ..shape(3) });
        job.put(0, 1, 0, 6000).unwrap();
        job.get(0, 1, 30_000, 6000).unwrap();
        for _ in 0..steps {
            job.members.iter_mut().for_each(|member| drop(member.lane.progress()));
            job.fabric.pass_time(300);
        }
        job.fabric.world().ended.insert(Pe(0));
        job.put_value(1, 0, 0, 1).unwrap();
        for _ in 0..4000 {
            alive(&mut job, [1, 2]);
        }
        for (me, pe) in [(1, 2), (2, 1)] {
            job.put(me, pe, 8192, 6000).unwrap();
            while !job.members[me as usize].lane.is_quiet(Pe(pe)).unwrap() {
                alive(&mut job, [1, 2]);
            }
            let expected: Vec<u8> = (8192..14_192).map(|at| pattern(me, at)).collect();
            assert!(job.heap(pe, 8192, 6000) == expected, "{me} to {pe} after {steps} steps");
        }
    }
}
