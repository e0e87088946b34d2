//! Operations spread over rails of which the script says how much they carry. Time is the fabric's
//! own, so that what is compared here is the same in every run.

use crate::prelude::*;

/// What a rail of 400 Mbit/s carries, in bytes per microsecond.
const FULL: u64 = 50;

const SPREAD: Spread =
    Spread { balanced_from: 8 << 10, striped_from: 128 << 10, segment: 256 << 10 };

const MIB: usize = 1 << 20;

fn rates(rates: &[u64]) -> Script {
    let rail = |(at, rate): (usize, &u64)| (RailId(at as u8), *rate);
    Script {
        rates: rates.iter().enumerate().map(rail).collect(),
        // A network's latency: tens of microseconds.
        delay: (20_000, 30_000),
        ..CALM
    }
}

fn shape(rails: usize) -> Shape {
    let max_segment = 1 << 30;
    Shape { rails: rails as u8, depth: 64, max_segment, heap: 16 * MIB, spread: SPREAD, ..PLAIN }
}

fn job(spread: Spread, script: Script) -> Job {
    Job::new(1, &Shape { spread, ..shape(script.rates.len()) }, script)
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

/// Long operations choose rails by load, past the fast path; staged fragments do as well.
#[test]
fn long_operations_are_balanced() {
    let spread = Spread { balanced_from: 4096, ..Spread::ROUND_ROBIN };
    let direct = Shape { fast: true, needs_desc: false, spread, ..PLAIN };
    let staged = Shape { rails: 4, staged: 0b10, bounce: (1024, 1, 1), spread, ..PLAIN };
    for (shape, len, by_load) in [(&direct, 4095, 0), (&direct, 4096, 4), (&staged, 4096, 16)] {
        let mut job = Job::new(1, shape, CALM);
        for _ in 0..4 {
            job.put(0, 1, 0, len).unwrap();
            job.quiet(0, 1).unwrap();
        }
        assert_eq!(job.counted(0, |rail| rail.by_load), by_load, "{len} bytes");
        let is_idle = bytes_by_rail(&job).contains(&0);
        assert!(shape.staged == 0 || !is_idle, "fragments of idle rails take turns");
    }
}

fn bytes_by_rail(job: &Job) -> Vec<u64> {
    job.members[0].lane.counters().map(|rail| rail.bytes).collect()
}

#[test]
fn long_operations_use_bulk_connections() {
    const LEN: usize = SPREAD.striped_from;
    for rails in [1, 3] {
        for (bulk, len, moved) in [(4, LEN - 1, 0), (4, LEN, LEN), (1, LEN, LEN), (0, LEN, 0)] {
            let mut job = Job::with(Shape { bulk, fast: true, needs_desc: false, ..shape(rails) });
            let bytes: Vec<u8> = (0..len).map(|at| (at >> 9 ^ at) as u8).collect();
            job.fill_scratch(0, &bytes);
            job.put(0, 1, 0, len).unwrap();
            job.quiet(0, 1).unwrap();
            assert_eq!(job.heap(1, 0, len), bytes);
            let case = format!("{len} bytes, {rails} rails, {bulk} connections");
            assert_eq!(job.counted(0, |rail| rail.bulk_bytes), moved as u64, "{case}");
            let segments = job.counted(0, |rail| rail.posted);
            let is_cut = len >= LEN && (rails > 1 || bulk > 0);
            assert_eq!(segments > 1, is_cut, "{case}: {segments} segments");
        }
    }
    let spread = Spread { balanced_from: 512, striped_from: 1024, segment: 1024 };
    for (len, moved) in [(1023, 0), (1024, 1024), (4096, 4096)] {
        let mut job = Job::with(Shape { staged: 0b10, bulk: 2, spread, ..PLAIN });
        job.put(0, 1, 0, len).unwrap();
        job.quiet(0, 1).unwrap();
        let found = [0, 1].map(|pe| job.counted(pe, |rail| rail.bulk_bytes));
        assert_eq!(found.iter().sum::<u64>(), moved, "{len} bytes");
    }
}

/// By each protocol: counted, chained, ordered.
#[test]
fn signal_data_uses_all_rails() {
    use SignalChoice::{Chained, Counted};
    for (signals, is_strong) in [(Counted, false), (Chained, false), (Chained, true)] {
        let mut job = Job::with(Shape { signals, ..shape(4) });
        if is_strong {
            job = job.with_ordered_signals();
        }
        job.put_signal(0, 1, &[(64, MIB)], 0).unwrap();
        job.until_quiet(0, 1);
        let bytes = bytes_by_rail(&job);
        assert_eq!(bytes, [MIB as u64 / 4; 4], "{signals:?}, strong: {is_strong}");
    }
}

#[test]
fn bulk_connections_add_depth() {
    let most = |bulk| {
        let script = rates(&[FULL]);
        let mut job = Job::new(1, &Shape { bulk, ..shape(1) }, script);
        put_rate(&mut job, 1, 1, 16 * MIB);
        job.members[0].lane.counters().map(|rail| rail.max_in_flight).max().unwrap()
    };
    let (one, four) = (most(1), most(4));
    assert!(four > 3 * one, "{one} segments, and {four}");
}

#[test]
fn rails_get_their_share() {
    let slow = [FULL, FULL / 10, FULL, FULL];
    for ((window, len), of_rails) in [(1, 16 * MIB), (1, 4 * MIB), (128, 64 << 10), (4, 4 * MIB)]
        .into_iter()
        .flat_map(|puts| [(puts, slow), (puts, [FULL; 4])])
    {
        let sum = of_rails.iter().sum::<u64>() as f64;
        let mut job = job(SPREAD, rates(&of_rails));
        // The first put measures the rates.
        put_rate(&mut job, 1, window, len);
        let before = bytes_by_rail(&job)[1];
        let rate = put_rate(&mut job, 8, window, len);
        assert!(rate > 0.93 * sum, "{window} of {len}: {rate:.0} B/us of {sum}");
        let shown: Vec<f64> =
            job.members[0].lane.counters().map(|rail| rail.rate as f64 / 1e6).collect();
        // Rails that are never late need no estimate.
        for (rate, shown) in slow.iter().zip(&shown).filter(|_| of_rails == slow) {
            let ratio = shown / *rate as f64;
            assert!((0.8..1.05).contains(&ratio), "{window} of {len}: rates {shown:?}");
        }
        let share = (bytes_by_rail(&job)[1] - before) as f64 / (8 * window * len) as f64;
        assert!(share <= 1.2 * of_rails[1] as f64 / sum, "{window} of {len}: {share:.3}");
    }
    // Round robin: every put waits for the slow rail.
    let mut job = job(Spread::ROUND_ROBIN, rates(&slow));
    let rate = put_rate(&mut job, 8, 128, 64 << 10);
    assert!(rate < 0.6 * FULL as f64, "{rate:.0} B/us");
}

#[test]
fn recovered_rail_is_used_again() {
    let mut job = job(SPREAD, rates(&[FULL, FULL, 1, FULL]));
    for _ in 0..4 {
        put_rate(&mut job, 1, 1, 2 * MIB);
    }
    job.fabric.world().set_rate(RailId(2), FULL);
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
