//! What goes out again, and by which way, when a path or a rail has failed; and what stays as it
//! was.

use engine::atomic::AtomicOp;
use engine::ids::{Pe, RailId};
use engine::port::Direction;
use engine::request::Request;
use sim_fabric::{Call, FakeFabric};

use super::looks::{ITERATIONS, Looks, TIMEOUT, UNIT, shape};
use super::word;
use crate::job::Shape;

impl Looks {
    fn next_of(&mut self, pes: &[usize]) -> bool {
        let now = self.fabric.now();
        self.fabric.pass_time((now / UNIT + 1) * UNIT - now);
        self.iterate(pes)
    }

    fn iterate(&mut self, pes: &[usize]) -> bool {
        let mut well = true;
        for _ in 0..ITERATIONS {
            for pe in pes {
                well &= self.members[*pe].lane.progress().is_ok();
            }
        }
        well
    }

    /// The rails by which PE 0 posts what it is made to begin.
    fn rails_of(&mut self, begin: impl FnOnce(&mut Self)) -> Vec<u8> {
        self.fabric.trace_calls();
        begin(self);
        let calls = self.fabric.calls();
        let rail = |call: &Call| match call {
            Call::Post(Pe(0), rail) => Some(rail.0),
            _ => None,
        };
        calls.iter().filter_map(rail).collect()
    }
}

#[test]
fn a_path_fails_once_however_much_fails_on_it() {
    let mut looks = Looks::at(&shape());
    looks.fabric.dead_links_fail(true);
    looks.cut(1);
    (0..6).for_each(|at| looks.put(1, 8 * at));
    // All that fails is heard of at once.
    looks.fabric.pass_time(UNIT / 2);
    (0..2).for_each(|_| looks.next());
    assert_eq!(looks.failures(), [0, 1]);
    assert!(looks.is_done());
}

#[test]
fn the_others_keep_their_turns_when_a_path_fails() {
    for before in 0..3 {
        let mut looks = Looks::at(&Shape { rails: 3, ..shape() });
        (0..before).for_each(|at| looks.get(1, 8 * at));
        looks.iterate(&[0, 1]);
        assert!(looks.is_done());
        looks.fabric.fail_next(1);
        let failed = looks.rails_of(|looks| looks.get(1, 0))[0];
        looks.iterate(&[0, 1]);
        assert!(looks.is_done() && looks.failures()[usize::from(failed)] == 1);
        let next = looks.rails_of(|looks| (0..4).for_each(|at| looks.get(1, 8 * at)));
        let (first, second) = ((failed + 1) % 3, (failed + 2) % 3);
        assert_eq!(next, [first, second, first, second], "{before} before");
    }
}

/// Nobody's turn changes because the paths are looked at.
#[test]
fn looks_change_nobodys_turn() {
    let rail_after = |looks_between: u32| {
        let mut looks = Looks::at(&shape());
        looks.add(1);
        (0..4 + looks_between).for_each(|_| looks.next());
        assert!(looks.is_done());
        looks.rails_of(|looks| looks.put(1, 0))
    };
    let rail = rail_after(0);
    for looks in 1..4 {
        assert_eq!(rail_after(looks), rail, "{looks} looks");
    }
}

#[test]
fn messages_that_are_not_heard_are_sent_again_on_the_only_path() {
    let mut looks = Looks::at(&Shape { rails: 1, ..shape() });
    let channel = ((Pe(0), RailId(0)), (Pe(1), RailId(0)));
    looks.fabric.link_down(channel.0, channel.1);
    looks.add(1);
    for _ in 0..TIMEOUT + 2 {
        looks.lives(1);
        looks.next();
    }
    assert_eq!((looks.counted(|rail| rail.resent), looks.failures()), (vec![1], vec![0]));
    looks.fabric.link_up(channel.0, channel.1);
    looks.next();
    assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 1);
}

#[test]
fn staged_bytes_go_another_way_into_registered_memory() {
    const LEN: usize = 4096;
    let mut looks = Looks::at(&Shape { staged: 0b0100, ..shape() });
    let bytes: Vec<u8> = (0..LEN).map(|at| at as u8).collect();
    looks.fabric.store(Pe(1), looks.members[1].base, &bytes);
    looks.cut(1);
    let scratch = looks.members[0].scratch;
    let part = looks.targets.part(scratch, 1, 0, LEN);
    looks.members[0].lane.start(&Request { direction: Direction::Read, ..part }).unwrap();
    (0..4 * TIMEOUT).for_each(|_| looks.next());
    assert!(looks.is_done());
    assert_eq!(looks.fabric.load(Pe(0), scratch, LEN), bytes);
    assert_ne!(looks.counted(|rail| rail.reissued), [0, 0]);
}

#[test]
fn a_staged_get_that_is_asked_for_over_another_rail_has_its_descriptor() {
    const LEN: usize = 4096;
    for rail in [0, 1] {
        let mut looks = Looks::at(&Shape { staged: 0b0100, ..shape() });
        let bytes: Vec<u8> = (0..LEN).map(|at| (at >> 8 ^ at) as u8).collect();
        looks.fabric.store(Pe(1), looks.members[1].base, &bytes);
        looks.fabric.refuse_messages(Pe(0), RailId(rail), true);
        let scratch = looks.members[0].scratch;
        let part = looks.targets.part(scratch, 1, 0, LEN);
        looks.members[0].lane.start(&Request { direction: Direction::Read, ..part }).unwrap();
        (0..8 * TIMEOUT).for_each(|_| looks.next());
        assert!(looks.is_done());
        assert!(looks.fabric.load(Pe(0), scratch, LEN) == bytes, "rail {rail}");
    }
}

/// Requests that have arrived wait there for the bytes of a put before them, which the peer reads
/// over a path that has failed. That takes longer than the timeout, and costs none of the paths
/// that they have come by.
#[test]
fn requests_that_wait_at_the_peer_are_not_lost() {
    const LEN: usize = 1024;
    for rail in [0, 1] {
        let mut looks = Looks::at(&Shape { staged: 0b0100, ..shape() });
        looks.fabric.link_down((Pe(1), RailId(rail)), (Pe(0), RailId(1 - rail)));
        let scratch = looks.members[0].scratch;
        let bytes: Vec<u8> = (0..LEN).map(|at| (at >> 8 ^ at) as u8).collect();
        looks.fabric.store(Pe(0), scratch, &bytes);
        for at in [0, 1, 2] {
            let part = looks.targets.part(scratch, 1, at * LEN, LEN);
            looks.members[0].lane.start(&part).unwrap();
        }
        looks.members[0].lane.fence(Pe(1)).unwrap();
        (0..4).for_each(|_| looks.add(1));
        let waited = looks.changes(8 * TIMEOUT, Looks::is_done);
        assert!(matches!(waited[..], [(look, true)] if look > TIMEOUT + 1), "{waited:?}");
        assert_eq!(looks.failures(), [0, 0], "rail {rail} of the peer");
        assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 4);
        for at in [0, 1, 2] {
            assert!(looks.fabric.load(Pe(1), looks.members[1].base + at * LEN, LEN) == bytes);
        }
    }
}

#[test]
fn the_last_path_has_its_time_of_grace_to_the_look() {
    let mut looks = Looks::at(&Shape { rails: 1, ..shape() });
    looks.fabric.dead_links_fail(true);
    looks.fabric.rail_down(Pe(1), RailId(0));
    looks.put(1, 0);
    // It fails at once.
    looks.iterate(&[0]);
    let ends = (1..100).find(|_| {
        looks.next_of(&[0, 1]);
        looks.members[0].lane.is_quiet(Pe(1)).is_err()
    });
    assert_eq!(ends, Some(2 * TIMEOUT + 12));
}

#[test]
fn a_message_behind_lost_puts_leaves_when_they_have_ended() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    looks.lives(1);
    (0..TIMEOUT).for_each(|_| looks.next());
    assert!(looks.next_of(&[0]) && looks.failures() == [0, 1]);
    looks.add(1);
    (0..TIMEOUT / 2 + 1).for_each(|_| looks.next());
    assert!(looks.is_done());
    assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 1);
}

#[test]
fn a_message_whose_turn_comes_while_puts_are_lost_leaves_later() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    looks.next();
    looks.fabric.refuse(Pe(1), true);
    looks.add(1);
    looks.lives(1);
    (1..TIMEOUT).for_each(|_| looks.next());
    assert!(looks.next_of(&[0]) && looks.failures() == [0, 1]);
    looks.fabric.refuse(Pe(1), false);
    assert!(looks.next_of(&[0]));
    (0..TIMEOUT).for_each(|_| looks.next());
    assert!(looks.is_done());
    assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 1);
}

#[test]
fn a_message_that_is_refused_goes_another_way() {
    for rail in [0, 1] {
        let mut looks = Looks::at(&shape());
        looks.fabric.refuse_messages(Pe(0), RailId(rail), true);
        (0..2).for_each(|_| looks.add(1));
        looks.next();
        assert_eq!(looks.failures().iter().sum::<u64>(), 1);
        assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 2, "rail {rail}");
    }
    let mut looks = Looks::at(&Shape { rails: 1, ..shape() });
    looks.fabric.refuse_messages(Pe(0), RailId(0), true);
    let word = looks.targets.atomic(1, 8192, AtomicOp::Inc, 0);
    let _ = looks.members[0].lane.atomic(&word);
    looks.next_of(&[0]);
    let failed = looks.members[0].lane.is_quiet(Pe(1)).unwrap_err().to_string();
    assert!(failed.contains("PE 1") && failed.contains("refused by the script"), "{failed}");
}

#[test]
fn a_path_that_fails_takes_nothing_of_others_along() {
    let mut looks = Looks::at(&Shape { n_pes: 3, depth: 2, ..shape() });
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    looks.fabric.stall(Pe(2));
    (0..12).for_each(|at| looks.put(2, 8 * at));
    (0..=TIMEOUT).for_each(|_| looks.next());
    assert_eq!(looks.failures(), [0, 1]);
    looks.fabric.resume(Pe(2));
    (0..2 * TIMEOUT).for_each(|_| looks.next());
    assert!(looks.is_done());
    assert_eq!(looks.counted(|rail| rail.reissued), [1, 0], "the one for PE 1");
    assert_eq!(looks.failures(), [0, 1]);
}

/// A rail that was opened again takes what was on it, and the peer need not do anything for that;
/// however it was found that the rail has failed.
#[test]
fn a_get_goes_on_when_the_only_rail_is_open_again() {
    for fail in [FakeFabric::fail_rail, FakeFabric::trouble] {
        let mut looks = Looks::at(&Shape { rails: 1, ..shape() });
        looks.fabric.stall(Pe(1));
        looks.get(1, 0);
        fail(&looks.fabric, Pe(0), RailId(0));
        (0..TIMEOUT + 1).for_each(|_| assert!(looks.next_of(&[0])));
        assert_eq!(looks.fabric.resets(), 1);
        looks.fabric.resume(Pe(1));
        assert!(looks.iterate(&[0]) && looks.is_done());
        assert_eq!(looks.counted(|rail| rail.reissued), [1]);
    }
}

#[test]
fn messages_on_a_rail_that_was_opened_again_are_sent_again() {
    for (pe, rail) in [(0, 1), (1, 0)] {
        let mut looks = Looks::at(&shape());
        looks.cut(1);
        (0..2).for_each(|_| looks.add(1));
        looks.iterate(&[0, 1]);
        looks.fabric.fail_rail(Pe(pe), RailId(rail));
        looks.iterate(&[pe as usize]);
        assert_eq!(looks.fabric.resets(), 1);
        looks.mend(1);
        looks.next_of(&[0]);
        assert_eq!(looks.counted(|rail| rail.resent), [0, 1], "the rail of PE {pe}");
        looks.iterate(&[0, 1]);
        assert_eq!(word(&looks.fabric, 1, looks.members[1].base + 8192), 2);
    }
}

#[test]
fn puts_to_a_peer_wait_for_that_peer() {
    let mut looks = Looks::at(&Shape { n_pes: 4, ..shape() });
    looks.cut(1);
    looks.fabric.link_down((Pe(0), RailId(1)), (Pe(2), RailId(0)));
    for pe in [1, 2] {
        (0..2).for_each(|at| looks.put(pe, 8 * at));
    }
    looks.next();
    // PE 2 has something under way on both of its rails, which does not end.
    looks.fabric.stall(Pe(3));
    for _ in 0..2 {
        let word = looks.targets.atomic(0, 8192, AtomicOp::Inc, 0);
        let part = looks.targets.part(looks.members[2].scratch, 3, 0, 8);
        looks.members[2].lane.start(&part).unwrap();
        looks.members[2].lane.atomic(&word).unwrap();
    }
    (1..TIMEOUT).for_each(|_| looks.next());
    let changes = looks.changes(2 * TIMEOUT, |looks| looks.counted(|rail| rail.reissued));
    // PE 0's own rail is closed for the work-request ids; PE 2's is, when it has waited for as long
    // as it may.
    let (mine, theirs) = (1 + TIMEOUT / 2, 1 + TIMEOUT);
    assert_eq!(changes, [(mine, vec![1, 0]), (theirs, vec![2, 0])]);
}

/// What is asked over every path is answered once, over every path.
#[test]
fn answers_are_as_many_as_paths() {
    for rails in [2, 3, 6] {
        let mut looks = Looks::at(&Shape { rails, ..shape() });
        looks.fabric.link_down((Pe(0), RailId(1)), (Pe(1), RailId(2 % rails)));
        (0..rails).for_each(|at| looks.put(1, 8 * usize::from(at)));
        looks.fabric.trace_calls();
        let mut said = (0..TIMEOUT).map(|_| {
            looks.next();
            let calls = looks.fabric.calls();
            looks.fabric.trace_calls();
            [0, 1].map(|pe| {
                let says = |call: &&Call| matches!(call, Call::Control(by, ..) if by.0 == pe);
                calls.iter().filter(says).count()
            })
        });
        // Whether it lives.
        let first = said.find(|said| *said != [0, 0]);
        assert_eq!(first, Some([usize::from(rails); 2]));
    }
}

/// What is not clear yet is asked once at a look, over every path.
#[test]
fn questions_are_few() {
    let mut looks = Looks::at(&shape());
    looks.cut(1);
    (0..2).for_each(|at| looks.put(1, 8 * at));
    let said: Vec<usize> = (0..2 * TIMEOUT)
        .map(|_| {
            let _ = looks.says();
            looks.next();
            looks.says()
        })
        .collect();
    assert!(looks.is_done() && said.iter().all(|said| *said <= 12), "{said:?}");
}

#[test]
fn paths_of_a_rail_that_is_to_be_closed_are_not_judged() {
    let mut looks = Looks::at(&Shape { n_pes: 3, ..shape() });
    looks.cut(1);
    looks.fabric.link_down((Pe(0), RailId(1)), (Pe(2), RailId(0)));
    (0..2).for_each(|at| looks.put(1, 8 * at));
    (1..=TIMEOUT).for_each(|_| looks.next());
    (0..2).for_each(|at| looks.put(2, 8 * at));
    let mut changes = Vec::new();
    for look in 1..=3 * TIMEOUT {
        looks.lives(2);
        let before = looks.failures();
        looks.next();
        if looks.failures() != before {
            changes.push((look, looks.failures()));
        }
    }
    // Its work-request ids are waited for from then on, and then what is under way on it.
    let closed = 1 + TIMEOUT / 2 + TIMEOUT;
    assert_eq!(changes, [(1, vec![0, 1]), (closed, vec![0, 2])]);
}
