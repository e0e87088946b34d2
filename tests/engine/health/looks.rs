//! Looks at paths, one in each unit of the watchdog's clock: what is found, said and closed at
//! which of them.

use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::port::Direction;
use engine::rails::counters::RailCounters;
use engine::recovery::health::RailHealth;
use engine::request::{Request, ResultPlace};
use engine::wire::message::{Body, Message, Packet};
use engine::wire::rails::Rails;
use engine::wire::window::Seq;
use sim_fabric::{Call, FakeFabric, Script};

use super::word;
use crate::job::{Job, Member, Shape, seal};
use crate::signals::Targets;

/// The watchdog's unit of time.
pub(super) const UNIT: u64 = 1 << 28;

/// Looks after which something is overdue.
pub(super) const TIMEOUT: u32 = 4;

/// And after which a path is tried again.
pub(super) const COOLING: u32 = 9;

/// Turns of each lane in a unit of time. A lane looks once, after half of them at the latest.
pub(super) const ITERATIONS: u32 = 512;

pub(super) fn shape() -> Shape {
    // At least so long, which is a unit more.
    let units = |units: u32| Duration::from_nanos(UNIT) * (units - 1);
    let health = RailHealth { timeout: units(TIMEOUT), cooling: Some(units(COOLING)) };
    Shape { health: Some(health), ..Shape::default() }
}

/// A job whose lanes look at their paths at the same time.
pub(super) struct Looks {
    pub(super) fabric: FakeFabric,
    pub(super) members: Vec<Member>,
    pub(super) targets: Targets,
}

impl Looks {
    pub(super) fn at(shape: &Shape) -> Self {
        // All that goes well is done long before the next look.
        let job = Job::new(3, shape, Script { delay: (1_000, 2_000), ..Script::default() });
        let targets = Targets::of(&job);
        Self { fabric: job.fabric.clone(), members: job.members, targets }
    }

    pub(super) fn next(&mut self) {
        let now = self.fabric.now();
        self.fabric.pass_time((now / UNIT + 1) * UNIT - now);
        for _ in 0..ITERATIONS {
            for member in &mut self.members {
                member.lane.progress().unwrap();
            }
        }
        assert!(self.fabric.now() % UNIT < UNIT / 64);
    }

    /// Control messages of PE 0 since they were last counted.
    pub(super) fn says(&mut self) -> usize {
        let said = self.fabric.calls();
        self.fabric.trace_calls();
        said.iter().filter(|call| matches!(call, Call::Control(Pe(0), ..))).count()
    }

    /// How often PE 0 has found that its paths do not work.
    pub(super) fn failures(&self) -> Vec<u64> {
        self.members[0].lane.counters().map(|rail| rail.failures).collect()
    }

    /// The numbers of the looks, of the next so many, after which something is not what it was.
    pub(super) fn changes<T: PartialEq + std::fmt::Debug>(
        &mut self,
        looks: u32,
        what: impl Fn(&Self) -> T,
    ) -> Vec<(u32, T)> {
        let mut before = what(self);
        let mut changes = Vec::new();
        for look in 1..=looks {
            self.next();
            let now = what(self);
            if now != before {
                changes.push((look, what(self)));
                before = now;
            }
        }
        changes
    }

    /// The numbers of the looks, of the next so many, at which PE 0 says something.
    pub(super) fn talks(&mut self, looks: u32) -> Vec<u32> {
        let _ = self.says();
        let mut talks = |_: &u32| {
            self.next();
            self.says() != 0
        };
        (1..=looks).filter(|look| talks(look)).collect()
    }

    /// PE 0 starts a put of eight bytes to a PE, by the path whose turn it is.
    pub(super) fn put(&mut self, pe: u32, offset: usize) {
        let part = self.targets.part(self.members[0].scratch, pe, offset, 8);
        self.members[0].lane.start(&part).unwrap();
    }

    pub(super) fn get(&mut self, pe: u32, offset: usize) {
        let part = self.targets.part(self.members[0].scratch, pe, offset, 8);
        let get = Request { direction: Direction::Read, ..part };
        self.members[0].lane.start(&get).unwrap();
    }

    /// What PE 0 has counted by rail.
    pub(super) fn counted(&self, what: fn(&RailCounters) -> u64) -> Vec<u64> {
        self.members[0].lane.counters().map(|rail| what(&rail)).collect()
    }

    /// A PE shows PE 0 that it lives.
    pub(super) fn lives(&mut self, pe: usize) {
        let word = self.targets.atomic(0, 8192, AtomicOp::Inc, 0);
        self.members[pe].lane.atomic(&word).unwrap();
    }

    pub(super) fn add(&mut self, pe: u32) {
        self.members[0].lane.atomic(&self.targets.atomic(pe, 8192, AtomicOp::Add, 1)).unwrap();
    }

    /// Nothing goes from a rail of PE 0 to PE 1.
    pub(super) fn cut(&self, rail: u8) {
        self.fabric.link_down((Pe(0), RailId(rail)), (Pe(1), RailId(1 - rail)));
    }

    pub(super) fn mend(&self, rail: u8) {
        self.fabric.link_up((Pe(0), RailId(rail)), (Pe(1), RailId(1 - rail)));
    }

    pub(super) fn is_done(&self) -> bool {
        !self.members[0].lane.has_work()
    }

    /// PE 0 hears this of PE 1, whoever has said it.
    pub(super) fn hears(&self, what: Rails<'_>) {
        let mut packet = Packet::EMPTY;
        let ack = Seq(u32::MAX - 99);
        let message = Message { from: Pe(1), seq: Seq(0), ack, behind: 0, body: Body::Rails(what) };
        seal(&message, 0, &mut packet);
        self.fabric.forge_message(Pe(0), RailId(0), packet.bytes());
    }
}

/// A path on which nothing completes is given up after the timeout, the peer is asked half-way
/// whether it lives, and a rail of ours whose work-request ids do not come back is closed after
/// half a timeout more.
#[test]
fn a_path_whose_puts_do_not_complete() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    let changes = looks.changes(8, |looks| (looks.failures(), looks.fabric.resets()));
    // From the first look on, at which they are seen.
    let found = 1 + TIMEOUT;
    let closed = found + TIMEOUT / 2;
    assert_eq!(changes, [(found, (vec![0, 1], 1)), (closed, (vec![0, 1], 2))]);
    assert!(looks.is_done());

    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    // Asked at each look from then on; then the rails are spoken of until they are open again.
    assert_eq!(looks.talks(8), [1 + TIMEOUT / 2, 2 + TIMEOUT / 2, found, closed]);
}

#[test]
fn a_path_that_takes_nothing() {
    let mut looks = Looks::at(&Shape { rails: 1, n_pes: 3, ..shape() });
    looks.fabric.refuse(Pe(1), true);
    looks.put(1, 0);
    assert_eq!(looks.talks(4), [1 + TIMEOUT / 2, 2 + TIMEOUT / 2]);
    let mut looks = Looks::at(&shape());
    looks.fabric.refuse(Pe(1), true);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    assert_eq!(looks.changes(6, Looks::failures), [(1 + TIMEOUT, vec![1, 0])], "not the last one");
}

#[test]
fn a_path_that_takes_one_put_after_the_other() {
    let mut looks = Looks::at(&shape());
    for _ in 0..4 * TIMEOUT {
        looks.fabric.refuse(Pe(1), true);
        (0..2).for_each(|at| looks.put(1, 8 * at));
        looks.next();
        assert!(!looks.is_done());
        looks.fabric.refuse(Pe(1), false);
        while !looks.is_done() {
            looks.members.iter_mut().for_each(|member| {
                member.lane.progress().unwrap();
            });
        }
        // That it lives is known.
        let local = looks.members[1].scratch;
        looks.members[1].lane.atomic(&looks.targets.atomic(0, 8192, AtomicOp::Inc, 0)).unwrap();
        let part = looks.targets.part(local, 0, 64, 8);
        looks.members[1].lane.start(&part).unwrap();
    }
    assert_eq!((looks.failures(), looks.fabric.resets()), (vec![0, 0], 0));
}

#[test]
fn a_path_whose_messages_are_not_acknowledged() {
    let mut looks = Looks::at(&shape());
    // It does not matter how late the first one is.
    (0..40).for_each(|_| looks.next());
    looks.cut(1);
    (0..2).for_each(|_| looks.add(1));
    let found = 1 + TIMEOUT;
    assert_eq!(looks.talks(found - 1), [1 + TIMEOUT / 2, 2 + TIMEOUT / 2]);
    assert_eq!(looks.failures(), [0, 0]);
    looks.next();
    assert_eq!((looks.failures(), looks.fabric.resets()), (vec![0, 1], 0));
    assert!(looks.is_done());
    assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 2);
}

#[test]
fn a_first_message_that_takes_long_costs_no_path() {
    for looks_before in [0, 1, 40] {
        let mut looks = Looks::at(&shape());
        (0..looks_before).for_each(|_| looks.next());
        looks.fabric.hold_up_messages(Pe(0), u64::from(TIMEOUT - 1) * UNIT);
        (0..2).for_each(|_| looks.add(1));
        assert!(looks.changes(3 * TIMEOUT, Looks::failures).is_empty());
        assert!(looks.is_done());
    }
}

#[test]
fn a_message_after_a_pause_that_takes_long_costs_no_path() {
    for (pause, lives) in [(0, false), (1, false), (2, true), (3, true), (40, false), (40, true)] {
        let mut looks = Looks::at(&shape());
        looks.add(1);
        (0..3).for_each(|_| looks.next());
        for _ in 0..pause {
            if lives {
                looks.lives(1);
            }
            looks.next();
        }
        looks.fabric.hold_up_messages(Pe(0), u64::from(TIMEOUT - 2) * UNIT);
        (0..2).for_each(|_| looks.add(1));
        let changes = looks.changes(3 * TIMEOUT, Looks::failures);
        assert!(changes.is_empty(), "after {pause}: {changes:?}");
        assert!(looks.is_done());
    }
}

#[test]
fn messages_that_are_sent_again_have_their_time() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    (0..2).for_each(|_| looks.add(1));
    (0..TIMEOUT).for_each(|_| looks.next());
    looks.fabric.hold_up_messages(Pe(0), u64::from(TIMEOUT - 2) * UNIT);
    let changes = looks.changes(3 * TIMEOUT, |looks| (looks.failures(), looks.is_done()));
    let done = TIMEOUT + 1;
    assert_eq!(changes[0], (1, (vec![0, 1], false)));
    assert_eq!(
        changes[1..].iter().map(|(_, (failures, _))| failures).collect::<Vec<_>>(),
        [&[0, 1]]
    );
    assert!(changes[1].0 <= done, "{changes:?}");
    assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 2);
}

/// A reply that does not come is asked for again after half of the timeout, once the request is
/// acknowledged.
#[test]
fn a_reply_that_is_lost() {
    let mut looks = Looks::at(&shape());
    let fetch = |looks: &mut Looks, flag| {
        let mut fetch = looks.targets.atomic(1, 0, AtomicOp::FetchAdd, 1);
        let addr = looks.members[0].scratch + 1024;
        fetch.result = Some(ResultPlace { addr, flag: Some(flag) });
        looks.members[0].lane.atomic(&fetch).unwrap();
    };
    (0..3).for_each(|_| looks.next());
    // The rail that its replies leave by: the acknowledgement takes the other one.
    looks.fabric.data_down((Pe(1), RailId(1)), (Pe(0), RailId(0)));
    fetch(&mut looks, 7);
    for turn in 0..100 {
        looks.members.iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
        if turn == 50 {
            looks.members[1].lane.atomic(&looks.targets.atomic(0, 8192, AtomicOp::Inc, 0)).unwrap();
        }
    }
    assert_eq!(word(&looks.fabric, 0, looks.members[0].base + 8192), 1, "it brings the news");
    let asked = looks.talks(8);
    assert_eq!(asked.first(), Some(&(TIMEOUT / 2)), "{asked:?}");
    assert!(looks.is_done());
    assert_eq!(word(&looks.fabric, 0, looks.members[0].scratch + 1024), 0);
}

#[test]
fn a_path_that_is_out() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    let out = 1 + TIMEOUT;
    (0..out + TIMEOUT / 2).for_each(|_| looks.next());
    assert!(looks.is_done());
    let first = out + COOLING - (out + TIMEOUT / 2);
    assert_eq!(looks.talks(first + 5), [first, first + 2, first + 4]);
    // The next probe brings it back.
    looks.mend(1);
    let posted = |looks: &Looks| looks.members[0].lane.counters().nth(1).unwrap().posted;
    let before = posted(&looks);
    looks.next();
    (0..2).for_each(|at| looks.put(1, 8 * at));
    assert_eq!(posted(&looks), before + 1);
    assert!(looks.talks(2 * COOLING).is_empty(), "that is all");
}

/// An answer to a probe that is not the latest one, or was none, brings nothing back; nor does a
/// message about a rail that does not exist do anything.
#[test]
fn answers_that_nobody_waits_for() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    (0..2 + TIMEOUT + TIMEOUT / 2 + COOLING).for_each(|_| looks.next());
    let before = (looks.failures(), looks.fabric.resets());
    assert_eq!(before, (vec![0, 1], 2));
    let generation = 1;
    for what in [
        Rails::Probed { rail: RailId(1), number: 1000 },
        Rails::Probed { rail: RailId(1), number: 0 },
        Rails::Probed { rail: RailId(2), number: 1 },
        Rails::Probe { rail: RailId(0), remote: RailId(2), number: 1, address: &[0; 8] },
        Rails::Heard { rail: RailId(2), generation },
        Rails::Reset { rail: RailId(2), generation },
        // What was to be closed was closed before this came.
        Rails::Reset { rail: RailId(1), generation: 0 },
    ] {
        looks.hears(what);
        looks.next();
        (0..2).for_each(|at| looks.put(1, 8 * at));
        let posted = looks.members[0].lane.counters().nth(1).unwrap().posted;
        assert_eq!(posted, 1, "{what:?}");
        assert_eq!((looks.failures(), looks.fabric.resets()), before, "{what:?}");
    }
    // One that was not closed before is.
    looks.hears(Rails::Reset { rail: RailId(1), generation });
    looks.next();
    assert_eq!(looks.fabric.resets(), before.1 + 1);
}

#[test]
fn a_rail_is_closed_over_what_does_not_end() {
    let mut looks = Looks::at(&Shape { n_pes: 4, ..shape() });
    // A PE that has stopped, and one of whom nothing comes back over one path.
    looks.fabric.stall(Pe(2));
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    (0..2).for_each(|at| looks.put(2, 8 * at));
    let closing = 1 + TIMEOUT + TIMEOUT / 2;
    let resets = looks.changes(closing + TIMEOUT + 2, |looks| looks.fabric.resets());
    assert_eq!(resets, [(1 + TIMEOUT, 1), (closing + TIMEOUT, 2)], "theirs at once, then ours");
}

#[test]
fn what_has_completed_on_a_rail_is_not_posted_again() {
    let mut looks = Looks::at(&Shape { n_pes: 4, depth: 128, ..shape() });
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    looks.fabric.stall(Pe(2));
    (0..200).for_each(|at| looks.put(2, 8 * at));
    let closing = 1 + TIMEOUT + TIMEOUT / 2;
    (1..closing + TIMEOUT).for_each(|_| looks.next());
    assert_eq!(looks.fabric.resets(), 1);
    // They complete while nobody looks.
    looks.fabric.resume(Pe(2));
    for _ in 0..40 {
        looks.members[1].lane.progress().unwrap();
        looks.fabric.pass_time(10_000);
    }
    looks.next();
    assert_eq!(looks.fabric.resets(), 2);
    let again: u64 = looks.members[0].lane.counters().map(|rail| rail.reissued).sum();
    assert_eq!((again, looks.failures()), (1, vec![0, 1]), "the one for PE 1");
}

#[test]
fn news_are_told_until_they_are_heard() {
    let mut looks = Looks::at(&Shape { n_pes: 3, ..shape() });
    for pe in [1, 2] {
        (0..2).for_each(|at| looks.put(pe, 8 * at));
    }
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    (0..TIMEOUT).for_each(|_| looks.next());
    looks.fabric.lose_control(100);
    let closed = 1 + TIMEOUT / 2;
    let changes = looks.changes(closed, |looks| (looks.failures(), looks.fabric.resets()));
    assert_eq!(
        changes,
        [(1, (vec![0, 1], 0)), (closed, (vec![0, 1], 1))],
        "their rail is not closed"
    );
    let _ = looks.says();
    let said: Vec<usize> = (0..100)
        .map(|_| {
            looks.next();
            looks.says()
        })
        .collect();
    // What it wants of them it says at each look, and where its own rail is in 64 of them.
    assert_eq!(said.iter().position(|said| *said < 6), Some(64), "{said:?}");
    assert!(said.iter().all(|said| *said >= 2), "{said:?}");
    looks.fabric.lose_control(0);
    looks.next();
    looks.next();
    assert!(looks.is_done());
    // At rest, once the path is back.
    looks.mend(1);
    (0..2 * COOLING).for_each(|_| looks.next());
    assert!(looks.talks(3 * COOLING).is_empty());
}

#[test]
fn a_put_that_is_cut_off_again_and_again() {
    let mut looks = Looks::at(&shape());
    for (from, to) in [(0, 1), (1, 0)] {
        looks.fabric.data_down((Pe(0), RailId(from)), (Pe(1), RailId(to)));
    }
    looks.put(1, 0);
    let failed = loop {
        assert!(looks.fabric.now() < 2_000 * UNIT, "it does not end");
        let now = looks.fabric.now();
        looks.fabric.pass_time((now / UNIT + 1) * UNIT - now);
        for _ in 0..ITERATIONS / 2 {
            let _ = looks.members.iter_mut().map(|member| member.lane.progress().is_ok()).count();
        }
        if let Err(failed) = looks.members[0].lane.is_quiet(Pe(1)) {
            break failed.to_string();
        }
    };
    assert!(failed.contains("its path has failed 64 times"), "{failed}");
    let again: u64 = looks.members[0].lane.counters().map(|rail| rail.reissued).sum();
    assert_eq!(again, 64);
}

#[test]
fn a_put_that_fails_again_and_again() {
    let mut looks = Looks::at(&shape());
    looks.fabric.fail_next(1_000);
    looks.put(1, 0);
    let failed = loop {
        assert!(looks.fabric.now() < 2_000 * UNIT, "it does not end");
        for _ in 0..ITERATIONS {
            let _ = looks.members.iter_mut().map(|member| member.lane.progress().is_ok()).count();
        }
        looks.fabric.pass_time(UNIT);
        if let Err(failed) = looks.members[0].lane.is_quiet(Pe(1)) {
            break failed.to_string();
        }
    };
    assert!(failed.contains("failed by the script"), "{failed}");
    let again: u64 = looks.members[0].lane.counters().map(|rail| rail.reissued).sum();
    assert_eq!(again, 64);
}

/// A message that fails on the only path is sent again at once.
#[test]
fn a_message_that_fails_on_the_only_path() {
    let mut looks = Looks::at(&Shape { rails: 1, ..shape() });
    let channel = ((Pe(0), RailId(0)), (Pe(1), RailId(0)));
    looks.fabric.link_down(channel.0, channel.1);
    looks.fabric.dead_links_fail(true);
    looks.add(1);
    looks.fabric.pass_time(2_000_000);
    for _ in 0..4 {
        looks.members[0].lane.progress().unwrap();
    }
    looks.fabric.link_up(channel.0, channel.1);
    let begun = looks.fabric.now();
    while word(&looks.fabric, 1, looks.members[1].base + 8192) != 1 {
        looks.members.iter_mut().for_each(|member| {
            member.lane.progress().unwrap();
        });
        assert!(looks.fabric.now() < begun + UNIT / 2, "it waits for a look");
    }
    let again: u64 = looks.members[0].lane.counters().map(|rail| rail.resent).sum();
    assert_eq!((again, looks.failures()), (1, vec![0]));
}

/// Messages that are to be sent again, and are refused by the only path that is left.
#[test]
fn messages_that_are_refused_when_they_are_sent_again() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|_| looks.add(1));
    (0..TIMEOUT).for_each(|_| looks.next());
    assert_eq!(looks.failures(), [0, 0]);
    looks.fabric.refuse_messages(Pe(0), RailId(0), true);
    looks.fabric.pass_time(UNIT);
    let failed = (0..ITERATIONS).find_map(|_| looks.members[0].lane.progress().err()).unwrap();
    let failed = failed.to_string();
    assert!(failed.contains("PE 1") && failed.contains("refused by the script"), "{failed}");
}

/// Who talks with a PE hears at once that it has opened a rail again, and loses nothing on it.
#[test]
fn a_reset_is_heard_of_before_anything_is_lost() {
    let mut looks = Looks::at(&Shape { n_pes: 3, ..shape() });
    let local = looks.members[2].scratch;
    let puts = |looks: &mut Looks| {
        for at in 0..2 {
            let part = looks.targets.part(local, 1, 4096 + at * 8, 8);
            looks.members[2].lane.start(&part).unwrap();
        }
    };
    puts(&mut looks);
    // Of puts alone the other one knows nothing.
    looks.members[2].lane.atomic(&looks.targets.atomic(1, 8192, AtomicOp::Inc, 0)).unwrap();
    looks.next();
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    (0..=TIMEOUT).for_each(|_| looks.next());
    assert_eq!(looks.fabric.resets(), 1);
    looks.next();
    puts(&mut looks);
    looks.next();
    let again = looks.members[2].lane.counters();
    let again: Vec<_> = again.map(|rail| (rail.failures, rail.reissued, rail.completed)).collect();
    assert_eq!(again, [(0, 0, 2); 2]);
}

/// Nothing shows life that was only in doubt: with both paths to a PE dead, none is taken for
/// better.
#[test]
fn what_is_lost_is_no_sign_of_life() {
    let mut looks = Looks::at(&shape());
    (0..2).for_each(|at| looks.put(1, 8 * at));
    looks.next();
    looks.fabric.rail_down(Pe(1), RailId(0));
    looks.fabric.rail_down(Pe(1), RailId(1));
    (0..2).for_each(|at| looks.put(1, 8 * at));
    (0..2).for_each(|_| looks.next());
    // It is another PE's closing that cuts the one, as it were.
    looks.fabric.fail_rail(Pe(0), RailId(1));
    assert_eq!(looks.changes(4 * TIMEOUT, Looks::failures).len(), 1);
    assert_eq!(looks.failures(), [0, 1]);
}
