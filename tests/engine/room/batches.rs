//! Batches: over when all of their operations are delivered, whatever else goes on, and not before.

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use engine::lane::batches::Batch;
use engine::port::Direction;
use engine::request::Request;
use sim_fabric::Script;
use test_support::seeds::for_seeds;

use crate::job::{Job, Shape};
use crate::race::{Random, race, random_script, random_shape};

/// Nanoseconds that an iteration takes, so that delays are some hundred iterations at most.
const ITERATION: u64 = 200_000;

#[test]
fn batch_ends_while_others_go_on() {
    for_seeds("batch_ends_while_others_go_on", &[], 40, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 21);
        // Not staged: that takes many trips, and each waits behind all that the others post.
        let shape = Shape { n_pes: 2, staged: 0, ..random_shape(&mut random) };
        // Nor through a queue with one place for everything: that cannot be shared out, and waits
        // for as long as others keep it busy.
        let shape = Shape { depth: shape.depth.max(3), ..shape };
        let script = Script { delay: (1_000, 50_000), ..random_script(&mut random) };
        let job = Job::new(seed, &shape, script);
        let (fabric, base) = (job.fabric.clone(), job.members[1].base);
        race(job, seed, |me, member, targets| {
            if me == 1 {
                return Ok(());
            }
            let mut random = Random(seed);
            let batch = member.lane.begin_batch().expect("the first");
            member.lane.enter_batch(batch);
            let mut words = Vec::new();
            for at in (0..6).map(|number| number * 1024) {
                let len = [1, 8, 60, 200, 900][random.below(5)];
                let part = targets.part(member.scratch + at, 1, at + 64, len);
                let kind = random.below(4);
                match kind {
                    0 => member.lane.start(&part)?,
                    1 => member.lane.start(&Request { direction: Direction::Read, ..part })?,
                    2 => member.lane.atomic(&targets.fetch(1, at, member.scratch + at))?,
                    _ => member.put_signal(targets, 1, &[(at + 64, len)], at)?,
                }
                words.extend((kind > 1).then_some(at));
            }
            member.lane.enter_batch(Batch::NONE);
            let mut iterations = 0;
            while !member.lane.is_batch_done(batch) {
                member.lane.start(&targets.part(member.scratch, 1, 64 << 10, 40))?;
                member.lane.atomic(&targets.atomic(1, 100 << 10, AtomicOp::Add, 1))?;
                member.lane.progress()?;
                fabric.step();
                fabric.pass_time(ITERATION);
                member.lane.want_ack(Pe(1));
                iterations += 1;
                assert!(iterations < 20_000, "the batch does not end");
            }
            let is_changed = |at: &usize| fabric.load(Pe(1), base + at, 8) == 1_u64.to_le_bytes();
            assert!(words.iter().all(is_changed), "the words of {words:?}");
            member.lane.end_batch(batch);
            member.lane.quiet(Pe(1))
        });
    });
}
