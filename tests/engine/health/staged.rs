//! A rail that dies at any step of a put or a get of staged memory: the operation ends all the
//! same, every byte is right, and no bounce buffer stays with anybody.

use std::time::Duration;

use engine::ids::{Pe, RailId};
use engine::port::Direction;
use engine::port::packet::{MAX_LONG_MESSAGE, MAX_MESSAGE};
use engine::recovery::health::RailHealth;
use sim_fabric::{FakeFabric, Script};
use test_support::full;

use super::HEALTH;
use crate::job::{Job, Shape, audit};

const STEPS: usize = 45;
const STEP: (u64, u64) = (800, 20_000_000);
const SOON: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Blow {
    /// A rail of PE 0, silently or with errors.
    Rail(RailId, bool),
    /// What goes from one PE to the other over one path.
    OneWay(Pe, RailId),
}

impl Blow {
    fn all() -> impl Iterator<Item = Self> {
        let rails = || [0, 1].map(RailId).into_iter();
        rails().flat_map(|rail| {
            let one_way = [0, 1].map(|pe| Self::OneWay(Pe(pe), rail));
            [Self::Rail(rail, false), Self::Rail(rail, true)].into_iter().chain(one_way)
        })
    }

    fn strike(self, fabric: &FakeFabric) {
        match self {
            Self::Rail(rail, fails) => {
                fabric.dead_links_fail(fails);
                fabric.rail_down(Pe(0), rail);
            }
            Self::OneWay(from, rail) => {
                let (to, remote) = (Pe(1 - from.0), RailId(1 - rail.0));
                fabric.link_down((from, rail), (to, remote));
            }
        }
    }
}

/// An operation of PE 0 on PE 1's memory.
#[derive(Clone, Copy, Debug)]
struct Case {
    direction: Direction,
    len: usize,
    staged: u32,
    longest_message: usize,
}

fn pattern(pe: u32, at: usize) -> u8 {
    (pe as usize * 97 + at * 31 + (at >> 8) * 7 + 1) as u8
}

fn iterate(job: &mut Job, nanoseconds: u64) {
    for member in &mut job.members {
        member.lane.progress().unwrap();
    }
    job.fabric.pass_time(nanoseconds);
}

fn begin(job: &mut Job, direction: Direction, from: u32, to: u32, len: usize) {
    let begun = match direction {
        Direction::Write => job.put(from, to, 0, len),
        Direction::Read => job.get(from, to, 0, len),
    };
    begun.unwrap();
}

fn check(job: &Job, direction: Direction, from: u32, to: u32, (len, source): (usize, u32)) {
    let expected: Vec<u8> = (0..len).map(|at| pattern(source, at)).collect();
    let scratch = job.members[from as usize].scratch;
    let found = match direction {
        Direction::Write => job.heap(to, 0, len),
        Direction::Read => job.fabric.load(Pe(from), scratch, len),
    };
    assert!(found == expected, "PE {from} and PE {to}, {direction:?} {len}");
}

fn fill(job: &Job, direction: Direction, from: u32, to: u32, source: u32) {
    let bytes: Vec<u8> = (0..job.heap).map(|at| pattern(source, at)).collect();
    match direction {
        Direction::Write => job.fill_scratch(from, &bytes),
        Direction::Read => job.fabric.store(Pe(to), job.members[to as usize].base, &bytes),
    }
}

fn run(case: Case, blow: Blow, at: usize) {
    let Case { direction, len, staged, longest_message } = case;
    let shape = Shape {
        n_pes: 3,
        staged,
        longest_message,
        bounce: (1024, 1, 1),
        heap: 1 << 12,
        health: Some(HEALTH),
        ..Shape::default()
    };
    let script = Script { delay: (1_000, 1_000), ..Script::default() };
    let mut job = Job::new(1, &shape, script);
    fill(&job, direction, 0, 1, 7);
    begin(&mut job, direction, 0, 1, len);
    for _ in 0..at {
        iterate(&mut job, STEP.0);
        let _ = job.members[0].lane.is_quiet(Pe(1)).unwrap();
    }
    blow.strike(&job.fabric);
    let quiet = |job: &mut Job, from: u32, to: u32| {
        let started = job.fabric.now();
        while !job.members[from as usize].lane.is_quiet(Pe(to)).unwrap() {
            iterate(job, STEP.1);
            let waited = Duration::from_nanos(job.fabric.now() - started);
            assert!(waited < SOON, "PE {from} waits for PE {to}");
        }
    };
    quiet(&mut job, 0, 1);
    check(&job, direction, 0, 1, (len, 7));
    job.members.iter().for_each(|member| audit(&member.lane));
    // There is one bounce buffer for each direction: whoever keeps one is found by who needs it.
    for (number, (from, to)) in
        [(2, 1), (0, 2), (1, 2), (2, 0), (1, 0), (0, 1)].into_iter().enumerate()
    {
        for direction in [Direction::Read, Direction::Write] {
            fill(&job, direction, from, to, 11 + number as u32);
            begin(&mut job, direction, from, to, 2000);
            quiet(&mut job, from, to);
            check(&job, direction, from, to, (2000, 11 + number as u32));
        }
    }
}

fn every_step(direction: Direction) {
    let shapes = [(u32::MAX, MAX_MESSAGE), (0b0100, MAX_MESSAGE), (u32::MAX, MAX_LONG_MESSAGE)];
    let lens = shapes.into_iter().flat_map(|shape| [100, 700, 2500].map(|len| (shape, len)));
    let cases = lens.map(|((staged, longest_message), len)| Case {
        direction,
        len,
        staged,
        longest_message,
    });
    let blows = || Blow::all().flat_map(|blow| (0..STEPS).map(move |at| (blow, at)));
    let all = cases.flat_map(|case| blows().map(move |(blow, at)| (case, blow, at)));
    let mut failed = Vec::new();
    // Of 45 steps, so that every blow comes at every eighth step, at others in each case.
    for (case, blow, at) in all.step_by(if full() { 1 } else { 8 }) {
        if std::panic::catch_unwind(|| run(case, blow, at)).is_err() {
            failed.push(format!("{case:?}, {blow:?} at step {at}"));
        }
    }
    assert!(failed.is_empty(), "{} of them: {failed:#?}", failed.len());
}

#[test]
fn a_rail_dies_at_each_step_of_a_staged_put() {
    every_step(Direction::Write);
}

#[test]
fn a_rail_dies_at_each_step_of_a_staged_get() {
    every_step(Direction::Read);
}

/// A part of the same that is always tried: what PE 0 says of a get does not arrive from some step
/// on, its release at last.
#[test]
fn what_is_lost_of_a_get_is_sent_again() {
    let (direction, staged, longest_message) = (Direction::Read, u32::MAX, MAX_MESSAGE);
    let case = Case { direction, len: 700, staged, longest_message };
    for at in 0..30 {
        [0, 1].into_iter().for_each(|rail| run(case, Blow::OneWay(Pe(0), RailId(rail)), at));
    }
}

/// Messages whose rail dies are sent again over another, and bring their bytes again, let them be
/// read, or leave them where a neighbour sees them.
#[test]
fn dead_rail_costs_no_byte() {
    let health = Some(RailHealth { timeout: Duration::from_secs(1), cooling: None });
    for (rail, shared) in [(0, 0), (1, 0), (0, u32::MAX), (1, u32::MAX)] {
        let (bounce, longest_message) = ((8192, 4, 4), MAX_LONG_MESSAGE);
        let staged = if shared == 0 { 0b0100 } else { u32::MAX };
        let shape = Shape { staged, shared, bounce, longest_message, health, ..Shape::default() };
        let mut job = Job::new(5, &shape, Script::default());
        let bytes: Vec<u8> = (0..8000).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect();
        job.fill_scratch(0, &bytes);
        let end = |job: &mut Job, me: usize| {
            while !job.members[me].lane.is_quiet(Pe(1 - me as u32)).unwrap() {
                job.members.iter_mut().for_each(|member| {
                    member.lane.progress().unwrap();
                });
                job.fabric.pass_time(1_000_000);
            }
        };
        // Neighbours learn that they are.
        for me in [0, 1] {
            job.put(me, 1 - me, 60_000, 8).unwrap();
            end(&mut job, me as usize);
        }
        for to in [RailId(0), RailId(1)] {
            job.fabric.link_down((Pe(0), RailId(rail)), (Pe(1), to));
            if shared != 0 {
                job.fabric.link_down((Pe(1), RailId(rail)), (Pe(0), to));
            }
        }
        (0..8).for_each(|number| job.put(0, 1, number * 1000, 1000).unwrap());
        if shared != 0 {
            job.get(0, 1, 30_000, 8000).unwrap();
        }
        end(&mut job, 0);
        assert!(job.heap(1, 0, 8000) == bytes, "rail {rail}, {shared}");
        let resent: u64 = job.members[0].lane.counters().map(|rail| rail.resent).sum();
        assert!(resent > 0, "rail {rail}, {shared}");
    }
}
