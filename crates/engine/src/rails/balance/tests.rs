//! The balance, asked by hand.

use super::*;

/// Three rails, of which the first has shown 3 bytes per nanosecond, and the others 1.
fn shown() -> Balance {
    let mut balance =
        Balance::new(Spread { balanced_from: 9, ..Spread::ROUND_ROBIN }, 3, 1 << 20, 0);
    for (rail, took) in [(0, 1000), (1, 3000), (2, 3000)] {
        balance.give(RailId(rail), 3000, 0);
        balance.done(RailId(rail), 3000, took);
    }
    balance
}

#[test]
fn rails_take_turns_as_often_as_their_rates_say() {
    let mut balance = shown();
    let mut turns = |usable, count: u32| {
        let mut turns = [0; 3];
        (0..count).for_each(|_| turns[balance.next_in_turn(4000, usable).index()] += 1);
        turns
    };
    assert_eq!(turns(0b111, 50), [30, 10, 10]);
    assert_eq!(turns(0b101, 40), [30, 0, 10]);
    assert_eq!(turns(0b110, 40), [0, 20, 20]);
    assert_eq!(turns(0b010, 5), [0, 5, 0]);
}

fn one_by_one(balance: &mut Balance, now: &mut u64, rates: [u64; 3], count: usize) -> [u32; 3] {
    let mut used = [0; 3];
    for _ in 0..count {
        let rail = balance.pick(*now, &[0; 3], 1000, 1000, 0b111).expect("all are idle");
        balance.give(rail, 1000, *now);
        *now += 1000 / rates[rail.index()];
        balance.done(rail, 1000, *now);
        used[rail.index()] += 1;
    }
    used
}

#[test]
fn a_rail_that_has_shown_nothing_is_used_though_others_are_faster_than_most() {
    let spread = Spread { balanced_from: 9, ..Spread::ROUND_ROBIN };
    let mut balance = Balance::new(spread, 3, 1 << 20, 0);
    let mut now = 1;
    assert_eq!(one_by_one(&mut balance, &mut now, [4, 1, 5], 3), [1, 1, 1]);
    assert_eq!(one_by_one(&mut balance, &mut now, [4, 1, 5], 10), [0, 0, 10]);
    // What was slow may be fast now.
    now += FORGIVEN;
    assert_eq!(one_by_one(&mut balance, &mut now, [4, 50, 5], 3), [1, 1, 1]);
    assert_eq!(one_by_one(&mut balance, &mut now, [4, 50, 5], 10)[0], 0);
}

#[test]
fn what_is_ahead_is_what_was_given_and_is_neither_done_nor_taken_back() {
    let mut balance = shown();
    let rail = RailId(1);
    balance.give(rail, 500, 5000);
    balance.give(rail, 700, 5100);
    assert_eq!((balance.loads[1].ahead, balance.loads[1].longest), (1200, 700));
    balance.take_back(rail, 700);
    balance.done(rail, 500, 5500);
    let load = &balance.loads[1];
    assert_eq!((load.ahead, load.done, load.busy, load.moved), (0, 3500, 3500, 5500));
    assert_eq!(load.shown(), Some(1.0));
    assert_eq!(balance.loads[0].ahead_now(0, 3.0), 0.0);
    balance.give(rail, 900, 6000);
    assert_eq!(balance.loads[1].ahead_now(6300, 1.0), 600.0);
    assert_eq!(balance.loads[1].ahead_now(9000, 1.0), 0.0);
}

#[test]
fn segments_of_an_operation_add_up_and_keep_to_their_bounds() {
    let spread = Spread { balanced_from: 9, striped_from: 10_000, segment: 1 << 16 };
    let balance = Balance::new(spread, 4, 1 << 20, 0);
    for (len, at) in [(9_999, 3), (10_000, 0), (10_000, 77), (1 << 20, 4096), (3_000_001, 513)] {
        let (mut left, mut place, mut count) = (len, at, 0);
        while left > 0 {
            let next = balance.next_len(len, left, place);
            let is_cut = len >= 10_000;
            assert!(next >= 1 && next <= left && next <= if is_cut { 1 << 16 } else { 1 << 20 });
            let ends_even = next <= 2 * ALIGN || (place as usize + next) % ALIGN == 0;
            assert!(!is_cut || next == left || ends_even, "{next} bytes at {place}");
            left -= next;
            place += next as u64;
            count += 1;
        }
        assert_eq!(balance.segments(len, len, at), count, "{len} bytes");
        assert_eq!(count == 1, len < 10_000);
    }
}

/// Segments of 1000 bytes, so that a rail may have 3000 to 16 000 ahead.
fn short(rails: usize, first: usize) -> Balance {
    let spread = Spread { balanced_from: 9, striped_from: 10_000, segment: 1000 };
    Balance::new(spread, rails, 1 << 20, first)
}

fn shows(balance: &mut Balance, rail: u8, took: u64) {
    balance.give(RailId(rail), 3000, 0);
    balance.done(RailId(rail), 3000, took);
}

#[test]
fn there_is_a_choice_with_two_rails() {
    assert!(!short(1, 0).is_on());
    assert!(short(2, 0).is_on() && short(2, 0).balanced_from == 9);
    let longer = Spread { balanced_from: 99, ..Spread::ROUND_ROBIN };
    assert_eq!(Balance::new(longer, 2, 1 << 20, 0).balanced_from, 99);
    let values = Spread { balanced_from: 1, ..Spread::ROUND_ROBIN };
    assert_eq!(Balance::new(values, 2, 1 << 20, 0).balanced_from, 9, "values go in turn");
}

#[test]
fn lanes_begin_with_different_rails_and_equals_take_turns() {
    for first in 0..5 {
        let mut balance = short(3, first);
        for step in 0..7 {
            let picked = balance.pick(0, &[0; 3], 100, 100, 0b111);
            assert_eq!(picked, Some(RailId(((first + step) % 3) as u8)));
        }
    }
    let mut balance = short(3, 1);
    let turns: Vec<u8> = (0..6).map(|_| balance.next_in_turn(0, 0b111).0).collect();
    assert_eq!(turns, [1, 2, 0, 1, 2, 0]);
}

#[test]
fn an_operation_is_cut_into_two_parts_a_rail() {
    const MIB: usize = 1 << 20;
    let spread = Spread { balanced_from: 9, striped_from: 10_000, segment: 1 << 16 };
    let balance = Balance::new(spread, 4, MIB, 0);
    assert_eq!(balance.next_len(200_000, 200_000, 0), 24_576, "25 000, to a border");
    assert_eq!(balance.next_len(200_000, 100_000, 4096), 12_288, "12 500");
    assert_eq!(balance.next_len(9_999, 9_999, 0), 9_999, "too short");
    assert_eq!(balance.next_len(200_000, 65_536, 100), 8192, "two pages need not end at a border");
    let balance = Balance::new(Spread { segment: MIB, ..spread }, 2, MIB, 0);
    assert_eq!(
        balance.next_len(MIB, 131_072, 77),
        131_072,
        "what is left is the shortest there is"
    );
}

#[test]
fn the_first_segment_tells_nothing_where_the_processor_moves_bytes() {
    for (bulk, shown) in [(0, Some(1.0)), (2, None)] {
        let mut balance = short(2, 0).with_bulk([bulk, 0].into_iter());
        shows(&mut balance, 0, 3000);
        let load = &balance.loads[0];
        assert_eq!((load.shown(), load.ahead, load.moved), (shown, 0, 3000));
        shows(&mut balance, 0, 6000);
        assert!(balance.loads[0].shown().is_some());
    }
}

#[test]
fn a_rate_is_that_of_the_last_few_segments() {
    let spread = Spread { balanced_from: 9, striped_from: 9, segment: 1 << 16 };
    let mut balance = Balance::new(spread, 2, 1 << 20, 0);
    let (rail, len) = (RailId(0), 1 << 16);
    assert_eq!((balance.loads[0].shown(), balance.shown(rail)), (None, 0));
    assert_eq!(balance.rates().mean, 1.0, "as good as any other");
    for number in 1..=5_u64 {
        balance.give(rail, len, number * 1000);
        balance.done(rail, len, number * 1000 + 500);
        let counted = if number == 5 { 5 * 32_768 } else { number << 16 };
        assert_eq!(balance.loads[0].done, counted, "{number}");
    }
    assert_eq!(balance.rates().mean, balance.loads[0].shown().unwrap());
    balance.give(RailId(1), len, 0);
    balance.done(RailId(1), len, 1 << 15);
    let shown = balance.loads[0].shown().unwrap();
    assert_eq!(balance.rates().mean, (shown + 2.0) / 2.0);
    assert_eq!(balance.shown(RailId(1)), 2_000_000_000);
    balance.give(rail, len, 10_000);
    balance.reopened(rail, 20_000);
    let load = &balance.loads[0];
    assert_eq!((load.shown(), load.moved, load.ahead), (None, 20_000, 1 << 16));
}

#[test]
fn a_rate_is_no_better_than_what_is_seen_and_is_forgiven() {
    let [best, worse] = [5.0, 0.4].map(|best| Rates { mean: 0.3, best });
    let mut load = Load::default();
    assert_eq!(load.rate(1000, best, 11, 10), 5.0, "with a long one too");
    load.give(1000, 0);
    load.done(1000, 1000, 1 << 20);
    assert_eq!(load.rate(1000, best, 10, 10), 1.0);
    load.give(1000, 2000);
    assert_eq!(load.rate(2000, best, 10, 10), 1.0);
    assert_eq!(load.rate(3000, best, 10, 10), 1.0, "twice as long is usual");
    assert_eq!(load.rate(6000, best, 10, 10), 0.5);
    load.done(1000, 6000, 1 << 20);
    assert_eq!(load.rate(6000 + FORGIVEN - 1, best, 10, 10), 0.4);
    assert_eq!(load.rate(6000 + FORGIVEN, best, 10, 10), 5.0);
    assert_eq!(load.rate(6000 + FORGIVEN, best, 11, 10), 0.4, "not with a long one");
    assert_eq!(load.rate(6000 + FORGIVEN, worse, 10, 10), 0.4);
}

#[test]
fn a_segment_waits_for_the_better_rail_as_long_as_all_that_waits_is_done_by_then() {
    for (left, picked) in [(1000, None), (1999, None), (2000, Some(RailId(1)))] {
        let mut balance = short(2, 0);
        shows(&mut balance, 0, 1000);
        shows(&mut balance, 1, 3000);
        balance.give(RailId(0), 1000, 4000);
        assert_eq!(balance.pick(4000, &[16_000, 0], 1000, left, 0b11), picked, "{left}");
        // With the others ahead of the slow rail it would be done even later.
        balance.give(RailId(1), 500, 4000);
        assert_eq!(balance.pick(4000, &[16_000, 0], 1000, left, 0b11), None, "{left}");
        assert_eq!(balance.pick(4000, &[16_000, 0], 1000, left, 0b10), Some(RailId(1)));
    }
}

#[test]
fn a_peer_has_no_more_ahead_of_a_rail_than_its_bound() {
    let mut balance = short(2, 0);
    shows(&mut balance, 0, 1000);
    for (ahead, takes) in [(0, true), (15_000, true), (15_001, false), (16_000, false)] {
        let picked = balance.pick(4000, &[ahead, 0], 1000, 1000, 0b01);
        assert_eq!(picked.is_some(), takes, "{ahead}");
    }
    // A slow one: 3 segments.
    let mut balance = short(2, 0);
    shows(&mut balance, 0, 3_000_000);
    for (ahead, takes) in [(2000, true), (2001, false)] {
        let picked = balance.pick(4000, &[ahead, 0], 1000, 1000, 0b01);
        assert_eq!(picked.is_some(), takes, "{ahead}");
    }
}

#[test]
fn an_unknown_rail_gets_one_segment_beside_known_ones_that_may_be_used() {
    let mut balance = short(3, 0);
    for rail in [1, 2] {
        balance.give(RailId(rail), 100, 0);
    }
    assert!(balance.pick(0, &[0; 3], 100, 100, 0b110).is_some(), "none has shown anything");
    shows(&mut balance, 0, 1000);
    assert!(balance.pick(4000, &[0; 3], 100, 100, 0b110).is_some(), "none of these");
    assert_eq!(balance.pick(4000, &[16_000, 0, 0], 100, 1 << 20, 0b111), None);
    assert_eq!(balance.pick(4000, &[0; 3], 100, 1 << 20, 0b111), Some(RailId(0)));
    let mut balance = short(3, 0);
    shows(&mut balance, 1, 1000);
    balance.give(RailId(2), 100, 0);
    assert_eq!(balance.pick(4000, &[0, 16_000, 0], 100, 1 << 20, 0b110), None);
}

/// It was slow long ago, and would be as fast as the mean by now; the fast one has all for this
/// peer that it may have.
#[test]
fn a_forgiven_rail_is_tried_with_a_fourth_of_a_segment() {
    for (len, picked) in [(250, Some(RailId(1))), (251, None)] {
        let mut balance = short(2, 0);
        shows(&mut balance, 0, 1000);
        shows(&mut balance, 1, 3_000_000);
        let now = 3_000_000 + FORGIVEN;
        assert_eq!(balance.pick(now, &[16_000, 0], len, 600, 0b11), picked, "{len}");
    }
}
