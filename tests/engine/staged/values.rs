//! Single values put one behind the other into staged memory.

use super::ALL;
use crate::prelude::*;

const COUNT: usize = 300;

fn shape(n_pes: u32) -> Shape {
    Shape { n_pes, staged: ALL, ..PLAIN }
}

fn sent(job: &Job, pe: u32, to: u32) -> u32 {
    job.members[pe as usize].lane.peers().find(|peer| peer.pe == Pe(to)).map_or(0, |it| it.sent)
}

fn value(at: usize, round: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x0123_4567_89ab_cdef) ^ (round as u64) << 3
}

fn put(job: &mut Job, to: u32, at: usize, value: u64, len: usize) {
    let part = job.targets.part(0, to, at, len);
    let put = Request { local: LocalSide::Value(value), ..part };
    job.members[0].lane.start(&put).unwrap();
}

fn check(job: &Job, pe: u32, len: usize, round: usize) {
    for at in 0..COUNT {
        let expected = &value(at, round).to_le_bytes()[..len];
        assert_eq!(job.heap(pe, at * len, len), expected, "value {at} of {len} bytes");
    }
}

/// Of values that nobody waits for, 8 KiB are kept, in runs as long as a message.
#[test]
fn kept_values_are_bounded() {
    const MOST: usize = 1024;
    let mut job = Job::new(7, &shape(2), CALM);
    for at in 0..=MOST {
        assert_eq!(sent(&job, 0, 1), 0, "{at}");
        put(&mut job, 1, at * 8, 5, 8);
    }
    assert!(sent(&job, 0, 1) > 0);
    job.until_quiet(0, 1);
    let received: u32 = job.members[1].lane.peers().map(|peer| peer.received).sum();
    assert_eq!((sent(&job, 0, 1), received), (36, 36));
}

/// Values to another peer send the runs before.
#[test]
fn scattered_values_leave_in_turn() {
    let mut job = Job::new(7, &shape(3), CALM);
    for at in 0..8 {
        assert_eq!(sent(&job, 0, 1) + sent(&job, 0, 2), (at as u32).saturating_sub(1));
        put(&mut job, 1 + at as u32 % 2, at * 16, 5, 8);
    }
    job.iterate();
    assert_eq!([1, 2].map(|pe| sent(&job, 0, pe)), [4, 4]);
}

#[test]
fn fence_separates_runs_of_values() {
    for seed in 0..20 {
        let mut job = Job::new(seed, &shape(2), CALM);
        for round in 0..4 {
            for at in 0..COUNT {
                put(&mut job, 1, at * 4, value(at, round), 4);
                if at % (7 + round) == 0 {
                    job.fence(0, 1);
                }
            }
            job.fence(0, 1);
        }
        job.until_quiet(0, 1);
        check(&job, 1, 4, 3);
    }
}

/// A run whose peer fails is dropped with its queue; runs to other peers go on.
#[test]
fn failed_peer_drops_its_run() {
    let mut job = Job::new(3, &shape(3), CALM);
    job.release_heap(1);
    put(&mut job, 1, 0, 5, 8);
    job.iterate_some(&[0], 1);
    job.iterate_some(&[1], 200);
    put(&mut job, 1, 8, 5, 8);
    assert_eq!(job.members[0].lane.pending(Pe(1)), 1, "it is a run");
    assert!(job.settle(&[0, 1], (0, 1), 1000).is_err());
    for at in 0..COUNT {
        put(&mut job, 2, at * 8, value(at, 0), 8);
    }
    assert_eq!(job.settle(&[0, 1, 2], (0, 2), 1000), Ok(()));
    check(&job, 2, 8, 0);
    assert!(sent(&job, 0, 2) < COUNT as u32 / 20);
}
