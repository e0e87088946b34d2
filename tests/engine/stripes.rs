//! Operations spread over rails of which the script says how much they carry. Time is the fabric's
//! own, so that what is compared here is the same in every run.

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::rails::Spread;
use engine::rails::counters::RailCounters;
use engine::request::PutSignalRequest;
use sim_fabric::Script;
use test_support::seeds::for_seeds;

use super::job::{Job, Member, Random, Shape};
use super::signals::Targets;

/// What a rail of 400 Mbit/s carries, in bytes per microsecond.
const FULL: u64 = 50;

const SPREAD: Spread =
    Spread { balanced_from: 8 << 10, striped_from: 128 << 10, segment: 256 << 10 };

const MIB: usize = 1 << 20;

fn rates(rates: &[u64]) -> Script {
    let rail = |(at, rate): (usize, &u64)| (RailId(at as u8), *rate);
    Script {
        rates: rates.iter().enumerate().map(rail).collect(),
        // As a network has: tens of microseconds.
        delay: (20_000, 30_000),
        ..Script::default()
    }
}

fn job(seed: u64, spread: Spread, script: Script) -> Job {
    let shape = Shape {
        rails: script.rates.len() as u8,
        depth: 64,
        max_segment: 1 << 30,
        heap: 16 * MIB,
        spread,
        ..Shape::default()
    };
    let job = Job::new(seed, &shape, script);
    let bytes: Vec<u8> = (0..shape.heap).map(|at| (at >> 12 ^ at) as u8 | 1).collect();
    job.fill_scratch(0, &bytes);
    job
}

/// Bytes per microsecond of `rounds` rounds, each followed by quiet, of puts of `len` bytes.
fn put_rate(job: &mut Job, rounds: usize, window: usize, len: usize) -> f64 {
    let begun = job.fabric.now();
    for _ in 0..rounds {
        for at in 0..window {
            job.put(0, 1, at * len, len).unwrap();
        }
        job.quiet(0, 1).unwrap();
    }
    let bytes = (rounds * window * len) as f64;
    bytes * 1e3 / (job.fabric.now() - begun) as f64
}

/// From the length on at which rails are chosen by load, they are, though shorter ones have a fast
/// path. So are those of the fragments of staged memory.
#[test]
fn operations_that_are_not_short_are_given_to_rails_by_load() {
    let spread = Spread { balanced_from: 4096, ..Spread::ROUND_ROBIN };
    let direct = Shape { fast: true, needs_desc: false, spread, ..Shape::default() };
    let staged = Shape { staged: 0b10, bounce: (1024, 2, 2), spread, ..Shape::default() };
    for (shape, len, by_load) in [(&direct, 4095, 0), (&direct, 4096, 4), (&staged, 4096, 16)] {
        let mut job = Job::new(1, shape, Script::default());
        for _ in 0..4 {
            job.put(0, 1, 0, len).unwrap();
            job.quiet(0, 1).unwrap();
        }
        let counted: u64 = job.members[0].lane.counters().map(|rail| rail.by_load).sum();
        assert_eq!(counted, by_load, "{len} bytes");
    }
}

fn bytes_by_rail(job: &Job) -> Vec<u64> {
    job.members[0].lane.counters().map(|rail| rail.bytes).collect()
}

#[test]
fn one_large_put_uses_what_all_rails_carry() {
    for len in [16 * MIB, MIB] {
        let mut four = job(1, SPREAD, rates(&[FULL; 4]));
        let mut one = job(1, SPREAD, rates(&[FULL; 1]));
        let (four, one) = (put_rate(&mut four, 4, 1, len), put_rate(&mut one, 4, 1, len));
        assert!(four > 3.7 * one, "{len} bytes: {four:.0} B/us over four rails, {one:.0} over one");
    }
}

#[test]
fn long_operations_are_for_the_connections_for_bulk() {
    const LEN: usize = SPREAD.striped_from;
    for rails in [1, 3] {
        for (bulk, len, moved) in [(4, LEN - 1, 0), (4, LEN, LEN), (1, LEN, LEN), (0, LEN, 0)] {
            let shape = Shape {
                rails,
                bulk,
                depth: 64,
                max_segment: 1 << 30,
                heap: MIB,
                fast: true,
                needs_desc: false,
                spread: SPREAD,
                ..Shape::default()
            };
            let mut job = Job::new(1, &shape, Script::default());
            let bytes: Vec<u8> = (0..len).map(|at| (at >> 9 ^ at) as u8).collect();
            job.fill_scratch(0, &bytes);
            job.put(0, 1, 0, len).unwrap();
            job.quiet(0, 1).unwrap();
            assert_eq!(job.heap(1, 0, len), bytes);
            let counted = |of: fn(&RailCounters) -> u64| -> u64 {
                job.members[0].lane.counters().map(|rail| of(&rail)).sum()
            };
            let case = format!("{len} bytes, {rails} rails, {bulk} connections");
            assert_eq!(counted(|rail| rail.bulk_bytes), moved as u64, "{case}");
            let segments = counted(|rail| rail.posted);
            let is_cut = len >= LEN && (rails > 1 || bulk > 0);
            assert_eq!(segments > 1, is_cut, "{case}: {segments} segments");
        }
    }
}

#[test]
fn long_fragments_are_for_the_connections_for_bulk() {
    let spread = Spread { balanced_from: 512, striped_from: 1024, segment: 1024 };
    for (len, moved) in [(1023, 0), (1024, 1024), (4096, 4096)] {
        let bounce = (1024, 2, 2);
        let shape = Shape { staged: 0b10, bounce, bulk: 2, spread, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        job.put(0, 1, 0, len).unwrap();
        job.quiet(0, 1).unwrap();
        let of = |member: &Member| member.lane.counters().map(|rail| rail.bulk_bytes).sum::<u64>();
        assert_eq!(job.members.iter().map(of).sum::<u64>(), moved, "{len} bytes");
    }
}

#[test]
fn a_rail_has_as_much_ahead_as_its_connections_together() {
    let most = |bulk| {
        let script = rates(&[FULL]);
        let shape = Shape {
            rails: 1,
            bulk,
            depth: 64,
            max_segment: 1 << 30,
            heap: 16 * MIB,
            spread: SPREAD,
            ..Shape::default()
        };
        let mut job = Job::new(1, &shape, script);
        put_rate(&mut job, 1, 1, 16 * MIB);
        job.members[0].lane.counters().map(|rail| rail.max_in_flight).max().unwrap()
    };
    let (one, four) = (most(1), most(4));
    assert!(four > 3 * one, "{one} segments, and {four}");
}

#[test]
fn gets_too() {
    let mut job = job(1, SPREAD, rates(&[FULL; 4]));
    let begun = job.fabric.now();
    job.get(0, 1, 0, 16 * MIB).unwrap();
    job.quiet(0, 1).unwrap();
    let rate = (16 * MIB) as f64 * 1e3 / (job.fabric.now() - begun) as f64;
    assert!(rate > 3.7 * FULL as f64, "{rate:.0} B/us");
}

#[test]
fn a_window_of_middle_sized_puts_uses_what_all_rails_carry() {
    let mut job = job(1, SPREAD, rates(&[FULL; 4]));
    let rate = put_rate(&mut job, 4, 64, 64 << 10);
    assert!(rate > 3.7 * FULL as f64, "{rate:.0} B/us");
}

#[test]
fn a_slow_rail_gets_its_share_and_no_more() {
    let slow = [FULL, FULL / 10, FULL, FULL];
    let sum = slow.iter().sum::<u64>() as f64;
    for (window, len) in [(1, 16 * MIB), (1, 4 * MIB), (128, 64 << 10), (4, 4 * MIB)] {
        let mut job = job(1, SPREAD, rates(&slow));
        // The first put finds out.
        put_rate(&mut job, 1, window, len);
        let before = bytes_by_rail(&job)[1];
        let rate = put_rate(&mut job, 8, window, len);
        assert!(rate > 0.93 * sum, "{window} of {len}: {rate:.0} B/us of {sum}");
        let shown: Vec<f64> =
            job.members[0].lane.counters().map(|rail| rail.rate as f64 / 1e6).collect();
        for (rate, shown) in slow.iter().zip(&shown) {
            let ratio = shown / *rate as f64;
            assert!((0.8..1.05).contains(&ratio), "{window} of {len}: rates {shown:?}");
        }
        let share = (bytes_by_rail(&job)[1] - before) as f64 / (8 * window * len) as f64;
        assert!(share <= 1.2 * (FULL / 10) as f64 / sum, "{window} of {len}: {share:.3}");
    }
    // In turn, all wait for the slow one.
    let mut job = job(1, Spread::ROUND_ROBIN, rates(&slow));
    let rate = put_rate(&mut job, 8, 128, 64 << 10);
    assert!(rate < 0.2 * sum, "{rate:.0} B/us of {sum}");
}

#[test]
fn a_rail_that_slows_down_in_a_put_does_not_keep_it() {
    let mut job = job(1, SPREAD, rates(&[FULL; 4]));
    put_rate(&mut job, 2, 1, 16 * MIB);
    let begun = job.fabric.now();
    job.put(0, 1, 0, 16 * MIB).unwrap();
    let half = 8 * MIB as u64 * 1000 / (4 * FULL);
    while job.fabric.now() < begun + half {
        job.members[0].lane.progress().unwrap();
    }
    job.fabric.set_rate(RailId(2), FULL / 10);
    job.quiet(0, 1).unwrap();
    let took = job.fabric.now() - begun;
    // What it had ahead then is three segments, and there and back is some time more.
    let ahead = 3 * SPREAD.segment as u64 * 1000 / (FULL / 10) + 100_000;
    assert!(took < half + ahead, "{took} ns, half of it {half}");
}

#[test]
fn a_rail_that_recovers_is_used_again() {
    let mut job = job(1, SPREAD, rates(&[FULL, FULL, 1, FULL]));
    for _ in 0..4 {
        put_rate(&mut job, 1, 1, 2 * MIB);
    }
    job.fabric.set_rate(RailId(2), FULL);
    // It is tried again after a while, whether much is sent meanwhile or nothing.
    for idle in [false, true] {
        let until = job.fabric.now() + 4_000_000_000;
        if idle {
            job.fabric.pass_time(4_000_000_000);
        }
        while job.fabric.now() < until {
            put_rate(&mut job, 1, 1, 2 * MIB);
        }
        let before = bytes_by_rail(&job);
        put_rate(&mut job, 8, 1, 2 * MIB);
        let after = bytes_by_rail(&job);
        let share = (after[2] - before[2]) as f64 / (16 * MIB) as f64;
        assert!((0.2..0.3).contains(&share), "{share:.2} of the bytes");
    }
}

fn signal_time(seed: u64, signals: SignalEngine, script: Script) -> u64 {
    let shape = Shape {
        rails: script.rates.len() as u8,
        depth: 64,
        max_segment: 1 << 30,
        heap: 2 * MIB,
        signals,
        spread: SPREAD,
        ..Shape::default()
    };
    let mut job = Job::new(seed, &shape, script);
    job.fill_scratch(0, &vec![0x5a; MIB]);
    let targets = Targets::of(&job);
    let begun = job.fabric.now();
    for round in 1..=4 {
        let member = &mut job.members[0];
        let parts = [targets.part(member.scratch, 1, 64, MIB)];
        let signal = targets.atomic(1, 0, AtomicOp::SignalSet, round);
        member.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
        while job.heap(1, 0, 8) != round.to_le_bytes() {
            for member in &mut job.members {
                member.lane.progress().unwrap();
            }
        }
        assert!(job.heap(1, 64, MIB).iter().all(|byte| *byte == 0x5a));
    }
    job.fabric.now() - begun
}

#[test]
fn the_data_of_a_signal_uses_all_rails() {
    for signals in [SignalEngine::Counted, SignalEngine::Chained] {
        let four = signal_time(1, signals, rates(&[FULL; 4]));
        let one = signal_time(1, signals, rates(&[FULL; 1]));
        let gain = one as f64 / four as f64;
        assert!(gain > 3.5, "{signals:?}: {gain:.2} times as fast");
    }
}

/// Large and small, puts and gets and fences, over rails whose rates change: every byte is right.
#[test]
fn every_byte_arrives_over_rails_whose_rates_change() {
    for_seeds("every_byte_arrives_over_rails_whose_rates_change", &[], 1000, |seed| {
        let mut random = Random(seed * 0x9e37_79b9 + 11);
        let rails = 2 + random.below(3);
        let segment = [1 << 12, 10_000, 1 << 14][random.below(3)];
        let spread = Spread { balanced_from: 1000, striped_from: 4 << 10, segment };
        let random_rates: Vec<u64> = (0..rails).map(|_| [1, 5, 50, 50][random.below(4)]).collect();
        let shape = Shape {
            n_pes: 3,
            rails: rails as u8,
            depth: [1, 3, 16][random.below(3)],
            max_segment: [2000, 1 << 20][random.below(2)],
            heap: 1 << 17,
            needs_desc: random.below(2) == 0,
            fast: random.below(4) != 0,
            spread,
            ..Shape::default()
        };
        let script = Script { again_percent: [0, 0, 50][random.below(3)], ..rates(&random_rates) };
        let mut job = Job::new(seed, &shape, script);
        let source: Vec<u8> =
            (0..shape.heap).map(|at| (at >> 8 ^ at ^ seed as usize) as u8 | 1).collect();
        job.fill_scratch(0, &source);
        // Later writes to the same bytes come behind a fence or a quiet; what is read is checked
        // after a quiet.
        let mut expected = vec![vec![0; shape.heap]; 2];
        for _ in 0..30 {
            let to = random.below(2);
            let peer = 1 + to as u32;
            let at = random.below(shape.heap - 1);
            let most = (shape.heap - at).min([64, 5000, 100_000][random.below(3)]);
            let len = 1 + random.below(most);
            match random.below(8) {
                0 => job.fence(0, peer),
                1 => job.quiet(0, peer).unwrap(),
                2 => {
                    let rail = RailId(random.below(rails) as u8);
                    job.fabric.set_rate(rail, [1, 5, 50][random.below(3)]);
                }
                3 => {
                    // No put may be reading what the get writes.
                    job.quiet(0, 1).unwrap();
                    job.quiet(0, 2).unwrap();
                    let scratch = job.members[0].scratch;
                    job.get(0, peer, at, len).unwrap();
                    job.quiet(0, peer).unwrap();
                    let read = job.fabric.load(Pe(0), scratch + at, len);
                    assert_eq!(read, expected[to][at..at + len], "{len} bytes read at {at}");
                    job.fill_scratch(0, &source);
                }
                _ => {
                    job.put(0, peer, at, len).unwrap();
                    expected[to][at..at + len].copy_from_slice(&source[at..at + len]);
                }
            }
        }
        for to in 0..2 {
            job.quiet(0, 1 + to).unwrap();
            assert!(job.heap(1 + to, 0, shape.heap) == expected[to as usize], "heap of {to}");
        }
        assert_eq!(job.fabric.in_flight(), 0);
        assert!(!job.members[0].lane.has_work());
    });
}

#[test]
fn fences_hold_what_is_cut() {
    for_seeds("fences_hold_what_is_cut", &[], 500, |seed| {
        let mut random = Random(seed * 0x51ed_270b + 3);
        let rails = 2 + random.below(3);
        let shape = Shape {
            rails: rails as u8,
            depth: [1, 3, 16][random.below(3)],
            heap: 1 << 16,
            spread: Spread { balanced_from: 500, striped_from: 2000, segment: 4096 },
            ..Shape::default()
        };
        let random_rates: Vec<u64> = (0..rails).map(|_| [1, 5, 50][random.below(3)]).collect();
        let mut job = Job::new(seed, &shape, rates(&random_rates));
        let mut epochs = Vec::new();
        let mut at = 0;
        while at + 8192 < shape.heap {
            let most = [8, 1000, 8000][random.below(3)];
            let len = 1 + random.below(most);
            job.put(0, 1, at, len).unwrap();
            at += len;
            let fenced = random.below(3) == 0;
            if fenced {
                job.fence(0, 1);
            }
            epochs.push((at as u64, fenced));
        }
        job.quiet(0, 1).unwrap();
        let epoch_of = |remote: u64| {
            let before = epochs.iter().take_while(|(end, _)| *end <= remote);
            before.filter(|(_, fenced)| *fenced).count()
        };
        let seen: Vec<usize> =
            job.fabric.deliveries().iter().map(|delivery| epoch_of(delivery.remote)).collect();
        assert!(seen.is_sorted(), "epochs in order of delivery: {seen:?}");
    });
}
