//! Signals that are sent apart from their data.

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use sim_fabric::Script;

use super::Targets;
use crate::job::{Job, Shape};

#[test]
fn later_puts_delay_no_signal() {
    for rails in [1, 2, 4] {
        let shape = Shape { rails, depth: 16, ..Shape::default() };
        let script = Script { delay: (1_000, 100_000), ..Script::default() };
        let mut job = Job::new(5, &shape, script);
        let targets = Targets::of(&job);
        let word = job.members[1].base;
        job.put(0, 1, 4096, 512).unwrap();
        job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::SignalSet, 7)).unwrap();
        let mut turns = 0;
        while job.fabric.load(Pe(1), word, 8) != 7_u64.to_le_bytes() {
            turns += 1;
            assert!(turns < 10_000, "{rails} rail(s): the signal waits for puts after it");
            job.put(0, 1, 8192 + turns % 64 * 64, 64).unwrap();
            job.iterate();
        }
        job.until_quiet(0, 1);
    }
}

#[test]
fn lone_signal_leaves_at_once() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let targets = Targets::of(&job);
    let word = job.members[1].base;
    // The first one opens what is opened at first use. The second may not wait for it: it is no
    // put.
    for value in 1..=2_u64 {
        job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::SignalSet, value)).unwrap();
        for _ in 0..1000 {
            job.members[1].lane.progress().unwrap();
        }
        assert_eq!(job.fabric.load(Pe(1), word, 8), value.to_le_bytes());
    }
}
