//! What a lane is asked by those who submit for others: whether there is room, which PEs there are,
//! what uses memory; and what they tell it for all peers at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use engine::Watchdog;
use engine::atomic::AtomicOp;
use engine::error::EngineError;
use engine::ids::{Pe, RailId};
use engine::lane::host::HostLane;
use engine::lane::host::handoff::handover;
use engine::lane::{Lane, LaneConfig};
use engine::port::Direction;
use engine::port::packet::MAX_LONG_MESSAGE;
use engine::rails::Spread;
use engine::request::{LocalSide, PutSignalRequest, Request, ResultPlace};
use sim_fabric::{Call, Event, Script};

use super::job::{Job, Member, Shape, host_config, limits};
use super::signals::Targets;

fn iterate(job: &mut Job, iterations: u32) {
    for _ in 0..iterations {
        job.members.iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
        job.fabric.pass_time(1000);
    }
}

/// Who waits for what acknowledgements bring has them asked for, of all peers at once, and nobody
/// else asks so soon.
#[test]
fn acknowledgements_are_asked_for_by_who_waits() {
    for asks in [false, true] {
        let mut job = Job::new(1, &Shape { n_pes: 3, ..Shape::default() }, Script::default());
        let targets = Targets::of(&job);
        for pe in [1, 2] {
            job.members[0].lane.atomic(&targets.atomic(pe, 0, AtomicOp::Inc, 0)).unwrap();
        }
        iterate(&mut job, 100);
        assert_eq!([1, 2].map(|pe| job.heap(pe, 0, 8)), [1_u64.to_le_bytes(); 2]);
        if asks {
            job.members[0].lane.want_acks();
        }
        iterate(&mut job, 100);
        assert_eq!(job.members[0].lane.has_work(), !asks);
    }
}

/// Much may be pending for a PE that takes nothing. When it is too much, what comes for this PE had
/// better stay where it is, and nothing else.
#[test]
fn a_lane_that_has_pending_much_says_for_whom() {
    const HIGH: usize = (4096 - 256) / 2;
    let shape = Shape { n_pes: 3, rails: 1, ..Shape::default() };
    let mut job = Job::new(2, &shape, Script::default());
    job.fabric.refuse(Pe(1), true);
    assert!(job.members[0].lane.has_room());
    let mut put = 0;
    while !job.members[0].lane.has_saturated_peer() {
        assert!(!job.members[0].lane.is_saturated(Pe(1)));
        job.put_value(0, 1, put % 64 * 8, 1, 8).unwrap();
        put += 1;
    }
    assert!((HIGH..HIGH + 100).contains(&put), "{put}");
    let lane = &job.members[0].lane;
    assert!(lane.is_saturated(Pe(1)) && !lane.is_saturated(Pe(2)));
    job.put_value(0, 2, 0, 7, 8).unwrap();
    job.quiet(0, 2).unwrap();
    // For PE 1 as well, once it takes something.
    job.fabric.refuse(Pe(1), false);
    job.quiet(0, 1).unwrap();
    let lane = &job.members[0].lane;
    assert!(!lane.has_saturated_peer() && !lane.is_saturated(Pe(1)) && lane.has_room());
    let to_it = job.fabric.deliveries().iter().filter(|delivery| delivery.to == Pe(1)).count();
    assert_eq!(to_it, put);
}

/// A caller that does not ask who is saturated waits for its own peer alone.
#[test]
fn stopped_peers_leave_room_for_others() {
    let shape = Shape { n_pes: 3, rails: 1, ..Shape::default() };
    let mut job = Job::new(2, &shape, Script::default());
    (1..3).for_each(|pe| job.fabric.refuse(Pe(pe), true));
    while !job.members[0].lane.is_saturated(Pe(1)) {
        job.put_value(0, 1, 0, 1, 8).unwrap();
    }
    let before = job.fabric.now();
    (0..300).for_each(|at| job.put_value(0, 2, 8 * at, 1, 8).unwrap());
    assert_eq!(job.members[0].lane.pending(Pe(2)), 300);
    assert!(job.fabric.now() - before < 1_000_000_000);
}

#[test]
fn a_lane_whose_rails_are_full_has_no_room() {
    let shape = Shape { n_pes: 40, present: 2, rails: 1, depth: 4, ..Shape::default() };
    let mut job = Job::new(3, &shape, Script::default());
    // As many peers as it takes: each has a share.
    let mut handle = job.members[1].handle;
    let base = job.members[1].base as u64;
    let mut had = 0;
    for pe in 1..40 {
        if !job.members[0].lane.has_room() {
            break;
        }
        job.fabric.stall(Pe(pe));
        // As if it were that PE's.
        handle[4..6].copy_from_slice(&(pe as u16).to_le_bytes());
        let local = LocalSide::Value(1);
        let direction = Direction::Write;
        let (remote_handle, remote_addr, len) = (&handle, base, 8);
        let put = Request { direction, pe: Pe(pe), remote_handle, remote_addr, local, len };
        job.members[0].lane.start(&put).unwrap();
        had += 1;
    }
    assert!((4..=8).contains(&had), "{had} puts fill a rail of four");
    assert!(!job.members[0].lane.has_room());
}

/// No processor touches a device's memory, whenever the process has come to have some.
#[test]
fn memory_of_a_late_device_is_staged() {
    let mut job =
        Job::new(5, &Shape { staged: u32::MAX, late: true, ..Shape::default() }, Script::default());
    let targets = Targets::of(&job);
    for (at, len) in [(0, 8), (64, 100), (256, 3000)] {
        job.put(0, 1, at, len).unwrap();
        let part = [targets.part(job.members[0].scratch + at, 1, at, len)];
        let signal = targets.atomic(1, 8192, AtomicOp::Inc, 0);
        job.members[0].lane.put_signal(&PutSignalRequest { parts: &part, signal }).unwrap();
    }
    iterate(&mut job, 2000);
    assert_eq!(job.heap(1, 8192, 8), 3_u64.to_le_bytes());
}

/// The owner may count more than its peer has under way: answers that are executed there, and not
/// known here to be.
#[test]
fn gets_are_answered_as_they_come() {
    let shape = Shape { staged: u32::MAX, bounce: (64, 64, 64), ..Shape::default() };
    for seed in 1..=20 {
        let mut job = Job::new(seed, &shape, Script { delay: (1, 50_000), ..Script::default() });
        for at in (0..60_000).step_by(300) {
            job.get(0, 1, at, 300).unwrap();
        }
        while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
            iterate(&mut job, 1);
        }
    }
}

/// Of a list, the bytes of its puts alone are counted, not what describes them.
#[test]
fn lists_count_as_bytes_of_their_puts() {
    let shape = Shape { staged: u32::MAX, bounce: (8192, 2, 2), ..Shape::default() };
    let mut job = Job::new(6, &shape, Script::default());
    (0..40).for_each(|token| job.put(0, 1, token * 512, 300).unwrap());
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        iterate(&mut job, 1);
    }
    let counted = job.members.iter().map(|member| {
        let staged = member.lane.staged_counters();
        staged.by_fabric + staged.in_messages
    });
    assert_eq!(counted.sum::<u64>(), 40 * 300);
}

/// Whether PE 0's lane says that something about PE 1 uses these bytes.
fn in_use(job: &mut Job, addr: usize, len: usize) -> bool {
    match job.members[0].lane.check_unused(addr, len) {
        Ok(()) => false,
        Err(EngineError::InUse { pe: Pe(1), .. }) => true,
        Err(other) => panic!("{other}"),
    }
}

/// Whatever an operation uses of this process' memory is in use until it has ended: its own bytes,
/// and none beside.
#[test]
fn memory_is_in_use_as_long_as_an_operation_is_under_way() {
    const LEN: usize = 4096;
    let pooled = Spread { balanced_from: 9, striped_from: 64, segment: 64 };
    let under_way = ["put", "get", "held", "pooled", "staged", "fetch", "value", "signal"];
    let pending = ["pending put", "pending get", "pending fetch", "pending signal"];
    for kind in under_way.into_iter().chain(pending) {
        let shape = Shape {
            depth: if kind == "pooled" { 1 } else { 16 },
            staged: if kind == "staged" { 0b10 } else { 0 },
            spread: if kind == "pooled" { pooled } else { Spread::ROUND_ROBIN },
            longest_message: MAX_LONG_MESSAGE,
            ..Shape::default()
        };
        let mut job = Job::new(4, &shape, Script::default());
        let targets = Targets::of(&job);
        let at = job.members[0].scratch + LEN;
        job.fabric.stall(Pe(1));
        let is_pending = pending.contains(&kind);
        if is_pending {
            // One more than a peer has places for; all that comes later is pending behind it.
            for number in 0..17 {
                let mut fetch = targets.atomic(1, 0, AtomicOp::FetchAdd, 1);
                let addr = job.members[0].scratch + 8 * LEN + 16 * number;
                fetch.result = Some(ResultPlace { addr, flag: None });
                job.members[0].lane.atomic(&fetch).unwrap();
            }
        }
        let len = match kind {
            "pending put" | "put" | "staged" => job.put(0, 1, LEN, LEN).map(|()| LEN),
            "pending get" | "get" => job.get(0, 1, LEN, LEN).map(|()| LEN),
            "held" => {
                job.put_value(0, 1, 0, 1, 8).unwrap();
                job.fence(0, 1);
                job.put(0, 1, LEN, LEN).map(|()| LEN)
            }
            "pooled" => job.put(0, 1, LEN, LEN).map(|()| LEN),
            "pending fetch" | "fetch" => {
                let mut fetch = targets.atomic(1, 0, AtomicOp::FetchAdd, 1);
                fetch.result = Some(ResultPlace { addr: at, flag: Some(1) });
                job.members[0].lane.atomic(&fetch).map(|()| 16)
            }
            // One message, which takes its data from there whenever it is sent again.
            "pending signal" | "signal" => {
                let first = &mut job.members[0];
                let parts = [targets.part(at, 1, LEN, LEN)];
                let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
                first.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).map(|()| LEN)
            }
            _ => job.put_value(0, 1, LEN, 1, 8).map(|()| 0),
        };
        let len = len.unwrap();
        assert_eq!(job.members[0].lane.pending(Pe(1)) > 1, is_pending, "{kind}");
        if len != 0 {
            // A staged one by the pieces that are under way.
            assert!(in_use(&mut job, at, len), "{kind}");
            assert!(in_use(&mut job, at - 8, 9) && in_use(&mut job, at, 1), "{kind}");
            if kind != "staged" {
                assert!(in_use(&mut job, at + len - 1, 8), "{kind}");
            }
        } else {
            assert!(!in_use(&mut job, at, LEN), "{kind}");
        }
        assert!(!in_use(&mut job, at - 64, 64) && !in_use(&mut job, at + LEN, 64), "{kind}");
        job.fabric.resume(Pe(1));
        while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
            iterate(&mut job, 1);
        }
        assert!(!in_use(&mut job, at, LEN), "{kind} has ended");
    }
    // What belongs to a peer that was declared failed is none of the lane's.
    let mut job = Job::new(5, &Shape::default(), Script::default());
    job.fabric.stall(Pe(1));
    job.put(0, 1, 0, LEN).unwrap();
    job.quiet(0, 1).unwrap_err();
    let scratch = job.members[0].scratch;
    assert!(!in_use(&mut job, scratch, LEN));
}

/// A peer's puts are about this PE's memory from when they have arrived, though they wait for a
/// bounce buffer.
#[test]
fn memory_is_in_use_that_peers_wait_to_write() {
    const LEN: usize = 1000;
    let shape = Shape { staged: 0b01, bounce: (1024, 1, 1), ..Shape::default() };
    let mut job = Job::new(4, &shape, Script::default());
    let base = job.members[0].base;
    for number in 0..3 {
        job.put(1, 0, 4096 * number, LEN).unwrap();
    }
    // The first one has the bounce buffer, and nothing is read from PE 1.
    job.fabric.stall(Pe(1));
    iterate(&mut job, 300);
    for at in [0, 4096, 8192] {
        assert!(
            in_use(&mut job, base + at, LEN) && in_use(&mut job, base + at + LEN - 1, 1),
            "{at}"
        );
        assert!(!in_use(&mut job, base + at + LEN, 4096 - LEN), "{at}");
    }
    job.fabric.resume(Pe(1));
    while !job.members[1].lane.is_quiet(Pe(0)).unwrap() {
        iterate(&mut job, 1);
    }
    assert!(!in_use(&mut job, base, 1 << 14));
}

/// A fence for all peers is one for each: for what has left, and for what is pending.
#[test]
fn a_fence_for_all_peers_holds_for_each() {
    let shape = Shape { n_pes: 4, rails: 2, ..Shape::default() };
    let script = Script { delay: (1_000, 1_000_000), ..Script::default() };
    let mut job = Job::new(6, &shape, script);
    job.fabric.refuse(Pe(1), true);
    let mut first = Vec::new();
    for number in 0..300 {
        job.put_value(0, 1, number * 8, 1, 8).unwrap();
        first.push((Pe(1), number * 8));
    }
    for pe in [2, 3] {
        for number in 0..12 {
            job.put_value(0, pe, number * 8, 1, 8).unwrap();
            first.push((Pe(pe), number * 8));
        }
    }
    job.members[0].lane.fence_all();
    for pe in [1, 2, 3] {
        job.put_value(0, pe, 4096, 1, 8).unwrap();
    }
    job.fabric.refuse(Pe(1), false);
    for pe in [1, 2, 3] {
        job.quiet(0, pe).unwrap();
    }
    for pe in [1, 2, 3] {
        let there = |event: &Event| match event {
            Event::Delivered(delivery) if delivery.to == Pe(pe) => Some(delivery.remote),
            _ => None,
        };
        let order: Vec<u64> = job.fabric.events().iter().filter_map(there).collect();
        let puts = first.iter().filter(|(to, _)| *to == Pe(pe)).count();
        assert_eq!(order.len(), puts + 1);
        assert_eq!(order.iter().max(), order.last(), "PE {pe}: the last lies behind the fence");
    }
}

/// A quiet waits for what was begun before it, however long another thread goes on.
#[test]
fn a_quiet_ends_while_another_thread_goes_on() {
    let shape = Shape::default();
    let script = Script { delay: (2_000_000, 4_000_000), ..Script::default() };
    let job = Job::new(8, &shape, script);
    let port = job.fabric.port(Pe(0), limits(&shape)[..1].to_vec());
    let host = HostLane::new(Lane::new(port, host_config(&job, false)));
    let targets = Targets::of(&job);
    let part = targets.part(job.members[0].scratch, 1, 0, 64);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let deadline = Instant::now() + Duration::from_secs(60);
            while !is_over.load(Ordering::SeqCst) {
                if Instant::now() > deadline {
                    is_over.store(true, Ordering::SeqCst);
                    panic!("the quiet does not end");
                }
                host.start(&part).unwrap();
            }
        });
        // Many more are begun before one ends.
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                job.fabric.pass_time(10_000);
                std::thread::yield_now();
            }
        });
        while !host.with(Lane::has_work) {
            std::thread::yield_now();
        }
        host.quiet(Pe(1)).unwrap();
        is_over.store(true, Ordering::SeqCst);
    });
    host.quiet(Pe(1)).unwrap();
}

/// What user threads wait for is asked about once for each answer, though more is sent in each
/// iteration.
#[test]
fn an_acknowledgement_that_user_threads_wait_for_is_asked_for_once() {
    let shape = Shape { staged: 0b0100, rails: 1, depth: 1024, ..Shape::default() };
    let mut job = Job::new(7, &shape, Script::default());
    let (outbox, inbox) = handover(2, None, Some(Duration::from_secs(60)));
    let first = job.members.remove(0);
    job.members.insert(0, Member { lane: first.lane.with_inbox(inbox), ..first });
    let host = Lane::new(job.fabric.port(Pe(0), limits(&shape)), host_config(&job, true));
    let host = HostLane::new(host).with_outbox(outbox);
    let targets = Targets::of(&job);
    job.fabric.trace_calls();
    // PE 1 does not look.
    host.start(&targets.part(job.members[0].scratch, 1, 0, 100)).unwrap();
    for _ in 0..100 {
        job.members[0].lane.atomic(&targets.atomic(1, 4096, AtomicOp::Inc, 0)).unwrap();
        job.members[0].lane.progress().unwrap();
    }
    let sent = job.fabric.calls();
    let sent = sent.iter().filter(|call| matches!(call, Call::Post(Pe(0), _))).count();
    assert!((101..110).contains(&sent), "{sent} messages, of which 101 ask for something");
    while !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
        iterate(&mut job, 1);
    }
    host.quiet(Pe(1)).unwrap();
}

#[test]
fn a_host_lane_is_drained_when_nothing_of_it_is_under_way() {
    let shape = Shape::default();
    let job = Job::new(8, &shape, Script::default());
    let port = job.fabric.port(Pe(0), limits(&shape)[..1].to_vec());
    let host = HostLane::new(Lane::new(port, host_config(&job, false)));
    let targets = Targets::of(&job);
    let part = targets.part(job.members[0].scratch, 1, 0, 64);
    job.fabric.stall(Pe(1));
    host.start(&part).unwrap();
    assert!(!host.drain_before_close(Duration::from_millis(5)));
    job.fabric.resume(Pe(1));
    assert!(host.drain_before_close(Duration::from_secs(5)));
}

/// What they wait for may never come then.
#[test]
fn user_threads_hear_that_the_proxy_lane_has_failed() {
    let shape = Shape { rails: 2, ..Shape::default() };
    let mut job = Job::new(8, &shape, Script::default());
    let (outbox, inbox) = handover(2, None, None);
    let first = job.members.remove(0);
    let lane = first.lane.with_inbox(inbox);
    job.members.insert(0, Member { lane, ..first });
    let patience = Watchdog::new(None, Some(Duration::from_secs(5)));
    let config = LaneConfig { watchdog: patience, ..host_config(&job, false) };
    let port = job.fabric.port(Pe(0), limits(&shape)[..1].to_vec());
    let host = HostLane::new(Lane::new(port, config)).with_outbox(outbox);
    let targets = Targets::of(&job);
    let part = targets.part(job.members[0].scratch, 1, 0, 64);
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

#[test]
fn a_host_lane_is_looked_at_when_no_thread_is_at_it() {
    let shape = Shape::default();
    let job = Job::new(8, &shape, Script::default());
    let port = job.fabric.port(Pe(0), limits(&shape)[..1].to_vec());
    let host = HostLane::new(Lane::new(port, host_config(&job, false)));
    assert_eq!(host.try_with(Lane::me), Some(Pe(0)));
    // A second time, it would wait for itself.
    assert_eq!(host.with(|_| host.try_with(Lane::me)), None);
    assert_eq!(host.try_with(Lane::me), Some(Pe(0)));
}
