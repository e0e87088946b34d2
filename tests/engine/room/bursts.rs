//! Bursts of puts: every path that can end one rings the doorbell, whatever the fabric refuses.

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::request::PutSignalRequest;
use sim_fabric::Script;
use test_support::seeds::for_seeds;

use crate::job::{Job, Random, Shape, random_spread};
use crate::signals::{Targets, race};

const DOORBELLS: Script = Script {
    again_percent: 0,
    delay: (1_000, 20_000),
    slow_rails: Vec::new(),
    rates: Vec::new(),
    duplicate_percent: 0,
    doorbells: true,
    shared_queue: false,
    stragglers: (0, 0),
    connecting: (0, 0),
};

/// Puts 8 bytes of scratch at `offset` of PE 0 to the same place of a peer, others to follow.
fn announce(job: &mut Job, targets: &Targets, to: u32, offset: usize) {
    let member = &mut job.members[0];
    let part = targets.part(member.scratch + offset, to, offset, 8);
    member.lane.start_in_burst(&part).unwrap();
}

fn arrived(job: &Job, to: u32, offset: usize) -> bool {
    job.heap(to, offset, 8) == [7; 8]
}

/// What can come after puts that were announced to be followed by another.
type Ending = (&'static str, fn(&mut Job, &Targets));

const ENDINGS: [Ending; 12] = [
    ("a put without the hint", |job, _| job.put(0, 1, 512, 8).unwrap()),
    ("a put to another peer", |job, _| job.put(0, 2, 512, 8).unwrap()),
    ("a value", |job, _| job.put_value(0, 1, 512, 1, 8).unwrap()),
    ("a get", |job, _| job.get(0, 1, 512, 8).unwrap()),
    ("an atomic", |job, targets| {
        job.members[0].lane.atomic(&targets.atomic(1, 512, AtomicOp::Inc, 0)).unwrap();
    }),
    ("a signal", |job, targets| {
        let signal = targets.atomic(2, 512, AtomicOp::SignalSet, 1);
        job.members[0].lane.put_signal(&PutSignalRequest { parts: &[], signal }).unwrap();
    }),
    ("a signal with data", |job, targets| {
        let member = &mut job.members[0];
        let parts = [targets.part(member.scratch + 1024, 1, 1024, 600)];
        let signal = targets.atomic(1, 512, AtomicOp::SignalSet, 1);
        member.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
    }),
    ("a fence", |job, _| job.fence(0, 1)),
    ("a fence for another peer", |job, _| job.fence(0, 2)),
    ("progress", |job, _| {
        job.members[0].lane.progress().unwrap();
    }),
    ("the end of a region", |job, _| job.members[0].lane.end_burst()),
    ("a quiet", |job, _| job.quiet(0, 1).unwrap()),
];

fn settle(job: &mut Job) {
    let (mut turns, mut after) = (0, 0);
    while after < 10 {
        job.members.iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
        turns += 1;
        assert!(turns < 10_000, "something is stranded");
        after = if job.fabric.in_flight() == 0 { after + 1 } else { 0 };
    }
}

#[test]
fn every_ending_of_a_burst_rings_for_all_of_it() {
    // Rails, and whether there is a fast path.
    for (rails, short) in [(1, false), (1, true), (2, false), (2, true), (3, true)] {
        for (what, end) in ENDINGS {
            for count in 1..=15 {
                let shape = Shape { n_pes: 3, rails, fast: short, ..Shape::default() };
                let mut job = Job::new(1, &shape, DOORBELLS);
                job.fill_scratch(0, &[7; 256]);
                let targets = Targets::of(&job);
                // From the second message on there is a fast path for them.
                for pe in [1, 2] {
                    let nothing = targets.atomic(pe, 512, AtomicOp::Or, 0);
                    job.members[0].lane.atomic(&nothing).unwrap();
                    while !job.members[0].lane.is_quiet(Pe(pe)).unwrap() {
                        job.members.iter_mut().for_each(|member| {
                            member.lane.progress().unwrap();
                        });
                    }
                }
                for number in 0..count {
                    announce(&mut job, &targets, 1 + number as u32 % 2, number * 8);
                }
                end(&mut job, &targets);
                assert_eq!(job.fabric.unrung(), 0, "{what} after {count} on {rails} rails");
                // A message is one of those in flight; a signal waits for the puts.
                let all = count + usize::from(what == "an atomic");
                assert!(job.fabric.in_flight() >= all || what == "a quiet", "{what}: not posted");
                settle(&mut job);
                for number in 0..count {
                    assert!(arrived(&job, 1 + number as u32 % 2, number * 8), "{what}: {number}");
                }
                // Messages wait for acknowledgements, for which nobody has asked.
                let kinds = ["an atomic", "a signal", "a signal with data"];
                let messages = kinds.contains(&what);
                assert!(messages || !job.members[0].lane.has_work(), "{what}");
            }
        }
    }
}

/// Nobody ends it, so its bound does.
#[test]
fn a_burst_without_an_end_is_posted_all_the_same() {
    let shape = Shape { rails: 1, depth: 256, ..Shape::default() };
    let mut job = Job::new(1, &shape, DOORBELLS);
    let targets = Targets::of(&job);
    for number in 1..=100 {
        announce(&mut job, &targets, 1, number * 8);
        assert_eq!(job.fabric.unrung(), 0);
        assert!(number - job.fabric.in_flight() < 16, "{number}: too many are withheld");
    }
    assert!(job.fabric.doorbells() <= 100 / 16 + 1, "one doorbell for 16 puts");
}

#[test]
fn without_a_gain_puts_go_out_at_once() {
    let mut job = Job::new(1, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    for number in 0..5 {
        announce(&mut job, &targets, 1, number * 8);
        assert_eq!(job.fabric.in_flight(), number + 1);
    }
}

/// With a depth of one, no room most of the time, and fences: all arrives, in order of the fences,
/// with the loop turned and nothing else.
#[test]
fn no_lack_of_room_strands_a_burst() {
    for_seeds("no_lack_of_room_strands_a_burst", &[], 200, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 17);
        let shape = Shape {
            n_pes: 3,
            rails: 1 + random.below(3) as u8,
            depth: [1, 2, 3, 5, 64][random.below(5)],
            max_segment: [3, 1000][random.below(2)],
            heap: 1 << 14,
            spread: random_spread(&mut random),
            ..Shape::default()
        };
        let script = Script {
            again_percent: [0, 50, 90][random.below(3)],
            delay: [(1, 1), (1, 1_000_000)][random.below(2)],
            slow_rails: if random.below(3) == 0 { vec![(RailId(0), 50)] } else { Vec::new() },
            ..DOORBELLS
        };
        let mut job = Job::new(seed, &shape, script);
        job.fill_scratch(0, &[7; 1 << 14]);
        let targets = Targets::of(&job);
        let sent: Vec<u32> = (0..300).map(|_| 1 + random.below(2) as u32).collect();
        for (number, to) in sent.iter().enumerate() {
            match random.below(20) {
                0 => job.fence(0, *to),
                1 => drop(job.members[0].lane.progress().unwrap()),
                2 => job.get(0, *to, 8192, 8).unwrap(),
                _ => {}
            }
            announce(&mut job, &targets, *to, number * 8);
        }
        let mut turns = 0;
        while job.members[0].lane.has_work() {
            job.members[0].lane.progress().unwrap();
            job.fabric.pass_time(10_000);
            turns += 1;
            assert!(turns < 10_000_000, "something is stranded");
        }
        for (number, to) in sent.iter().enumerate() {
            assert!(arrived(&job, *to, number * 8), "{number}");
        }
    });
}

/// The second of a burst fails for good when the doorbell is owed for the first.
#[test]
fn a_failure_in_the_middle_leaves_other_peers_alone() {
    for count in 1..6 {
        let shape = Shape { n_pes: 3, rails: 1, ..Shape::default() };
        let mut job = Job::new(1, &shape, DOORBELLS);
        job.fill_scratch(0, &[7; 256]);
        let targets = Targets::of(&job);
        for number in 0..5 {
            announce(&mut job, &targets, 1, number * 8);
        }
        job.fabric.fail_next(count);
        assert!(job.quiet(0, 1).is_err());
        announce(&mut job, &targets, 2, 64);
        job.quiet(0, 2).unwrap();
        assert!(arrived(&job, 2, 64));
        for _ in 0..1000 {
            let _ = job.members[0].lane.progress();
        }
        assert!(!job.members[0].lane.has_work());
    }
}

/// Bursts of all PEs to all others at once.
#[test]
fn bursts_cross() {
    for_seeds("bursts_cross", &[], 40, |seed| {
        let mut random = Random(seed * 0x51ed_270b + 5);
        let shape = Shape {
            n_pes: 4,
            rails: 1 + random.below(2) as u8,
            depth: [1, 4][random.below(2)],
            ..Shape::default()
        };
        let job = Job::new(seed, &shape, Script { again_percent: 30, ..DOORBELLS });
        for pe in 0..4 {
            job.fill_scratch(pe, &[7; 1 << 12]);
        }
        let bases: Vec<usize> = job.members.iter().map(|member| member.base).collect();
        let (fabric, _) = race(job, seed, |me, member, targets| {
            for number in 0..40 {
                for pe in 0..4 {
                    let at = (me as usize * 40 + number) * 8;
                    let part = targets.part(member.scratch + at, pe, at, 8);
                    member.lane.start_in_burst(&part)?;
                }
            }
            (0..4).try_for_each(|pe| member.lane.quiet(Pe(pe)))
        });
        for (pe, base) in (0..).zip(bases) {
            assert_eq!(fabric.load(Pe(pe), base, 4 * 40 * 8), [7; 4 * 40 * 8]);
        }
    });
}

#[test]
fn counted_puts_go_between_bursts() {
    const EACH: usize = 32;
    for_seeds("counted_puts_go_between_bursts", &[], 60, |seed| {
        let mut random = Random(seed * 0x0bad_cafe + 9);
        let shape = Shape {
            n_pes: 3,
            rails: 1 + random.below(3) as u8,
            depth: [1, 2, 5, 64][random.below(4)],
            max_segment: [64, 1000][random.below(2)],
            signals: SignalEngine::Counted,
            spread: random_spread(&mut random),
            ..Shape::default()
        };
        let script = Script { again_percent: [0, 50, 90][random.below(3)], ..DOORBELLS };
        let job = Job::new(seed, &shape, script);
        for pe in 0..3 {
            job.fill_scratch(pe, &[7; 1 << 15]);
        }
        let bases: Vec<usize> = job.members.iter().map(|member| member.base).collect();
        // Of each sender and number: where its put goes, its counted put, and the signal of that.
        let small = |me: u32, number: usize| (me as usize * EACH + number) * 8;
        let large = |me: u32, number: usize| 4096 + small(me, number) * 32;
        let word = |me: u32, number: usize| 32768 + small(me, number);
        let signals = |number: usize| number % 4 == 1;
        let (fabric, members) = race(job, seed, |me, member, targets| {
            let part = |pe, at, len| targets.part(member.scratch + at, pe, at, len);
            for number in 0..EACH {
                for pe in 0..3 {
                    member.lane.start_in_burst(&part(pe, small(me, number), 8))?;
                    if signals(number) {
                        let parts = [part(pe, large(me, number), 200)];
                        let signal = targets.atomic(pe, word(me, number), AtomicOp::SignalAdd, 1);
                        member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })?;
                    }
                }
            }
            (0..3).try_for_each(|pe| member.lane.quiet(Pe(pe)))
        });
        for (pe, base) in (0..).map(Pe).zip(bases) {
            for (me, number) in (0..3).flat_map(|me| (0..EACH).map(move |number| (me, number))) {
                assert_eq!(fabric.load(pe, base + small(me, number), 8), [7; 8]);
                let (data, signal) = if signals(number) { (7, 1u64) } else { (0, 0) };
                assert_eq!(fabric.load(pe, base + large(me, number), 200), [data; 200]);
                let found = fabric.load(pe, base + word(me, number), 8);
                assert_eq!(found, signal.to_le_bytes(), "{me} to {pe}, {number}");
            }
        }
        assert!(members.iter().all(|member| !member.lane.has_work()));
    });
}
