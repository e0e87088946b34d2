//! Atomics: exact for the whole table, in order, and a fetched word before its flag.

use engine::atomic::{Atomic, AtomicOp, Width};
use engine::ids::Pe;
use engine::request::FetchTarget;
use test_support::seeds::for_seeds;

use super::{race, random_script, random_shape};
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
                request.result = Some(FetchTarget { addr, flag: Some(number as u64 + 1) });
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
