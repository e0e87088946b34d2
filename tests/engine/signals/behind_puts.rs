//! Ordered signals behind puts that have none, where the puts' segments are counted: the signal
//! leaves at once, and its target applies it when it has counted them.

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::port::Direction;
use engine::request::PutSignalRequest;
use sim_fabric::{Event, Script};

use super::Targets;
use crate::job::{Job, Shape};

const LEN: usize = 150;

fn job(shape: Shape, script: Script) -> (Job, Targets) {
    let shape = Shape { max_segment: 64, ..shape };
    let job = Job::new(7, &shape, script).with_ordered_signals();
    let targets = Targets::of(&job);
    (job, targets)
}

fn signal(job: &mut Job, targets: &Targets, at: usize) {
    job.members[0].lane.atomic(&targets.atomic(1, at, AtomicOp::SignalAdd, 1)).unwrap();
}

fn word(job: &Job, at: usize) -> u64 {
    u64::from_le_bytes(job.heap(1, at, 8).try_into().unwrap())
}

fn iterate(job: &mut Job, pe: usize, times: u32) {
    for _ in 0..times {
        job.members[pe].lane.progress().unwrap();
    }
}

fn settle(job: &mut Job) {
    for _ in 0..100_000 {
        if job.members[0].lane.is_quiet(Pe(1)).unwrap() {
            return;
        }
        iterate(job, 0, 1);
        iterate(job, 1, 1);
        job.fabric.pass_time(1000);
    }
    panic!("it does not end");
}

fn slow(rail: u8) -> Script {
    let slow_rails = vec![(RailId(rail), 1000)];
    Script { delay: (1_000, 1_000), slow_rails, ..Script::default() }
}

/// Turns of the target alone, until its first word is so much.
fn target_until(job: &mut Job, value: u64) {
    for _ in 0..100_000 {
        if word(job, 0) == value {
            return;
        }
        iterate(job, 1, 1);
        job.fabric.pass_time(1000);
    }
    panic!("the signal has not come");
}

/// When the last byte of puts beyond the words was delivered, and when each word was changed.
fn moments(job: &Job) -> (usize, Vec<usize>) {
    let base = job.members[1].base;
    let (mut last, mut words) = (0, Vec::new());
    for (moment, event) in job.fabric.events().iter().enumerate() {
        match event {
            Event::Delivered(d) if d.direction == Direction::Write && d.to == Pe(1) => {
                last = moment;
            }
            Event::Applied { pe: Pe(1), addr } if *addr < base + 64 => words.push(moment),
            _ => {}
        }
    }
    (last, words)
}

/// The sender has no turn after its calls, so it learns of no delivery. A rail is slow, so what it
/// carries comes long after the signal.
#[test]
fn a_signal_behind_puts_leaves_at_once_and_is_applied_behind_them() {
    for (fast, lone) in [(false, true), (true, true), (false, false), (true, false)] {
        for slow_rail in 0..3 {
            let shape = Shape { rails: 3, fast, ..Shape::default() };
            let (mut job, targets) = job(shape, slow(slow_rail));
            // A segment for each rail.
            (0..3).for_each(|at| job.put(0, 1, 1024 + at * 256, 60).unwrap());
            let before = job.fabric.in_flight();
            if lone {
                signal(&mut job, &targets, 0);
            } else {
                let part = targets.part(job.members[0].scratch, 1, 2048, 60);
                let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
                let put = PutSignalRequest { parts: &[part], signal };
                job.members[0].lane.put_signal(&put).unwrap();
            }
            let left = if lone { 1 } else { 2 };
            assert_eq!(job.fabric.in_flight(), before + left, "it has left");
            target_until(&mut job, 1);
            settle(&mut job);
            let (last, words) = moments(&job);
            assert!(words.len() == 1 && last < words[0], "{last} {words:?}");
        }
    }
}

#[test]
fn later_puts_do_not_count_for_a_signal_before_them() {
    let (mut job, targets) = job(Shape { rails: 3, ..Shape::default() }, Script::default());
    job.fabric.lose_next_immediate_data(1);
    job.put(0, 1, 1024, LEN).unwrap();
    signal(&mut job, &targets, 0);
    // Those before have landed by then, so one of them is lost.
    iterate(&mut job, 1, 1000);
    for at in 0..8 {
        job.put(0, 1, 2048 + at * 256, LEN).unwrap();
    }
    signal(&mut job, &targets, 8);
    for _ in 0..5000 {
        iterate(&mut job, 0, 1);
        iterate(&mut job, 1, 1);
        assert_eq!((word(&job, 0), word(&job, 8)), (0, 0), "neither, as the first waits");
    }
    assert!(job.quiet(0, 1).is_err(), "it is never told of the one that is lost");
}

#[test]
fn puts_and_signals_by_turns_wait_for_nothing() {
    let (mut job, targets) =
        job(Shape { rails: 2, depth: 64, ..Shape::default() }, Script::default());
    for at in 0..4 {
        job.put(0, 1, 1024 + at * 256, 60).unwrap();
        signal(&mut job, &targets, at * 8);
        assert_eq!(job.fabric.in_flight(), 2 * (at + 1));
    }
    iterate(&mut job, 1, 10_000);
    assert!((0..4).all(|at| word(&job, at * 8) == 1));
    settle(&mut job);
}

/// With the only tag in use, puts are not counted and the signal waits until they are delivered.
#[test]
fn without_a_tag_a_signal_waits_for_the_puts_before_it() {
    let shape = Shape { rails: 2, depth: 64, counted: 1, ..Shape::default() };
    let (mut job, targets) = job(shape, Script::default());
    job.put(0, 1, 1024, 60).unwrap();
    signal(&mut job, &targets, 0);
    job.put(0, 1, 2048, 60).unwrap();
    signal(&mut job, &targets, 8);
    assert_eq!(job.fabric.in_flight(), 3, "the second signal has not left");
    iterate(&mut job, 1, 10_000);
    assert_eq!((word(&job, 0), word(&job, 8)), (1, 0));
    settle(&mut job);
    assert_eq!((word(&job, 0), word(&job, 8)), (1, 1));
    // The tag is free again.
    job.put(0, 1, 2048, 60).unwrap();
    signal(&mut job, &targets, 0);
    iterate(&mut job, 1, 10_000);
    assert_eq!(word(&job, 0), 2);
    settle(&mut job);
}

#[test]
fn puts_without_a_signal_block_nothing() {
    for counted in [1, 2] {
        let shape = Shape { rails: 2, counted, ..Shape::default() };
        let (mut job, targets) = job(shape, Script::default());
        for at in 0..200 {
            job.put(0, 1, 1024 + at % 8 * 256, LEN).unwrap();
            iterate(&mut job, 1, 1);
        }
        job.quiet(0, 1).unwrap();
        for count in 1..=20 {
            let part = targets.part(job.members[0].scratch, 1, 4096, 600);
            let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
            job.members[0].lane.put_signal(&PutSignalRequest { parts: &[part], signal }).unwrap();
            settle(&mut job);
            assert_eq!(word(&job, 0), count);
            job.put(0, 1, 1024, 60).unwrap();
        }
        settle(&mut job);
    }
}

#[test]
fn a_put_that_was_refused_halfway_is_counted_for_the_next_signal() {
    let (mut job, targets) = job(Shape { rails: 2, ..Shape::default() }, slow(0));
    for turn in 1..=40 {
        job.put(0, 1, 1024, LEN).unwrap();
        let local = job.members[0].scratch;
        let parts = [targets.part(local, 1, 2048, 300), targets.part(local, 1, job.heap - 50, 100)];
        let refused = targets.atomic(1, 8, AtomicOp::SignalAdd, 1);
        let refused = PutSignalRequest { parts: &parts, signal: refused };
        job.members[0].lane.put_signal(&refused).unwrap_err();
        signal(&mut job, &targets, 0);
        target_until(&mut job, turn);
        settle(&mut job);
        let (last, words) = moments(&job);
        assert!(words.last().is_some_and(|word| last < *word), "turn {turn}");
    }
    assert_eq!(word(&job, 8), 0);
}
