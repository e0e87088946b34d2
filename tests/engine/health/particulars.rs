//! What recovery does and when, one incident at a time: what it says to whom, what it costs those
//! who have nothing to do with it, and when it is done. Times are those of the fabric's clock.

use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::lane::SignalEngine;
use engine::port::Direction;
use engine::request::{PutSignalRequest, Request, ResultPlace};
use sim_fabric::{Call, FakeFabric, Script};

use super::{HEALTH, TURN, begin_puts, failure_of, progress_until, two_with_puts, word};
use crate::job::{Job, Member, Shape};
use crate::signals::Targets;

const LOOK: Duration = Duration::from_millis(269);

fn shape() -> Shape {
    Shape { health: Some(HEALTH), ..Shape::default() }
}

fn since(fabric: &FakeFabric, begun: u64) -> Duration {
    Duration::from_nanos(fabric.now() - begun)
}

fn progress_for(members: &mut [Member], fabric: &FakeFabric, time: Duration) {
    let until = fabric.now() + time.as_nanos() as u64;
    while fabric.now() < until {
        members.iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
        fabric.pass_time(10 * TURN);
    }
}

fn failures(member: &Member) -> Vec<u64> {
    member.lane.counters().map(|rail| rail.failures).collect()
}

fn total(member: &Member, what: fn(&engine::rails::counters::RailCounters) -> u64) -> u64 {
    member.lane.counters().map(|rail| what(&rail)).sum()
}

fn control_messages(fabric: &FakeFabric) -> usize {
    fabric.calls().iter().filter(|call| matches!(call, Call::Control(..))).count()
}

/// A path is given up when nothing has come of it for the timeout, neither sooner nor much later,
/// by puts, gets and messages alike; and what was on it is done soon after.
#[test]
fn a_silent_path_is_given_up_after_the_timeout() {
    for kind in ["puts", "gets", "messages"] {
        let job = Job::new(5, &shape(), Script::default());
        let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
        fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
        fabric.store(Pe(0), members[0].scratch, &[3; 256]);
        fabric.store(Pe(1), members[1].base + 4096, &[4; 256]);
        let (begun, scratch) = (fabric.now(), members[0].scratch);
        for at in 0..4 {
            let lane = &mut members[0].lane;
            let part = targets.part(scratch + at * 64, 1, at * 64, 64);
            let offset = 4096 + at * 64;
            let back = targets.part(scratch + offset, 1, offset, 64);
            match kind {
                "puts" => lane.start(&part).unwrap(),
                "gets" => lane.start(&Request { direction: Direction::Read, ..back }).unwrap(),
                _ => lane.atomic(&targets.atomic(1, 8192, AtomicOp::Add, 1)).unwrap(),
            }
        }
        // The other path shows that the peer lives.
        let mut found = None;
        progress_until(&mut members, &fabric, |first| {
            if failures(first) != [0, 0] && found.is_none() {
                found = Some(since(&fabric, begun));
            }
            found.is_some()
        });
        let found = found.unwrap();
        assert_eq!(failures(&members[0]), [0, 1], "{kind}");
        assert!(found >= HEALTH.timeout && found < HEALTH.timeout + 3 * LOOK, "{kind}: {found:?}");
        progress_until(&mut members, &fabric, |first| !first.lane.has_work());
        let done = since(&fabric, begun);
        // Work-request ids are waited for for half of the timeout before the rail is closed;
        // messages are sent again at once.
        let (most, resets) = match kind {
            "puts" => (found + 3 * LOOK, 2),
            "gets" => (found + 3 * LOOK, 1),
            _ => (found + LOOK, 0),
        };
        assert!(done < most && fabric.resets() == resets, "{kind}: {done:?}, {}", fabric.resets());
        match kind {
            "puts" => assert_eq!(fabric.load(Pe(1), members[1].base, 256), [3; 256]),
            "gets" => assert_eq!(fabric.load(Pe(0), scratch + 4096, 256), [4; 256]),
            _ => assert_eq!(word(&fabric, 1, members[1].base + 8192), 4),
        }
    }
}

#[test]
fn a_peer_that_stops_and_goes_on_costs_no_path() {
    let job = Job::new(6, &shape(), Script::default());
    let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
    begin_puts(&mut members[0], &targets);
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    fabric.stall(Pe(1));
    fabric.stall(Pe(0));
    begin_puts(&mut members[0], &targets);
    for _ in 0..4 {
        members[0].lane.atomic(&targets.atomic(1, 8192, AtomicOp::Inc, 0)).unwrap();
    }
    progress_for(&mut members, &fabric, 30 * HEALTH.timeout);
    assert_eq!((failures(&members[0]), fabric.resets()), (vec![0, 0], 0));
    fabric.resume(Pe(0));
    fabric.resume(Pe(1));
    let resumed = fabric.now();
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    assert!(since(&fabric, resumed) < HEALTH.timeout);
    assert_eq!((failures(&members[0]), fabric.resets()), (vec![0, 0], 0));
    assert_eq!(word(&fabric, 1, members[1].base + 8192), 4);
}

#[test]
fn as_long_as_all_works_no_control_message_is_sent() {
    let job = Job::new(7, &shape(), Script::default());
    let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
    fabric.trace_calls();
    for _ in 0..40 {
        begin_puts(&mut members[0], &targets);
        members[0].lane.atomic(&targets.atomic(1, 8192, AtomicOp::Inc, 0)).unwrap();
        progress_for(&mut members, &fabric, LOOK);
    }
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    progress_for(&mut members, &fabric, 10 * HEALTH.timeout);
    assert_eq!((control_messages(&fabric), fabric.resets()), (0, 0));
    assert_eq!(failures(&members[0]), [0, 0]);
}

#[test]
fn the_time_of_grace_ends() {
    let shape = Shape { rails: 1, ..shape() };
    let (fabric, mut members, _) = two_with_puts(&shape, |fabric| {
        fabric.dead_links_fail(true);
        fabric.rail_down(Pe(1), RailId(0));
    });
    let begun = fabric.now();
    failure_of(&mut members, &fabric);
    let waited = since(&fabric, begun);
    let news = Duration::from_secs(3);
    assert!(waited >= 2 * HEALTH.timeout + news, "{waited:?}");
    assert!(waited < 2 * HEALTH.timeout + news + 4 * LOOK, "{waited:?}");
}

#[test]
fn a_path_comes_back_once_it_has_cooled_down() {
    let path = [(Pe(0), RailId(1)), (Pe(1), RailId(0))];
    let (fabric, mut members, targets) = two_with_puts(&shape(), |fabric| {
        fabric.link_down(path[0], path[1]);
        fabric.link_down(path[1], path[0]);
    });
    progress_until(&mut members, &fabric, |first| failures(first) == [0, 1]);
    let out = fabric.now();
    fabric.link_up(path[0], path[1]);
    fabric.link_up(path[1], path[0]);
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    let posted = |member: &Member| member.lane.counters().nth(1).unwrap().posted;
    let before = posted(&members[0]);
    while posted(&members[0]) == before {
        begin_puts(&mut members[0], &targets);
        progress_for(&mut members, &fabric, LOOK / 4);
    }
    let back = since(&fabric, out);
    let cooling = HEALTH.cooling.unwrap();
    assert!(back >= cooling - LOOK && back < cooling + 4 * LOOK, "{back:?}");
    assert_eq!(failures(&members[0]), [0, 1]);
}

#[test]
fn a_rail_is_closed_when_what_works_on_it_has_ended() {
    let shape = Shape { n_pes: 3, ..shape() };
    let script = Script { delay: (1_000, 2_000), ..Script::default() };
    let job = Job::new(8, &shape, script);
    let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
    fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
    begin_puts(&mut members[0], &targets);
    // PE 2 is slow, but not dead: always something is under way to it over both rails.
    let local = members[0].scratch;
    while fabric.resets() == 0 || members[0].lane.is_quiet(Pe(1)) != Ok(true) {
        for at in 0..4 {
            members[0].lane.start(&targets.part(local, 2, at * 64, 64)).unwrap();
        }
        for _ in 0..100 {
            members.iter_mut().for_each(|member| {
                member.lane.progress().unwrap();
            });
            fabric.pass_time(TURN);
        }
        assert!(fabric.now() < 60_000_000_000, "it is not closed");
    }
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    let again = total(&members[0], |rail| rail.reissued);
    assert_eq!(again, 2, "those that were for PE 1");
    assert_eq!(failures(&members[0]), [0, 1]);
}

/// It may also be the port that does not take a peer's new address. Then the path is gone for good,
/// and others carry what it carried; where there is no other, the error says so.
#[test]
fn a_path_whose_new_address_is_refused_is_gone_for_good() {
    let (fabric, mut members, targets) = two_with_puts(&shape(), |fabric| {
        fabric.refuse_addresses();
        fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
    });
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    assert!(fabric.resets() != 0);
    fabric.link_up((Pe(0), RailId(1)), (Pe(1), RailId(0)));
    let posted = |member: &Member| member.lane.counters().nth(1).unwrap().posted;
    let before = posted(&members[0]);
    for _ in 0..10 {
        progress_for(&mut members, &fabric, HEALTH.cooling.unwrap());
        begin_puts(&mut members[0], &targets);
    }
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    assert_eq!(posted(&members[0]), before);

    let shape = Shape { rails: 1, n_pes: 3, ..shape() };
    let (fabric, mut members, targets) = two_with_puts(&shape, |fabric| fabric.refuse_addresses());
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    // PE 2 has PE 1 close its only rail, and PE 0 hears of it when it asks.
    fabric.data_down((Pe(2), RailId(0)), (Pe(1), RailId(0)));
    fabric.dead_links_fail(true);
    begin_puts(&mut members[2], &targets);
    while fabric.resets() == 0 {
        for member in &mut members {
            let _ = member.lane.progress();
        }
        fabric.pass_time(TURN);
        assert!(fabric.now() < 60_000_000_000, "it is not closed");
    }
    begin_puts(&mut members[0], &targets);
    let failed = failure_of(&mut members, &fabric);
    assert!(failed.contains("closed for good") && failed.contains("PE 1"), "{failed}");
}

#[test]
fn a_refused_acknowledgement_goes_another_way() {
    for rail in [0, 1] {
        let job = Job::new(9, &shape(), Script::default());
        let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
        fabric.refuse_messages(Pe(1), RailId(rail), true);
        for round in 0..4 {
            if round == 2 {
                // From now on its acknowledgements leave by the other rail first.
                let local = members[1].scratch;
                members[1].lane.start(&targets.part(local, 0, 0, 64)).unwrap();
            }
            members[0].lane.atomic(&targets.atomic(1, 8192, AtomicOp::Inc, 0)).unwrap();
            members[0].lane.want_ack(Pe(1));
            progress_until(&mut members, &fabric, |first| !first.lane.has_work());
        }
        assert_eq!(failures(&members[1]).iter().sum::<u64>(), 1, "rail {rail}");
        assert_eq!(failures(&members[1])[usize::from(rail)], 1);
        assert_eq!(failures(&members[0]), [0, 0]);
        assert!(since(&fabric, 0) < LOOK, "nothing waits for a look at the paths");
    }
    let shape = Shape { rails: 1, ..shape() };
    let job = Job::new(9, &shape, Script::default());
    let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
    fabric.refuse_messages(Pe(1), RailId(0), true);
    members[0].lane.atomic(&targets.atomic(1, 8192, AtomicOp::Inc, 0)).unwrap();
    let failed = loop {
        members[0].lane.is_quiet(Pe(1)).unwrap();
        let _ = members[0].lane.progress();
        if let Err(failed) = members[1].lane.progress() {
            break failed.to_string();
        }
        fabric.pass_time(TURN);
    };
    assert!(failed.contains("PE 0") && failed.contains("refused by the script"), "{failed}");
}

fn with_lost_control_messages(
    signals: SignalEngine,
    is_dead_both_ways: bool,
    begin: impl Fn(&mut Member, &Targets, usize),
    check: impl Fn(&FakeFabric, &[Member]),
) {
    for (rail, seed) in [(0, 1), (1, 2)] {
        let shape = Shape { signals, ..shape() };
        let job = Job::new(seed, &shape, Script::default());
        let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
        fabric.lose_control(80);
        let (from, to) = ((Pe(0), RailId(rail)), (Pe(1), RailId(1 - rail)));
        fabric.link_down(from, to);
        if is_dead_both_ways {
            fabric.link_down(to, from);
        }
        fabric.store(Pe(0), members[0].scratch, &[0x5a; 256]);
        fabric.store(Pe(1), members[1].base + 8192, &[0x6b; 256]);
        for at in 0..4 {
            begin(&mut members[0], &targets, at);
        }
        let begun = fabric.now();
        while members[0].lane.has_work() {
            progress_for(&mut members, &fabric, LOOK / 8);
            assert!(since(&fabric, begun) < 200 * HEALTH.timeout, "rail {rail}");
        }
        check(&fabric, &members);
        // All that is to be known is known in the end, and then there is silence.
        fabric.link_up(from, to);
        fabric.link_up(to, from);
        progress_for(&mut members, &fabric, 60 * HEALTH.timeout);
        fabric.trace_calls();
        progress_for(&mut members, &fabric, 5 * HEALTH.timeout);
        assert_eq!(control_messages(&fabric), 0, "rail {rail}");
    }
}

#[test]
fn puts_and_gets_go_another_way_though_control_messages_are_lost() {
    for direction in [Direction::Write, Direction::Read] {
        let begin = |first: &mut Member, targets: &Targets, at: usize| {
            let (local, remote) = match direction {
                Direction::Write => (first.scratch + at * 64, 64 + at * 64),
                Direction::Read => (first.scratch + 4096 + at * 64, 8192 + at * 64),
            };
            let part = targets.part(local, 1, remote, 64);
            first.lane.start(&Request { direction, ..part }).unwrap();
        };
        with_lost_control_messages(SignalEngine::Auto, false, begin, |fabric, members| {
            if direction == Direction::Write {
                assert_eq!(fabric.load(Pe(1), members[1].base + 64, 256), [0x5a; 256]);
            } else {
                assert_eq!(fabric.load(Pe(0), members[0].scratch + 4096, 256), [0x6b; 256]);
            }
        });
    }
}

#[test]
fn words_are_fetched_though_control_messages_are_lost() {
    let begin = |first: &mut Member, targets: &Targets, at: usize| {
        let mut fetch = targets.atomic(1, 0, AtomicOp::FetchAdd, 1);
        let addr = first.scratch + 1024 + at * 16;
        fetch.result = Some(ResultPlace { addr, flag: Some(7) });
        first.lane.atomic(&fetch).unwrap();
    };
    with_lost_control_messages(SignalEngine::Auto, true, begin, |fabric, members| {
        assert_eq!(word(fabric, 1, members[1].base), 4);
        let fetched = |at: usize| word(fabric, 0, members[0].scratch + 1024 + at * 16);
        let mut words: Vec<u64> = (0..4).map(fetched).collect();
        words.sort_unstable();
        assert_eq!(words, [0, 1, 2, 3]);
    });
}

#[test]
fn signals_come_with_their_data_though_control_messages_are_lost() {
    use SignalEngine::{Chained, Counted};
    for signals in [Counted, Chained] {
        let begin = |first: &mut Member, targets: &Targets, at: usize| {
            let local = first.scratch + at * 64;
            let parts = [targets.part(local, 1, 64 + at * 64, 64)];
            let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
            first.lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
        };
        with_lost_control_messages(signals, false, begin, |fabric, members| {
            assert_eq!(word(fabric, 1, members[1].base), 4, "{signals:?}");
            assert_eq!(fabric.load(Pe(1), members[1].base + 64, 256), [0x5a; 256], "{signals:?}");
        });
    }
}

#[test]
fn memory_that_is_not_registered_any_more_is_not_posted_again() {
    let (fabric, mut members, _) = two_with_puts(&shape(), |fabric| {
        fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
    });
    let handle = members[0].scratch_handle;
    members[0].regions.release(&handle).unwrap();
    let failed = failure_of(&mut members, &fabric);
    for part in ["PE 1", "rail", "its local memory is not registered any more"] {
        assert!(failed.contains(part), "{part:?} is not in {failed}");
    }
}

#[test]
fn memory_that_the_peer_no_longer_has_is_told_by_its_key() {
    let (fabric, mut members, _) = two_with_puts(&shape(), |fabric| {
        fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
    });
    progress_until(&mut members, &fabric, |first| {
        first.lane.counters().next().unwrap().completed == 2
    });
    let handle = members[1].handle;
    members[1].regions.release(&handle).unwrap();
    let failed = failure_of(&mut members, &fabric);
    assert!(failed.contains("PE 1") && failed.contains("no region any more"), "{failed}");
}
