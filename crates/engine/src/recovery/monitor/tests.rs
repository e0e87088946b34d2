//! When a path stands still, and messages are unheard, to the unit of time.

use super::*;
use crate::posting::tests::{Bed, PLAIN, Setup};

const TIMEOUT: u32 = 5;

fn path(total: u32, posted: u32, survivors: u32) -> PathHealth {
    PathHealth { total, posted, survivors, ..PathHealth::default() }
}

#[test]
fn a_path_has_moved_when_something_has_completed_or_nothing_was_posted() {
    for (posted_before, survivors, posted, moves, is_alive) in [
        (0, 0, 0, true, false),
        (0, 0, 3, true, false),
        (2, 2, 2, false, false),
        (2, 2, 5, false, false),
        (2, 1, 5, true, true),
        (2, 0, 0, true, true),
    ] {
        let mut path = path(posted_before, posted, survivors);
        path.moved = 10;
        assert_eq!(path.look(None, 17), is_alive, "{path:?}");
        assert_eq!(path.moved, if moves { 17 } else { 10 }, "{path:?}");
        assert_eq!((path.total, path.stands_since()), (posted, path.moved));
    }
}

#[test]
fn what_waits_first_stands_as_long_as_it_is_the_same() {
    let mut path = path(0, 0, 0);
    let fronts = [
        (None, 1),
        (Some((3, 1)), 2),
        (Some((3, 1)), 2),
        (Some((4, 1)), 4),
        (Some((4, 1)), 4),
        // Another one in the same slot.
        (Some((4, 5)), 6),
        (Some((4, 5)), 6),
        (None, 8),
        (None, 9),
        (Some((4, 5)), 10),
        (Some((4, 5)), 10),
    ];
    for (look, (front, since)) in fronts.into_iter().enumerate() {
        path.look(front, look as u32 + 1);
        assert_eq!((path.front, path.stands_since()), ((front, since), since), "look {look}");
        assert_eq!(path.moved, look as u32 + 1, "nothing is posted");
    }
}

#[test]
fn a_path_stands_since_the_first_of_what_is_posted_and_what_waits() {
    let since = |moved, front| PathHealth { moved, front: (None, front), ..path(1, 1, 1) };
    assert_eq!(since(3, 7).stands_since(), 3);
    assert_eq!(since(7, 3).stands_since(), 3);
}

#[test]
fn a_path_is_silent_after_the_timeout_if_the_peer_has_shown_life_since() {
    let path = PathHealth { moved: 100, front: (None, 100), ..path(1, 1, 1) };
    for (alive, now, is_silent) in
        [(101, 105, true), (101, 106, true), (101, 104, false), (100, 105, false), (99, 105, false)]
    {
        assert_eq!(path.is_silent(alive, now, TIMEOUT), is_silent, "{alive} {now}");
    }
}

#[test]
fn long_segments_have_more_time() {
    let patience = |longest| PathHealth { longest, ..path(1, 1, 1) }.patience(TIMEOUT);
    assert_eq!([0, (1 << 20) - 1, 1 << 20, 3 << 20].map(patience), [5, 5, 6, 8]);
}

#[test]
fn acknowledgements_are_due_from_the_last_one_on_or_from_when_they_are_waited_for() {
    let mut peer = PeerHealth::new(2, 3);
    let (none, here) = ((FIRST, FIRST), (FIRST, FIRST.next()));
    let acked = (FIRST.next(), FIRST.next());
    let more = (FIRST.next(), FIRST.next().next());
    let looks = [
        // What is acknowledged and here, whether something waits: alive, unheard, whether it asks.
        (none, true, (0, 1, false)),
        (none, true, (0, 1, true)),
        (none, false, (0, 3, false)),
        (none, true, (0, 3, true)),
        (here, true, (5, 3, true)),
        (acked, true, (6, 6, false)),
        (acked, true, (6, 6, true)),
        (more, false, (8, 8, false)),
        (more, true, (8, 8, true)),
    ];
    for (look, (seen, waits, expected)) in looks.into_iter().enumerate() {
        let asks = peer.look(seen, waits, look as u32 + 1);
        assert_eq!((peer.alive, peer.unheard, asks), expected, "look {look}");
    }
}

/// A peer whose messages over rail 0 have not been heard of since 100, and that has shown life
/// since.
fn unheard() -> PeerHealth {
    let mut peer = PeerHealth::new(2, 3);
    (peer.unheard, peer.alive) = (100, 101);
    for path in &mut peer.paths {
        path.moved = 100 + TIMEOUT;
    }
    peer
}

#[test]
fn messages_are_unheard_after_the_timeout_if_the_peer_lives() {
    for (unheard_since, alive, is_unheard) in
        [(100, 101, true), (99, 101, true), (101, 102, false), (100, 100, false)]
    {
        let mut peer = unheard();
        (peer.unheard, peer.alive) = (unheard_since, alive);
        assert_eq!(peer.is_unheard(RailId(0), 105, TIMEOUT), is_unheard, "{unheard_since} {alive}");
    }
}

#[test]
fn messages_that_were_sent_again_have_the_whole_timeout() {
    let mut peer = unheard();
    peer.sent_again(103);
    peer.alive = 104;
    for path in &mut peer.paths {
        path.moved = 103 + TIMEOUT;
    }
    assert!(!peer.is_unheard(RailId(0), 102 + TIMEOUT, TIMEOUT));
    assert!(peer.is_unheard(RailId(0), 103 + TIMEOUT, TIMEOUT));
}

#[test]
fn messages_wait_for_data_on_a_path_that_stands_still_though_not_for_ever() {
    let now = 100 + 3 * TIMEOUT;
    for (still, is_unheard) in
        [(0, true), (1, true), (2, false), (9, false), (10, true), (11, true)]
    {
        let mut peer = unheard();
        peer.paths[0].moved = now;
        peer.paths[1].moved = now - still;
        assert_eq!(peer.is_unheard(RailId(0), now, TIMEOUT), is_unheard, "{still}");
    }
}

#[test]
fn messages_are_not_unheard_where_data_moves() {
    let now = 100 + 3 * TIMEOUT;
    for (still, is_unheard) in [(0, false), (1, false), (2, false), (9, false), (10, true)] {
        let mut peer = unheard();
        peer.paths[1].moved = now;
        (peer.paths[0].moved, peer.paths[0].total) = (now - still, 1);
        assert_eq!(peer.is_unheard(RailId(0), now, TIMEOUT), is_unheard, "{still}");
        assert_eq!(peer.is_unheard(RailId(1), now, TIMEOUT), still != 2 && still != 9, "{still}");
    }
}

#[test]
fn what_is_here_at_the_first_look_is_life() {
    let mut peer = PeerHealth::new(2, 3);
    assert!(!peer.look((FIRST, FIRST.next()), true, 7));
    assert_eq!((peer.alive, peer.unheard), (7, 7));
}

#[test]
fn a_peer_that_was_not_looked_at_has_been_well_until_the_last_look() {
    let (none, here) = ((FIRST, FIRST), (FIRST, FIRST.next()));
    for (seen, alive) in [(none, 2), (here, 9)] {
        let mut peer = PeerHealth::new(2, 3);
        (peer.alive, peer.seen) = (2, Some(none));
        (peer.is_back, peer.unheard) = (true, 9);
        assert!(peer.look(seen, true, 10), "what is due now has not come");
        assert_eq!((peer.alive, peer.unheard), (alive, 9));
    }
}

#[test]
fn a_peer_that_was_not_looked_at_is_back_for_a_whole_look() {
    let mut bed = Bed::new(Setup { n_pes: 3, rails: 2, health: true, ..PLAIN });
    let puts = |bed: &mut Bed| (0..3).for_each(|_| bed.put(1));
    let is_back = |bed: &mut Bed| recovery_of(bed).find(Pe(1)).map(|peer| peer.is_back);
    puts(&mut bed);
    look(&mut bed);
    assert_eq!(is_back(&mut bed), Some(false), "it is new");
    recovery_of(&mut bed).peer(Pe(1)).seen = Some((FIRST, FIRST));
    bed.pass_time();
    while bed.lane.iterate() {}
    (0..3).for_each(|_| look(&mut bed));
    puts(&mut bed);
    look(&mut bed);
    assert_eq!(is_back(&mut bed), Some(true));
    look(&mut bed);
    assert_eq!(is_back(&mut bed), Some(false), "it was looked at just now");
}

fn look(bed: &mut Bed) {
    let (recovery, core) = bed.lane.recovery_and_core().unwrap();
    recovery.look_at_paths(core);
}

#[test]
fn peers_for_which_nothing_is_under_way_are_not_touched() {
    let mut bed = Bed::new(Setup { n_pes: 12, rails: 2, health: true, ..PLAIN });
    (1..8).for_each(|pe| bed.put(pe));
    look(&mut bed);
    assert_eq!(recovery_of(&mut bed).peers.len(), 7);
    bed.pass_time();
    while bed.lane.iterate() {}
    (0..2).for_each(|_| look(&mut bed));
    let recovery = recovery_of(&mut bed);
    assert_eq!(recovery.watched, [], "once more when all is over");
    for path in recovery.peers.values_mut().flat_map(|peer| peer.paths.iter_mut()) {
        path.moved = 77;
    }
    // One with something under way, one that is to answer, one with a path that is out of service.
    bed.put(3);
    recovery_of(&mut bed).peer(Pe(4)).want(RailId(0));
    recovery_of(&mut bed).peer(Pe(5)).paths[1].out = Some(0);
    for _ in 0..3 {
        look(&mut bed);
        let recovery = recovery_of(&mut bed);
        let is_touched = |peer: &PeerHealth| peer.paths.iter().any(|path| path.moved != 77);
        let touched = (0..12).map(Pe).filter(|pe| recovery.find(*pe).is_some_and(is_touched));
        assert_eq!(touched.collect::<Vec<_>>(), [3, 4, 5].map(Pe));
        assert_eq!(recovery.watched(), [3, 4, 5].map(Pe));
    }
}

fn recovery_of(bed: &mut Bed) -> &mut Recovery {
    bed.lane.recovery_and_core().unwrap().0
}
