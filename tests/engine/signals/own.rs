//! Signals and atomics of a PE on its own memory.

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use engine::request::{AtomicRequest, ResultPlace};
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

#[test]
fn own_signal_waits_for_own_puts() {
    for (words, fast) in (0..4).flat_map(|words| [(words, false), (words, true)]) {
        for (op, ordered) in [AtomicOp::Signal, AtomicOp::SignalSet, AtomicOp::SignalAdd]
            .into_iter()
            .flat_map(|op| [(op, false), (op, true)])
        {
            for number in 0..6 {
                let shape = Shape { rails: 2, words, fast, ..Shape::default() };
                let script = Script { delay: (50_000, 100_000), ..Script::default() };
                let mut job = Job::new(number + 1, &shape, script);
                if ordered {
                    job = job.with_ordered_signals();
                }
                job.fill_scratch(0, &[0x5a; 4096]);
                let targets = Targets::of(&job);
                // From here on it has a connection to itself that messages have gone over.
                let mut fetch = targets.atomic(0, 8192, AtomicOp::FetchAdd, 1);
                fetch.result =
                    Some(ResultPlace { addr: job.members[0].scratch + 8192, flag: None });
                job.members[0].lane.atomic(&fetch).unwrap();
                job.quiet(0, 0).unwrap();
                let scratch = job.members[0].scratch;
                for part in 0..number as usize {
                    let put = targets.part(scratch + 64 * part, 0, 64 * part, 64);
                    job.members[0].lane.start(&put).unwrap();
                }
                job.members[0].lane.atomic(&targets.atomic(0, 8200, op, 1)).unwrap();
                until_set(&mut job, targets.word(0, 8200));
                let len = 64 * number as usize;
                let case = format!("{number} puts, {op:?}, words {words}, {fast} {ordered}");
                assert_eq!(job.heap(0, 0, len), [0x5a; 4096][..len], "{case}");
            }
        }
    }
}

/// A fence towards another PE is all that a PE is told of, and holds for its own words as well,
/// whichever of them the processor changes itself.
#[test]
fn own_words_keep_their_order_across_a_fence() {
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
