//! Local memory in the fast path: which is used without another look, and that it is looked up anew
//! when it has to be.

use engine::request::Start;

use crate::prelude::*;

/// A job whose lanes have the fast path, and whose PE 0 has talked to PE 1, which has answered.
fn warm(shape: Shape) -> Job {
    let mut job = Job::with(Shape { fast: true, ..shape });
    job.amo(0, 1, 0, AtomicOp::Or, 0).unwrap();
    job.put(0, 1, 0, 8).unwrap();
    job.until_quiet(0, 1);
    job
}

/// Moves 8 bytes at `addr` to or from PE 1. Returns whether they meet no obstacle, once the memory
/// was looked for.
fn takes(job: &mut Job, direction: Direction, addr: usize) -> bool {
    for looks in 0..2 {
        let request = Request { direction, ..job.targets.part(addr, 1, 0, 8) };
        let lane = &mut job.members[0].lane;
        let taken = lane.try_start_unbatched(&request) == Start::Done;
        let moved = taken || (looks == 0 && lane.start_slow(&request).is_ok());
        if moved {
            job.until_quiet(0, 1);
        }
        if taken || !moved {
            return taken;
        }
    }
    false
}

/// As [`takes`], of 8 bytes and their signal.
fn signals(job: &mut Job, from: usize) -> bool {
    let targets = job.targets.clone();
    let signal = targets.atomic(1, 64, AtomicOp::SignalAdd, 1);
    let part = Request { len: 8, ..targets.part(from, 1, 0, 8) };
    let put = PutSignalRequest { parts: &[part], signal };
    let lane = &mut job.members[0].lane;
    if lane.try_put_signal(&part, &signal) {
        return true;
    }
    lane.put_signal(&put).unwrap();
    job.until_quiet(0, 1);
    job.members[0].lane.try_put_signal(&part, &signal)
}

#[test]
fn released_region_is_not_used_again() {
    for needs_desc in [true, false] {
        let mut job = warm(Shape { rails: 3, needs_desc, ..PLAIN });
        let scratch = job.members[0].scratch;
        let value = Request { local: LocalSide::Value(7), ..job.targets.part(0, 1, 0, 8) };
        let read = Request { direction: Direction::Read, ..value };
        let lane = &mut job.members[0].lane;
        assert!(lane.try_start(&value) && !lane.try_start(&read), "a value can be put alone");
        job.until_quiet(0, 1);
        for _ in 0..6 {
            assert!(takes(&mut job, Direction::Write, scratch + 8), "on every rail");
            assert!(takes(&mut job, Direction::Read, scratch + 8));
        }
        let old = job.members[0].scratch_handle;
        job.members[0].regions.release(&old).unwrap();
        // Where nothing needs to be registered, nothing needs to be looked up.
        assert_eq!(takes(&mut job, Direction::Write, scratch + 8), !needs_desc);
        let new = job.members[0].regions.register(scratch, 64, Access::Local).unwrap();
        assert!(job.members[0].regions.release(&old).is_err(), "its index is another's");
        assert!(takes(&mut job, Direction::Write, scratch + 8), "with its new descriptor");
        assert_eq!(takes(&mut job, Direction::Write, scratch + 57), !needs_desc, "7 bytes of it");
        assert!(takes(&mut job, Direction::Write, scratch + 56), "the last ones");
        job.members[0].regions.release(&new).unwrap();
    }
}

/// In a process without devices all memory is the CPU's, until some is registered that is not.
#[test]
fn device_memory_needs_lookups() {
    // PE 1's memory is staged, and PE 0 has registered none that is.
    let shape = Shape { staged: 0b1000, late: true, needs_desc: false, ..PLAIN };
    let mut job = warm(shape);
    let unregistered = job.fabric.alloc(Pe(0), 4096);
    assert!(takes(&mut job, Direction::Write, unregistered));
    assert!(signals(&mut job, unregistered));
    let device = job.fabric.alloc_reached(Pe(0), 4096, Reach::Staged);
    let handle = job.members[0].regions.register(device, 4096, Access::Local).unwrap();
    for _ in 0..2 {
        for addr in [unregistered, device] {
            assert!(!takes(&mut job, Direction::Write, addr));
            assert!(!signals(&mut job, addr));
        }
        let heap = job.members[0].base;
        assert!(takes(&mut job, Direction::Write, heap) && signals(&mut job, heap));
    }
    // There is other memory of devices now, for all that is known.
    job.members[0].regions.release(&handle).unwrap();
    assert!(!takes(&mut job, Direction::Write, unregistered));
}
