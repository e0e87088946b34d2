//! The order of items and turns, against a model; that nobody starves, at whatever rhythm there is
//! room; and that nothing walks.

use std::collections::{BTreeMap, VecDeque};

use test_support::seeds::for_seeds;

use super::*;

type Words = FairQueue<u32, Has>;

#[derive(Debug, Default)]
struct Has(u32);

impl Kept for Has {
    fn lasts(&self) -> bool {
        self.0 != 0
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn queue(peers: &[u32]) -> Words {
    let mut queue = Words::default();
    for (item, pe) in peers.iter().enumerate() {
        queue.push(Pe(*pe), item as u32);
    }
    queue
}

fn take(queue: &mut Words, free: usize) -> Vec<(u32, u32)> {
    std::iter::from_fn(|| {
        let pe = queue.first(free)?;
        let item = queue.pop(pe)?;
        queue.turn_over(pe);
        queue.audit("items").unwrap();
        Some((pe.0, item))
    })
    .collect()
}

#[test]
fn peers_take_turns_and_items_keep_their_order() {
    let mut queue = queue(&[1, 1, 1, 2, 2, 3]);
    assert_eq!((queue.len(), queue.len_of(Pe(1)), queue.len_of(Pe(4))), (6, 3, 0));
    assert_eq!(
        (queue.front(Pe(1)), queue.back(Pe(1)), queue.front(Pe(4))),
        (Some(&0), Some(&2), None)
    );
    *queue.front_mut(Pe(3)).unwrap() = 7;
    assert_eq!(queue.first(0), None);
    assert_eq!(take(&mut queue, 1), [(1, 0), (2, 3), (3, 7), (1, 1), (2, 4), (1, 2)]);
    assert!(queue.is_empty() && queue.first(1).is_none() && queue.pop(Pe(1)).is_none());
}

#[test]
fn who_needs_more_than_is_free_is_passed_over_and_keeps_its_turn() {
    let mut queue = queue(&[1, 2, 3]);
    for (pe, need) in [(1, 2), (2, 1)] {
        queue.need(Pe(pe), |has| {
            has.0 = need;
            need
        });
    }
    assert_eq!(
        [0, 1, 2, 3].map(|free| queue.first(free)),
        [None, Some(Pe(3)), Some(Pe(2)), Some(Pe(1))]
    );
    queue.need(Pe(1), |has| {
        has.0 = 0;
        0
    });
    assert_eq!(queue.first(1), Some(Pe(1)), "before others of its new need");
}

#[test]
fn what_is_kept_of_a_peer_outlasts_what_waits_and_no_longer_than_it_is_something() {
    let mut queue = queue(&[1, 2]);
    queue.need(Pe(1), |has| {
        has.0 = 3;
        3
    });
    assert_eq!(take(&mut queue, 9), [(1, 0), (2, 1)]);
    assert_eq!((queue.kept(Pe(1)).map(|has| has.0), queue.kept(Pe(2)).is_none()), (Some(3), true));
    queue.push(Pe(1), 5);
    assert_eq!((queue.first(3), queue.first(4)), (None, Some(Pe(1))));
    queue.pop(Pe(1));
    queue.need(Pe(1), |has| {
        has.0 = 0;
        0
    });
    assert!(queue.kept(Pe(1)).is_none() && queue.peers().next().is_none());
}

#[test]
fn something_is_put_behind_all_where_it_is_wanted() {
    let mut queue = queue(&[1, 2, 1, 3]);
    queue.pop(Pe(3));
    queue.push_to_all(|last| (*last == 2).then_some(9));
    let mut all: Vec<_> = queue.iter().map(|(pe, item)| (pe.0, *item)).collect();
    all.sort_unstable();
    assert_eq!(all, [(1, 0), (1, 2), (1, 9), (2, 1)]);
    queue.audit("items").unwrap();
}

#[test]
fn a_queue_does_as_its_model() {
    for_seeds("a_queue_does_as_its_model", &[], 20, |seed| {
        let mut random = Random(seed);
        let mut queue = Words::default();
        let mut model: BTreeMap<u32, (VecDeque<u32>, u32)> = BTreeMap::new();
        let (mut most, mut peers) = (0, 0);
        for item in 0..500 {
            let pe = random.below(12) as u32;
            let of_peer = model.entry(pe).or_default();
            match random.below(5) {
                0 | 1 => {
                    queue.push(Pe(pe), item);
                    of_peer.0.push_back(item);
                }
                2 => assert_eq!(queue.pop(Pe(pe)), of_peer.0.pop_front()),
                3 => queue.turn_over(Pe(pe)),
                _ => {
                    of_peer.1 = random.below(4) as u32;
                    queue.need(Pe(pe), |has| {
                        has.0 = of_peer.1;
                        of_peer.1
                    });
                }
            }
            let known = |(items, has): &(VecDeque<u32>, u32)| !items.is_empty() || *has != 0;
            model.retain(|_, of_peer| known(of_peer));
            let count: usize = model.values().map(|(items, _)| items.len()).sum();
            (most, peers) = (most.max(count), peers.max(model.len()));
            queue.audit("items").unwrap();
            let kept: BTreeMap<_, _> =
                queue.peers().map(|(pe, count, has)| (pe.0, (count, has.0))).collect();
            let told = model.iter().map(|(pe, (items, has))| (*pe, (items.len(), *has))).collect();
            assert_eq!((kept, queue.len()), (told, count));
            for free in 0..5 {
                let may = |(items, has): &(VecDeque<u32>, u32)| {
                    !items.is_empty() && (*has as usize) < free
                };
                let first = queue.first(free).map(|pe| may(&model[&pe.0]));
                assert_eq!(first, model.values().any(may).then_some(true));
            }
        }
        // An operation at a time: the one that is done, and those that the model has yet to take
        // out.
        assert!(queue.items.len() <= most + 1 && queue.peers.len() <= peers + 1);
    });
}

#[test]
fn nobody_starves_who_has_what_it_needs() {
    for_seeds("nobody_starves_who_has_what_it_needs", &[], 100, |seed| {
        let mut random = Random(seed);
        let n = 2 + random.below(30) as u32;
        let mut queue = Words::default();
        let mut waited: BTreeMap<u32, u32> = (0..n).map(|pe| (pe, 0)).collect();
        (0..n).for_each(|pe| queue.push(Pe(pe), 0));
        for _ in 0..3000 {
            if random.below(3) == 0 {
                let pe = random.below(n.into()) as u32;
                let need = random.below(3) as u32;
                queue.need(Pe(pe), |has| {
                    has.0 = need;
                    need
                });
            }
            let free = random.below(4) as usize;
            let Some(pe) = queue.first(free) else { continue };
            let may = |pe: u32| queue.kept(Pe(pe)).is_some_and(|has| (has.0 as usize) < free);
            for (other, waited) in &mut waited {
                *waited = match *other == pe.0 {
                    true => 0,
                    false => *waited + u32::from(may(*other)),
                };
                assert!(*waited <= 2 * n, "{other} of {n}");
            }
            queue.pop(pe);
            queue.push(pe, 0);
            queue.turn_over(pe);
        }
    });
}

/// However many wait, and whatever is done: of those whose need is not met none is looked at, and
/// on a walk few more than are tried.
#[test]
fn nothing_walks_through_peers() {
    for n in [10, 1000] {
        let mut queue = Words::default();
        for pe in (0..n).map(Pe) {
            (0..2).for_each(|item| queue.push(pe, item));
            queue.need(pe, |has| {
                has.0 = 1 + pe.0 % 3;
                has.0
            });
        }
        assert_eq!((queue.first(0), queue.first(1), queue.looked()), (None, None, 0));
        for pe in (0..n).map(Pe) {
            queue.pop(pe);
            queue.turn_over(pe);
        }
        assert_eq!(queue.looked(), 0);
        // The first one of each need.
        assert_eq!((queue.first(4), queue.looked()), (Some(Pe(0)), 3));
        let mut queue = all(n);
        for served in [false, true, false] {
            let before = queue.looked();
            let mut walk = queue.walk();
            while let Some(pe) = queue.next(&mut walk) {
                queue.tried(&mut walk, pe, served);
            }
            // Each time past those that were tried before; and a few that are left out.
            assert!(queue.looked() - before <= TRIES * (TRIES + 1) + 4, "of {n}");
        }
    }
}

/// Walks, in each of which there is room as `room` says, for all peers together, and for a peer as
/// `takes` says. Gives who was served, in that order. All want more for ever.
fn serve(
    queue: &mut FairQueue<()>,
    walks: usize,
    mut room: impl FnMut(usize) -> usize,
    takes: impl Fn(Pe) -> bool,
) -> Vec<Pe> {
    let mut served = Vec::new();
    for number in 0..walks {
        let mut room = room(number);
        let (mut walk, mut tried) = (queue.walk(), Vec::new());
        while let Some(pe) = queue.next(&mut walk) {
            assert!(!tried.contains(&pe), "{pe} is tried twice in a walk");
            tried.push(pe);
            let goes = room != 0 && takes(pe);
            queue.tried(&mut walk, pe, goes);
            if goes {
                room -= 1;
                served.push(pe);
            }
        }
        assert_eq!(tried.len(), TRIES.min(queue.waiting));
    }
    served
}

fn all(n: u32) -> FairQueue<()> {
    let mut queue = FairQueue::default();
    (0..n).for_each(|pe| queue.push(Pe(pe), ()));
    queue
}

/// Here are all rhythms: a place in each walk, or in each second, third one; for all numbers of
/// peers, of which the first few are refused for reasons of their own. Each of the others is served
/// as often as the next one, or nearly.
#[test]
fn no_rhythm_of_places_gives_them_all_to_the_same() {
    for n in [1, 2, 3, 5, 7, 8, 9, 10, 12, 16, 17, 18, 24, 36] {
        for period in [1, 2, 3, 4, 5, 7, 8, 9, 12, 20] {
            for deaf in [0, 1, 4, 5, 9] {
                let takes = |pe: Pe| pe.0 >= deaf;
                let place = |walk| usize::from(walk % period == 0);
                let served = serve(&mut all(n), 2000, place, takes);
                let takers = n.saturating_sub(deaf);
                if takers == 0 {
                    assert!(served.is_empty());
                    continue;
                }
                let mut last = vec![0; n as usize];
                for (at, pe) in served.iter().enumerate() {
                    last[pe.index()] = at + 1;
                    let waits = (deaf..n).map(|pe| at + 1 - last[pe as usize]).max();
                    assert!(
                        waits <= Some(n as usize),
                        "{n} peers, each {period}, {deaf} deaf: {served:?}"
                    );
                }
                let least = if deaf == 0 { 2000 / period } else { takers as usize };
                assert!(served.len() >= least, "{n} peers, each {period}, {deaf} deaf");
                if deaf == 0 {
                    let turns: Vec<Pe> = (0..n).map(Pe).cycle().take(served.len()).collect();
                    assert_eq!(served, turns, "in turn, as nobody is refused alone");
                }
            }
        }
    }
}

#[test]
fn whoever_takes_what_it_gets_is_served_however_others_are_refused() {
    for_seeds("whoever_takes_what_it_gets_is_served", &[3618120733], 20, |seed| {
        let mut random = Random(seed);
        let n = 2 + random.below(60) as u32;
        let mut queue = all(n);
        // One that always takes what it gets.
        let taker = Pe(random.below(n.into()) as u32);
        for _ in 0..20 {
            let deaf = random.0;
            let takes = |pe: Pe| pe == taker || (deaf >> (pe.0 % 61)) & 1 == 0;
            let (most, part) = (1 + random.below(3), 1 + random.below(6));
            let room =
                |_| if random.below(part) == 0 { random.below(most + 1) as usize } else { 0 };
            let served = serve(&mut queue, 600, room, takes);
            let gaps = served.split(|pe| *pe == taker).map(<[Pe]>::len).max();
            assert!(gaps <= Some(n as usize), "{gaps:?} of {n}");
        }
    });
}

#[test]
fn a_walk_bears_what_happens_on_it() {
    for_seeds("a_walk_bears_what_happens_on_it", &[], 10, |seed| {
        let mut random = Random(seed);
        let mut queue: FairQueue<()> = all(20);
        for _ in 0..500 {
            let mut walk = queue.walk();
            let mut tried = Vec::new();
            while let Some(pe) = queue.next(&mut walk) {
                assert!(!tried.contains(&pe) || !queue.has(pe) || queue.len_of(pe) != 0);
                tried.push(pe);
                for _ in 0..random.below(4) {
                    let other = Pe(random.below(24) as u32);
                    match random.below(2) {
                        0 => queue.push(other, ()),
                        _ => drop(queue.pop(other)),
                    }
                }
                if random.below(2) == 0 {
                    queue.pop(pe);
                }
                queue.tried(&mut walk, pe, random.below(2) == 0);
                queue.audit("items").unwrap();
            }
            assert!(tried.len() <= TRIES);
        }
    });
}
