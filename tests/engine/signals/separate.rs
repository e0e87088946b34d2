//! Signals that are sent apart from their data, as puts and then an atomic with a signal's
//! operation: they take effect behind the puts that the same lane has started before to the same
//! PE, with no fence in between.

use std::collections::HashMap;

use engine::atomic::AtomicOp;
use engine::channel::counts::TAGS;
use engine::ids::Pe;
use engine::lane::SignalEngine;
use engine::port::Direction;
use engine::request::PutSignalRequest;
use sim_fabric::{Event, Script};

use super::{Targets, race, random_script, random_shape};
use crate::job::{Job, Random, Shape, random_words};
use test_support::seeds::for_seeds;

const SIGNALS: [AtomicOp; 3] = [AtomicOp::Signal, AtomicOp::SignalSet, AtomicOp::SignalAdd];

#[derive(Clone, Debug)]
enum Step {
    /// Bytes for a PE.
    Put { to: u32, len: usize },
    /// Bytes with a signal of their own, which is ordered behind them alone.
    PutSignal { to: u32, len: usize },
    /// A signal by itself.
    Signal { to: u32, op: AtomicOp },
    /// A word that is changed, and no signal: it is ordered behind nothing.
    Add { to: u32 },
    /// What comes after comes after.
    Fence { to: u32 },
}

const PLACE: usize = 1024;
const STEPS: usize = 24;

fn steps(seed: u64, sender: u32, n: u32) -> Vec<Step> {
    let mut random = Random(seed * 0x2545_f491 + u64::from(sender) * 7919 + 1);
    let step = |_| {
        let to = random.below(n as usize) as u32;
        let len = [1, 8, 60, 200, 700][random.below(5)];
        match random.below(10) {
            0..=3 => Step::Put { to, len },
            4 => Step::PutSignal { to, len },
            5..=7 => Step::Signal { to, op: SIGNALS[random.below(3)] },
            8 => Step::Add { to },
            _ => Step::Fence { to },
        }
    };
    (0..STEPS).map(step).collect()
}

#[test]
fn signals_come_behind_the_puts_before_them() {
    let name = "signals_come_behind_the_puts_before_them";
    for_seeds(name, &[], 300, |seed| check(seed, false, random_shape));
}

#[test]
fn ordered_signals_come_behind_the_puts_and_signals_before_them() {
    let name = "ordered_signals_come_behind_the_puts_and_signals_before_them";
    for_seeds(name, &[], 300, |seed| check(seed, true, random_shape));
}

#[test]
fn ordered_signals_come_behind_puts_that_are_counted() {
    let name = "ordered_signals_come_behind_puts_that_are_counted";
    for_seeds(name, &[], 300, |seed| {
        check(seed, true, |random| Shape {
            rails: 2 + random.below(3) as u8,
            lonely: 0,
            signals: [SignalEngine::Auto, SignalEngine::Counted][random.below(2)],
            counted: [1, 2, 3, TAGS, TAGS][random.below(5)],
            immediate_data: true,
            staged: [0, 0, 0, random.below(1 << 8) as u32][random.below(4)],
            ..random_shape(random)
        });
    });
}

fn check(seed: u64, ordered: bool, shape: impl Fn(&mut Random) -> Shape) {
    {
        let mut random = Random(seed * 0x9e37_79b9 + 17);
        let words = random_words(seed);
        let shape = Shape { heap: 1 << 17, words, ..shape(&mut random) };
        let n = shape.n_pes;
        let mut job = Job::new(seed, &shape, random_script(&mut random));
        if ordered {
            job = job.with_ordered_signals();
        }
        let bases: Vec<usize> = job.members.iter().map(|member| member.base).collect();
        let places = Targets::of(&job);
        let place = |sender: u32, number: usize| (sender as usize * STEPS + number) * PLACE;
        let (fabric, members) = race(job, seed, |me, member, targets| {
            for (number, step) in steps(seed, me, n).into_iter().enumerate() {
                let at = place(me, number);
                let local = member.scratch + at;
                match step {
                    Step::Put { to, len } => {
                        member.lane.start(&targets.part(local, to, at + 8, len))?;
                    }
                    Step::PutSignal { to, len } => {
                        let parts = [targets.part(local, to, at + 8, len)];
                        let signal = targets.atomic(to, at, AtomicOp::SignalAdd, 1);
                        member.lane.put_signal(&PutSignalRequest { parts: &parts, signal })?;
                    }
                    Step::Signal { to, op } => {
                        member.lane.atomic(&targets.atomic(to, at, op, 1))?;
                    }
                    Step::Add { to } => {
                        member.lane.atomic(&targets.atomic(to, at, AtomicOp::Add, 1))?
                    }
                    Step::Fence { to } => member.lane.fence(Pe(to))?,
                }
            }
            (0..n).try_for_each(|pe| member.lane.quiet(Pe(pe)))
        });
        assert!(members.iter().all(|member| !member.lane.has_work()));
        let events = places.in_heaps(shape.heap, fabric.events());
        check_order(&events, &bases, n, |sender| steps(seed, sender, n), place, ordered);
    }
}

fn check_order(
    events: &[Event],
    bases: &[usize],
    n: u32,
    steps: impl Fn(u32) -> Vec<Step>,
    place: impl Fn(u32, usize) -> usize,
    ordered: bool,
) {
    // The latest moment at which something was written in a place, apart from its word.
    let mut data: HashMap<(u32, usize), usize> = HashMap::new();
    let mut words: HashMap<(u32, usize), usize> = HashMap::new();
    let mut note = |pe: Pe, addr: usize, moment: usize| {
        let Some(offset) = addr.checked_sub(bases[pe.index()]) else { return };
        let (at, within) = (offset / PLACE * PLACE, offset % PLACE);
        if within == 0 {
            assert_eq!(words.insert((pe.0, at), moment), None, "a word is changed once");
        } else {
            data.insert((pe.0, at), moment);
        }
    };
    for (moment, event) in events.iter().enumerate() {
        match event {
            Event::Delivered(d) if d.direction == Direction::Read => {}
            Event::Delivered(d) => note(d.to, bases[d.to.index()] + d.remote as usize, moment),
            Event::Copied { pe, addr, .. } | Event::Applied { pe, addr } => {
                note(*pe, *addr, moment);
            }
        }
    }
    for sender in 0..n {
        let mut latest = vec![None; n as usize];
        for (number, step) in steps(sender).into_iter().enumerate() {
            let at = place(sender, number);
            match step {
                Step::Put { to, .. } | Step::PutSignal { to, .. } => {
                    let moment = data.get(&(to, at)).copied();
                    assert!(moment.is_some(), "PE {sender}, step {number}: the data is there");
                    let word = words.get(&(to, at)).copied();
                    let is_signal = matches!(step, Step::PutSignal { .. });
                    assert!(
                        !is_signal || moment < word,
                        "PE {sender}, step {number}: a signal came before its own data"
                    );
                    let before = latest[to as usize];
                    assert!(
                        !(is_signal && ordered) || before < word,
                        "PE {sender}, step {number}: a put's signal came before what was before it"
                    );
                    let last = if is_signal && ordered { word } else { moment };
                    latest[to as usize] = before.max(last);
                }
                Step::Signal { to, op } => {
                    let moment = words.get(&(to, at)).copied();
                    assert!(moment.is_some(), "PE {sender}, step {number}: {op:?} took effect");
                    assert!(
                        latest[to as usize] < moment,
                        "PE {sender}, step {number}: {op:?} came before what was before it"
                    );
                    if ordered {
                        latest[to as usize] = moment;
                    }
                }
                Step::Add { .. } | Step::Fence { .. } => {}
            }
        }
    }
}

#[test]
fn a_signal_is_not_held_up_by_later_puts() {
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
            for member in &mut job.members {
                member.lane.progress().unwrap();
            }
        }
        while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
            for member in &mut job.members {
                member.lane.progress().unwrap();
            }
        }
    }
}

#[test]
fn a_signal_with_nothing_before_it_leaves_at_once() {
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
