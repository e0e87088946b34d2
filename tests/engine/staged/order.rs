//! Order at the target: what is behind a fence or is a signal leaves at once where messages ask for
//! it, and the target carries it out in order.

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use engine::port::{Access, Direction};
use engine::request::{LocalSide, PutSignalRequest, Request};
use sim_fabric::{Delivery, Event, Script};

use super::ALL;
use crate::job::Targets;
use crate::job::{Job, Member, Shape};

const LEN: usize = 1000;

/// As many as a peer has order groups to close: a further one waits for an answer.
const FENCES: usize = 15;

fn staged(shape: Shape) -> Shape {
    Shape { staged: ALL, bounce: (1024, 8, 8), ..shape }
}

fn iterate(job: &mut Job, pe: usize) {
    for _ in 0..2000 {
        job.members[pe].lane.progress().unwrap();
        job.fabric.pass_time(1000);
    }
}

/// What PE 0 does, to PE 1.
type Program = fn(&mut Member, &Targets);

fn put(member: &mut Member, targets: &Targets, at: usize, len: usize) {
    member.lane.start(&targets.part(member.scratch + at, 1, at, len)).unwrap();
}

fn amo(member: &mut Member, targets: &Targets, at: usize, op: AtomicOp) {
    member.lane.atomic(&targets.atomic(1, at, op, 7)).unwrap();
}

fn signal(member: &mut Member, targets: &Targets, at: usize, lens: &[usize]) {
    let part = |number: usize, len| {
        let at = at + 8 + number * LEN;
        targets.part(member.scratch + at, 1, at, len)
    };
    let parts: Vec<_> = lens.iter().enumerate().map(|(number, len)| part(number, *len)).collect();
    let signal = targets.atomic(1, at, AtomicOp::SignalSet, 7);
    member.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
}

/// PE 0 need not hear of one before it sends the next: once all has left, PE 1 brings it to its end
/// alone.
#[test]
fn ordered_operations_leave_without_answer() {
    let programs: [(&str, usize, Program); 7] = [
        ("put, fence, put", 2, |member, targets| {
            put(member, targets, 0, LEN);
            member.lane.fence(Pe(1)).unwrap();
            put(member, targets, 1024, LEN);
        }),
        ("put, fence, atomic, again and again", 8, |member, targets| {
            for at in (0..8192).step_by(2048) {
                put(member, targets, at + 8, LEN);
                member.lane.fence(Pe(1)).unwrap();
                amo(member, targets, at, AtomicOp::Set);
            }
        }),
        ("few bytes, fences between them", FENCES, |member, targets| {
            for at in (0..100 * FENCES).step_by(100) {
                put(member, targets, at, 50);
                member.lane.fence(Pe(1)).unwrap();
            }
        }),
        ("put with signal", 2, |member, targets| signal(member, targets, 0, &[LEN])),
        ("two parts, one of them few bytes, with a signal, twice", 6, |member, targets| {
            signal(member, targets, 0, &[220, LEN]);
            signal(member, targets, 4096, &[LEN, 220]);
        }),
        ("put, and a signal apart from it", 3, |member, targets| {
            put(member, targets, 8, LEN);
            put(member, targets, 2048, 50);
            amo(member, targets, 0, AtomicOp::SignalSet);
        }),
        ("words of any kind, fences between them", 3, |member, targets| {
            amo(member, targets, 0, AtomicOp::Set);
            member.lane.fence(Pe(1)).unwrap();
            member.lane.atomic(&targets.fetch(1, 8, member.scratch)).unwrap();
            member.lane.fence(Pe(1)).unwrap();
            amo(member, targets, 16, AtomicOp::Add);
        }),
    ];
    for (what, effects, program) in programs {
        for (rails, fast) in [(1, false), (1, true), (4, false), (4, true)] {
            let shape = staged(Shape { rails, fast, ..Shape::default() });
            let script = Script { delay: (1_000, 100_000), ..Script::default() };
            let mut job = Job::new(7, &shape, script);
            let targets = Targets::of(&job);
            program(&mut job.members[0], &targets);
            iterate(&mut job, 0);
            iterate(&mut job, 1);
            let there = |event: &&Event| {
                matches!(event, Event::Copied { pe: Pe(1), .. } | Event::Applied { pe: Pe(1), .. })
            };
            let events = job.fabric.events();
            assert_eq!(events.iter().filter(there).count(), effects, "{what}, {rails} rail(s)");
            // And PE 0 hears of it.
            for _ in 0..3 {
                let _ = job.members[0].lane.is_quiet(Pe(1));
                iterate(&mut job, 0);
                iterate(&mut job, 1);
            }
            assert!(job.members[0].lane.is_quiet(Pe(1)).unwrap(), "{what}, {rails} rail(s)");
        }
    }
}

#[test]
fn targets_order_host_words() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    for at in 0..FENCES {
        job.members[0].lane.atomic(&targets.atomic(1, 8 * at, AtomicOp::Add, 1)).unwrap();
        job.members[0].lane.fence(Pe(1)).unwrap();
    }
    iterate(&mut job, 0);
    iterate(&mut job, 1);
    assert_eq!(job.heap(1, 8 * (FENCES - 1), 8), 1u64.to_le_bytes());
}

/// What the target has no say in, it cannot order: a write by the fabric is delivered before
/// anything behind a fence leaves, and leaves when everything before its own fence is delivered.
#[test]
fn fabric_writes_wait_for_delivery() {
    // PE 1's heap is staged, another region of its is not.
    let mut job = Job::new(3, &staged(Shape { rails: 2, ..Shape::default() }), Script::default());
    let targets = Targets::of(&job);
    let direct = job.fabric.alloc(Pe(1), 4096);
    let handle = job.members[1].regions.register(direct, 4096, Access::LocalAndRemote).unwrap();
    let (remote_handle, remote_addr, local) = (&handle, direct as u64, LocalSide::Value(9));
    let put = Request { remote_handle, remote_addr, local, ..targets.part(0, 1, 0, 8) };
    let delivered = |job: &Job| {
        let is_put = |d: &&Delivery| d.direction == Direction::Write && d.to == Pe(1);
        job.fabric.deliveries().iter().filter(is_put).count()
    };
    job.fabric.stall(Pe(1));
    job.members[0].lane.start(&put).unwrap();
    job.members[0].lane.fence(Pe(1)).unwrap();
    amo(&mut job.members[0], &targets, 0, AtomicOp::Set);
    iterate(&mut job, 0);
    job.fabric.resume(Pe(1));
    job.fabric.pass_time(1_000_000_000);
    iterate(&mut job, 1);
    assert_eq!((delivered(&job), job.heap(1, 0, 8)), (1, vec![0; 8]), "the atomic was not sent");
    iterate(&mut job, 0);
    job.fabric.stall(Pe(0));
    iterate(&mut job, 1);
    assert_eq!(job.heap(1, 0, 8), 7u64.to_le_bytes());
    // The word is there, and PE 0 has not heard of it.
    job.members[0].lane.fence(Pe(1)).unwrap();
    job.members[0].lane.start(&put).unwrap();
    // Behind that, requests wait as well: it would wait for them without end.
    amo(&mut job.members[0], &targets, 8, AtomicOp::Set);
    for _ in 0..100 {
        job.members[0].lane.progress().unwrap();
    }
    assert_eq!(delivered(&job), 1, "only an answer tells that it may leave");
    job.fabric.resume(Pe(0));
    for _ in 0..4 {
        iterate(&mut job, 1);
        iterate(&mut job, 0);
    }
    assert_eq!((delivered(&job), job.heap(1, 8, 8)), (2, 7u64.to_le_bytes().to_vec()));
}

#[test]
fn nothing_follows_a_refusal() {
    let shape = Shape { n_pes: 3, bounce: (1024, 8, 2), ..staged(Shape::default()) };
    for seed in 1..=20 {
        let mut job = Job::new(seed, &shape, Script::default());
        let targets = Targets::of(&job);
        job.fill_scratch(0, &[1; 8192]);
        job.fill_scratch(2, &[2; 8192]);
        for at in [0, 1024, 2048] {
            put(&mut job.members[0], &targets, at, LEN);
            job.members[0].lane.fence(Pe(1)).unwrap();
        }
        amo(&mut job.members[0], &targets, 4096, AtomicOp::Set);
        iterate(&mut job, 0);
        // Of the copies at PE 1 the first fails.
        job.fabric.world().fail_copies = (0, 1);
        for _ in 0..2000 {
            let _ = job.members[0].lane.progress();
            job.members[1].lane.progress().unwrap();
        }
        assert!(job.quiet(0, 1).is_err(), "seed {seed}");
        for at in [0, 1024, 2048, 4096] {
            assert_eq!(job.heap(1, at, 8), [0; 8], "seed {seed}: at {at}");
        }
        put(&mut job.members[2], &targets, 0, 8000);
        for _ in 0..4 {
            iterate(&mut job, 2);
            iterate(&mut job, 1);
        }
        assert!(job.members[2].lane.is_quiet(Pe(1)).unwrap(), "seed {seed}");
        assert_eq!(job.heap(1, 0, 8000), [2; 8000], "seed {seed}");
    }
}
