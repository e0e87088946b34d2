//! What staged operations ask of the port: which way they take, in how many pieces, and that an
//! iteration which has done something says so.

use super::{ALL, MAX_BROUGHT, fill, patterned};
use crate::prelude::*;

/// PE 1's heap, PE 0's, and PE 0's scratch memory.
const FAR: u32 = 0b0100;
const NEAR: u32 = 0b0001;
const SCRATCH: u32 = 0b0010;

fn job(shape: Shape) -> Job {
    let job = Job::new(3, &Shape { rails: 1, ..shape }, CALM);
    fill(&job, 2);
    job.fabric.trace_calls();
    job
}

type Begin = fn(&mut Job, u32, u32, usize, usize) -> Outcome;

#[test]
fn only_staged_bytes_are_copied() {
    for (staged, needs_desc, len, copies) in [
        (ALL, true, 1, [0, 0]),
        (ALL, true, MAX_PAYLOAD, [0, 0]),
        (ALL, true, MAX_PAYLOAD + 1, [1, 1]),
        (FAR, true, MAX_PAYLOAD, [0, 0]),
        // Registered memory is read and written in place.
        (FAR, false, 4096, [0, 4]),
        (FAR, true, 4096, [0, 4]),
        (NEAR | FAR, true, 4096, [0, 4]),
    ] {
        for begin in [Job::put as Begin, Job::get] {
            let mut job = job(Shape { staged, needs_desc, ..PLAIN });
            begin(&mut job, 0, 1, 0, len).unwrap();
            job.until_quiet(0, 1);
            assert_eq!([0, 1].map(|pe| job.copies(pe)), copies, "{len} bytes, {staged:b}");
            assert!(job.posts(0) <= 4 * 4, "{} posts", job.posts(0));
        }
    }
}

#[test]
fn only_unreachable_memory_is_bounced() {
    let ways = [Direction::Write, Direction::Read]
        .map(|direction| [(direction, false), (direction, true)]);
    for ((direction, needs_desc), staged) in
        ways.concat().into_iter().flat_map(|way| [0, NEAR, FAR].map(|staged| (way, staged)))
    {
        let (near, far) = (usize::from(staged == NEAR), usize::from(staged == FAR));
        // The peer reads what is registered.
        let is_read_there = staged == FAR && direction == Direction::Write;
        let bare = usize::from(needs_desc || is_read_there);
        for (place, copies) in [("heap", near), ("registered", 0), ("bare", bare)] {
            let mut job = job(Shape { staged, needs_desc, ..PLAIN });
            let first = &job.members[0];
            let addr = match place {
                "heap" => first.base,
                "registered" => first.scratch,
                _ => job.fabric.alloc(Pe(0), 1000),
            };
            let (ours, theirs) = (patterned(5, 0..1000), patterned(6, 0..1000));
            job.fabric.store(Pe(0), addr, &ours);
            job.fabric.store(Pe(1), job.members[1].base, &theirs);
            let part = Request { direction, ..job.targets.part(addr, 1, 0, 1000) };
            job.members[0].lane.start(&part).unwrap();
            job.until_quiet(0, 1);
            let case = format!("{direction:?}, {place}, {staged:b}, {needs_desc}");
            assert_eq!([job.copies(0), job.copies(1)], [copies, far], "{case}");
            let moved = if direction == Direction::Write { ours } else { theirs };
            assert_eq!(
                (job.fabric.load(Pe(0), addr, 1000), job.heap(1, 0, 1000)),
                (moved.clone(), moved),
                "{case}"
            );
        }
    }
}

/// Bytes of short puts come with the message that tells of them, into a bounce buffer of the
/// target; what it has no buffer for is read later, as is what the processor does not reach.
#[test]
fn short_puts_bring_their_bytes() {
    let one = (8192, 4, 4);
    let long = MAX_LONG_MESSAGE;
    for (staged, longest_message, bounce, len, puts, reads) in [
        (ALL, long, one, MAX_PAYLOAD + 1, 1, 0..1),
        (ALL, long, one, MAX_BROUGHT, 1, 0..1),
        (ALL, long, one, MAX_BROUGHT + 1, 1, 1..2),
        (ALL, MAX_MESSAGE, one, MAX_PAYLOAD + 1, 1, 1..2),
        (FAR, long, one, MAX_BROUGHT, 1, 0..1),
        (FAR, long, one, MAX_BROUGHT + 1, 1, 1..2),
        (FAR, MAX_MESSAGE, one, MAX_PAYLOAD + 1, 1, 1..2),
        (FAR | SCRATCH, long, one, 1000, 1, 1..2),
        (ALL, MAX_MESSAGE, (1024, 4, 4), 1025, 1, 2..3),
        (ALL, long, (8192, 4, 1), 1000, 8, 1..8),
        // Those that wait go together, and bring nothing.
        (ALL, long, (8192, 8, 16), 1000, 2, 1..2),
    ] {
        let by_fabric = if staged == FAR | SCRATCH { SCRATCH } else { 0 };
        let shape = Shape { staged, by_fabric, bounce, longest_message, ..PLAIN };
        let mut job = job(shape);
        (0..puts).for_each(|number| job.put(0, 1, number * len, len).unwrap());
        job.until_quiet(0, 1);
        let expected = patterned(0, 0..puts * len);
        assert_eq!(job.heap(1, 0, puts * len), expected);
        assert_eq!(job.heap(1, puts * len, 64), [0; 64], "and no byte more");
        let found = job.fabric.deliveries().len();
        assert!(reads.contains(&found), "{found} reads for {puts} of {len} bytes, {staged:b}");
    }
}

/// A thread that drives lanes sleeps when turns do nothing.
#[test]
fn working_iterations_report_work() {
    for seed in 1..=40 {
        let bounce = [(1024, 1, 1), (1024, 2, 2), (512, 4, 3)][seed as usize % 3];
        let staged = if seed % 4 == 0 { 0 } else { ALL };
        let script = Script { again_percent: 40, ..CALM };
        let mut job = Job::new(seed, &Shape { staged, bounce, heap: 1 << 14, ..PLAIN }, script);
        fill(&job, 2);
        job.fabric.trace_calls();
        job.put(0, 1, 0, 4000).unwrap();
        job.get(0, 1, 8192, 4000).unwrap();
        let mut known = job.fabric.calls().len();
        // The watchdog's looks are no work of the lanes'.
        while job.fabric.now() < 200_000_000 && !job.is_quiet(0, 1).unwrap() {
            for member in &mut job.members {
                let me = member.lane.me();
                let busy = member.lane.progress().unwrap();
                let calls = job.fabric.calls();
                let asks =
                    |call: &Call| matches!(call, Call::Copy(pe) | Call::Post(pe, _) if *pe == me);
                assert!(busy || !calls[known..].iter().any(asks), "seed {seed}, {me}");
                known = calls.len();
            }
            job.fabric.pass_time(500);
        }
        assert!(job.is_quiet(0, 1).unwrap(), "seed {seed}");
    }
}

/// Long fragments go one by one, unless others wait for buffers or the device.
#[test]
fn copies_share_calls_by_length() {
    const KIB: usize = 1 << 10;
    for (puts, len, bounce, expected) in [
        (1, 4096 * KIB, (2048 * KIB, 8, 8), [5, 4, 2]),
        (1, 4096 * KIB, (1024 * KIB, 2, 2), [6, 3, 2]),
        (6, 100 * KIB, (128 * KIB, 8, 8), [7, 3, 1]),
        (30, 100 * KIB, (128 * KIB, 32, 32), [32, 5, 3]),
    ] {
        let shape = Shape { staged: ALL, shared: u32::MAX, bounce, heap: 4096 * KIB, ..PLAIN };
        let mut job = job(shape);
        job.put(0, 1, 0, 8).unwrap();
        job.until_quiet(0, 1);
        let before = job.posts(0);
        (0..puts).for_each(|at| job.put(0, 1, at * len, len).unwrap());
        while !job.is_quiet(0, 1).unwrap() {
            job.iterate_slowly(&[0], 20, 100_000);
            job.iterate_slowly(&[1], 20, 100_000);
        }
        let expected_bytes = patterned(0, 0..puts * len);
        assert!(job.heap(1, 0, puts * len) == expected_bytes);
        assert_eq!([job.posts(0) - before, job.copies(0), job.copies(1)], expected, "{puts} {len}");
    }
    // Once one has failed, no other is started.
    let bounce = (1024 * KIB, 16, 16);
    let mut job = job(Shape { staged: ALL, bounce, heap: 4096 * KIB, ..PLAIN });
    job.fabric.fail_calls(PortCall::Copy, 0, 1);
    drop(job.put(0, 1, 0, 4096 * KIB));
    assert!(job.settle(&[0, 1], (0, 1), 1000).is_err());
    assert_eq!(job.copies(0), 0);
}

/// The peer has forgotten them, and its answers are no operations of its own.
#[test]
fn answered_gets_leave_nothing() {
    let mut job = job(Shape { staged: ALL, bounce: (1024, 4, 4), ..PLAIN });
    job.get(0, 1, 0, 1000).unwrap();
    job.progress(0, 1);
    job.iterate_some(&[1], 200);
    assert_eq!((job.posts(1), job.is_quiet(1, 0)), (1, Ok(true)));
    for _ in 0..90 {
        (0..8).for_each(|at| job.get(0, 1, 1000 * at, 1000).unwrap());
        while !job.is_quiet(0, 1).unwrap() {
            assert!(job.lane(0).has_work());
            job.iterate();
        }
    }
    job.iterate_slowly(&[0, 1], 300, 1_000_000_000);
    assert_eq!(job.members[1].lane.failure(), None);
}

/// The error names the region, which ends too early, or says that there is none.
#[test]
fn unregistered_local_memory_is_named() {
    for direction in [Direction::Write, Direction::Read] {
        let mut job = job(Shape { staged: FAR, ..PLAIN });
        let local = job.members[0].scratch + job.heap - 500;
        let part = Request { direction, ..job.targets.part(local, 1, 0, 1000) };
        let error = job.members[0].lane.start(&part).unwrap_err().to_string();
        assert!(error.contains("not inside the region"), "{error}");
    }
    let shape = Shape { rails: 1, ..PLAIN };
    let job = job(shape.clone());
    let part = job.targets.part(job.fabric.alloc(Pe(0), 64), 1, 0, 64);
    let error = job.host_lane().start(&part).unwrap_err().to_string();
    assert!(error.contains("not registered"), "{error}");
}

/// Announcing puts takes no turns of the reads for the other's puts.
#[test]
fn puts_both_ways_use_all_rails() {
    const LEN: usize = 512;
    for rails in [2, 4] {
        let spread = Spread { balanced_from: 9, ..Spread::ROUND_ROBIN };
        let mut job = Job::with(Shape { rails, staged: ALL, spread, ..PLAIN });
        for at in (0..32).map(|round| round * LEN) {
            job.put(0, 1, at, LEN).unwrap();
            job.put(1, 0, at, LEN).unwrap();
            // Both are asked each time, so that both ask for acknowledgements.
            while [(0, 1), (1, 0)].map(|(from, to)| job.is_quiet(from, to)) != [Ok(true), Ok(true)]
            {
                job.iterate();
            }
        }
        for member in &job.members {
            let moved: Vec<u64> = member.lane.counters().map(|rail| rail.bytes).collect();
            assert_eq!(moved.iter().sum::<u64>(), 32 * LEN as u64, "{moved:?}");
            assert!(moved.iter().all(|bytes| *bytes > 0), "{rails} rails: {moved:?}");
        }
    }
}

#[test]
fn staged_bytes_are_counted() {
    for (staged, begin, len, by_fabric, in_messages) in [
        (SCRATCH, Job::put as Begin, 4096, [4096, 0], [0, 0]),
        (ALL, Job::put, 8, [0, 0], [8, 0]),
        (ALL, Job::get, 8, [0, 0], [0, 8]),
    ] {
        let mut job = job(Shape { staged, ..PLAIN });
        begin(&mut job, 0, 1, 0, len).unwrap();
        job.until_quiet(0, 1);
        let counted = [0, 1].map(|pe| job.lane(pe).staged_counters());
        assert_eq!(counted.map(|of| of.by_fabric), by_fabric, "{staged:b}, {len}");
        assert_eq!(counted.map(|of| of.in_messages), in_messages, "{staged:b}, {len}");
    }
}

#[test]
fn outstanding_transfers_are_bounded() {
    let bounce = (1024, 80, 80);
    for (len, puts) in [(1000, 70), (70 * 1024, 1)] {
        let mut job = job(Shape { staged: ALL, bounce, heap: 1 << 17, depth: 1024, ..PLAIN });
        (0..puts).for_each(|_| job.put_signal(0, 1, &[(64, len)], 0).unwrap());
        job.iterate_some(&[0], 500);
        assert_eq!(job.posts(0), 64, "{len}");
        job.until_quiet(0, 1);
        assert_eq!(job.word(1, 0), puts, "{len}");
    }
    let mut job = job(Shape { staged: FAR, depth: 1024, ..PLAIN });
    (0..100).for_each(|at| job.get(0, 1, 1000 * (at % 8), 1000).unwrap());
    job.progress(0, 100);
    assert_eq!(job.posts(0), 64);
    job.until_quiet(0, 1);
}
