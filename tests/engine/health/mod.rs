//! Rails that die, in every way, under random operations: every byte and every total is exact.

mod again;
mod answers;
mod looks;
mod particulars;
mod random;
mod staged;

use std::sync::Arc;
use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::lane::host::handoff::handover;
use engine::lane::host::HostLane;
use engine::lane::{Lane, SignalEngine};
use engine::recovery::fallback_routes::FallbackRoutes;
use engine::recovery::health::RailHealth;
use engine::request::{PutSignalRequest, ResultPlace};
use sim_fabric::{Call, FakeFabric, Script};

use crate::job::{Job, Member, Shape, host_config, limits};
use crate::signals::Targets;

pub(crate) const HEALTH: RailHealth =
    RailHealth { timeout: Duration::from_secs(1), cooling: Some(Duration::from_secs(4)) };

fn word(fabric: &FakeFabric, pe: u32, addr: usize) -> u64 {
    u64::from_le_bytes(fabric.load(Pe(pe), addr, 8).try_into().unwrap())
}

const TURN: u64 = 100_000;

/// Turns the lanes of PE 0 and 1 until it is so.
fn progress_until(
    members: &mut [Member],
    fabric: &FakeFabric,
    mut done: impl FnMut(&Member) -> bool,
) {
    for _ in 0..2_000_000 {
        if done(&members[0]) {
            return;
        }
        for member in members.iter_mut() {
            member.lane.progress().unwrap();
        }
        fabric.pass_time(TURN);
    }
    panic!("it does not come to that");
}

/// What user threads start after a path to a PE has failed goes over the rails of the proxy lane
/// that work, though the host lane has but one.
#[test]
fn user_threads_take_a_fallback_route_once_a_path_has_failed() {
    const LEN: usize = 512;
    let shape = Shape { health: Some(HEALTH), ..Shape::default() };
    let mut job = Job::new(11, &shape, Script::default());
    let fallback_routes = Arc::new(FallbackRoutes::until_settled(2));
    let (outbox, inbox) = handover(2, None, Some(Duration::from_secs(60)));
    let first = job.members.remove(0);
    let build =
        |lane: Lane<_>| lane.with_fallback_routes(Arc::clone(&fallback_routes)).with_inbox(inbox);
    let lane = first.lane.map(build);
    job.members.insert(0, Member { lane, ..first });
    let host =
        Lane::new(job.fabric.port(Pe(0), limits(&shape)[..1].to_vec()), host_config(&job, false));
    let host =
        HostLane::new(host).with_outbox(outbox).with_fallback_routes(Arc::clone(&fallback_routes));
    let posted = || host.with(|lane| lane.counters().map(|rail| rail.posted).sum::<u64>());
    job.fill_scratch(0, &[0x5a; 2 * LEN]);
    let (targets, fabric) = (Targets::of(&job), job.fabric.clone());
    let (base, mut members) = (job.members[1].base, job.members);
    let scratch = members[0].scratch;
    let part = |at| targets.part(scratch + at, 1, at, LEN);
    // The proxy lane asks the PE where its rails are with the first one.
    host.start(&part(0)).unwrap();
    progress_until(&mut members, &fabric, |_| !fallback_routes.has(Pe(1)));
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    assert_eq!(posted(), 0);
    host.complete(&part(0)).unwrap();
    assert_eq!((posted(), fallback_routes.has(Pe(1))), (1, false), "the host lane's own way");
    // Both ways of every path over the rail that the host lane is on.
    fabric.rail_down(Pe(0), RailId(0));
    for _ in 0..4 {
        members[0].lane.start(&part(0)).unwrap();
    }
    progress_until(&mut members, &fabric, |_| fallback_routes.has(Pe(1)));
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    fabric.trace_calls();
    host.start(&part(LEN)).unwrap();
    progress_until(&mut members, &fabric, |first| first.lane.has_work());
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    let asks = |call: &Call| matches!(call, Call::Control(Pe(0), ..));
    assert!(!fabric.calls().iter().any(asks), "it is known that it has to be made");
    host.quiet(Pe(1)).unwrap();
    assert_eq!(posted(), 1, "nothing more of its own");
    assert_eq!(fabric.load(Pe(1), base, 2 * LEN), [0x5a; 2 * LEN]);
}

/// A job of two PEs with two rails whose PE 0 has puts to PE 1 under way on both.
fn two_with_puts(
    shape: &Shape,
    strike: impl Fn(&FakeFabric),
) -> (FakeFabric, Vec<Member>, Targets) {
    let job = Job::new(5, shape, Script::default());
    let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
    strike(&fabric);
    begin_puts(&mut members[0], &targets);
    (fabric, members, targets)
}

fn begin_puts(first: &mut Member, targets: &Targets) {
    let local = first.scratch;
    for at in 0..4 {
        first.lane.start(&targets.part(local, 1, at * 64, 64)).unwrap();
    }
}

/// Turns both lanes until PE 0 has given up PE 1, and gives what it says.
fn failure_of(members: &mut [Member], fabric: &FakeFabric) -> String {
    for _ in 0..2_000_000 {
        if let Err(failed) = members[0].lane.is_quiet(Pe(1)) {
            return failed.to_string();
        }
        for member in members.iter_mut() {
            let _ = member.lane.progress();
        }
        fabric.pass_time(TURN);
    }
    panic!("nothing fails");
}

/// What was under way on a path must not go another way while it may still land; a PE that cannot
/// see to that says so.
#[test]
fn a_rail_that_cannot_be_opened_again_is_told_by_name() {
    let shape = Shape { health: Some(HEALTH), ..Shape::default() };
    let (fabric, mut members, _) = two_with_puts(&shape, |fabric| {
        fabric.refuse_resets();
        fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
    });
    let failed = failure_of(&mut members, &fabric);
    assert!(
        failed.contains("PE 1") && failed.contains("rail 0 cannot be opened again"),
        "{failed}"
    );
    assert_eq!(fabric.resets(), 0);
}

/// The last path is not given up at once: the PE may have opened its rail again, and the news is on
/// its way.
#[test]
fn the_last_path_to_fail_has_a_time_of_grace() {
    let shape = Shape { health: Some(HEALTH), ..Shape::default() };
    let (fabric, mut members, _) = two_with_puts(&shape, |fabric| {
        fabric.dead_links_fail(true);
        for rail in [RailId(0), RailId(1)] {
            fabric.rail_down(Pe(1), rail);
        }
    });
    let begun = fabric.now();
    let failed = failure_of(&mut members, &fabric);
    let waited = Duration::from_nanos(fabric.now() - begun);
    assert!(failed.contains("PE 1") && failed.contains("rail"), "{failed}");
    assert!(waited >= 2 * HEALTH.timeout, "given up after {waited:?}");
}

/// A path that is out of service is probed after a while, and comes back when that is answered, not
/// before. However long something takes below the timeout, nobody goes round a path that works.
#[test]
fn rails_that_work_stay_in_service() {
    let shape = Shape { health: Some(HEALTH), ..Shape::default() };
    // There and back, it is below a second, and often long enough to ask whether the peer lives.
    let script = Script { delay: (1_000, 490_000_000), ..Script::default() };
    let mut job = Job::new(1, &shape, script);
    for number in 0..200 {
        job.put_value(0, 1, number % 64 * 8, 1, 8).unwrap();
        while number % 2 != 0 && !job.members[0].lane.is_quiet(Pe(1)).unwrap() {
            job.members.iter_mut().for_each(|member| {
                member.lane.progress().unwrap();
            });
            job.fabric.pass_time(1_000_000);
        }
    }
    let posted: Vec<u64> = job.members[0].lane.counters().map(|rail| rail.posted).collect();
    assert_eq!((posted, job.fabric.resets()), (vec![100, 100], 0), "in turn");
}

#[test]
fn a_message_that_fails_goes_another_way_at_once() {
    let health = RailHealth { timeout: Duration::from_secs(100), cooling: None };
    for rail in [0, 1] {
        let shape = Shape { health: Some(health), ..Shape::default() };
        let mut job = Job::new(1, &shape, Script::default());
        let targets = Targets::of(&job);
        job.fabric.dead_links_fail(true);
        job.fabric.link_down((Pe(0), RailId(rail)), (Pe(1), RailId((rail + 1) % 2)));
        for _ in 0..4 {
            job.members[0].lane.atomic(&targets.atomic(1, 0, AtomicOp::Inc, 0)).unwrap();
        }
        while job.heap(1, 0, 8) != 4_u64.to_le_bytes() {
            job.members.iter_mut().for_each(|member| {
                member.lane.progress().unwrap();
            });
            job.fabric.pass_time(10_000_000);
            assert!(job.fabric.now() < 50_000_000_000, "they wait for the timeout");
        }
    }
}

#[test]
fn a_late_reply_is_not_taken_for_that_of_a_later_fetch() {
    // So many that every count of one byte comes round.
    const LAST: u64 = 256;
    for dead in [0, 1] {
        let shape = Shape { health: Some(HEALTH), ..Shape::default() };
        let mut job = Job::new(2, &shape, Script::default());
        let (targets, fabric) = (Targets::of(&job), job.fabric.clone());
        let (from, to) = ((Pe(1), RailId(dead)), (Pe(0), RailId((dead + 1) % 2)));
        let addr = job.members[0].base;
        fabric.link_down(from, to);
        for fetch in 0..=LAST {
            let mut take = targets.atomic(1, 0, AtomicOp::FetchAdd, 1);
            take.result = Some(ResultPlace { addr, flag: Some(fetch + 1) });
            job.members[0].lane.atomic(&take).unwrap();
            if fetch == LAST {
                // All that is late arrives before the reply.
                fabric.link_up(from, to);
                for _ in 0..2 * LAST {
                    job.members[0].lane.progress().unwrap();
                    fabric.pass_time(TURN);
                }
            }
            while word(&fabric, 0, addr + 8) != fetch + 1 {
                job.members.iter_mut().for_each(|member| {
                    member.lane.progress().unwrap();
                });
                fabric.pass_time(100 * TURN);
            }
            assert_eq!(word(&fabric, 0, addr), fetch, "rail {dead}");
        }
    }
}

#[test]
fn a_path_comes_back_when_a_probe_is_answered() {
    let shape = Shape { health: Some(HEALTH), ..Shape::default() };
    let path = [(Pe(0), RailId(1)), (Pe(1), RailId(0))];
    let (fabric, mut members, targets) = two_with_puts(&shape, |fabric| {
        fabric.link_down(path[0], path[1]);
        fabric.link_down(path[1], path[0]);
    });
    let counters = |member: &Member| member.lane.counters().nth(1).expect("two rails");
    progress_until(&mut members, &fabric, |first| counters(first).failures == 1);
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    let before = counters(&members[0]).posted;
    let cooled = fabric.now() + 3 * HEALTH.cooling.expect("it comes back").as_nanos() as u64;
    progress_until(&mut members, &fabric, |_| fabric.now() > cooled);
    begin_puts(&mut members[0], &targets);
    progress_until(&mut members, &fabric, |first| !first.lane.has_work());
    assert_eq!(counters(&members[0]).posted, before, "it is not used while no probe gets through");
    fabric.link_up(path[0], path[1]);
    fabric.link_up(path[1], path[0]);
    let deadline = fabric.now() + 60_000_000_000;
    while counters(&members[0]).posted == before {
        assert!(fabric.now() < deadline, "it does not come back");
        begin_puts(&mut members[0], &targets);
        progress_until(&mut members, &fabric, |first| !first.lane.has_work());
        let later = fabric.now() + 1_000_000_000;
        progress_until(&mut members, &fabric, |_| fabric.now() > later);
    }
}

#[test]
fn a_path_whose_data_endpoint_is_broken_stays_out_of_service() {
    for (rails, is_way_back) in [(2, false), (2, true), (3, false), (3, true)] {
        let shape = Shape { rails, health: Some(HEALTH), ..Shape::default() };
        let path = [(Pe(0), RailId(1)), (Pe(1), RailId(2 % rails))];
        let (from, to) = if is_way_back { (path[1], path[0]) } else { (path[0], path[1]) };
        let (fabric, mut members, targets) =
            two_with_puts(&shape, |fabric| fabric.data_down(from, to));
        let counters = |member: &Member| member.lane.counters().nth(1).expect("a second rail");
        progress_until(&mut members, &fabric, |first| counters(first).failures == 1);
        let cooling = HEALTH.cooling.expect("it comes back").as_nanos() as u64;
        for _ in 0..5 {
            let later = fabric.now() + cooling;
            progress_until(&mut members, &fabric, |_| fabric.now() > later);
            begin_puts(&mut members[0], &targets);
            progress_until(&mut members, &fabric, |first| !first.lane.has_work());
        }
        let counted = counters(&members[0]);
        assert_eq!(counted.failures, 1, "{rails} rails, the way back {is_way_back}");
        fabric.data_up(from, to);
        let deadline = fabric.now() + 10 * cooling;
        while counters(&members[0]).posted == counted.posted {
            assert!(fabric.now() < deadline, "it does not come back");
            begin_puts(&mut members[0], &targets);
            let later = fabric.now() + cooling / 4;
            progress_until(&mut members, &fabric, |_| fabric.now() > later);
        }
    }
}

#[test]
fn a_reset_is_told_to_those_who_talk_and_to_nobody_else() {
    let messages = |n_pes| {
        let shape = Shape { n_pes, present: 2, health: Some(HEALTH), ..Shape::default() };
        let (fabric, mut members, _) = two_with_puts(&shape, |fabric| {
            fabric.trace_calls();
            fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
        });
        progress_until(&mut members, &fabric, |first| !first.lane.has_work());
        let later = fabric.now() + 30_000_000_000;
        progress_until(&mut members, &fabric, |_| fabric.now() > later);
        assert!(fabric.resets() != 0);
        let open = |member: &Member| member.lane.peers().count();
        assert!(
            members.iter().all(|member| open(member) <= 2),
            "connections to PEs never talked to"
        );
        let control = |call: &Call| match call {
            Call::Control(_, _, to) => Some(*to),
            _ => None,
        };
        let told: Vec<Pe> = fabric.calls().iter().filter_map(control).collect();
        assert!(told.iter().all(|pe| *pe < Pe(2)), "{n_pes} PEs");
        told.len()
    };
    assert_eq!(messages(1024), messages(2));
}

/// A PE that has had nothing to do with another one does not hear that this has opened its rails
/// again. What it sends to where they were gets there in the end.
#[test]
fn who_has_not_heard_of_a_reset_gets_there_all_the_same() {
    for (puts, signals) in [(true, false), (false, true), (true, true)] {
        let shape = Shape { n_pes: 3, health: Some(HEALTH), ..Shape::default() };
        let job = Job::new(9, &shape, Script::default());
        let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
        // PE 0 has PE 1 open both its rails again, one after the other.
        for rail in [0, 1] {
            let channel = ((Pe(0), RailId(1 - rail)), (Pe(1), RailId(rail)));
            fabric.link_down(channel.0, channel.1);
            let before = fabric.resets();
            while fabric.resets() == before {
                begin_puts(&mut members[0], &targets);
                let later = fabric.now() + 1_000_000_000;
                progress_until(&mut members, &fabric, |_| fabric.now() > later);
            }
            progress_until(&mut members, &fabric, |first| !first.lane.has_work());
            fabric.link_up(channel.0, channel.1);
            let back = fabric.now() + 4 * HEALTH.cooling.expect("it comes back").as_nanos() as u64;
            progress_until(&mut members, &fabric, |_| fabric.now() > back);
        }
        fabric.store(Pe(2), members[2].scratch, &[0x2b; 256]);
        let begun = fabric.now();
        let local = members[2].scratch;
        for at in 0..4 {
            if puts {
                members[2].lane.start(&targets.part(local, 1, 4096 + at * 64, 64)).unwrap();
            }
            if signals {
                members[2].lane.atomic(&targets.atomic(1, 8192, AtomicOp::Inc, 0)).unwrap();
            }
        }
        while members[2].lane.has_work() {
            assert!(members[2].lane.is_quiet(Pe(1)).is_ok());
            members.iter_mut().for_each(|member| {
                member.lane.progress().unwrap();
            });
            fabric.pass_time(TURN);
        }
        let base = members[1].base;
        if puts {
            assert_eq!(fabric.load(Pe(1), base + 4096, 256), [0x2b; 256]);
        }
        if signals {
            assert_eq!(word(&fabric, 1, base + 8192), 4);
        }
        let took = Duration::from_nanos(fabric.now() - begun);
        assert!(took < 6 * HEALTH.timeout, "{took:?}");
    }
}

/// A signal whose data is on a path that fails is applied, also after a put that was refused
/// halfway: that must not leave anything behind by which another one is judged.
#[test]
fn a_refused_put_does_not_cost_the_signal_before_it_when_its_path_fails() {
    use SignalEngine::{Auto, Chained, Counted, Eager};
    for signals in [Auto, Counted, Chained, Eager] {
        let shape = Shape { health: Some(HEALTH), signals, max_segment: 64, ..Shape::default() };
        let job = Job::new(12, &shape, Script::default());
        let heap = job.heap;
        job.fill_scratch(0, &[0x5a; 150]);
        let (targets, fabric, mut members) = (Targets::of(&job), job.fabric.clone(), job.members);
        fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(0)));
        let local = members[0].scratch;
        let signal = targets.atomic(1, 0, AtomicOp::SignalAdd, 1);
        let parts = [targets.part(local, 1, 8, 150)];
        members[0].lane.put_signal(&PutSignalRequest { parts: &parts, signal }).unwrap();
        let parts = [targets.part(local, 1, 1024, 100), targets.part(local, 1, heap - 50, 100)];
        let refused = members[0].lane.put_signal(&PutSignalRequest { parts: &parts, signal });
        assert!(refused.is_err(), "{signals:?}");
        progress_until(&mut members, &fabric, |first| !first.lane.has_work());
        assert_eq!(word(&fabric, 1, members[1].base), 1, "{signals:?}");
        assert_eq!(fabric.load(Pe(1), members[1].base + 8, 150), [0x5a; 150], "{signals:?}");
    }
}
