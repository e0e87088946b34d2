//! What staged operations ask of the port: which way they take, in how many pieces, and that an
//! iteration which has done something says so.

use engine::ids::Pe;
use engine::rails::Spread;
use engine::request::{LocalSide, Request};
use engine::wire::staged::MAX_PAYLOAD;
use sim_fabric::{Call, Script};

use super::{ALL, fill, pattern};
use crate::job::Targets;
use crate::job::{Job, Shape};

/// PE 1's heap, and PE 0's.
const FAR: u32 = 0b0100;
const NEAR: u32 = 0b0001;

#[derive(PartialEq, Eq, Debug)]
struct Asked {
    posts: [usize; 2],
    copies: [usize; 2],
}

/// What a job asks its ports for until PE 0 has what it has begun.
fn asked(job: &mut Job, begin: impl FnOnce(&mut Job)) -> Asked {
    job.fabric.trace_calls();
    begin(job);
    job.until_quiet(0, 1);
    let calls = job.fabric.calls();
    let count = |so: fn(&Call, Pe) -> bool| {
        [0, 1].map(|pe| calls.iter().filter(|call| so(call, Pe(pe))).count())
    };
    Asked {
        posts: count(|call, pe| matches!(call, Call::Post(of, _) if *of == pe)),
        copies: count(|call, pe| matches!(call, Call::Copy(of) if *of == pe)),
    }
}

fn job(staged: u32, needs_desc: bool) -> Job {
    let shape = Shape { staged, needs_desc, rails: 1, heap: 1 << 14, ..Shape::default() };
    let job = Job::new(3, &shape, Script::default());
    fill(&job, 2);
    job
}

#[test]
fn few_bytes_need_no_copy() {
    for (len, copies) in [(1, [0, 0]), (MAX_PAYLOAD, [0, 0]), (MAX_PAYLOAD + 1, [1, 1])] {
        for begin in [Job::put, Job::get] {
            let asked = asked(&mut job(ALL, true), |job| begin(job, 0, 1, 0, len).unwrap());
            assert_eq!(asked.copies, copies, "{len}: {asked:?}");
        }
    }
}

#[test]
fn registered_memory_needs_no_bounce() {
    for needs_desc in [false, true] {
        for begin in [Job::put, Job::get] {
            let mut job = job(FAR, needs_desc);
            let asked = asked(&mut job, |job| begin(job, 0, 1, 0, 4096).unwrap());
            assert_eq!(asked.copies, [0, 4], "{asked:?}");
            assert!(asked.posts[0] <= 4 * 4, "{asked:?}");
        }
    }
}

/// A process uses bounce buffers for what the fabric does not reach, and for nothing else: whether
/// it has them for some of its memory, or makes them for what nobody has registered.
#[test]
fn only_unreachable_memory_is_bounced() {
    for (needs_desc, staged) in [(false, NEAR), (true, NEAR), (false, 0), (true, 0)] {
        let near = usize::from(staged != 0);
        let bare = usize::from(needs_desc);
        for (place, copies) in [("heap", near), ("registered", 0), ("bare", bare)] {
            let mut job = job(staged, needs_desc);
            let first = &job.members[0];
            let addr = match place {
                "heap" => first.base,
                "registered" => first.scratch,
                _ => job.fabric.alloc(Pe(0), 1000),
            };
            let bytes: Vec<u8> = (0..1000).map(|at| pattern(5, at)).collect();
            job.fabric.store(Pe(0), addr, &bytes);
            let targets = Targets::of(&job);
            let local = LocalSide::Memory(addr);
            let put = Request { local, ..targets.part(0, 1, 0, 1000) };
            let asked = asked(&mut job, |job| job.members[0].lane.start(&put).unwrap());
            assert_eq!(asked.copies, [copies, 0], "{place}, {needs_desc}: {asked:?}");
            assert_eq!(job.heap(1, 0, 1000), bytes, "{place}, {needs_desc}");
        }
    }
}

/// A thread that drives lanes sleeps when turns do nothing.
#[test]
fn working_iterations_report_work() {
    for seed in 1..=40 {
        let bounce = [(1024, 1, 1), (1024, 2, 2), (512, 4, 3)][seed as usize % 3];
        let shape = Shape { staged: ALL, bounce, heap: 1 << 14, ..Shape::default() };
        let script = Script { again_percent: 40, ..Script::default() };
        let mut job = Job::new(seed, &shape, script);
        fill(&job, 2);
        job.fabric.trace_calls();
        job.put(0, 1, 0, 4000).unwrap();
        job.get(0, 1, 8192, 4000).unwrap();
        let mut known = job.fabric.calls().len();
        // The watchdog's looks are no work of the lanes'.
        while job.fabric.now() < 200_000_000 && !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
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
        assert!(job.members[0].lane.is_quiet(Pe(1)).unwrap(), "seed {seed}");
    }
}

#[test]
fn outstanding_asks_are_bounded() {
    let shape = Shape { staged: FAR, rails: 1, depth: 1024, ..Shape::default() };
    let mut job = Job::new(3, &shape, Script::default());
    job.fabric.trace_calls();
    for at in 0..100 {
        job.get(0, 1, 1000 * (at % 8), 1000).unwrap();
    }
    for _ in 0..1000 {
        job.members[0].lane.progress().unwrap();
    }
    let asks = job.fabric.calls().iter().filter(|call| matches!(call, Call::Post(..))).count();
    // The watchdog may ask for an acknowledgement besides.
    assert!((64..=65).contains(&asks), "{asks}");
    job.members[1].lane.progress().unwrap();
    job.until_quiet(0, 1);
}

/// The messages that announce a PE's own puts take no turns of what it reads for the puts of the
/// other, though both come at one pace: all rails move bytes.
#[test]
fn puts_both_ways_use_all_rails() {
    const LEN: usize = 512;
    for rails in [2, 4] {
        let spread = Spread { balanced_from: 9, ..Spread::ROUND_ROBIN };
        let shape = Shape { rails, staged: ALL, spread, ..Shape::default() };
        let mut job = Job::new(7, &shape, Script::default());
        for at in (0..32).map(|round| round * LEN) {
            for (from, to) in [(0, 1), (1, 0)] {
                job.put(from, to, at, LEN).unwrap();
            }
            let is_quiet = |job: &mut Job, from: u32| {
                job.members[from as usize].lane.is_quiet(Pe(1 - from)).unwrap()
            };
            while !(is_quiet(&mut job, 0) && is_quiet(&mut job, 1)) {
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
