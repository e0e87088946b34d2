//! Gets that are begun in a row share requests, answers and copies.

use engine::wire::staging::{FURTHER_GET, MAX_GETS, further_get};

use super::gathered::shape;
use super::patterned;
use crate::forge::{ahead, forge};
use crate::job::FIRST_REGION;
use crate::prelude::*;

const GETS: usize = 128;
const LEN: usize = 256;

/// PE 1's heap, behind its bounce memory.
const HEAP: RegionAddr = RegionAddr { region: 2 * FIRST_REGION + 1, offset: 0 };

fn job(shape: &Shape, seed: u64, script: Script) -> Job {
    let job = Job::new(seed, shape, script);
    job.fabric.store(Pe(1), job.members[1].base, &patterned(1, 0..job.heap));
    job
}

fn place(number: usize) -> usize {
    number * 29 % GETS * 300
}

fn start(job: &mut Job, len: usize) {
    (0..GETS).for_each(|number| job.get(0, 1, place(number), len).unwrap());
}

#[track_caller]
fn check(job: &Job, number: usize, len: usize) {
    let at = place(number);
    assert!(job.scratch(0, at, len) == patterned(1, at..at + len), "get {number}");
}

#[test]
fn gets_in_row_share_requests() {
    for (shared, longest_message) in [(true, MAX_MESSAGE), (false, MAX_MESSAGE), (false, 4096)] {
        for len in [1, 8, LEN] {
            let mut job = job(&Shape { longest_message, ..shape(shared) }, 7, CALM);
            job.fabric.trace_calls();
            start(&mut job, len);
            job.until_quiet(0, 1);
            (0..GETS).for_each(|number| check(&job, number, len));
            let most = GETS.div_ceil(MAX_GETS);
            // Requests, their reads, and what acknowledges the answers.
            let posts = (job.posts(0) <= 4 * most, job.posts(1) <= most + 2);
            let copies = (job.copies(0) <= most, job.copies(1) <= most);
            assert_eq!((posts, copies), ((true, true), (true, true)), "{len} bytes, {shared}");
        }
    }
}

/// Beside a device, memory of the host is no exception.
#[test]
fn gets_to_host_share_requests() {
    for shared in [true, false] {
        let mut job = job(&Shape { staged: 0b0101, ..shape(shared) }, 7, CALM);
        job.fabric.trace_calls();
        start(&mut job, LEN);
        job.until_quiet(0, 1);
        (0..GETS).for_each(|number| check(&job, number, LEN));
        assert!(job.posts(1) <= GETS / 20, "{} posts", job.posts(1));
    }
}

#[test]
fn lone_get_is_sent_at_once() {
    let mut job = job(&shape(true), 7, CALM);
    job.fabric.trace_calls();
    job.fabric.pass_time(10_000);
    job.get(0, 1, 0, LEN).unwrap();
    assert!(!job.lane(0).is_collecting());
    job.lane(0).progress().unwrap();
    assert_eq!(job.posts(0), 1);
}

/// One get comes in each iteration, as from NCCL's proxy.
#[test]
fn gets_gather_behind_unanswered_requests() {
    const COUNT: usize = 2 + 3 * MAX_GETS;
    for shared in [true, false] {
        let mut job = job(&shape(shared), 7, Script { delay: (9000, 9000), ..CALM });
        job.fabric.trace_calls();
        for number in 0..COUNT {
            job.get(0, 1, place(number), LEN).unwrap();
            job.lane(0).progress().unwrap();
        }
        // The first two alone, and full ones, the last of which nothing follows.
        assert_eq!(job.posts(0), 2 + 3);
        job.until_quiet(0, 1);
        (0..COUNT).for_each(|number| check(&job, number, LEN));
        assert!(job.copies(1) <= 2 + 3, "{} copies", job.copies(1));
    }
}

/// Each caller is told of its own gets, not before their bytes are there.
#[test]
fn callers_share_requests() {
    for seed in 1..=20 {
        let mut job = job(&shape(seed % 2 == 0), seed, Script { delay: (1, 9000), ..CALM });
        job.fabric.trace_calls();
        let batches: Vec<Batch> = (0..GETS)
            .map(|number| job.in_batch(|job| job.get(0, 1, place(number), LEN).unwrap()).0)
            .collect();
        let mut left: Vec<usize> = (0..GETS).collect();
        while !left.is_empty() {
            job.lane(0).request_acks();
            job.iterate();
            left.retain(|number| {
                let is_done = job.lane(0).is_batch_done(batches[*number]);
                if is_done {
                    check(&job, *number, LEN);
                }
                !is_done
            });
        }
        assert!(job.posts(0) < GETS / 4, "seed {seed}: {} posts", job.posts(0));
    }
}

#[test]
fn many_gets_end_in_turn() {
    for seed in 1..=10 {
        let shape = Shape { bounce: (4096, 2, 2), ..shape(seed % 2 == 0) };
        let mut job = job(&shape, seed, Script { delay: (1, 3000), again_percent: 20, ..CALM });
        job.fabric.trace_calls();
        for round in 0..8 {
            start(&mut job, LEN - 16 * round);
            job.iterate();
        }
        job.until_quiet(0, 1);
        (0..GETS).for_each(|number| check(&job, number, LEN));
        let posts = job.posts(0) + job.posts(1);
        assert!(posts < 4 * GETS, "seed {seed}: {posts} posts");
    }
}

#[test]
fn waiting_gets_keep_their_memory() {
    let mut job = job(&shape(true), 5, CALM);
    start(&mut job, LEN);
    let at = |job: &Job, number| job.members[0].scratch + place(number);
    for _ in 0..4 {
        for number in [0, 1, MAX_GETS, GETS - 1] {
            let from = at(&job, number);
            assert!(job.lane(0).check_unused(from, LEN).is_err(), "get {number}");
            job.lane(0).check_unused(from + LEN, 300 - LEN).unwrap();
        }
        job.progress(0, 1);
    }
    job.until_quiet(0, 1);
    let (from, heap) = (job.members[0].scratch, job.heap);
    job.lane(0).check_unused(from, heap).unwrap();
}

/// The region is released before the requests arrive, or before the answers are copied: all gets
/// fail, and nothing is stored.
#[test]
fn refused_gets_store_nothing() {
    for has_arrived in [false, true] {
        let mut job = job(&Shape { bounce: (65_536, 1, 4), ..shape(true) }, 7, CALM);
        start(&mut job, LEN);
        if has_arrived {
            job.progress(0, 1);
            // Has the only buffer until PE 0 takes it.
            job.put(1, 0, 0, LEN).unwrap();
            for _ in 0..3 {
                job.progress(1, 1);
                job.fabric.pass_time(100_000);
            }
        }
        job.release_heap(1);
        let told = job.settle(&[0, 1], (0, 1), 1000);
        let is_named = matches!(told, Err(EngineError::PeerRefused { what: "get", .. }));
        assert!(is_named, "{told:?}");
        assert!(job.scratch(0, 0, job.heap) == vec![0; job.heap]);
        let (from, heap) = (job.members[0].scratch, job.heap);
        job.lane(0).check_unused(from, heap).unwrap();
    }
}

/// Has PE 1 take a request: whether it is refused, and the calls with copies it makes.
fn requested(job: &mut Job, len: u32, more: &[u8]) -> (bool, usize) {
    job.fabric.trace_calls();
    forge(job, (0, 1), ahead(0), 0, &Body::GetRequest { from: HEAP, len, get: 0, more });
    for _ in 0..20 {
        let _ = job.lane(1).progress();
        job.fabric.pass_time(1000);
    }
    let failed = job.lane(1).failure();
    let is_bad = matches!(failed, Some(EngineError::BadMessage { pe: Pe(0), .. }));
    (is_bad, job.copies(1))
}

#[test]
fn forged_requests_copy_nothing() {
    let shape = Shape { bounce: (4096, 4, 4), ..shape(true) };
    let heap = shape.heap as u64;
    let further = |offset, len| further_get(HEAP, RegionAddr { offset, ..HEAP }, len).unwrap();
    for (more, is_bad, copies) in [
        (vec![further(300, 8)], false, 1),
        (vec![further(heap - 8, 8)], false, 1),
        (vec![further(300, 120); MAX_GETS - 1], false, 1),
        (vec![further(heap - 7, 8)], true, 0),
        (vec![further(300, 8), further(u64::MAX, 8)], true, 0),
        (vec![further(300, 121); MAX_GETS - 1], true, 0),
        (vec![further(0, 4089)], true, 0),
    ] {
        let mut job = job(&shape, 7, CALM);
        assert_eq!(requested(&mut job, 8, &more.concat()), (is_bad, copies), "{more:?}");
    }
    for len in (1..3 * FURTHER_GET).filter(|len| len % FURTHER_GET != 0) {
        let mut job = job(&shape, 7, CALM);
        // It is no message of this transport.
        let more = &further(300, 8).repeat(3)[..len];
        assert_eq!(requested(&mut job, 8, more), (false, 0), "{len} bytes");
    }
}
