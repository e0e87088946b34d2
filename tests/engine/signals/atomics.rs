//! Atomics: exact for the whole table, in order, and a fetched word before its flag.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use engine::request::ResultPlace;
use sim_fabric::{Event, Script};
use test_support::seeds::for_seeds;

use super::{Targets, race, random_script, random_shape};
use crate::job::{Job, Random, Shape};

/// One PE does every operation of the table on a word of its own, in order; word and results are
/// those of the operations done one after another.
#[test]
fn every_operation_does_what_it_says() {
    for_seeds("every_operation_does_what_it_says", &[], 60, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 7);
        let shape = Shape { n_pes: 2, ..random_shape(&mut random) };
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
                member.lane.atomic(&request)?;
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

/// All PEs add to one word at once.
#[test]
fn halves_are_added_exactly_under_contention() {
    for_seeds("halves_are_added_exactly_under_contention", &[], 60, |seed| {
        let mut random = Random(seed * 0x51ed_270b + 1);
        let shape = random_shape(&mut random);
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
                member.lane.atomic(&add)?;
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

#[test]
fn a_fetched_word_is_there_before_its_flag() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let addr = job.members[0].base + 128;
    let mut take = targets.atomic(1, 0, AtomicOp::FetchInc, 0);
    take.result = Some(ResultPlace { addr, flag: Some(9) });
    job.members[0].lane.atomic(&take).unwrap();
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        job.members.iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
    }
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
