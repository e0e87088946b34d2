//! Puts whose data leaves with their signal in one message of some KiB, taken from where it lies.

use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::recovery::health::RailHealth;
use engine::request::PutSignalRequest;
use engine::wire::handle::Handle;
use engine::wire::message::{Body, LongPacket, MAX_EAGER, Message, Spot, eager_in};
use engine::wire::staged::MAX_PAYLOAD;
use engine::wire::window::Seq;
use sim_fabric::{Call, Script};

use super::Targets;
use crate::job::{Job, Shape, seal};

const AT: usize = 64;
const MOST: usize = eager_in(MAX_LONG_MESSAGE);
const BESIDE: usize = (AT + MOST).next_multiple_of(AT);

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

fn iterate(job: &mut Job) {
    job.members.iter_mut().for_each(|member| {
        member.lane.progress().unwrap();
    });
}

fn is_quiet(job: &mut Job) -> bool {
    job.members[0].lane.is_quiet(Pe(1)).unwrap()
}

fn end(job: &mut Job) {
    while !is_quiet(job) {
        iterate(job);
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
        iterate(&mut job);
    }
    let is_post = |call: &&Call| matches!(call, Call::Post(Pe(0), _));
    let posts = job.fabric.calls().iter().filter(is_post).count();
    assert_eq!(job.heap(1, AT, len), bytes(len));
    assert_eq!(job.heap(1, AT + len, 64), [0; 64], "and no byte more");
    end(&mut job);
    posts
}

#[test]
fn data_and_signal_are_one_message_up_to_the_longest() {
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
fn memory_of_devices_is_written_or_pulled() {
    // Two bits for each PE: its heap, its scratch memory.
    for staged in [0b0010, 0b0100, 0b0110] {
        for by_fabric in [0, staged] {
            let shape = Shape { staged, by_fabric, ..shape() };
            assert!(posts(&shape, &[MOST]) > 1, "{staged:b} {by_fabric:b}");
        }
    }
}

#[test]
fn a_message_that_is_lost_is_sent_again_with_its_data() {
    let health = RailHealth { timeout: Duration::from_secs(1), cooling: None };
    for rail in [0, 1] {
        let mut job = Job::new(8, &Shape { health: Some(health), ..shape() }, Script::default());
        job.fill_scratch(0, &bytes(MOST));
        for to in [RailId(0), RailId(1)] {
            job.fabric.link_down((Pe(0), RailId(rail)), (Pe(1), to));
        }
        // One over each rail.
        for _ in 0..2 {
            put_signal(&mut job, &[MOST]).unwrap();
        }
        while !is_quiet(&mut job) {
            iterate(&mut job);
            job.fabric.pass_time(1_000_000);
        }
        assert_eq!(job.heap(1, 0, 8), 2_u64.to_le_bytes());
        assert_eq!(job.heap(1, AT, MOST), bytes(MOST));
        let resent: u64 = job.members[0].lane.counters().map(|rail| rail.resent).sum();
        assert!(resent > 0, "rail {rail}");
    }
}

/// The last bytes, which are one message too many, leave first, and are there before the signal.
#[test]
fn a_signal_waits_for_the_bytes_of_the_message_before_it() {
    const LEN: usize = MOST + 48;
    let mut early = 0;
    for seed in 0..16 {
        let slow_rails = vec![(RailId(seed as u8 % 2), 1_000)];
        let script = Script { slow_rails, ..Script::default() };
        let mut job = Job::new(seed, &Shape { rails: 2, ..shape() }, script);
        job.fill_scratch(0, &bytes(LEN));
        for turn in 1..=3_u64 {
            put_signal(&mut job, &[LEN]).unwrap();
            while job.heap(1, 0, 8) != turn.to_le_bytes() {
                iterate(&mut job);
                early += u64::from(job.heap(1, AT + MOST, 1) != [0] && job.heap(1, AT, 1) == [0]);
            }
            assert_eq!(job.heap(1, AT, LEN), bytes(LEN), "seed {seed}");
            end(&mut job);
            let heap = job.members[1].base;
            job.fabric.store(Pe(1), heap + AT, &[0; LEN]);
        }
    }
    assert!(early > 0, "no last bytes came first");
}

#[test]
fn a_message_that_comes_early_waits_with_its_data() {
    let slow = Script { slow_rails: vec![(RailId(0), 1_000)], ..Script::default() };
    let mut early = 0;
    for seed in 0..8 {
        let mut job = Job::new(seed, &shape(), slow.clone());
        job.fill_scratch(0, &bytes(MOST));
        let targets = Targets::of(&job);
        for _ in 0..1 + seed % 2 {
            let word = targets.atomic(1, BESIDE, AtomicOp::Inc, 0);
            job.members[0].lane.atomic(&word).unwrap();
        }
        job.fence(0, 1);
        put_signal(&mut job, &[MOST]).unwrap();
        while job.heap(1, 0, 8) != 1_u64.to_le_bytes() {
            iterate(&mut job);
            let waits = job.fabric.in_flight() == 1;
            let behind = job.heap(1, BESIDE, 8) != (1 + seed % 2).to_le_bytes();
            assert!(!behind || job.heap(1, AT, MOST) == vec![0; MOST], "it was not held back");
            early += u64::from(waits && behind);
        }
        assert_eq!(job.heap(1, AT, MOST), bytes(MOST));
        end(&mut job);
    }
    assert!(early > 0, "none came early");
}

/// A peer of the job that sends what its handle says it must not is refused, and has written
/// nothing.
#[test]
fn a_long_message_for_memory_of_a_device_is_refused() {
    let atomic = Targets::of(&Job::new(9, &shape(), Script::default()))
        .atomic(1, 0, AtomicOp::SignalAdd, 1)
        .atomic;
    for (staged, len, is_taken) in [
        (0, MOST, true),
        (0, MAX_EAGER, true),
        (0b0100, MAX_EAGER, true),
        (0b0100, MAX_EAGER + 1, false),
        (0b0100, MOST, false),
    ] {
        let mut job = Job::new(9, &Shape { staged, ..shape() }, Script::default());
        let slot = Handle::decode(&job.members[1].handle).unwrap().slot;
        let (at, to) = (Spot { slot, offset: 0 }, Spot { slot, offset: AT as u64 });
        let payload = bytes(len);
        let mut packet = LongPacket::EMPTY;
        let first = Seq(u32::MAX - 99);
        let body = Body::PutSignal { at, atomic, to, payload: &payload };
        let message = Message { from: Pe(0), seq: first, ack: first, behind: 0, body };
        seal(&message, 1, &mut packet);
        job.fabric.forge_message(Pe(1), RailId(0), packet.bytes());
        let error = (0..1000).find_map(|_| {
            job.fabric.pass_time(10_000);
            job.members[1].lane.progress().err()
        });
        assert_eq!(error.is_none(), is_taken, "{staged:b} {len}: {error:?}");
        let expected = if is_taken { payload } else { vec![0; len] };
        assert_eq!(job.heap(1, AT, len), expected, "{staged:b} {len}");
        if let Some(error) = error {
            assert!(error.to_string().contains(&format!("{len} bytes in one message")), "{error}");
        }
    }
}
