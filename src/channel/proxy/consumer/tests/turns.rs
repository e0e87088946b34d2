//! The order of rings: round robin, a bounded number of batches of each, nothing behind a limit.

use super::*;

fn take(consumer: &mut Consumer, lane: &mut Lane<FakePort>) -> bool {
    consumer.take(lane).map_err(|failed| failed.why).unwrap()
}

fn taken(consumer: &Consumer) -> Vec<u64> {
    consumer.rings.iter().map(|each| each.ring.taken()).collect()
}

#[test]
fn rings_take_turns_in_bounded_batches() {
    let (mut pair, shared, mut consumer) = still(2);
    let lane = &mut pair.lanes[0];
    for ring in [0, 0, 1] {
        for _ in 0..25 {
            push(&shared, ring, &Descriptor::Fence { pe: None });
        }
    }
    for expected in [[32, 0], [32, 25], [50, 25]] {
        assert!(take(&mut consumer, lane));
        assert_eq!(taken(&consumer), expected);
    }
    assert!(!take(&mut consumer, lane), "there is no more");
}

#[test]
fn limit_stops_taking() {
    let (mut pair, shared, mut consumer) = still(2);
    let lane = &mut pair.lanes[0];
    for ring in [0, 0, 0, 1] {
        push(&shared, ring, &Descriptor::Fence { pe: None });
    }
    consumer.set_limits([2, 0]);
    for _ in 0..3 {
        let _ = take(&mut consumer, lane);
        assert_eq!(taken(&consumer), [2, 0]);
    }
}
