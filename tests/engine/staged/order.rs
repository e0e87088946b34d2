//! Order at the target: what is behind a fence or is a signal leaves at once where messages ask for
//! it, and the target carries it out in order.

use super::ALL;
use crate::prelude::*;

const LEN: usize = 1000;

/// As many as a peer has order groups to close: a further one waits for an answer.
const FENCES: usize = 15;

fn iterate(job: &mut Job, pe: u32) {
    for _ in 0..2000 {
        job.progress(pe, 1);
        job.fabric.pass_time(1000);
    }
}

/// What PE 0 does, to PE 1.
type Program = fn(&mut Job);

fn put(job: &mut Job, at: usize, len: usize) {
    job.put(0, 1, at, len).unwrap();
}

fn set(job: &mut Job, at: usize) {
    job.amo(0, 1, at, AtomicOp::Set, 7).unwrap();
}

/// Once all have left, the target brings them to their end alone.
#[test]
fn ordered_operations_leave_without_answer() {
    let programs: [(&str, u32, usize, Program); 8] = [
        ("put, fence, put", ALL, 2, |job| {
            put(job, 0, LEN);
            job.fence(0, 1);
            put(job, 1024, LEN);
        }),
        ("put, fence, atomic, again and again", ALL, 8, |job| {
            for at in (0..8192).step_by(2048) {
                put(job, at + 8, LEN);
                job.fence(0, 1);
                set(job, at);
            }
        }),
        ("few bytes, fences between them", ALL, FENCES, |job| {
            for at in (0..100 * FENCES).step_by(100) {
                put(job, at, 50);
                job.fence(0, 1);
            }
        }),
        ("put with signal", ALL, 2, |job| job.put_signal(0, 1, &[(8, LEN)], 0).unwrap()),
        ("two parts, one of them few bytes, with a signal, twice", ALL, 6, |job| {
            job.put_signal(0, 1, &[(8, 220), (1008, LEN)], 0).unwrap();
            job.put_signal(0, 1, &[(4104, LEN), (5104, 220)], 4096).unwrap();
        }),
        ("put, and a signal apart from it", ALL, 3, |job| {
            put(job, 8, LEN);
            put(job, 2048, 50);
            job.amo(0, 1, 0, AtomicOp::SignalSet, 7).unwrap();
        }),
        ("words of any kind, fences between them", ALL, 3, |job| {
            set(job, 0);
            job.fence(0, 1);
            job.fetch(0, 1, 8).unwrap();
            job.fence(0, 1);
            job.inc(0, 1, 16);
        }),
        ("words of the host, fences between them", 0, FENCES, |job| {
            for at in 0..FENCES {
                job.inc(0, 1, 8 * at);
                job.fence(0, 1);
            }
        }),
    ];
    for (what, staged, effects, program) in programs {
        for (rails, fast) in [(1, false), (1, true), (4, false), (4, true)] {
            let shape = Shape { staged, rails, fast, bounce: (1024, 8, 8), ..PLAIN };
            let mut job = Job::new(7, &shape, Script { delay: (1_000, 100_000), ..CALM });
            program(&mut job);
            iterate(&mut job, 0);
            iterate(&mut job, 1);
            let there = |event: &&Event| {
                matches!(event, Event::Copied { pe: Pe(1), .. } | Event::Applied { pe: Pe(1), .. })
            };
            let events = job.fabric.events();
            assert_eq!(events.iter().filter(there).count(), effects, "{what}, {rails} rail(s)");
            for _ in 0..3 {
                let _ = job.is_quiet(0, 1);
                iterate(&mut job, 0);
                iterate(&mut job, 1);
            }
            assert_eq!(job.is_quiet(0, 1), Ok(true), "{what}, {rails} rail(s)");
        }
    }
}

/// Bytes behind a fence are copied out while those before it still are; only their message waits.
#[test]
fn fence_holds_no_copy_back() {
    let shape = Shape { staged: ALL, bounce: (1024, 8, 8), ..PLAIN };
    let mut job = Job::new(5, &shape, Script { delay: (1_000, 1_000), ..CALM });
    job.fabric.trace_calls();
    job.fabric.refuse(Pe(1), true);
    for (at, copies) in [(0, 1), (1024, 2), (2048, 3)] {
        put(&mut job, at, LEN);
        job.fence(0, 1);
        job.progress(0, 10);
        assert_eq!(job.copies(0), copies, "nothing has left yet");
    }
    job.fabric.refuse(Pe(1), false);
    assert_eq!(job.settle(&[0, 1], (0, 1), 1000), Ok(()));
}
