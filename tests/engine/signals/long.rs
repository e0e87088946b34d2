//! Puts whose data leaves with their signal in one message of some KiB, taken from where it lies.

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::Pe;
use engine::lane::SignalEngine;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::request::PutSignalRequest;
use engine::wire::message::{MAX_EAGER, eager_in};
use engine::wire::staging::MAX_PAYLOAD;
use sim_fabric::{Call, Script};

use super::Targets;
use crate::job::{Job, Shape};

const AT: usize = 64;
const MOST: usize = eager_in(MAX_LONG_MESSAGE);

fn shape() -> Shape {
    Shape { longest_message: MAX_LONG_MESSAGE, ..Shape::default() }
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7) as u8 | 1).collect()
}

/// Puts the first bytes of the scratch memory of PE 0 behind the first word of PE 1, which counts
/// that.
fn put_signal(job: &mut Job, lens: &[usize]) -> Result<(), EngineError> {
    let targets = Targets::of(job);
    let first = &mut job.members[0];
    let mut from = 0;
    let part = |len: &usize| {
        from += len;
        let local = first.scratch + from - len;
        targets.part(local, 1, AT + from - len, *len)
    };
    let parts: Vec<_> = lens.iter().map(part).collect();
    let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
    first.lane.put_signal(&PutSignalRequest { parts: &parts, signal })
}

fn is_quiet(job: &mut Job) -> bool {
    job.members[0].lane.is_quiet(Pe(1)).unwrap()
}

fn end(job: &mut Job) {
    while !is_quiet(job) {
        job.iterate();
    }
}

/// What PE 0 has posted for puts of these lengths, whose data and signal have arrived.
fn posts(shape: &Shape, lens: &[usize]) -> usize {
    let mut job = Job::new(7, shape, Script::default());
    let len = lens.iter().sum();
    job.fill_scratch(0, &bytes(len));
    job.fabric.trace_calls();
    put_signal(&mut job, lens).unwrap();
    while job.heap(1, 0, 8) != 1_u64.to_le_bytes() {
        job.iterate();
    }
    let is_post = |call: &&Call| matches!(call, Call::Post(Pe(0), _));
    let posts = job.fabric.calls().iter().filter(is_post).count();
    assert_eq!(job.heap(1, AT, len), bytes(len));
    assert_eq!(job.heap(1, AT + len, 64), [0; 64], "and no byte more");
    end(&mut job);
    posts
}

#[test]
fn data_and_signal_share_a_message() {
    use SignalEngine::{Auto, Chained, Counted, Eager};
    for signals in [Auto, Eager] {
        for longest_message in [300, MAX_LONG_MESSAGE] {
            let shape = Shape { signals, longest_message, ..shape() };
            let most = eager_in(longest_message);
            for len in [1, MAX_EAGER, MAX_EAGER + 1, most - 1, most] {
                assert_eq!(posts(&shape, &[len]), 1, "{len} of {most}, {signals:?}");
            }
            for len in [most + 1, most + MAX_PAYLOAD] {
                assert_eq!(posts(&shape, &[len]), 2, "{len} of {most}, {signals:?}");
            }
            assert!(posts(&shape, &[most + MAX_PAYLOAD + 1]) > 1, "{most}, {signals:?}");
            assert!(posts(&shape, &[MAX_EAGER, 8]) > 1, "two parts of data, {signals:?}");
        }
    }
    let short = Shape { longest_message: MAX_MESSAGE, ..shape() };
    assert!(posts(&short, &[MAX_EAGER + 1]) > 1);
    for signals in [Chained, Counted] {
        assert!(posts(&Shape { signals, ..shape() }, &[MAX_EAGER + 1]) > 1, "{signals:?}");
    }
}

#[test]
fn device_memory_shares_no_message() {
    // Two bits for each PE: its heap, its scratch memory.
    for staged in [0b0010, 0b0100, 0b0110] {
        for by_fabric in [0, staged] {
            let shape = Shape { staged, by_fabric, ..shape() };
            assert!(posts(&shape, &[MOST]) > 1, "{staged:b} {by_fabric:b}");
        }
    }
}
