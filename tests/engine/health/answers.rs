//! What a PE does about what others say of rails. What is said is forged here.

use engine::ids::{Pe, RailId};
use engine::wire::rails::Rails;
use sim_fabric::{Call, FakeFabric};

use super::looks::{Looks, TIMEOUT, UNIT, shape};
use crate::job::Shape;

/// Where a rail of PE 1 is, as it says itself.
fn address(rail: u8) -> [u8; 8] {
    FakeFabric::address(Pe(1), RailId(rail)).0.to_le_bytes()
}

/// Messages and operations of PE 0 by the next look.
fn posts(looks: &mut Looks) -> usize {
    looks.fabric.trace_calls();
    looks.next();
    let posts = looks.fabric.calls();
    posts.iter().filter(|call| matches!(call, Call::Post(Pe(0), _))).count()
}

#[test]
fn a_rail_that_cannot_be_opened_again_is_said_to_be_so_each_time() {
    let mut looks = Looks::at(&shape());
    looks.fabric.refuse_resets();
    looks.next();
    for time in 0..3 {
        let _ = looks.says();
        looks.hears(Rails::Reset { rail: RailId(1), generation: 0 });
        looks.next();
        assert_ne!(looks.says(), 0, "{time}");
    }
    assert_eq!(looks.fabric.resets(), 0);
}

#[test]
fn a_probe_is_answered_if_it_comes_from_a_rail_that_can_be() {
    let mut looks = Looks::at(&shape());
    let probe = |looks: &mut Looks, rail: u8, address: &[u8]| {
        let (rail, remote) = (RailId(rail), RailId(0));
        looks.hears(Rails::Probe { rail, remote, number: 1, address });
        posts(looks)
    };
    assert_eq!(probe(&mut looks, 31, &address(1)), 1);
    assert_eq!(probe(&mut looks, 32, &address(1)), 0, "no PE has so many rails");
    assert_eq!(probe(&mut looks, 1, &address(1)), 1);
    // An address is taken in once.
    looks.fabric.refuse_addresses();
    assert_eq!(probe(&mut looks, 1, &address(1)), 1);
    assert_eq!(probe(&mut looks, 1, &address(0)), 0, "another one");
}

#[test]
fn a_probe_is_not_answered_by_a_rail_that_waits_to_be_closed() {
    let mut looks = Looks::at(&Shape { n_pes: 4, ..shape() });
    looks.fabric.stall(Pe(2));
    (0..2).for_each(|at| looks.put(2, 8 * at));
    looks.hears(Rails::Reset { rail: RailId(0), generation: 0 });
    looks.next();
    assert_eq!(looks.fabric.resets(), 0, "a put is under way on it");
    let probe = |remote| Rails::Probe {
        rail: RailId(1),
        remote: RailId(remote),
        number: 1,
        address: &[0; 8],
    };
    looks.hears(probe(0));
    assert_eq!(posts(&mut looks), 0);
    looks.hears(probe(1));
    assert_eq!(posts(&mut looks), 1, "the other one");
}

/// A path that an error took out, as its far end was closed for somebody else, comes back when that
/// is open again; one that was closed for what this PE has found, and one that was silent, not
/// before a probe.
#[test]
fn a_path_that_was_cut_for_somebody_else_returns_unprobed() {
    for (by_error, cause, returns) in [(true, 2, true), (true, 0, false), (false, 2, false)] {
        let mut looks = Looks::at(&Shape { n_pes: 3, ..shape() });
        looks.fabric.dead_links_fail(by_error);
        looks.cut(1);
        (0..2).for_each(|at| looks.get(1, 8 * at));
        (0..=TIMEOUT).for_each(|_| looks.next());
        assert_eq!(looks.failures(), [0, 1]);
        looks.mend(1);
        let (rail, generation, cause) = (RailId(0), 1, Pe(cause));
        looks.hears(Rails::RailIs { rail, generation, cause, address: &address(0) });
        looks.next();
        let posted = |looks: &Looks| looks.counted(|rail| rail.posted)[1];
        let before = posted(&looks);
        (0..2).for_each(|at| looks.get(1, 8 * at));
        assert_eq!(posted(&looks) - before, u64::from(returns), "{by_error} {cause}");
    }
}

/// Providers keep something of each rail that was closed, so a peer has as many resets as one of
/// its operations may need, and then one each half minute.
#[test]
fn a_peer_that_asks_for_resets_without_end_has_few() {
    let mut looks = Looks::at(&shape());
    let mut asks = |rail, generation| {
        looks.hears(Rails::Reset { rail: RailId(rail), generation });
        looks.next();
        looks.fabric.resets()
    };
    let mut resets = 0;
    let had: Vec<u32> = (0..250)
        .filter(|_| {
            let before = resets;
            resets = asks(1, resets);
            resets != before
        })
        .collect();
    let half_minute = (30_000_000_000_u64).div_ceil(UNIT) as u32;
    let expected: Vec<u32> = (0..64).chain([half_minute, 2 * half_minute]).collect();
    assert_eq!(had, expected);
    assert_eq!(asks(0, 0), resets + 1, "the other rail has its own");
}

#[test]
fn a_rail_that_fails_without_end_is_closed_a_few_times() {
    let mut looks = Looks::at(&shape());
    let half_minute = (30_000_000_000_u64).div_ceil(UNIT) as u32;
    let mut had = Vec::new();
    for turn in 0..250 {
        let before = looks.fabric.resets();
        looks.fabric.fail_rail(Pe(0), RailId(1));
        looks.next();
        if looks.fabric.resets() != before {
            had.push(turn);
        }
    }
    // Each time it is found that the rail is to be closed, and then it is.
    assert!((64..=67).contains(&had.len()), "{had:?}");
    assert!(had[63] < half_minute, "as soon as it fails, at first: {had:?}");
    assert!(looks.members[0].lane.failure().is_none());
}
