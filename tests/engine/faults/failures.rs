//! Errors, lost completions, and bad input.

use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::port::Direction;
use engine::rails::Spread;
use engine::request::{LocalSide, Request, ResultPlace};
use engine::wire::handle::{Handle, HandleBytes, HandleError};
use sim_fabric::{FakeFabric, PortCall, Script};

use crate::job::Targets;
use crate::job::{Job, Member, Shape};
use crate::race::race;

/// Whoever waits for a fetched word is not told that it is there.
#[test]
fn unstorable_fetch_fails_quiet() {
    let job = Job::new(1, &Shape::default(), Script::default());
    job.fabric.fail_calls(PortCall::Store, 0, 1);
    let program = |me: u32, member: &mut Member, targets: &Targets| {
        let mut take = targets.atomic(1 - me, 0, AtomicOp::FetchInc, 1);
        take.result = Some(ResultPlace { addr: member.base + 64, flag: Some(7) });
        if me == 0 {
            member.lane.atomic(&take).unwrap();
        }
        member.lane.quiet(Pe(1 - me))
    };
    let (_, ended) = race(job, 1, program);
    let failed = ended[0].1.as_ref().unwrap_err().to_string();
    for part in ["fetched from PE 1", "cannot be stored", "failed by the script"] {
        assert!(failed.contains(part), "{part:?} is not in {failed:?}");
    }
    assert_eq!(ended[1].1, Ok(()));
}

#[test]
fn failed_write_names_peer_and_rail() {
    let mut job = Job::new(1, &Shape::default(), Script::default());
    job.fabric.fail_next(1);
    job.put_value(0, 1, 0, 1).unwrap();
    let failed = job.quiet(0, 1).unwrap_err();
    let text = failed.to_string();
    for part in ["put of 8 bytes", "PE 1", "rail 1 (fake1)", "failed by the script", "error 5"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    // It stays reported, and nothing more goes to that peer; the other peer is not touched.
    assert_eq!(job.quiet(0, 1).unwrap_err(), failed);
    assert_eq!(job.put_value(0, 1, 8, 1).unwrap_err(), failed);
    assert_eq!(*job.members[0].lane.progress().unwrap_err(), failed);
    job.put_value(0, 0, 0, 5).unwrap();
    job.quiet(0, 0).unwrap();
    assert_eq!(job.heap(0, 0, 8), 5u64.to_le_bytes());
}

/// Puts whose rails are chosen by load, too, behind a fence and beside it.
#[test]
fn pooled_puts_of_failed_peer_drop() {
    for fenced in [false, true] {
        let spread = Spread { balanced_from: 64, striped_from: 256, segment: 64 };
        let shape = Shape { depth: 4, max_segment: 64, spread, ..Shape::default() };
        let mut job = Job::new(3, &shape, Script::default());
        job.fabric.stall(Pe(1));
        job.fabric.fail_next(1);
        job.put_value(0, 1, 0, 1).unwrap();
        if fenced {
            job.fence(0, 1);
        }
        for at in 0..8 {
            job.put(0, 1, 4096 * at + 64, 4000).unwrap();
        }
        assert!(job.members[0].lane.has_work());
        job.fabric.resume(Pe(1));
        while job.members[0].lane.is_quiet(Pe(1)).is_ok() || job.fabric.in_flight() > 0 {
            let _ = job.members[0].lane.progress();
        }
        for _ in 0..1000 {
            let _ = job.members[0].lane.progress();
        }
        assert!(!job.members[0].lane.has_work(), "fenced {fenced}");
        assert_eq!(fenced, job.heap(1, 0, job.heap).iter().all(|byte| *byte == 0));
    }
}

/// One operation may take any time, as long as others to the same peer end.
#[test]
fn slow_put_among_others_survives() {
    let mut job = Job::new(4, &Shape { rails: 1, ..Shape::default() }, Script::default());
    job.fabric.world().lose_next = 1;
    let mut round = |puts: bool| {
        if puts {
            job.put_value(0, 1, 0, 1).unwrap();
        }
        job.fabric.pass_time(1_000_000_000);
        for _ in 0..300 {
            let _ = job.members[0].lane.progress();
        }
        job.members[0].lane.is_quiet(Pe(1))
    };
    assert!((0..100).all(|_| round(true) == Ok(false)), "after a minute");
    assert!((0..55).all(|_| round(false) == Ok(false)), "less than a minute later");
    let failed = (0..10).find_map(|_| round(false).err()).unwrap();
    let is_it = matches!(failed, EngineError::Timeout { pe: Pe(1), writes: 1, reads: 0, .. });
    assert!(is_it, "{failed}");
}

/// How it is found that a rail has failed: by what it says when it is polled, or when it is asked.
const TELLS: [fn(&FakeFabric, Pe, RailId); 2] = [FakeFabric::fail_rail, FakeFabric::trouble];

#[test]
fn rail_failure_is_reported_at_once() {
    for fail in TELLS {
        let mut job = Job::new(12, &Shape { n_pes: 3, ..Shape::default() }, Script::default());
        job.fabric.stall(Pe(1));
        job.put_value(0, 1, 0, 1).unwrap();
        job.fence(0, 1);
        job.put_value(0, 1, 8, 1).unwrap();
        job.put_value(0, 2, 0, 7).unwrap();
        job.quiet(0, 2).unwrap();
        let before = job.fabric.now();
        for rail in [RailId(0), RailId(1)] {
            fail(&job.fabric, Pe(0), rail);
        }
        let text = job.quiet(0, 1).unwrap_err().to_string();
        assert!(text.contains("the rail is gone") && text.contains("(fake"), "{text}");
        assert!(job.fabric.now() - before < 1_000_000_000, "no time limit was waited for");
        assert_eq!(job.put_value(0, 1, 16, 1).unwrap_err().to_string(), text);
        // Nothing of PE 2 was on it.
        job.quiet(0, 2).unwrap();
        assert!(job.members[0].lane.progress().is_err());
    }
}

#[test]
fn rail_failure_spares_other_rails() {
    for fail in TELLS {
        let mut job = Job::new(12, &Shape { n_pes: 3, ..Shape::default() }, Script::default());
        for pe in [1, 2] {
            job.fabric.stall(Pe(pe));
            job.put_value(0, pe, 0, 1).unwrap();
        }
        let posted: Vec<u64> = job.members[0].lane.counters().map(|rail| rail.posted).collect();
        assert_eq!(posted, [1, 1], "the first rail is another one for each");
        fail(&job.fabric, Pe(0), RailId(1));
        job.quiet(0, 1).unwrap_err();
        job.fabric.resume(Pe(2));
        job.quiet(0, 2).unwrap();
        assert_eq!(job.heap(2, 0, 8), 1_u64.to_le_bytes());
    }
}

#[test]
fn blocked_submitter_times_out() {
    let shape = Shape { depth: 1, rails: 1, ..Shape::default() };
    let mut job = Job::new(4, &shape, Script::default());
    job.fabric.stall(Pe(1));
    // Some are pending, as many as may be.
    let failed = (0..5000).find_map(|at| job.put_value(0, 1, at * 8, 1).err());
    assert!(matches!(failed, Some(EngineError::Timeout { pe: Pe(1), .. })), "{failed:?}");
}

#[test]
fn unattended_time_does_not_count() {
    let mut job = Job::new(10, &Shape::default(), Script::default());
    job.fabric.stall(Pe(1));
    job.put_value(0, 1, 0, 1).unwrap();
    let iterate = |job: &mut Job| {
        for _ in 0..1000 {
            job.members[0].lane.progress().unwrap();
        }
    };
    iterate(&mut job);
    // PE 0 computes for an hour; then the watchdog looks again.
    job.fabric.pass_time(3_600_000_000_000);
    iterate(&mut job);
    job.fabric.resume(Pe(1));
    job.quiet(0, 1).unwrap();
}

#[test]
fn slow_peers_do_not_time_out() {
    // 16 puts of 20 s each to PE 1 share a rail and a depth of one with one put to PE 2, which
    // therefore waits far beyond the deadline, first in the queue and then on its way.
    let shape = Shape { n_pes: 3, depth: 1, rails: 1, ..Shape::default() };
    let script = Script { delay: (10_000_000_000, 10_000_000_000), ..Script::default() };
    let mut job = Job::new(11, &shape, script);
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

/// The error for a sound request from PE 0 to PE 1 that was changed for the worse.
fn refused<'a>(
    job: &mut Job,
    remote: &'a HandleBytes,
    change: impl FnOnce(&mut Request<'a>),
) -> EngineError {
    let base = job.members[1].base;
    let member = &mut job.members[0];
    let mut request = Request {
        direction: Direction::Write,
        pe: Pe(1),
        remote_handle: remote,
        remote_addr: base as u64,
        local: LocalSide::Memory(member.scratch),
        len: 64,
    };
    change(&mut request);
    member.lane.start(&request).unwrap_err()
}

fn fault(error: EngineError) -> HandleError {
    match error {
        EngineError::Refused { fault, .. } => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn bad_requests_are_refused() {
    let mut job = Job::new(6, &Shape::default(), Script::default());
    let handle = job.members[1].handle;
    let sound = &handle;
    let base = job.members[1].base as u64;
    let heap = job.heap as u64;

    assert!(matches!(
        refused(&mut job, sound, |request| request.pe = Pe(2)),
        EngineError::NoSuchPe { pe: Pe(2), n_pes: 2 }
    ));
    for (addr, len) in [(base - 1, 8), (base + heap - 7, 8), (base + heap, 1), (0, 1)] {
        let error = refused(&mut job, sound, |request| {
            request.remote_addr = addr;
            request.len = len;
        });
        let text = error.to_string();
        assert!(text.contains("PE 1") && text.contains("remote"), "{text}");
        assert!(matches!(fault(error), HandleError::Outside { .. }), "{addr:#x}");
    }
    // The local side, where the fabric needs it registered.
    let scratch = job.members[0].scratch;
    let error = refused(&mut job, sound, |request| {
        request.local = LocalSide::Memory(scratch + heap as usize - 8);
    });
    assert!(error.to_string().contains("local address") && error.to_string().contains("put"));
    let addr = (scratch + heap as usize - 8) as u64;
    assert!(matches!(error, EngineError::Refused { addr: at, .. } if at == addr), "{error}");
    assert!(matches!(fault(error), HandleError::Outside { .. }));
    // What is in no region goes through bounce memory, if that can be made and registered.
    let unregistered = job.fabric.alloc(Pe(0), 64);
    for (fails, part) in [(Some(0), "FI_MR_LOCAL"), (Some(1), "registering"), (None, "registering")]
    {
        if let Some(after) = fails {
            job.fabric.fail_calls(PortCall::Register, after, 1);
        }
        let error = refused(&mut job, sound, |request| {
            request.local = LocalSide::Memory(unregistered);
        });
        let text = error.to_string();
        assert!(text.contains(part) && text.contains("bounce memory"), "{text}");
    }
    // A handle for local use only is no target.
    let local_only = job.members[1].scratch_handle;
    let there = job.members[1].scratch as u64;
    let error = refused(&mut job, sound, |request| {
        request.remote_handle = &local_only;
        request.remote_addr = there;
    });
    assert!(matches!(fault(error), HandleError::NoKey { rails: 0, .. }));
    // A handle with fewer rails than the job has. The lane's next rail leads to remote rail 0, so
    // one good put brings it to the rail that has no key.
    job.put(0, 1, 0, 64).unwrap();
    job.quiet(0, 1).unwrap();
    let mut short = Handle::decode(&handle).unwrap();
    short.keys.truncate(1);
    let short = short.encode();
    let error = refused(&mut job, sound, |request| request.remote_handle = &short);
    assert_eq!(fault(error), HandleError::NoKey { rail: RailId(1), rails: 1 });

    assert!(!job.members[0].lane.has_work(), "a refused request leaves nothing behind");
    job.put(0, 1, 0, 64).unwrap();
    job.quiet(0, 1).unwrap();
}

/// The fast path refuses what the general way refuses,
/// and reports what the fabric refuses at once.
#[test]
fn fast_path_refuses_and_reports() {
    let shape = Shape { needs_desc: false, fast: true, heap: 4096, ..Shape::default() };
    let mut job = Job::new(9, &shape, Script::default());
    job.put(0, 1, 0, 8).unwrap();
    for (pe, offset, len) in [(2, 0, 8), (1, 4096, 1), (1, 4089, 8), (1, 0, 4097)] {
        job.put(0, pe, offset, len).unwrap_err();
        assert_eq!(job.fabric.in_flight(), 1, "{len} bytes at {offset} to PE {pe}");
    }
    job.put(0, 1, 0, 0).unwrap();
    job.quiet(0, 1).unwrap();
    // Memory that the fake does not know: the fabric itself refuses, and the peer is declared
    // failed.
    let targets = Targets::of(&job);
    let put = targets.part(job.members[0].scratch + (1 << 30), 1, 0, 8);
    let lane = &mut job.members[0].lane;
    let error = lane.start(&put).unwrap_err();
    for part in ["put of 8 bytes", "PE 1", "local memory that does not exist"] {
        assert!(error.to_string().contains(part), "{part:?} is not in {error}");
    }
    assert_eq!(job.quiet(0, 1).unwrap_err(), error);
    assert!(!job.members[0].lane.has_work());
}

#[test]
fn drain_is_bounded() {
    let mut job = Job::new(3, &Shape::default(), Script::default());
    let patience = std::time::Duration::from_millis(500);
    assert!(job.members[0].lane.drain_before_close(patience), "nothing is under way");
    job.put_value(0, 1, 0, 1).unwrap();
    job.put_value(0, 1, 8, 2).unwrap();
    assert!(job.members[0].lane.drain_before_close(patience));
    let posted = |job: &Job| job.members[0].lane.counters().map(|rail| rail.posted).sum::<u64>();
    let completed =
        |job: &Job| job.members[0].lane.counters().map(|rail| rail.completed).sum::<u64>();
    assert_eq!((posted(&job), completed(&job)), (2, 2));

    let mut job = Job::new(4, &Shape::default(), Script::default());
    job.fabric.world().lose_next = 1;
    job.put_value(0, 1, 0, 1).unwrap();
    let before = job.fabric.now();
    assert!(!job.members[0].lane.drain_before_close(patience), "it never ends");
    let waited = job.fabric.now() - before;
    assert!((500_000_000..5_000_000_000).contains(&waited), "{waited} ns");
}

/// The fabric may say that a message has failed when it was acknowledged and its segment's slot is
/// another's.
#[test]
fn late_failure_hits_no_other_segment() {
    let shape = Shape { n_pes: 3, rails: 1, ..Shape::default() };
    let mut job = Job::new(1, &shape, Script::default());
    job.fabric.world().fail_delivered = 1;
    job.inc(0, 1, 0);
    job.until_quiet(0, 1);
    job.fabric.stall(Pe(2));
    job.put_value(0, 2, 0, 7).unwrap();
    job.fabric.world().report_failing();
    for _ in 0..100 {
        job.members[0].lane.progress().unwrap();
    }
    job.fabric.resume(Pe(2));
    job.quiet(0, 2).unwrap();
    assert_eq!(job.heap(2, 0, 8), 7u64.to_le_bytes());

    // One that was not acknowledged ends the connection to its peer.
    job.fabric.world().fail_delivered = 1;
    job.inc(0, 1, 0);
    while job.fabric.in_flight() > 0 {
        job.members[0].lane.progress().unwrap();
    }
    job.fabric.world().report_failing();
    let failed = job.quiet(0, 1).unwrap_err().to_string();
    assert!(failed.contains("PE 1") && failed.contains("failed by the script"), "{failed}");
    job.put_value(0, 2, 8, 7).unwrap();
    job.quiet(0, 2).unwrap();
}
