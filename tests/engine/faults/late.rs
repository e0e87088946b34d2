//! Memory that its owner has back: what comes after a failure does not touch it, nor do requests of
//! peers that name a region which was released.

use super::Operation;
use crate::prelude::*;

const LEN: usize = 4096;

/// The memory of PE 0's operations is released; its owner has it back and fills it anew.
fn take_back(job: &Job) {
    let first = &job.members[0];
    first.regions.release(&first.scratch_handle).unwrap();
    job.fill_scratch(0, &[0x77; LEN]);
}

fn check_untouched(job: &mut Job) {
    job.iterate_slowly(&[0, 1], 100, 1_000_000);
    assert!(job.scratch(0, 0, LEN) == [0x77; LEN], "memory that its owner has back");
}

#[test]
fn failed_host_operations_keep_memory() {
    for direction in [Direction::Write, Direction::Read] {
        let mut job = Job::with(PLAIN);
        let host = job.host_lane();
        let part = job.targets.part(job.members[0].scratch, 1, 0, LEN);
        job.fabric.stall(Pe(1));
        host.start(&Request { direction, ..part }).unwrap();
        assert!(!host.drain_before_close(Duration::from_millis(5)));
        let failed = loop {
            match host.try_progress() {
                Ok(_) => job.fabric.pass_time(10_000_000),
                Err(failed) => break failed,
            }
        };
        assert!(matches!(*failed, EngineError::Timeout { .. }), "{failed}");
        for _ in 0..2 {
            let released = job.members[0].regions.release(&job.members[0].scratch_handle);
            let is_in_use = matches!(released, Err(EngineError::InUse { pe: Pe(1), .. }));
            assert!(is_in_use, "{released:?}");
        }
        // What nothing has touched is given back as ever.
        job.members[0].regions.release(&job.members[0].handle).unwrap();
        job.fabric.resume(Pe(1));
        while host.has_work() {
            let _ = host.try_progress();
            job.fabric.pass_time(1_000_000);
        }
        assert!(host.drain_before_close(Duration::from_millis(5)));
        take_back(&job);
        check_untouched(&mut job);
    }
}

/// Who hears of a failure may never run the lane again: what is being copied then ends before that.
#[test]
fn failing_lane_ends_its_copies() {
    let mut job = Job::with(Shape { staged: 0b1111, heap: 1 << 14, ..PLAIN });
    job.put(0, 1, 0, 1000).unwrap();
    job.members[0].lane.progress().unwrap();
    job.fabric.fail_calls(PortCall::Copy, 0, 1);
    let refused =
        job.put(0, 1, 1000, 1000).and_then(|()| Ok(job.members[0].lane.progress().map(drop)?));
    assert!(matches!(refused, Err(EngineError::Staging { .. })), "{refused:?}");
    take_back(&job);
}

/// A peer was to read a failed put in place, by the keys of one of two regions over its bytes.
#[test]
fn released_memory_is_not_read() {
    for oldest_first in [false, true] {
        let mut job = Job::with(Shape { staged: 0b0100, ..PLAIN });
        let Member { regions, scratch, scratch_handle, .. } = &job.members[0];
        let again = regions.register(*scratch, LEN, Access::Local).unwrap();
        let mut handles = [again, *scratch_handle];
        job.put_signal(0, 1, &[(0, 1000)], LEN).unwrap();
        job.fabric.stall(Pe(1));
        job.quiet(0, 1).unwrap_err();
        handles.rotate_left(oldest_first.into());
        handles.iter().for_each(|handle| job.members[0].regions.release(handle).unwrap());
        job.fill_scratch(0, &[0x77; LEN]);
        job.fabric.resume(Pe(1));
        check_untouched(&mut job);
        assert_eq!((job.heap(1, 0, LEN), job.word(1, LEN)), (vec![0; LEN], 0));
    }
}

/// Each kind of message that names a region of its receiver, with a handle that has outlived its
/// region: the sender is told, and the region that came after it is not touched, nor read.
#[test]
fn released_memory_is_not_reached() {
    for what in Operation::ALL {
        let staged = if matches!(what, Operation::Put(_) | Operation::Get(_)) { 0b0100 } else { 0 };
        for signals in [SignalChoice::Eager, SignalChoice::Chained, SignalChoice::Counted] {
            let mut job = Job::with(Shape { staged, signals, ..PLAIN });
            // Later messages may take the short way.
            job.inc(0, 1, LEN);
            job.until_quiet(0, 1);
            let second = &mut job.members[1];
            second.regions.release(&second.handle).unwrap();
            // The same memory, so that nothing but the region tells one from the other.
            job.fabric.store(Pe(1), second.base, &[0x33; LEN]);
            let again = second.regions.register(second.base, job.heap, Access::LocalAndRemote);
            second.handle = again.unwrap();
            job.fill_scratch(0, &[0x77; LEN]);
            let begun = what.begin(&mut job);
            let failed = begun.and_then(|()| job.settle(&[0, 1], (0, 1), 10_000)).unwrap_err();
            let case = format!("{what:?}, {signals:?}: {failed}");
            let whys = ["not registered", "the key is not of the rail"];
            assert!(whys.iter().any(|why| case.contains(why)) && case.contains("PE 1"), "{case}");
            let is_named = staged == 0 || failed.to_string().contains(what.name());
            assert!(is_named, "{case}");
            assert_eq!(job.heap(1, 0, LEN), [0x33; LEN], "{case}");
            check_untouched(&mut job);
        }
    }
}
