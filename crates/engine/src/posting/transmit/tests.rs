//! Tests of what posts and completes segments.

use std::sync::Arc;

use super::*;
use crate::atomic::AtomicOp;
use crate::fake::{Call, PortCall};
use crate::lane::SignalEngine;
use crate::port::Completions as _;
use crate::port::Direction;
use crate::port::copies::Reach;
use crate::posting::tests::{Bed, HEAP, PLAIN, RAIL, Setup, atomic, failed, request};
use crate::posting::transmit::drain::{Drain, Rare};
use crate::request::{LocalSide, PutSignalRequest, Request};
use crate::state::batch::Batch;
use crate::state::segment::Stage;

/// What tests of other rooms look at, or set.
impl<P: Port> Transmit<P> {
    pub(crate) fn rail_mut(&mut self, rail: RailId) -> &mut Rail<P::Fast> {
        &mut self.rails[rail.index()]
    }

    pub(crate) fn balance_mut(&mut self) -> &mut Balance {
        &mut self.balance
    }

    pub(crate) fn stripes(&self) -> u32 {
        self.stripes.used
    }

    pub(crate) fn set_withholds(&mut self, withholds: bool) {
        self.burst.set_withholds(withholds);
    }
}

#[test]
fn each_comes_first_in_half_of_the_iterations_of_the_other() {
    for pace in 1..=32 {
        let mut phase = Phase(0);
        let mut times = [0; 4];
        for _ in 0..1000 {
            (0..pace).for_each(|_| phase.advance());
            let who = usize::from(phase.control_first()) * 2 + usize::from(phase.blocked_first());
            times[who] += 1;
        }
        assert!(times.iter().all(|times| (150..=350).contains(times)), "{pace}: {times:?}");
    }
}

#[test]
fn a_peer_has_two_or_less_than_eight_times_what_is_left() {
    for (used, shares) in [(0, 128), (14, 16), (15, 8), (16, 2), (20, 2)] {
        let most = (0..200).find(|mine| !fits_quota(*mine, used, 16));
        assert_eq!(most, Some(shares), "{used}");
    }
}

#[test]
fn there_is_room_for_less_than_the_most() {
    let left = |used| Room { used, ..Room::of(3) }.is_left();
    assert_eq!([0, 2, 3, 4].map(left), [true, true, false, false]);
}

/// A fabric that has no room is asked for no more than eight peers in an iteration: of those in a
/// queue, and of those that wait by themselves. All that waits is counted, and leaves when there is
/// room.
#[test]
fn an_iteration_asks_for_room_for_eight_peers() {
    let mut bed = Bed::new(Setup { n_pes: 22, depth: 64, ..PLAIN });
    (1..=20).for_each(|pe| bed.fabric.refuse(Pe(pe), true));
    bed.withheld(|bed| (1..=20).for_each(|pe| bed.put(pe)));
    let books = |bed: &Bed| {
        let (core, rail) = (bed.lane.core(), bed.rail());
        (
            rail.counters.again,
            rail.blocked.peers().count(),
            rail.counters.queued,
            core.transmit.ready,
        )
    };
    assert_eq!(books(&bed), (0, 0, 20, 20));
    assert!(!bed.lane.core_mut().post_ready(), "none has left");
    assert_eq!(books(&bed), (8, 8, 28, 20));
    // The queue comes first, or else those that wait by themselves.
    for (phase, again, blocked) in [(0, 24, 16), (2, 36, 20), (0, 44, 20), (2, 52, 20)] {
        bed.lane.core_mut().transmit.phase = Phase(phase << 29);
        assert!(!bed.lane.core_mut().post_ready());
        assert_eq!(books(&bed), (again, blocked, 20 + blocked as u64, 20), "phase {phase}");
    }
    // What comes later waits as well, for these peers and no other.
    bed.put(1);
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((52, 20, 41, 21), 0));
    bed.put(21);
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((52, 20, 41, 21), 1));
    bed.withheld(|bed| bed.put(21));
    assert!(bed.lane.core_mut().post_ready());
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((60, 20, 42, 21), 2));

    (1..=20).for_each(|pe| bed.fabric.refuse(Pe(pe), false));
    for (phase, moves) in [(0, true), (2, true), (0, true), (2, false)] {
        bed.lane.core_mut().transmit.phase = Phase(phase << 29);
        assert_eq!(bed.lane.core_mut().post_ready(), moves, "phase {phase}");
    }
    assert_eq!((books(&bed), bed.fabric.in_flight()), ((60, 0, 42, 0), 23));
}

#[test]
fn a_message_for_which_there_is_no_room_is_counted() {
    let mut bed = Bed::new(PLAIN);
    bed.fabric.refuse(Pe(1), true);
    bed.atomic(1, AtomicOp::Inc);
    assert_eq!((bed.rail().counters.again, bed.rail().counters.queued), (1, 1));
}

#[test]
fn a_peer_of_which_all_was_taken_is_blocked_no_more() {
    let mut bed = Bed::new(PLAIN);
    for pe in [1, 2] {
        bed.fabric.refuse(Pe(pe), true);
        bed.put(pe);
    }
    let wr_id = bed.to(1);
    assert_eq!(bed.lane.core_mut().unblock(Pe(1), RAIL), Some(wr_id));
    assert_eq!(bed.lane.core_mut().unblock(Pe(1), RAIL), None);
    let blocked: Vec<Pe> = bed.rail().blocked.iter().map(|(pe, _)| pe).collect();
    assert_eq!((blocked, bed.lane.core().transmit.ready), (vec![Pe(2)], 1));
}

#[test]
fn sixteen_puts_share_a_doorbell_if_there_is_room_for_them() {
    for (depth, puts, doorbells) in [(64, 16, 1), (64, 17, 2), (64, 33, 3), (2, 2, 1), (1, 1, 1)] {
        let mut bed = Bed::new(Setup { depth, doorbells: true, ..PLAIN });
        bed.withheld(|bed| (0..puts).for_each(|_| bed.put(1)));
        assert!(bed.lane.core_mut().post_ready());
        assert_eq!((bed.fabric.doorbells(), bed.rail().unrung), (doorbells, 0), "{puts} puts");
        assert_eq!(bed.fabric.in_flight(), puts);
    }
}

#[test]
fn what_a_failed_burst_owes_is_rung_with_the_next_put() {
    let mut bed = Bed::new(Setup { depth: 64, doorbells: true, ..PLAIN });
    bed.fabric.fail_calls(PortCall::Post, 3, 1);
    let mut iterate = |what: fn(&mut Bed)| {
        bed.withheld(what);
        bed.lane.core_mut().post_ready();
        (bed.fabric.doorbells(), bed.rail().unrung)
    };
    assert_eq!(iterate(|bed| (0..5).for_each(|_| bed.put(1))), (0, 3));
    assert_eq!(iterate(|bed| bed.atomic(2, AtomicOp::Inc)), (0, 3));
    assert_eq!(iterate(|bed| (0..2).for_each(|_| bed.put(2))), (2, 0));
}

#[test]
fn a_run_of_completions_ends_where_another_peer_begins() {
    let mut bed = Bed::new(PLAIN);
    [1, 1, 1, 1, 2, 2].into_iter().for_each(|pe| bed.put(pe));
    let (core, mut rare) = (bed.lane.core_mut(), Rare::EMPTY);
    let mut drain = Drain::new(&mut core.transmit.segments, &mut core.peers, &mut rare);
    assert_eq!(drain.take_alike(0..6), 0, "there was none before");
    assert!(drain.take(0) && !drain.take(usize::MAX));
    assert_eq!(drain.take_alike(1..6), 3);
    assert!(drain.take(4));
    assert_eq!(drain.take_alike(5..6), 1);
    assert_eq!(drain.finish(), 6);
    assert!(rare.pop().is_none() && core.transmit.segments.used() == 0);
}

/// A poll goes on with the peer that the one before ended with, unless something waits there.
#[test]
fn a_run_goes_on_in_the_next_poll_unless_something_waits_for_its_end() {
    let mut bed = Bed::new(PLAIN);
    [1, 2, 2, 2].into_iter().for_each(|pe| bed.put(pe));
    let mut rare = Rare::EMPTY;
    fn drain<'a>(bed: &'a mut Bed, rare: &'a mut Rare) -> Drain<'a> {
        let core = bed.lane.core_mut();
        Drain::new(&mut core.transmit.segments, &mut core.peers, rare)
    }
    let mut polled = drain(&mut bed, &mut rare);
    assert!(polled.take(0) && polled.take(1));
    assert_eq!(polled.finish(), 2);
    let mut polled = drain(&mut bed, &mut rare);
    assert_eq!((polled.take_alike(2..3), polled.finish()), (1, 1));
    bed.lane.fence(Pe(2)).unwrap();
    bed.put(2);
    let mut polled = drain(&mut bed, &mut rare);
    assert_eq!(polled.take_alike(3..4), 0, "the fence waits for it");
    assert!(polled.take(3));
    assert_eq!((polled.finish(), rare.pop()), (0, Some(WrId(3))));
}

/// What a fence has held, and a signal behind puts, leave in the turn in which they may, by their
/// own rail, though rails are monitored: no path has failed.
#[test]
fn what_was_held_leaves_at_once_by_its_own_rail() {
    for signals in [false, true] {
        let mut bed = Bed::new(Setup { rails: 2, health: true, ..PLAIN });
        bed.fabric.trace_calls();
        bed.put(1);
        if signals {
            let heaps = Arc::clone(&bed.heaps);
            let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
            bed.lane.put_signal(&PutSignalRequest { parts: &[], signal }).unwrap();
        } else {
            bed.lane.fence(Pe(1)).unwrap();
            bed.put(1);
        }
        let sum = |bed: &Bed, what: fn(&Rail<()>) -> u64| {
            bed.lane.core().transmit.rails.iter().map(what).sum()
        };
        let completed = |bed: &Bed| -> u64 { sum(bed, |rail| rail.counters().completed) };
        for _ in 0..1000 {
            bed.lane.iterate();
            if completed(&bed) != 0 {
                break;
            }
        }
        let posts: Vec<Call> =
            bed.fabric.calls().into_iter().filter(|call| matches!(call, Call::Post(..))).collect();
        let [Call::Post(_, first), Call::Post(_, second)] = posts[..] else { panic!("{posts:?}") };
        assert_ne!(first, second, "signals: {signals}");
        assert_eq!((completed(&bed), bed.lane.core_mut().failures.take_lost().len()), (1, 0));
    }
}

#[test]
fn a_chained_signal_to_a_peer_that_has_failed_ends() {
    let mut bed = Bed::new(Setup { signals: SignalEngine::Chained, ..PLAIN });
    let heaps = Arc::clone(&bed.heaps);
    let signal = atomic(&heaps, 1, AtomicOp::SignalSet);
    let part = Request { len: 2048, ..request(&heaps, Direction::Write, 1) };
    bed.lane.put_signal(&PutSignalRequest { parts: &[part], signal }).unwrap();
    let wr_id = bed.wr_id(|segment| segment.stage == Stage::Chained);
    let core = bed.lane.core_mut();
    core.peers.find_mut(Pe(1)).unwrap().error = Some(Box::new(failed(1)));
    core.unchain(wr_id);
    assert_eq!((core.transmit.segments[wr_id.0].stage, core.transmit.ready), (Stage::Free, 0));
}

#[test]
fn rails_that_may_be_used_lead_to_the_peer_and_are_not_about_to_be_closed() {
    for (in_service, paused, usable) in [
        (0b111, 0b000, 0b111),
        (0b111, 0b010, 0b101),
        (0b111, 0b111, 0b111),
        (0b110, 0b010, 0b100),
        (0b010, 0b010, 0b010),
        (0b011, 0b100, 0b011),
    ] {
        for health in [true, false] {
            let mut bed = Bed::new(Setup { rails: 3, health, ..PLAIN });
            bed.put(1);
            let core = bed.lane.core_mut();
            core.transmit.paths.serve(Pe(1), in_service);
            let rails = core.transmit.rails.iter_mut().enumerate();
            rails.filter(|(at, _)| paused >> at & 1 != 0).for_each(|(_, rail)| rail.pause());
            let usable = if health { usable } else { in_service };
            assert_eq!(core.transmit.usable(Pe(1), health), usable, "{in_service:b} {paused:b}");
        }
    }
}

/// What is wrong with an operation that is not submitted yet is said at once, but for local memory
/// of which that can only be said later.
#[test]
fn a_request_is_checked_before_its_turn() {
    for (reach, devices, is_refused) in [
        (Reach::Direct, false, true),
        (Reach::Direct, true, false),
        (Reach::Staged, false, false),
        (Reach::Staged, true, false),
    ] {
        let mut bed = Bed::new(Setup { reach, ..PLAIN });
        bed.lane.core_mut().transmit.devices = devices;
        let heaps = Arc::clone(&bed.heaps);
        let good = request(&heaps, Direction::Write, 1);
        bed.lane.core_mut().check_request(&good).unwrap();
        let LocalSide::Memory(addr) = good.local else { panic!("it is memory") };
        let beside = Request { local: LocalSide::Memory(addr + HEAP - 7), ..good };
        assert_eq!(bed.lane.core_mut().check_request(&beside).is_err(), is_refused);
        bed.lane.core_mut().check_request(&Request { len: 0, ..beside }).unwrap();
        // What is in no region goes through a bounce buffer.
        let bare = Request { local: LocalSide::Memory(64), ..good };
        bed.lane.core_mut().check_request(&bare).unwrap();
        let outside = Request { remote_addr: good.remote_addr + HEAP as u64 - 7, ..good };
        bed.lane.core_mut().check_request(&outside).unwrap_err();
    }
}

#[test]
fn nobody_has_a_quota_of_room_that_is_used_up() {
    // Transfers: twice the depth, of so many peers.
    let mut bed = Bed::new(Setup { n_pes: 10, depth: 4, ..PLAIN });
    (1..=7).for_each(|pe| bed.put(pe));
    assert!(bed.lane.core().is_within_quota(Pe(9)));
    bed.put(8);
    assert!(!bed.lane.core().is_within_quota(Pe(9)) && !bed.lane.has_room());

    // Messages: a peer that has some, and one that has none.
    let mut bed = Bed::new(PLAIN);
    bed.lane.core_mut().connection_to(Pe(1)).unwrap();
    (0..3).for_each(|_| bed.lane.core_mut().peers.count_unsent(Pe(1)));
    let rooms = |bed: &Bed| {
        let core = bed.lane.core();
        (
            bed.lane.has_room(),
            core.peers.is_within_message_quota(Pe(1)),
            core.peers.is_within_message_quota(Pe(2)),
        )
    };
    assert_eq!(rooms(&bed), (true, true, true));
    while bed.lane.core_mut().peers.take_message() {}
    assert_eq!(rooms(&bed), (false, false, true));
}

#[test]
fn puts_wait_behind_a_fence_and_so_does_one_of_a_byte() {
    for len in [1, 2, 7, 8, 9, 4096] {
        let mut bed = Bed::new(Setup { fast: true, ..PLAIN });
        let heaps = Arc::clone(&bed.heaps);
        let put = Request { len, ..request(&heaps, Direction::Write, 1) };
        let fast = |bed: &mut Bed| bed.lane.start_fast(put, Batch::NONE).is_ok();
        bed.put(1);
        assert!(fast(&mut bed), "{len} bytes, without a fence");
        bed.lane.fence(Pe(1)).unwrap();
        assert!(!fast(&mut bed), "{len} bytes");
        bed.lane.start(&put).unwrap();
        assert_eq!(bed.fabric.in_flight(), 2, "{len} bytes");
        bed.pass_time();
        bed.lane.progress().unwrap();
        assert_eq!(bed.fabric.in_flight(), 1, "{len} bytes, which leave when the others are there");
    }
}
