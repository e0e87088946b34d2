//! Errors, lost completions, and bad input.

use engine::wire::handle::{Handle, HandleError};

use crate::prelude::*;

/// Whoever waits for a fetched word is not told that it is there.
#[test]
fn unstorable_fetch_fails_quiet() {
    let mut job = Job::with(PLAIN);
    job.fabric.fail_calls(PortCall::Store, 0, 1);
    let result = Some(FetchTarget { addr: job.members[0].base + 64, flag: Some(7) });
    let take = job.targets.atomic(1, 0, AtomicOp::FetchInc, 1);
    job.members[0].lane.atomic(&AtomicRequest { result, ..take }).unwrap();
    let failed = job.settle(&[0, 1], (0, 1), 1000);
    check(failed, &["fetched from PE 1", "cannot be stored", "failed by the script"]);
    assert_eq!(job.settle(&[0, 1], (1, 0), 1000), Ok(()));
}

#[test]
fn failed_write_names_peer_and_rail() {
    let mut job = Job::with(PLAIN);
    job.fabric.fail_calls(PortCall::Deliver, 0, 1);
    job.put_value(0, 1, 0, 1).unwrap();
    let failed = job.quiet(0, 1).unwrap_err();
    let parts = ["put of 8 bytes", "PE 1", "rail 1 (fake1)", "failed by the script", "error 5"];
    check(Err(failed.clone()), &parts);
    // It stays reported, and nothing more goes to that peer; the other peer is not touched.
    assert_eq!(job.quiet(0, 1).unwrap_err(), failed);
    assert_eq!(job.put_value(0, 1, 8, 1).unwrap_err(), failed);
    assert_eq!(*job.lane(0).progress().unwrap_err(), failed);
    job.put_value(0, 0, 0, 5).unwrap();
    job.quiet(0, 0).unwrap();
    assert_eq!(job.heap(0, 0, 8), 5u64.to_le_bytes());
}

#[test]
fn slow_put_among_others_survives() {
    let mut job = Job::with(Shape { rails: 1, ..PLAIN });
    job.fabric.world().lose_next = 1;
    let mut round = |puts: bool| {
        if puts {
            job.put_value(0, 1, 0, 1).unwrap();
        }
        job.fabric.pass_time(1_000_000_000);
        job.iterate_some(&[0], 300);
        job.is_quiet(0, 1)
    };
    assert!((0..100).all(|_| round(true) == Ok(false)), "after a minute");
    assert!((0..55).all(|_| round(false) == Ok(false)), "less than a minute later");
    let failed = (0..10).find_map(|_| round(false).err()).unwrap();
    let is_it = matches!(failed, EngineError::Timeout { pe: Pe(1), writes: 1, reads: 0, .. });
    assert!(is_it, "{failed}");
}

#[test]
fn rail_failure_concerns_its_peers() {
    // By what it says when it is polled, or when it is asked.
    for fail in [FakeFabric::fail_rail, FakeFabric::trouble] {
        let mut job = Job::with(Shape { n_pes: 3, ..PLAIN });
        for pe in [1, 2] {
            job.fabric.stall(Pe(pe));
            job.put_value(0, pe, 0, 1).unwrap();
        }
        let posted: Vec<u64> = job.lane(0).counters().map(|rail| rail.posted).collect();
        assert_eq!(posted, [1, 1], "the first rail is another one for each");
        job.fence(0, 1);
        job.put_value(0, 1, 8, 1).unwrap();
        let before = job.fabric.now();
        fail(&job.fabric, Pe(0), RailId(1));
        let text = job.quiet(0, 1).unwrap_err().to_string();
        assert!(text.contains("the rail is gone") && text.contains("(fake"), "{text}");
        assert!(job.fabric.now() - before < 1_000_000_000, "no time limit was waited for");
        assert_eq!(job.put_value(0, 1, 16, 1).unwrap_err().to_string(), text);
        assert!(job.lane(0).progress().is_err());
        job.fabric.resume(Pe(2));
        job.quiet(0, 2).unwrap();
        assert_eq!(job.heap(2, 0, 8), 1_u64.to_le_bytes());

        let mut job = Job::with(Shape { n_pes: 3, ..PLAIN });
        [1, 2].into_iter().for_each(|pe| job.inc(0, pe, 0));
        fail(&job.fabric, Pe(0), RailId(1));
        job.iterate_slowly(&[0], 300, 10_000_000);
        assert_eq!([1, 2].map(|pe| job.is_quiet(0, pe).is_err()), [true, false]);
    }
}

#[test]
fn blocked_submitter_times_out() {
    let mut job = Job::with(Shape { depth: 1, rails: 1, ..PLAIN });
    job.fabric.stall(Pe(1));
    // Some are pending, as many as may be.
    let failed = (0..5000).find_map(|at| job.put_value(0, 1, at * 8, 1).err());
    assert!(matches!(failed, Some(EngineError::Timeout { pe: Pe(1), .. })), "{failed:?}");
}

#[test]
fn slow_peers_do_not_time_out() {
    // 16 puts of 20 s each to PE 1 share a rail and a depth of one with one put to PE 2, which
    // therefore waits far beyond the deadline, first in the queue and then on its way.
    let script = Script { delay: (10_000_000_000, 10_000_000_000), ..CALM };
    let mut job = Job::new(1, &Shape { n_pes: 3, depth: 1, rails: 1, ..PLAIN }, script);
    for at in 0..16 {
        job.put_value(0, 1, at * 8, 1).unwrap();
    }
    job.put_value(0, 2, 0, 7).unwrap();
    job.fence(0, 2);
    job.put_value(0, 2, 8, 8).unwrap();
    job.quiet(0, 2).unwrap();
    assert_eq!(job.heap(2, 8, 8), 8u64.to_le_bytes());
    job.quiet(0, 1).unwrap();
}

fn check(refused: Outcome, parts: &[&str]) {
    let text = refused.unwrap_err().to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} are not in {text:?}");
}

/// By every call and path, at once, and nothing of them leaves.
#[test]
fn bad_requests_are_refused() {
    const OUTSIDE: &str = "not inside the region";
    for fast in [false, true] {
        let mut job = Job::with(Shape { n_pes: 3, fast, needs_desc: !fast, ..PLAIN });
        // So that there are channels, and the fast path is taken.
        [1, 2].into_iter().for_each(|pe| job.inc(0, pe, 8192));
        [1, 2].into_iter().for_each(|pe| job.until_quiet(0, pe));
        let (heap, targets) = (job.heap, &job.targets);
        let Member { lane, scratch, .. } = &mut job.members[0];
        let scratch = *scratch;
        let put = targets.part(scratch, 1, 0, 64);
        let word = targets.atomic(1, 0, AtomicOp::Inc, 0);
        let signal = targets.atomic(1, 0, AtomicOp::SignalSet, 1);
        check(lane.start(&Request { pe: Pe(3), ..put }), &["PE 3"]);
        check(lane.atomic(&AtomicRequest { pe: Pe(3), ..word }), &["PE 3"]);
        let outside = [(-1, 8), (heap as i64 - 7, 8), (heap as i64, 1), (0, heap + 1)];
        for (at, len) in outside {
            let remote_addr = put.remote_addr.wrapping_add_signed(at);
            let put = Request { remote_addr, len, ..put };
            check(lane.start(&put), &["PE 1", "remote", OUTSIDE]);
            check(lane.put_signal(&PutSignalRequest { parts: &[put], signal }), &[OUTSIDE]);
        }
        check(lane.atomic(&targets.atomic(1, heap - 7, AtomicOp::Inc, 0)), &[OUTSIDE]);
        check(lane.atomic(&targets.atomic(1, 4, AtomicOp::Inc, 0)), &["not aligned"]);
        let damaged = AtomicRequest { remote_handle: &[7; 512], ..word };
        check(lane.atomic(&damaged), &["not made by this transport"]);
        // Lengths whose sum is beyond all addresses do not add up to nothing, or the signal would
        // be sent alone.
        for lens in [[8, usize::MAX - 7], [usize::MAX, 1], [usize::MAX, usize::MAX]] {
            let parts = lens.map(|len| targets.part(scratch, 1, 0, len));
            check(lane.put_signal(&PutSignalRequest { parts: &parts, signal }), &[OUTSIDE]);
        }
        // With another PE's handle an operation would go to whatever has the same key there.
        let astray = &["of a region of PE 1, not of PE 2"];
        let (to_other, word) = (Request { pe: Pe(2), ..put }, AtomicRequest { pe: Pe(2), ..word });
        let signal = targets.atomic(2, 8, AtomicOp::SignalSet, 1);
        check(lane.start(&to_other), astray);
        check(lane.start(&Request { direction: Direction::Read, ..to_other }), astray);
        check(lane.atomic(&word), astray);
        for parts in [&[to_other][..], &[to_other, to_other]] {
            check(lane.put_signal(&PutSignalRequest { parts, signal }), astray);
        }
        let parts = &[targets.part(scratch, 2, 8, 8)];
        check(lane.put_signal(&PutSignalRequest { parts, signal: word }), astray);
        let foreign = job.members[0].regions.release(put.remote_handle);
        check(foreign, &["PE 1, not of PE 0"]);
        assert!(!job.lane(0).has_work(), "a refused request leaves nothing behind");
        job.iterate_some(&[0, 1, 2], 100);
        let heaps = [1, 2].map(|pe| job.heap(pe, 0, 8192));
        assert_eq!(heaps, [[0; 8192]; 2], "nothing has arrived");
    }
}

#[test]
fn memory_without_keys_is_refused() {
    let mut job = Job::with(Shape { fast: true, ..PLAIN });
    let scratch = job.members[0].scratch;
    let start = |job: &mut Job, change: &dyn Fn(&mut Request<'_>)| {
        let mut put = job.targets.part(scratch, 1, 0, 64);
        change(&mut put);
        job.members[0].lane.start(&put)
    };
    // The local side, where the fabric needs it registered.
    let beyond = scratch + job.heap - 8;
    let refused = start(&mut job, &|put| put.local = LocalSide::Memory(beyond));
    assert!(matches!(refused, Err(EngineError::Refused { addr, .. }) if addr == beyond as u64));
    check(refused, &["local address", "put", "not inside the region"]);
    // What is in no region goes through bounce memory, if that can be made and registered.
    let bare = job.fabric.alloc(Pe(0), 64);
    for (fails, part) in
        [(Some(0), "not registered"), (Some(1), "registering"), (None, "registering")]
    {
        if let Some(after) = fails {
            job.fabric.fail_calls(PortCall::Register, after, 1);
        }
        let refused = start(&mut job, &|put| put.local = LocalSide::Memory(bare));
        check(refused, &[part, "bounce memory"]);
    }
    // A handle for local use only is no target.
    let (handle, there) = (job.members[1].scratch_handle, job.members[1].scratch as u64);
    let put = job.targets.part(scratch, 1, 0, 64);
    let put = Request { remote_handle: &handle, remote_addr: there, ..put };
    let fault = |refused: Outcome| match refused {
        Err(EngineError::Refused { fault, .. }) => fault,
        other => panic!("{other:?}"),
    };
    let refused = job.members[0].lane.start(&put);
    assert!(matches!(fault(refused), HandleError::NoKey { rails: 0, .. }));
    // A handle with fewer rails than the job has. The lane's next rail leads to remote rail 0, so
    // one good put brings it to the rail that has no key.
    job.put(0, 1, 0, 64).unwrap();
    job.quiet(0, 1).unwrap();
    let mut short = Handle::decode(&job.members[1].handle).unwrap();
    short.keys.truncate(1);
    let put = Request { remote_handle: &short.encode(), ..job.targets.part(scratch, 1, 0, 64) };
    let refused = job.members[0].lane.start(&put);
    assert_eq!(fault(refused), HandleError::NoKey { rail: RailId(1), rails: 1 });
    assert!(!job.members[0].lane.try_start(&put), "nor on the fast path");
}

#[test]
fn fast_path_reports_refusals() {
    let mut job = Job::with(Shape { needs_desc: false, fast: true, heap: 4096, ..PLAIN });
    job.put(0, 1, 0, 8).unwrap();
    job.put(0, 1, 0, 0).unwrap();
    job.quiet(0, 1).unwrap();
    // Memory that the fake does not know.
    let put = job.targets.part(job.members[0].scratch + (1 << 30), 1, 0, 8);
    let refused = job.members[0].lane.start(&put);
    check(refused.clone(), &["put of 8 bytes", "PE 1", "local memory that does not exist"]);
    assert_eq!(job.quiet(0, 1), refused);
    assert!(!job.lane(0).has_work());
}

#[test]
fn drain_is_bounded() {
    let mut job = Job::with(PLAIN);
    let patience = std::time::Duration::from_millis(500);
    assert!(job.lane(0).drain_before_close(patience), "nothing is under way");
    job.put_value(0, 1, 0, 1).unwrap();
    job.put_value(0, 1, 8, 2).unwrap();
    assert!(job.lane(0).drain_before_close(patience));
    let counted = [job.counted(0, |rail| rail.posted), job.counted(0, |rail| rail.completed)];
    assert_eq!(counted, [2, 2]);
    job.fabric.fail_calls(PortCall::Deliver, 0, 1);
    job.put_value(0, 1, 0, 1).unwrap();
    assert!(job.lane(0).drain_before_close(patience), "what fails has ended too");

    let mut job = Job::with(PLAIN);
    job.fabric.world().lose_next = 1;
    job.put_value(0, 1, 0, 1).unwrap();
    let before = job.fabric.now();
    assert!(!job.lane(0).drain_before_close(patience), "it never ends");
    let waited = job.fabric.now() - before;
    assert!((500_000_000..5_000_000_000).contains(&waited), "{waited} ns");
}

/// The fabric may report an acknowledged message whose slot is another's by then.
#[test]
fn late_failure_hits_no_other_segment() {
    let mut job = Job::with(Shape { n_pes: 3, rails: 1, ..PLAIN });
    job.fabric.world().fail_delivered = 1;
    job.inc(0, 1, 0);
    job.until_quiet(0, 1);
    job.fabric.stall(Pe(2));
    job.put_value(0, 2, 0, 7).unwrap();
    job.fabric.world().report_failing();
    job.progress(0, 100);
    job.fabric.resume(Pe(2));
    job.quiet(0, 2).unwrap();
    assert_eq!(job.heap(2, 0, 8), 7u64.to_le_bytes());

    // One that was not acknowledged ends the connection to its peer.
    job.fabric.world().fail_delivered = 1;
    job.inc(0, 1, 0);
    while job.fabric.in_flight() > 0 {
        job.lane(0).progress().unwrap();
    }
    job.fabric.world().report_failing();
    let failed = job.quiet(0, 1).unwrap_err().to_string();
    assert!(failed.contains("atomic of 32 bytes, PE 1"), "{failed}");
    assert!(failed.contains("failed by the script"), "{failed}");
    job.put_value(0, 2, 8, 7).unwrap();
    job.quiet(0, 2).unwrap();
}

/// Whether it cannot be sent or is not acknowledged, its payload counts.
#[test]
fn errors_name_whole_messages() {
    for fails in [false, true] {
        let mut job = Job::with(Shape { longest_message: MAX_LONG_MESSAGE, ..PLAIN });
        job.fabric.stall(Pe(1));
        job.fabric.fail_calls(PortCall::Send, 0, u32::from(fails));
        let sent = job.put_signal(0, 1, &[(64, 1000)], 0);
        check(sent.and_then(|()| job.quiet(0, 1)), &["of 1048 bytes"]);
    }
}

#[test]
fn failed_queued_put_leaves_nothing() {
    let mut job = Job::with(PLAIN);
    job.fabric.refuse(Pe(1), true);
    job.put_value(0, 1, 0, 1).unwrap();
    job.fabric.refuse(Pe(1), false);
    job.fabric.fail_calls(PortCall::Post, 0, 1);
    job.iterate_some(&[0], 10);
    assert!(job.quiet(0, 1).is_err() && !job.lane(0).has_work());
}

/// Whoever needs a bounce buffer of a PE that has given it up is told so, and takes none.
#[test]
fn failed_peer_takes_no_buffer() {
    for begin in [Job::put as fn(&mut Job, u32, u32, usize, usize) -> Outcome, Job::get] {
        let shape = Shape { n_pes: 3, staged: u32::MAX, bounce: (1024, 1, 1), ..PLAIN };
        let mut job = Job::with(shape);
        job.fabric.fail_calls(PortCall::Send, 0, 1);
        job.amo(0, 1, 0, AtomicOp::Inc, 0).unwrap_err();
        begin(&mut job, 1, 0, 0, 1000).unwrap();
        let failed = job.settle(&[0, 1], (1, 0), 1000);
        assert!(matches!(failed, Err(EngineError::PeerRefused { pe: Pe(0), .. })), "{failed:?}");
        begin(&mut job, 2, 0, 0, 1000).unwrap();
        assert_eq!(job.settle(&[0, 2], (2, 0), 1000), Ok(()));
    }
}

/// What waits for the fabric to take something to another peer.
#[test]
fn failed_peer_drops_only_its_transfers() {
    for begin in [Job::put as fn(&mut Job, u32, u32, usize, usize) -> Outcome, Job::get] {
        let mut job = Job::with(Shape { n_pes: 3, staged: u32::MAX, ..PLAIN });
        for pe in [1, 2] {
            job.fabric.refuse(Pe(pe), true);
            begin(&mut job, 0, pe, 0, 1000).unwrap();
        }
        job.iterate_some(&[0], 200);
        job.fabric.refuse(Pe(1), false);
        job.fabric.fail_calls(PortCall::Send, 0, 1);
        job.iterate_some(&[0], 10);
        assert!(job.is_quiet(0, 1).is_err());
        job.fabric.refuse(Pe(2), false);
        assert_eq!(job.settle(&[0, 1, 2], (0, 2), 1000), Ok(()));
    }
}

#[test]
fn failed_read_frees_its_buffer() {
    let mut job = Job::with(Shape { n_pes: 3, staged: u32::MAX, bounce: (1024, 1, 1), ..PLAIN });
    job.put(0, 1, 0, 1000).unwrap();
    job.iterate_some(&[0], 200);
    job.fabric.fail_calls(PortCall::Post, 0, 1);
    job.iterate_some(&[1], 200);
    job.put(2, 1, 4096, 1000).unwrap();
    assert_eq!(job.settle(&[0, 1, 2], (2, 1), 1000), Ok(()));
}
