//! Signals and atomics of a PE on its own memory.

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use engine::request::AtomicRequest;
use sim_fabric::Script;

use super::Targets;
use crate::job::{Job, Shape};

/// Lets time pass for a lane until a word of PE 0 is there.
fn until_set(job: &mut Job, word: usize) {
    for _ in 0..100_000 {
        if job.fabric.load(Pe(0), word, 8) != [0; 8] {
            return;
        }
        job.members[0].lane.progress().unwrap();
        job.fabric.pass_time(1000);
    }
    panic!("the word is never set");
}

/// A fence towards another PE is all that a PE is told of, and holds for its own words as well,
/// whichever of them the processor changes itself.
#[test]
fn own_words_obey_fences() {
    for words in 1..4 {
        let mut job = Job::new(1, &Shape { words, ..Shape::default() }, Script::default());
        let targets = Targets::of(&job);
        let member = &mut job.members[0];
        let device = targets.atomic(0, 8, AtomicOp::Add, 1);
        member.lane.atomic(&device).unwrap();
        member.lane.fence(Pe(1)).unwrap();
        let (heap, remote_addr) = (member.handle, member.base as u64);
        let host = AtomicRequest { remote_handle: &heap, remote_addr, ..device };
        member.lane.atomic(&host).unwrap();
        let (base, word) = (job.members[0].base, targets.word(0, 8));
        until_set(&mut job, base);
        assert_eq!(job.fabric.load(Pe(0), word, 8), 1_u64.to_le_bytes(), "{words}");
    }
}
