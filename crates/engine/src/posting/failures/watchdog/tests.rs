//! Tests of the watchdog.

use super::*;
use crate::atomic::AtomicOp;
use crate::ids::{RailId, WrId};
use crate::posting::Core;
use crate::posting::tests::{Bed, PLAIN, Setup, failed};

fn iterations(watchdog: &mut Watchdog, now: &mut u64, iteration: u64) -> u64 {
    let mut iterations = 1;
    while !watchdog.is_due() {
        iterations += 1;
    }
    *now += iterations * iteration;
    watchdog.starts(*now);
    iterations
}

#[test]
fn the_clock_is_read_once_in_so_many_iterations_or_at_once_in_a_hurry() {
    let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
    let read: Vec<u64> = (0..12).map(|_| iterations(&mut watchdog, &mut now, 1000)).collect();
    // After the first, and then ever less often.
    assert_eq!(read[..4], [1, 2, 4, 8]);
    assert_eq!(read[8..], [u64::from(ITERATIONS); 4]);
    watchdog.hurry();
    assert!(watchdog.is_due() && !watchdog.is_due());
}

#[test]
fn the_clock_is_read_twice_in_a_period_however_long_iterations_take() {
    for iteration in [1_000_000, 3_000_000, 20_000_000, 100_000_000, 124_000_000] {
        let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
        for _ in 0..20 {
            assert!(
                iterations(&mut watchdog, &mut now, iteration) * iteration <= PERIOD / 2,
                "{iteration} ns"
            );
        }
    }
    // Iterations that were short have become long: one gap, and no other.
    let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
    for _ in 0..20 {
        iterations(&mut watchdog, &mut now, 1000);
    }
    let mut slow = || iterations(&mut watchdog, &mut now, 20_000_000);
    assert_eq!((slow(), slow()), (u64::from(ITERATIONS), 6));
    assert!((0..20).all(|_| slow() <= 6));
    // And short again.
    let short: Vec<u64> = (0..12).map(|_| iterations(&mut watchdog, &mut now, 1000)).collect();
    assert_eq!(short[11], u64::from(ITERATIONS));
}

#[test]
fn an_iteration_that_has_given_up_the_core_counts_as_many() {
    let (mut watchdog, mut now) = (Watchdog::new(None, None), 0);
    for _ in 0..20 {
        iterations(&mut watchdog, &mut now, 1000);
    }
    let mut count = 0;
    while !watchdog.is_due() {
        watchdog.count_yielded();
        count += 1;
    }
    assert_eq!(count, ITERATIONS / GIVEN_UP);
}

#[test]
fn connections_are_looked_at_four_times_a_second_whatever_the_limits() {
    let second = Some(Duration::from_secs(1));
    for (warn, fail) in [(None, None), (second, None), (None, second)] {
        let mut watchdog = Watchdog::new(warn, fail);
        assert!(!watchdog.starts(PERIOD - 1));
        assert!(watchdog.starts(PERIOD));
        assert!(!watchdog.starts(2 * PERIOD - 1));
        assert!(watchdog.starts(2 * PERIOD));
    }
}

#[test]
fn a_process_that_was_stopped_has_not_waited_meanwhile() {
    for seconds in [2, 20, 120] {
        let limit = Duration::from_secs(seconds);
        let mut watchdog = Watchdog::new(None, Some(limit));
        let mut now = 0;
        let mut iterate = |watchdog: &mut Watchdog, gap| {
            now += gap;
            assert!(watchdog.starts(now));
            watchdog.overdue(0, 0).is_some()
        };
        assert!(!iterate(&mut watchdog, PERIOD));
        assert!(!iterate(&mut watchdog, 10 * limit.as_nanos() as u64), "{seconds} s");
        // Time that it is there counts as ever.
        let due = (0..).take_while(|_| !iterate(&mut watchdog, PERIOD)).count() as u64;
        assert!((2..=4 * seconds).contains(&due), "{due} looks more of {seconds} s");
    }
}

#[test]
fn a_wait_is_reported_each_time_as_long_and_given_up_in_the_end() {
    // In units of stamps, so that they come out even.
    let units = |count: u64| Some(Duration::from_nanos(count << STAMP_SHIFT));
    let mut watchdog = Watchdog::new(units(4), units(20));
    let mut told = Vec::new();
    let mut warned = 0;
    for stamp in 0..=20 {
        watchdog.stamp = stamp;
        if let Some(overdue) = watchdog.overdue(0, warned) {
            assert_eq!(overdue.seconds, (u64::from(stamp) << STAMP_SHIFT) / 1_000_000_000);
            warned += 1;
            told.push((stamp, overdue.fails));
        }
    }
    assert_eq!(told, [(4, false), (8, false), (12, false), (16, false), (20, true)]);
    watchdog.stamp = 23;
    assert!(watchdog.overdue(4, 4).is_none(), "something has moved since");
    assert!(watchdog.overdue(3, 9).is_some_and(|overdue| overdue.fails));
}

fn limit(units: u64) -> Watchdog {
    Watchdog::new(None, Some(Duration::from_nanos(units << STAMP_SHIFT)))
}

fn none() -> std::iter::Empty<Pe> {
    std::iter::empty()
}

#[test]
fn connections_for_which_nothing_is_under_way_are_not_touched() {
    let mut bed = Bed::new(Setup { n_pes: 12, ..PLAIN });
    (1..8).for_each(|pe| bed.put(pe));
    bed.pass_time();
    while bed.lane.iterate() {}
    bed.put(3);
    let Core { transmit, peers, .. } = bed.lane.core_mut();
    peers.for_each(|connection| connection.watch.since = 77);
    peers.find_mut(Pe(5)).unwrap().set_pending(true);
    let mut watchdog = limit(10);
    let pending = [Pe(5)].into_iter();
    assert!(watchdog.look(peers, transmit, 0, pending).is_empty());
    let touched = peers.iter().filter(|connection| connection.watch.since != 77);
    assert_eq!(touched.map(|connection| connection.pe.0).collect::<Vec<_>>(), [3, 5]);
    assert_eq!(watchdog.busy, [Pe(3), Pe(5)]);
}

#[test]
fn acknowledgements_are_movement() {
    let mut bed = Bed::new(PLAIN);
    bed.atomic(1, AtomicOp::Inc);
    let channel = bed.lane.core().peers.find(Pe(1)).unwrap().channel.as_deref();
    let next = channel.unwrap().next;
    for (acknowledged, moved) in [(false, 0), (true, 7)] {
        if acknowledged {
            bed.lane.core_mut().acknowledged(Pe(1), next);
        }
        let Core { transmit, peers, failures } = bed.lane.core_mut();
        let watchdog = &mut failures.watchdog;
        watchdog.stamp = 7;
        assert!(watchdog.look(peers, transmit, 0, none()).is_empty());
        assert_eq!(watchdog.moved, moved);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Moves {
    ItsRail,
    OtherRail,
    Peer,
    Staging,
}

#[test]
fn a_wait_lasts_since_what_it_waits_for_has_moved() {
    use Moves::{ItsRail, OtherRail, Peer, Staging};
    for (stage, counts) in [
        (Stage::Ready, &[ItsRail][..]),
        (Stage::Pooled, &[ItsRail, OtherRail]),
        (Stage::Staged, &[Peer, Staging]),
        (Stage::Posted, &[Peer]),
        (Stage::Sent, &[Peer]),
        (Stage::Lost, &[Peer]),
    ] {
        for moves in [ItsRail, OtherRail, Peer, Staging] {
            let mut bed = Bed::new(Setup { rails: 2, ..PLAIN });
            bed.put(1);
            let Core { transmit, peers, .. } = bed.lane.core_mut();
            let mut watchdog = limit(10);
            assert!(watchdog.look(peers, transmit, 0, none()).is_empty());
            let its = transmit.segment(WrId(0)).rail;
            transmit.segment_mut(WrId(0)).stage = stage;
            let mut staged = 0;
            match moves {
                ItsRail => transmit.rail_mut(its).moved = 3,
                OtherRail => transmit.rail_mut(RailId(1 - its.0)).moved = 3,
                Peer => peers.find_mut(Pe(1)).unwrap().watch.since = 3,
                Staging => staged = 3,
            }
            let mut ends = |stamp| {
                watchdog.stamp = stamp;
                let failed = watchdog.look(peers, transmit, staged, none());
                let ends = |failed: &_| matches!(failed, EngineError::Timeout { seconds: 2, .. });
                assert!(failed.iter().all(|(pe, failed)| *pe == Pe(1) && ends(failed)));
                failed.len()
            };
            let first = if counts.contains(&moves) { 13 } else { 10 };
            assert_eq!((ends(first - 1), ends(first)), (0, 1), "{stage:?}");
        }
    }
}

#[test]
fn a_peer_is_declared_failed_once() {
    for has_failed in [false, true] {
        let mut bed = Bed::new(PLAIN);
        bed.put(1);
        let Core { transmit, peers, .. } = bed.lane.core_mut();
        let mut watchdog = limit(10);
        assert!(watchdog.look(peers, transmit, 0, none()).is_empty());
        if has_failed {
            peers.find_mut(Pe(1)).unwrap().error = Some(Box::new(failed(1)));
        }
        for stamp in [10, 40] {
            watchdog.stamp = stamp;
            let failed = watchdog.look(peers, transmit, 0, none());
            assert_eq!(failed.len(), usize::from(!has_failed), "{failed:?}");
        }
    }
}

#[test]
fn who_waits_for_others_in_a_lane_that_stands_still_has_twice_the_time() {
    let mut bed = Bed::new(PLAIN);
    [2, 3].into_iter().for_each(|pe| bed.put(pe));
    bed.lane.core_mut().connection_to(Pe(1)).unwrap();
    let peers = &mut bed.lane.core_mut().peers;
    peers.find_mut(Pe(2)).unwrap().set_pending(true);
    peers.find_mut(Pe(3)).unwrap().error = Some(Box::new(failed(3)));
    let mut watchdog = limit(10);
    watchdog.busy = vec![Pe(1), Pe(2), Pe(3)];
    watchdog.stamp = 19;
    assert_eq!(watchdog.without_movement(peers, 0), []);
    watchdog.stamp = 20;
    assert_eq!(watchdog.without_movement(peers, 1), []);
    let stuck = EngineError::Stuck { pe: Pe(2), seconds: 5, writes: 1, reads: 0 };
    assert_eq!(watchdog.without_movement(peers, 0), [(Pe(2), stuck)]);
}
