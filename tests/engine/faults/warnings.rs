//! What is written to the log about operations that do not end.

use std::time::Instant;

use engine::ids::WrId;
use engine::lane::host::handover::handover;
use test_support::heard::heard;

use crate::prelude::*;

fn warnings(during: impl FnOnce()) -> Vec<String> {
    let said = heard(during).1;
    let lines = said.lines().filter(|line| line.starts_with("WARN") || line.starts_with("ERROR"));
    lines.map(String::from).collect()
}

fn progress_for(job: &mut Job, seconds: u64) {
    let until = job.fabric.now() + seconds * 1_000_000_000;
    while job.fabric.now() < until {
        job.iterate();
        job.fabric.pass_time(1_000_000);
    }
}

/// A wait is told of every ten seconds, by the operation that waits for longest, and from the
/// second time on with what every rail is about. It counts anew for what waits next.
#[test]
fn waits_are_logged_periodically() {
    let mut job = Job::with(Shape { n_pes: 3, depth: 2, ..PLAIN });
    for _ in 0..2 {
        for pe in [1, 2] {
            job.fabric.stall(Pe(pe));
            for at in 0..3 {
                job.put_value(0, pe, 8 * at, 1).unwrap();
            }
        }
        assert!(warnings(|| progress_for(&mut job, 9)).is_empty());
        let mut first = warnings(|| progress_for(&mut job, 3));
        first.sort_by_key(|line| line.contains("PE 2"));
        assert_eq!(first.len(), 2, "one for each PE: {first:?}");
        for (line, pe) in first.iter().zip(["PE 1", "PE 2"]) {
            for part in ["WARN", pe, "put of 8 bytes", "10 s", "and 0 reads"] {
                assert!(line.contains(part), "{part:?} is not in {line:?}");
            }
        }
        assert!(warnings(|| progress_for(&mut job, 6)).is_empty());
        let second = warnings(|| progress_for(&mut job, 3));
        let rails = second.iter().filter(|line| line.contains("in flight of 2"));
        assert_eq!((second.len(), rails.count()), (6, 4), "{second:?}");
        for part in ["rail 0 (fake0)", "rail 1 (fake1)", " 2 queued in all"] {
            assert!(second.iter().any(|line| line.contains(part)), "{part:?}: {second:?}");
        }
        assert!(!second.iter().any(|line| line.contains(" 0 posted")), "{second:?}");
        job.fabric.resume(Pe(1));
        job.fabric.resume(Pe(2));
        assert!(warnings(|| progress_for(&mut job, 15)).is_empty(), "all has ended");
    }
}

/// A put that is posted later does not hide for how long a message has been waited for.
#[test]
fn messages_outwait_later_puts() {
    let mut job = Job::with(PLAIN);
    job.fabric.stall(Pe(1));
    job.amo(0, 1, 0, AtomicOp::Add, 1).unwrap();
    let first = warnings(|| progress_for(&mut job, 15));
    job.put_value(0, 1, 8, 1).unwrap();
    let second = warnings(|| progress_for(&mut job, 7));
    for (lines, seconds) in [(first, " 10 s"), (second, " 20 s")] {
        assert!(lines[0].contains("atomic") && lines[0].contains(seconds), "{lines:?}");
    }
}

#[test]
fn logged_waits_are_bounded() {
    let mut job = Job::with(Shape { n_pes: 19, rails: 1, depth: 64, ..PLAIN });
    for pe in 1..=18 {
        job.fabric.stall(Pe(pe));
        job.put_value(0, pe, 0, 1).unwrap();
    }
    // The second time with what every rail is about, four times.
    for lines in [16 + 1, 16 + 4 + 1] {
        let told = warnings(|| {
            for _ in 0..2400 {
                job.members[0].lane.progress().unwrap();
                job.fabric.pass_time(5_000_000);
            }
        });
        assert_eq!(told.len(), lines, "{told:?}");
        assert!(told[lines - 1].contains("perhaps others"), "{told:?}");
    }
}

/// The target warns of a signal whose data does not arrive.
#[test]
fn waiting_signals_are_logged() {
    let mut job = Job::with(Shape { signals: SignalChoice::Counted, ..PLAIN });
    job.fabric.world().lose_next_data = 1;
    progress_for(&mut job, 20);
    job.put_signal(0, 1, &[(8, 600)], 0).unwrap();
    for (seconds, told) in [(9, 0), (3, 1), (6, 0), (3, 1), (6, 0)] {
        let lines = warnings(|| progress_for(&mut job, seconds));
        let waits = lines.iter().filter(|line| line.contains("PE 0") && line.contains("segments"));
        assert_eq!(waits.count(), told, "{lines:?}");
    }
}

/// A user thread warns at intervals while the proxy thread takes nothing.
#[test]
fn stalled_proxy_is_logged() {
    // However late this thread looks, a wait grows by less than it takes to fail.
    let limit = Duration::from_millis(4);
    let job = Job::with(Shape { staged: 0b0100, ..PLAIN });
    let part = job.targets.part(job.members[0].scratch, 1, 0, 64);
    let logged = |warn_after, fail_after| {
        let (outbox, _inbox) = handover(2, Some(warn_after), Some(fail_after));
        let host = job.host_lane().with_outbox(outbox);
        warnings(|| {
            let failed = host.complete(&part).unwrap_err().to_string();
            assert!(failed.contains("proxy thread") && failed.contains("PE 1"), "{failed}");
        })
    };
    assert!(logged(Duration::from_secs(3600), 25 * limit).is_empty());
    let began = Instant::now();
    let lines = logged(limit, 75 * limit);
    let most = began.elapsed().as_millis() / limit.as_millis();
    assert!((1..=most).contains(&(lines.len() as u128)), "{} of {most}: {lines:?}", lines.len());
    assert!(lines.iter().all(|line| line.contains("proxy thread") && line.contains("PE 1")));
}

/// A transfer that is being copied has twice the deadline, and no more warnings for that.
#[test]
fn stuck_copies_are_logged_and_named() {
    let slow_rails = vec![(RailId(u8::MAX), 1 << 40)];
    let mut job = Job::new(1, &Shape { staged: 0b10, ..PLAIN }, Script { slow_rails, ..CALM });
    job.put(0, 1, 64, 1000).unwrap();
    // Named is what is being copied, not what waits behind it.
    job.fence(0, 1);
    job.put_value(0, 1, 0, 1).unwrap();
    assert!(warnings(|| progress_for(&mut job, 9)).is_empty());
    for _ in 0..11 {
        let lines = warnings(|| progress_for(&mut job, 10));
        let named = lines.iter().filter(|line| line.contains("staged transfer"));
        assert_eq!(named.count(), 1, "{lines:?}");
    }
    let failed = job.settle(&[0, 1], (0, 1), 1_000_000).unwrap_err();
    let is_named = matches!(failed, EngineError::Timeout { what: "staged transfer", .. });
    assert!(is_named && failed.to_string().contains("being copied"), "{failed}");
}

/// Of a signal that follows its data, the data is named, though it counts as begun.
#[test]
fn queued_signal_puts_are_named() {
    let signals = SignalChoice::Chained;
    let mut job = Job::with(Shape { n_pes: 3, rails: 1, depth: 1, signals, ..PLAIN });
    job.fabric.stall(Pe(2));
    job.put_value(0, 2, 0, 1).unwrap();
    job.put_signal(0, 1, &[(8, 600)], 0).unwrap();
    let lines = warnings(|| progress_for(&mut job, 25));
    let told = |of: &str| lines.iter().any(|line| line.contains("PE 1") && line.contains(of));
    assert!(told("put with signal of 600 bytes") && told("others hold"), "{lines:?}");
}

/// What comes in does not hide that none of this PE's transfers moves.
#[test]
fn inbound_puts_hide_no_stuck_ones() {
    // What others put arrives in shared memory, or is read from their bounce buffers.
    for (n_pes, shared, other) in [(3, 0b11, 1), (4, 0, 3)] {
        let shape = Shape { n_pes, staged: u32::MAX, shared, bounce: (1024, 1, 2), ..PLAIN };
        let mut job = Job::with(shape);
        job.fabric.stall(Pe(2));
        job.put(0, 2, 0, 1000).unwrap();
        job.settle(&[0], (0, 2), 1_000_000_000).unwrap_err();
        // The failed peer may still read the only buffer.
        job.put(0, 1, 0, 1000).unwrap();
        let stuck = (0..200).find_map(|_| {
            job.put(other, 0, 4096, 1000).unwrap();
            job.iterate_slowly(&[0, other], 8, 125_000_000);
            assert_eq!(job.is_quiet(other, 0), Ok(true), "it arrives");
            job.is_quiet(0, 1).err()
        });
        let named = |error: String| error.contains("waiting for a bounce buffer");
        assert!(stuck.is_some_and(|error| named(error.to_string())), "{n_pes} PEs");
    }
}

#[test]
fn refused_posts_are_named() {
    let mut job = Job::with(PLAIN);
    job.fabric.refuse(Pe(1), true);
    job.put_value(0, 1, 0, 1).unwrap();
    let lines = warnings(|| progress_for(&mut job, 12));
    assert!(lines[0].contains("the fabric does not take it"), "{lines:?}");
}

/// The target warns of bytes that stay in its bounce buffer, or that it cannot read.
#[test]
fn targets_warn_of_stuck_copies() {
    let slow_rails = vec![(RailId(u8::MAX), 1 << 40)];
    let shape = Shape { staged: 0b100, ..PLAIN };
    let mut job = Job::new(1, &shape, Script { slow_rails, ..CALM });
    // Registered memory, which the target reads in place.
    let put = |job: &mut Job| {
        let (from, targets) = (job.targets.heap(0, 0), job.targets.clone());
        job.lane(0).start(&targets.part(from, 1, 64, 1000)).unwrap();
    };
    put(&mut job);
    let lines = warnings(|| progress_for(&mut job, 25));
    let told = |by: &str, of: &str| lines.iter().any(|l| l.contains(by) && l.contains(of));
    assert!(told("PE 0: ", "not acknowledged"), "{lines:?}");
    assert!(told("PE 1: ", "being copied"), "{lines:?}");
    // The read of a staged put is named as such: PE 1 has issued no get.
    let mut job = Job::with(shape);
    job.fabric.stall(Pe(0));
    put(&mut job);
    let lines = warnings(|| progress_for(&mut job, 12));
    let is_named = |line: &String| line.contains("PE 1: peer's put of 1000 bytes, PE 0");
    assert!(lines.iter().any(is_named), "{lines:?}");
}

#[test]
fn each_failure_is_logged() {
    let mut job = Job::with(Shape { n_pes: 3, ..PLAIN });
    for pe in [1, 2] {
        job.fabric.fail_calls(PortCall::Deliver, 0, 1);
        job.put_value(0, pe, 0, 1).unwrap();
        let lines = warnings(|| drop(job.quiet(0, pe).unwrap_err()));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("ERROR ") && lines[0].contains(&format!("PE {pe}")));
    }
}

#[test]
fn unknown_completions_are_logged() {
    let mut job = Job::with(Shape { rails: 1, depth: 1, ..PLAIN });
    job.fabric.stall(Pe(1));
    // The first is posted, and the others wait.
    for at in 0..4 {
        job.put_value(0, 1, 8 * at, 1).unwrap();
    }
    for wr_id in (1..8).chain([u32::MAX - 7]) {
        job.fabric.world().report(Pe(0), RailId(0), Some(WrId(wr_id)), "nobody knows what");
        let lines = warnings(|| progress_for(&mut job, 1));
        assert!(lines.len() == 1 && lines[0].contains("rail 0 ("), "{wr_id}: {lines:?}");
    }
    job.fabric.resume(Pe(1));
    job.quiet(0, 1).unwrap();
    assert_eq!(job.heap(1, 0, 32), [1_u64.to_le_bytes(); 4].concat());
    let counted = job.members[0].lane.counters().next().unwrap();
    assert_eq!((counted.posted, counted.completed), (4, 4));
}

/// What somebody else sends to a rail is told of when it is the first, and only counted later.
#[test]
fn foreign_messages_are_logged_once() {
    let mut job = Job::with(PLAIN);
    for (rail, lines) in [(0, 1), (0, 0), (1, 1), (0, 0), (1, 0)] {
        let told = warnings(|| {
            job.fabric.forge_message(Pe(0), RailId(rail), b"of nobody");
            job.members[0].lane.progress().unwrap();
        });
        assert_eq!(told.len(), lines, "{told:?}");
        assert!(told.iter().all(|line| line.contains("not of this job")), "{told:?}");
    }
}
