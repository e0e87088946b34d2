//! Limits: queue depth, segment size, blocking operations, and use from several threads.

use engine::ids::Pe;
use engine::lane::Lane;
use engine::port::Direction;
use engine::request::Request;
use sim_fabric::Script;

use crate::job::Targets;
use crate::job::{Job, Shape};

#[test]
fn rail_depth_is_never_exceeded() {
    for depth in [1, 2, 7] {
        let shape = Shape { depth, rails: 2, max_segment: 64, ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        // The fake panics when a rail is over its depth.
        for _ in 0..20 {
            job.put(0, 1, 0, 4096).unwrap();
            job.get(0, 1, 0, 4096).unwrap();
        }
        job.quiet(0, 1).unwrap();
        for counters in job.members[0].lane.counters() {
            assert_eq!(counters.max_in_flight, depth);
            assert_eq!(counters.posted, counters.completed);
        }
        let posted = job.members[0].lane.counters().map(|rail| rail.posted).sum::<u64>();
        let bytes = job.members[0].lane.counters().map(|rail| rail.bytes).sum::<u64>();
        assert_eq!((posted, bytes), (2 * 20 * 64, 2 * 20 * 4096));
    }
}

#[test]
fn blocking_operations_end_complete() {
    let shape = Shape { depth: 1, max_segment: 256, ..Shape::default() };
    let mut job = Job::new(3, &shape, Script::default());
    job.fill_scratch(0, &[7; 4096]);
    let base = job.members[1].base;
    let scratch = job.members[0].scratch;
    let targets = Targets::of(&job);
    let request = targets.part(scratch, 1, 0, 4096);
    let member = &mut job.members[0];
    member.lane.complete(&request).unwrap();
    assert!(member.lane.is_quiet(Pe(1)).unwrap());
    let read = Request { direction: Direction::Read, ..request };
    job.fabric.store(Pe(1), base, &[9; 4096]);
    job.members[0].lane.complete(&read).unwrap();
    assert_eq!(job.fabric.load(Pe(0), job.members[0].scratch, 4096), [9; 4096]);
    // Empty ones too.
    job.members[0].lane.complete(&Request { len: 0, ..read }).unwrap();
}

#[test]
fn long_values_are_cut() {
    for max_segment in [1, 3, 4] {
        let shape = Shape { max_segment, ..Shape::default() };
        let mut job = Job::new(3, &shape, Script::default());
        job.put_value(0, 1, 8, 0x0807_0605_0403_0201).unwrap();
        job.quiet(0, 1).unwrap();
        assert_eq!(job.heap(1, 8, 8), [1, 2, 3, 4, 5, 6, 7, 8], "segments of {max_segment}");
    }
}

#[test]
fn user_threads_share_the_host_lane() {
    let shape = Shape { depth: 2, rails: 1, max_segment: 128, heap: 1 << 14, ..Shape::default() };
    let job = Job::new(4, &shape, Script::default());
    let scratch = job.members[0].scratch;
    let targets = Targets::of(&job);
    job.fill_scratch(0, &[0x5a; 1 << 14]);
    let host = job.host_lane(&shape);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (host, targets) = (&host, &targets);
            scope.spawn(move || {
                for piece in 0..8 {
                    let offset = thread * 4096 + piece * 512;
                    let request = targets.part(scratch + offset, 1, offset, 512);
                    if piece % 2 == 0 {
                        host.complete(&request).unwrap();
                    } else {
                        host.start(&request).unwrap();
                        host.fence(Pe(1)).unwrap();
                    }
                }
                host.quiet(Pe(1)).unwrap();
            });
        }
        // A proxy thread lends a hand meanwhile.
        scope.spawn(|| {
            for _ in 0..1000 {
                host.try_progress().unwrap();
            }
        });
    });
    assert_eq!(job.heap(1, 0, 1 << 14), [0x5a; 1 << 14]);
    assert!(!host.with(Lane::has_work));
}
