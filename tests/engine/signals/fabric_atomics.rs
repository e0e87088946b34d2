//! Atomics that the fabric executes: exact for the whole table, in order, and never mixed with
//! those of messages.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::request::{AtomicRequest, PutSignalRequest, ResultPlace};
use engine::wire::message::{Body, Message, Packet, Spot, Tag};
use engine::wire::window::Seq;
use sim_fabric::{Event, Script};
use test_support::seeds::for_seeds;

use super::{Targets, race, random_script, random_shape};
use crate::as_entry::AsEntry as _;
use crate::job::{FIRST_REGION, Job, Random, Shape, seal};

fn native(random: &mut Random) -> Shape {
    Shape { native: true, ..random_shape(random) }
}

/// One PE does every operation of the table on a word of its own, in order; word and results are
/// those of the operations done one after another.
#[test]
fn every_operation_does_what_it_says() {
    for_seeds("every_operation_does_what_it_says", &[], 60, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 7);
        let shape = Shape { n_pes: 2, ..native(&mut random) };
        let job = Job::new(seed, &shape, random_script(&mut random));
        let base = job.members[1].base;
        let mut plan = Vec::new();
        for width in Width::ALL {
            for float in [false, true] {
                let mut word = 0;
                for op in AtomicOp::ALL.into_iter().chain(AtomicOp::ALL) {
                    // Small numbers, as numbers of that kind.
                    let small = random.below(9) as u64;
                    let operand = match (float, width) {
                        (false, _) => small,
                        (true, Width::Two) => [0, 0x3c00, 0x4000, 0x4200][small as usize % 4],
                        (true, Width::Four) => u64::from((small as f32).to_bits()),
                        (true, Width::Eight) => (small as f64).to_bits(),
                    };
                    let compare = if small % 2 == 0 { word } else { small };
                    let atomic = Atomic { op, width, float, operand, compare };
                    let before = word;
                    word = atomic.apply(word);
                    plan.push((atomic, before, word));
                }
            }
        }
        let own = job.members[0].base + 4096;
        let place = |number: usize| number / (2 * AtomicOp::ALL.len()) * 8;
        let (fabric, _) = race(job, seed, |me, member, targets| {
            if me == 1 {
                return Ok(());
            }
            for (number, (atomic, _, _)) in plan.iter().enumerate() {
                let mut request = targets.atomic(1, place(number), AtomicOp::Inc, 0);
                request.atomic = *atomic;
                let addr = member.base + 4096 + number * 16;
                request.result = Some(ResultPlace { addr, flag: Some(number as u64 + 1) });
                member.lane.amo(&request)?;
                // Without a fence they may be done in any order.
                member.lane.fence(Pe(1))?;
            }
            member.lane.quiet(Pe(1))
        });
        let word = |pe: u32, addr: usize| {
            u64::from_le_bytes(fabric.load(Pe(pe), addr, 8).try_into().unwrap())
        };
        for (number, (atomic, before, after)) in plan.iter().enumerate() {
            let (value, flag) = (word(0, own + number * 16), word(0, own + number * 16 + 8));
            if atomic.op.fetches() {
                assert_eq!((value, flag), (*before, number as u64 + 1), "{atomic:?}");
            } else {
                assert_eq!((value, flag), (0, 0), "{atomic:?} returns nothing");
            }
            if number + 1 == plan.len() || place(number + 1) != place(number) {
                assert_eq!(word(1, base + place(number)), *after, "after {atomic:?}");
            }
        }
    });
}

/// No fabric adds halves, so that is a loop, which all PEs run on one word at once.
#[test]
fn halves_are_added_exactly_under_contention() {
    for_seeds("halves_are_added_exactly_under_contention", &[], 60, |seed| {
        let mut random = Random(seed * 0x51ed_270b + 1);
        let shape = native(&mut random);
        let n = shape.n_pes;
        let job = Job::new(seed, &shape, random_script(&mut random));
        let base = job.members[0].base;
        let (fabric, members) = race(job, seed, |_, member, targets| {
            for round in 0..30 {
                let op = if round % 2 == 0 { AtomicOp::Add } else { AtomicOp::FetchInc };
                // One, as a half.
                let mut add = targets.atomic(0, 0, op, 0x3c00);
                (add.atomic.width, add.atomic.float) = (Width::Two, true);
                add.result = Some(ResultPlace { addr: member.base + 64, flag: Some(1) });
                member.lane.amo(&add)?;
            }
            member.lane.quiet(Pe(0))
        });
        let expected = Atomic {
            op: AtomicOp::Add,
            width: Width::Two,
            float: true,
            operand: 0x3c00,
            compare: 0,
        };
        let sum = (0..30 * n).fold(0, |sum, _| expected.apply(sum));
        let found = fabric.load(Pe(0), base, 8);
        assert_eq!(u64::from_le_bytes(found.try_into().unwrap()), sum);
        assert!(members.iter().all(|member| !member.lane.has_work()));
    });
}

/// The flag is stored after the value, and quiet returns after both.
#[test]
fn a_fetched_word_is_there_before_its_flag() {
    let shape = Shape { native: true, ..Shape::default() };
    let mut job = Job::new(3, &shape, Script::default());
    let targets = Targets::of(&job);
    let addr = job.members[0].base + 128;
    let mut take = targets.atomic(1, 0, AtomicOp::FetchInc, 0);
    take.result = Some(ResultPlace { addr, flag: Some(9) });
    job.members[0].lane.amo(&take).unwrap();
    job.quiet(0, 1).unwrap();
    let applied: Vec<usize> = job
        .fabric
        .events()
        .iter()
        .filter_map(|event| match event {
            Event::Applied { pe: Pe(0), addr } => Some(*addr),
            _ => None,
        })
        .collect();
    assert_eq!(applied, [addr, addr + 8]);
    assert_eq!(job.heap(0, 136, 8), 9u64.to_le_bytes());
}

#[test]
fn more_atomics_than_there_are_places_go_through_a_depth_of_one() {
    let shape = Shape { depth: 1, native: true, ..Shape::default() };
    let script = Script { again_percent: 50, ..Script::default() };
    let job = Job::new(2, &shape, script);
    let base = job.members[1].base;
    let (fabric, _) = race(job, 2, |me, member, targets| {
        for _ in 0..if me == 0 { 3000 } else { 2500 } {
            member.lane.amo(&targets.atomic(1, 0, AtomicOp::Inc, 0))?;
        }
        member.lane.quiet(Pe(1))
    });
    assert_eq!(fabric.load(Pe(1), base, 8), 5500u64.to_le_bytes());
}

#[test]
fn an_atomic_that_fails_ends_the_stream_and_no_other() {
    let shape = Shape { n_pes: 3, native: true, ..Shape::default() };
    for fetches in [false, true] {
        let mut job = Job::new(5, &shape, Script::default());
        let targets = Targets::of(&job);
        let addr = job.members[0].base + 128;
        let op = if fetches { AtomicOp::FetchAdd } else { AtomicOp::Add };
        let result = Some(ResultPlace { addr, flag: Some(9) });
        let add = AtomicRequest { result, ..targets.atomic(1, 0, op, 1) };
        job.fabric.fail_next(1);
        job.members[0].lane.amo(&add).unwrap();
        let error = job.quiet(0, 1).unwrap_err().to_string();
        assert!(error.contains("atomic") && error.contains("PE 1"), "{error}");
        assert_eq!(job.heap(0, 128, 16), [0; 16], "nothing was fetched");
        assert!(job.members[0].lane.amo(&add).is_err());
        job.members[0].lane.amo(&targets.atomic(2, 0, AtomicOp::Add, 1)).unwrap();
        job.quiet(0, 2).unwrap();
        assert_eq!(job.heap(2, 0, 8), 1u64.to_le_bytes());
        assert!(!job.members[0].lane.has_work());
    }
}

/// The data of a put fails, so its signal must not come.
#[test]
fn a_signal_whose_data_failed_is_dropped() {
    let shape = Shape { native: true, ..Shape::default() };
    let mut job = Job::new(6, &shape, Script::default());
    let targets = Targets::of(&job);
    let scratch = (job.members[0].scratch, &job.members[0].scratch_handle.clone());
    let parts = [targets.part(scratch, 1, 64, 100)];
    let signal = targets.atomic(1, 0, AtomicOp::SignalSet, 1);
    job.fabric.fail_next(1);
    job.members[0].lane.signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
    assert!(job.quiet(0, 1).is_err());
    for _ in 0..100 {
        let _ = job.members[0].lane.progress();
    }
    assert_eq!(job.heap(1, 0, 8), [0; 8]);
    assert!(!job.members[0].lane.has_work(), "the signal has given its places back");
}

/// Whatever engine was asked for, the signal is an atomic that leaves when its data is delivered.
#[test]
fn every_signal_with_data_is_chained() {
    use SignalEngine::{Auto, Chained, Counted, Eager};
    for signals in [Auto, Chained, Eager, Counted] {
        for len in [8, 600, 100_000] {
            let shape = Shape {
                native: true,
                signals,
                max_segment: 1 << 20,
                heap: 1 << 18,
                ..Shape::default()
            };
            let mut job = Job::new(9, &shape, Script::default());
            let targets = Targets::of(&job);
            job.fabric.hold_immediate_data(true);
            let scratch = (job.members[0].scratch, &job.members[0].scratch_handle.clone());
            let parts = [targets.part(scratch, 1, 64, len)];
            let signal = targets.atomic(1, 0, AtomicOp::SignalSet, 1);
            job.members[0].lane.signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
            assert_eq!(job.fabric.in_flight(), 1, "{signals:?}, {len}: the data alone");
            job.quiet(0, 1).unwrap();
            assert_eq!(job.heap(1, 0, 8), 1u64.to_le_bytes(), "{signals:?}, {len}");
            assert!(!job.members[0].lane.has_work(), "{signals:?}, {len}");
        }
    }
}

#[test]
fn a_lost_completion_of_an_atomic_ends_in_a_timeout() {
    let mut job = Job::new(7, &Shape { native: true, ..Shape::default() }, Script::default());
    let targets = Targets::of(&job);
    job.fabric.lose_next_completions(1);
    job.members[0].lane.amo(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
    let error = job.quiet(0, 1).unwrap_err().to_string();
    assert!(error.contains("atomic") && error.contains("posted"), "{error}");
}

#[test]
fn no_message_changes_a_word_beside_the_fabric() {
    let atomic =
        Atomic { op: AtomicOp::Set, width: Width::Eight, float: false, operand: 7, compare: 0 };
    let first = Seq(u32::MAX - 99);
    let at = Spot { slot: FIRST_REGION, offset: 0 };
    let to = Spot { slot: FIRST_REGION, offset: 64 };
    for body in [
        Body::Atomic { at, atomic },
        Body::PutSignal { at, atomic, to, payload: &[7; 8] },
        // None of its segments are there: it is refused all the same, and waits for nothing.
        Body::CountedSignal { at, atomic, tag: Tag::FIRST, segments: 2 },
    ] {
        let mut job = Job::new(8, &Shape { native: true, ..Shape::default() }, Script::default());
        // The first makes the sender known, so that there is a fast path for what follows.
        for body in [Body::Ack, body] {
            let mut packet = Packet::EMPTY;
            seal(&Message { from: Pe(0), seq: first, ack: first, behind: 0, body }, 1, &mut packet);
            job.fabric.forge_message(Pe(1), RailId(0), packet.bytes());
        }
        let error = (0..10).find_map(|_| job.members[1].lane.progress().err()).unwrap().to_string();
        assert!(error.contains("the fabric does them"), "{error}");
        assert_eq!(job.heap(1, 0, 128), [0; 128]);
    }
}
