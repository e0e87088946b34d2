//! What a lane is asked by those who submit for others: whether there is room, which PEs there are,
//! what uses memory; and what they tell it for all peers at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use engine::lane::host::HostLane;

use crate::prelude::*;

/// Too much pending for a peer holds up what comes for that peer, and nothing else.
#[test]
fn saturated_peer_is_named() {
    const HIGH: usize = (4096 - 256) / 2;
    let mut job = Job::with(Shape { n_pes: 3, rails: 1, ..PLAIN });
    job.fabric.refuse(Pe(1), true);
    assert!(job.lane(0).has_room());
    let mut put = 0;
    while !job.lane(0).has_saturated_peer() {
        assert!(!job.lane(0).is_saturated(Pe(1)));
        job.put_value(0, 1, put % 64 * 8, 1).unwrap();
        put += 1;
    }
    assert!((HIGH..HIGH + 100).contains(&put), "{put}");
    assert!(job.lane(0).is_saturated(Pe(1)) && !job.lane(0).is_saturated(Pe(2)));
    job.put_value(0, 2, 0, 7).unwrap();
    job.quiet(0, 2).unwrap();
    // For PE 1 as well, once it takes something.
    job.fabric.refuse(Pe(1), false);
    job.quiet(0, 1).unwrap();
    let lane = job.lane(0);
    assert!(!lane.has_saturated_peer() && !lane.is_saturated(Pe(1)) && lane.has_room());
    let to_it = job.fabric.deliveries().iter().filter(|delivery| delivery.to == Pe(1)).count();
    assert_eq!(to_it, put);
}

#[test]
fn full_rails_leave_no_room() {
    let mut job = Job::with(Shape { n_pes: 40, rails: 1, depth: 4, heap: 64, ..PLAIN });
    // As many peers as it takes: each has a share.
    let mut had = 0;
    while job.lane(0).has_room() {
        had += 1;
        job.fabric.stall(Pe(had));
        job.put_value(0, had, 0, 1).unwrap();
    }
    assert!((4..=8).contains(&had), "{had} puts fill a rail of four");
    // One peer takes eight ninths.
    for rails in [1, 2, 4] {
        let mut job = Job::with(Shape { rails, depth: 18, ..PLAIN });
        job.fabric.stall(Pe(1));
        while job.lane(0).pending(Pe(1)) == 0 {
            job.put_value(0, 1, 0, 1).unwrap();
        }
        assert_eq!(job.fabric.in_flight(), 16 * usize::from(rails));
    }
}

#[test]
fn unknown_pes_are_errors() {
    let mut job = Job::with(PLAIN);
    let lane = job.lane(0);
    assert!(lane.has_pe(Pe(1)) && !lane.has_pe(Pe(2)));
    let unknown = Err(EngineError::NoSuchPe { pe: Pe(2), n_pes: 2 });
    assert_eq!(lane.fence(Pe(2)), unknown);
    assert_eq!(lane.is_quiet(Pe(2)).map(drop), unknown);
}

/// Whether PE 0's lane says that something about PE 1 uses these bytes.
fn in_use(job: &mut Job, addr: usize, len: usize) -> bool {
    match job.lane(0).check_unused(addr, len) {
        Ok(()) => false,
        Err(EngineError::InUse { pe: Pe(1), what, .. }) => {
            let known = ["put", "get", "peer's put", "put with signal", "fetching atomic"];
            assert!(known.contains(&what), "{what:?}");
            true
        }
        Err(other) => panic!("{other}"),
    }
}

/// The bytes of an operation are in use until it has ended, and none beside them.
#[test]
fn operations_keep_their_memory_in_use() {
    const LEN: usize = 4096;
    let pooled = Spread { balanced_from: 9, striped_from: 64, segment: 64 };
    let under_way =
        ["put", "get", "held", "pooled", "staged", "not copied", "fetch", "value", "signal"];
    let pending = ["pending put", "pending get", "pending fetch", "pending signal"];
    for kind in under_way.into_iter().chain(pending) {
        let is_staged = ["staged", "not copied"].contains(&kind);
        let shape = Shape {
            depth: if kind == "pooled" { 1 } else { 16 },
            staged: if is_staged { 0b10 } else { 0 },
            spread: if kind == "pooled" { pooled } else { Spread::ROUND_ROBIN },
            longest_message: MAX_LONG_MESSAGE,
            ..PLAIN
        };
        let again_percent = if kind == "not copied" { 100 } else { 0 };
        let mut job = Job::new(4, &shape, Script { again_percent, ..CALM });
        let at = job.members[0].scratch + LEN;
        job.fabric.stall(Pe(1));
        let is_pending = pending.contains(&kind);
        if is_pending {
            // One more than a peer has places for; all that comes later is pending behind it.
            (0..17).for_each(|number| job.fetch(0, 1, 8 * LEN + 16 * number).unwrap());
        }
        let len = match kind {
            "pending get" | "get" => job.get(0, 1, LEN, LEN).map(|()| LEN),
            "held" => {
                job.put_value(0, 1, 0, 1).unwrap();
                job.fence(0, 1);
                job.put(0, 1, LEN, LEN).map(|()| LEN)
            }
            "value" => job.put_value(0, 1, LEN, 1).map(|()| 0),
            "pending fetch" | "fetch" => {
                let mut fetch = job.targets.fetch(1, 0, at);
                fetch.result = Some(FetchTarget { addr: at, flag: Some(1) });
                job.members[0].lane.atomic(&fetch).map(|()| 16)
            }
            "pending signal" => job.put_signal(0, 1, &[(LEN, LEN)], 0).map(|()| LEN),
            // One message, which has taken its data along.
            "signal" => job.put_signal(0, 1, &[(LEN, LEN)], 0).map(|()| 0),
            _ => job.put(0, 1, LEN, LEN).map(|()| LEN),
        };
        let len = len.unwrap();
        assert_eq!(job.lane(0).pending(Pe(1)) > 1, is_pending, "{kind}");
        if len != 0 {
            // A staged one by the pieces that are under way.
            assert!(in_use(&mut job, at, len), "{kind}");
            assert!(in_use(&mut job, at - 8, 9) && in_use(&mut job, at, 1), "{kind}");
            if !is_staged {
                assert!(in_use(&mut job, at + len - 1, 8), "{kind}");
            }
        } else {
            assert!(!in_use(&mut job, at, LEN), "{kind}");
        }
        assert!(!in_use(&mut job, at - 64, 64) && !in_use(&mut job, at + LEN, 64), "{kind}");
        if again_percent != 0 {
            continue;
        }
        job.fabric.resume(Pe(1));
        job.until_quiet(0, 1);
        assert!(!in_use(&mut job, at, LEN), "{kind} has ended");
    }
    // What belongs to a peer that was declared failed is none of the lane's.
    let mut job = Job::with(PLAIN);
    job.fabric.stall(Pe(1));
    job.put(0, 1, 0, LEN).unwrap();
    job.quiet(0, 1).unwrap_err();
    let scratch = job.members[0].scratch;
    assert!(!in_use(&mut job, scratch, LEN));
}

/// A peer's puts use this PE's memory from their arrival on, even while they wait for a buffer.
#[test]
fn waiting_peer_puts_keep_memory() {
    const LEN: usize = 1000;
    let mut job = Job::with(Shape { staged: 0b01, bounce: (1024, 1, 1), ..PLAIN });
    let base = job.members[0].base;
    for number in 0..3 {
        job.put(1, 0, 4096 * number, LEN).unwrap();
    }
    // The first one has the bounce buffer, and nothing is read from PE 1.
    job.fabric.stall(Pe(1));
    (0..300).for_each(|_| job.iterate());
    for at in [0, 4096, 8192] {
        assert!(
            in_use(&mut job, base + at, LEN) && in_use(&mut job, base + at + LEN - 1, 1),
            "{at}"
        );
        assert!(!in_use(&mut job, base + at + LEN, 4096 - LEN), "{at}");
    }
    job.fabric.resume(Pe(1));
    job.until_quiet(1, 0);
    assert!(!in_use(&mut job, base, 1 << 14));
}

#[test]
fn quiet_ends_under_concurrent_puts() {
    let job = Job::new(8, &PLAIN, Script { delay: (2_000_000, 4_000_000), ..CALM });
    let host = job.host_lane();
    let part = job.targets.part(job.members[0].scratch, 1, 0, 64);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Many more are begun before one ends.
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_over.load(Ordering::SeqCst) {
                assert!(Instant::now() < deadline, "the quiet does not end");
                host.start(&part).unwrap();
                job.fabric.pass_time(10_000);
            }
        });
        while job.fabric.in_flight() < 4 {
            std::thread::yield_now();
        }
        host.quiet(Pe(1)).unwrap();
        is_over.store(true, Ordering::SeqCst);
    });
    host.quiet(Pe(1)).unwrap();
}

/// One request for each answer, though each iteration sends more.
#[test]
fn user_threads_ask_once_for_acks() {
    let (mut job, host) = Job::with(Shape { staged: 0b0100, rails: 1, depth: 1024, ..PLAIN })
        .with_user_threads(PATIENCE);
    job.fabric.trace_calls();
    // PE 1 does not look.
    let local = job.members[0].scratch;
    host.start(&job.targets.part(local, 1, 0, 1000)).unwrap();
    assert!(in_use(&mut job, local, 1000), "it was handed over");
    for _ in 0..100 {
        job.inc(0, 1, 4096);
        job.progress(0, 1);
    }
    let sent = job.posts(0);
    assert!((101..110).contains(&sent), "{sent} messages, of which 101 ask for something");
    job.until_quiet(0, 1);
    host.quiet(Pe(1)).unwrap();
}

/// What they wait for may never come then.
#[test]
fn user_threads_hear_of_failed_lane() {
    let (mut job, host) = Job::with(Shape { rails: 2, ..PLAIN }).with_user_threads(None);
    let part = job.targets.part(job.members[0].scratch, 1, 0, 64);
    job.fabric.stall(Pe(1));
    host.start(&part).unwrap();
    // The host lane is on the other one.
    job.fabric.fail_rail(Pe(0), RailId(1));
    let first = &mut job.members[0].lane;
    let failed = (0..100).find_map(|_| first.progress().err());
    let failed = failed.expect("a rail has failed").to_string();
    let _ = first.progress();
    assert_eq!(host.quiet(Pe(1)).unwrap_err().to_string(), failed);
}

/// User threads reach registered memory by themselves, and hear at once what is wrong with it.
#[test]
fn direct_memory_is_not_handed_over() {
    let shape = Shape { rails: 1, ..PLAIN };
    let job = Job::new(8, &shape, CALM);
    let (job, host) = job.with_user_threads(Some(Duration::from_millis(20)));
    let scratch = job.members[0].scratch;
    assert_eq!(host.complete(&job.targets.part(scratch, 1, 0, 64)), Ok(()));
    let beyond = job.targets.part(scratch + job.heap - 8, 1, 0, 64);
    let error = host.complete(&beyond).unwrap_err().to_string();
    assert!(error.contains("not inside the region"), "{error}");
}

/// The last group is there for the next call.
#[test]
fn blocking_calls_return_their_group() {
    let job = Job::with(PLAIN);
    let mut lane = job.user_lane();
    let last = std::iter::from_fn(|| lane.begin_batch()).last().unwrap();
    lane.end_batch(last);
    let host = HostLane::new(lane);
    let part = job.targets.part(job.members[0].scratch, 1, 0, 8);
    (0..2).for_each(|_| host.complete(&part).unwrap());
}
