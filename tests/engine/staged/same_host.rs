//! PEs of one host that share their bounce memory: each copies from the other's bounce buffers, and
//! the fabric moves messages alone.

use engine::rails::counters::StagedCounters;

use super::{ALL, fill, patterned};
use crate::prelude::*;

fn shape(n_pes: u32) -> Shape {
    let longest_message = MAX_LONG_MESSAGE;
    Shape { n_pes, staged: ALL, shared: u32::MAX, rails: 1, longest_message, ..PLAIN }
}

/// A job in which every PE has talked to every other.
fn job(shape: &Shape) -> Job {
    let mut job = Job::new(5, shape, CALM);
    fill(&job, shape.n_pes);
    let pairs = || (0..shape.n_pes).flat_map(|me| (0..shape.n_pes).map(move |pe| (me, pe)));
    for (me, pe) in pairs().filter(|(me, pe)| me != pe) {
        job.put(me, pe, job.heap - 8 * (1 + me as usize), 8).unwrap();
    }
    pairs().for_each(|(me, pe)| job.until_quiet(me, pe));
    job
}

/// What all PEs have moved: by the fabric, in messages, from shared memory.
fn moved(job: &Job) -> [u64; 3] {
    let counters = job.members.iter().map(|member| member.lane.staged_counters());
    let of = |of: fn(StagedCounters) -> u64| counters.clone().map(of).sum();
    [of(|all| all.by_fabric), of(|all| all.in_messages), of(|all| all.shared)]
}

/// Puts and gets of any length, of a device or the host: no byte in a message or by the fabric.
#[test]
fn shared_memory_carries_every_byte() {
    for (len, is_host) in
        [MAX_PAYLOAD + 1, 1000, 1024, 20_000].map(|len| [(len, false), (len, true)]).concat()
    {
        for direction in [Direction::Write, Direction::Read] {
            let mut job = job(&shape(2));
            let local = match is_host {
                true => job.fabric.alloc_reached(Pe(0), len, Reach::Direct),
                false => job.members[0].scratch,
            };
            job.fabric.store(Pe(0), local, &patterned(6, 0..len));
            job.fabric.store(Pe(1), job.members[1].base, &patterned(7, 0..len));
            let (before, delivered) = (moved(&job), job.fabric.deliveries().len());
            let request = Request { direction, ..job.targets.part(local, 1, 0, len) };
            job.members[0].lane.start(&request).unwrap();
            job.until_quiet(0, 1);
            let [fabric, messages, shared] = before;
            assert_eq!(moved(&job), [fabric, messages, shared + len as u64], "{len}");
            assert_eq!(job.fabric.deliveries().len(), delivered, "{len}");
            let of = if direction == Direction::Write { 6 } else { 7 };
            assert!(job.heap(1, 0, len) == patterned(of, 0..len));
            assert!(job.fabric.load(Pe(0), local, len) == patterned(of, 0..len));
        }
    }
}

/// The peer has not read them, or has requested bytes and never takes the reply.
#[test]
fn dead_peer_returns_bounce_buffers() {
    let deadline = Some(Duration::from_secs(2));
    for (is_asking, ends_before) in [(false, true), (false, false), (true, false)] {
        let mut job = job(&Shape { bounce: (1024, 2, 2), deadline, ..shape(3) });
        match is_asking {
            true => job.get(1, 0, 0, 2048).unwrap(),
            false => job.put(0, 1, 0, 2048).unwrap(),
        }
        job.progress(1, u32::from(is_asking));
        job.iterate_slowly(&[0, 2], 100, 1_000_000);
        if ends_before {
            job.fabric.world().ended.insert(Pe(1));
        }
        if is_asking {
            // PE 0 finds out that PE 1 is gone by an operation of its own.
            job.put_value(0, 1, 0, 1).unwrap();
        }
        job.settle(&[0, 2], (0, 1), 1_000_000).unwrap_err();
        job.put(0, 2, 0, 5000).unwrap();
        job.iterate_slowly(&[0, 2], 1000, 1_000_000);
        // A peer that is silent may still read.
        assert_eq!(job.is_quiet(0, 2), Ok(ends_before), "asks: {is_asking}");
        job.fabric.world().ended.insert(Pe(1));
        assert_eq!(job.settle(&[0, 2], (0, 2), 1_000_000), Ok(()), "asks: {is_asking}");
        assert!(job.heap(2, 0, 5000) == patterned(0, 0..5000));
    }
}
