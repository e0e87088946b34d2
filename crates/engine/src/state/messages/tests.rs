//! Tests of the link between two proxy lanes.

use super::link::*;
use super::table::*;
use crate::ids::{Pe, RailId};
use crate::port::Tail;
use crate::state::segment::NIL;
use crate::wire::window::{Seq, WINDOW};

fn send(table: &mut MessageTable, link: &mut Link, rail: u8) -> u32 {
    let index = table.take(9).unwrap();
    let seq = link.take_number();
    table.sent(link, index, seq, RailId(rail));
    index
}

fn ack(table: &mut MessageTable, link: &mut Link, before: Seq) -> u32 {
    let mut acked = 0;
    link.ack_received = before;
    while let Some((index, _)) = table.pop_acked(link, before) {
        table.give(index);
        acked += 1;
    }
    acked
}

#[test]
fn a_peer_has_at_most_a_window_and_half_of_the_slots_without_an_acknowledgement() {
    let (mut table, mut link) = (MessageTable::new(MOST_MESSAGES), Link::new(Pe(1)));
    for sent in 0..WINDOW {
        assert_eq!((link.room(), link.unacknowledged()), (WINDOW - sent, sent));
        assert!(link.has_room() && link.has_room_for_new(&table), "{sent}");
        send(&mut table, &mut link, 0);
    }
    assert!(!link.has_room() && !link.has_room_for_new(&table));
    assert_eq!((link.room(), link.counts()), (0, (WINDOW, 0)));
    assert!(link.has_share(&table), "there are slots");
    let fourth = Seq(FIRST.0.wrapping_add(3));
    assert_eq!(ack(&mut table, &mut link, fourth), 3);
    assert_eq!(link.room(), 3);

    let (mut table, mut link) = (MessageTable::new(4), Link::new(Pe(1)));
    send(&mut table, &mut link, 0);
    assert!(link.has_room_for_new(&table) && link.has_share(&table));
    link.unsent = 1;
    assert!(link.has_share(&table), "two, and three are left");
    link.unsent = 0;
    send(&mut table, &mut link, 0);
    assert!(!link.has_room_for_new(&table) && !link.has_share(&table), "as many as are left");
    assert!(link.has_room(), "those that have a slot");
}

#[test]
fn who_waits_asks_once_and_again_when_told_to() {
    let (mut table, mut link) = (MessageTable::new(MOST_MESSAGES), Link::new(Pe(1)));
    link.want_ack();
    link.ask_again();
    assert!(!link.request_due && !link.enters_control(), "nothing was sent");
    send(&mut table, &mut link, 0);
    link.want_ack();
    assert!(link.request_due && link.requested() == link.next);
    assert!(link.enters_control() && !link.enters_control(), "it is there already");
    link.request_due = false;
    link.want_ack();
    assert!(!link.request_due, "it was asked");
    link.ask_again();
    assert!(link.request_due);
    link.request_due = false;
    for number in 1..REQUEST_EVERY {
        send(&mut table, &mut link, 0);
        assert!(!link.request_due, "{number}");
    }
    send(&mut table, &mut link, 0);
    assert!(link.request_due && link.requested() == link.next, "unasked");
}

#[test]
fn half_a_window_is_acknowledged_unasked_and_what_is_asked_for_as_soon_as_it_is_here() {
    let mut link = Link::new(Pe(1));
    let mut seq = FIRST;
    let arrive = |link: &mut Link, seq: &mut Seq| {
        link.received.arrive(*seq);
        *seq = seq.next();
        link.check_wanted();
    };
    for _ in 1..WINDOW / 2 {
        arrive(&mut link, &mut seq);
        assert!(!link.ack_due);
    }
    arrive(&mut link, &mut seq);
    assert!(link.ack_due);
    link.carried(link.ack());
    assert!(!link.ack_due);
    link.asked(Seq(seq.0.wrapping_add(2)), false);
    assert!(!link.ack_due, "two of them are not here");
    link.asked(Seq(seq.0.wrapping_add(3)), false);
    link.asked(Seq(seq.0.wrapping_add(1)), false);
    for _ in 0..2 {
        arrive(&mut link, &mut seq);
        assert!(!link.ack_due, "the furthest question counts");
    }
    arrive(&mut link, &mut seq);
    assert!(link.ack_due);
    assert_eq!(link.counts(), (0, WINDOW / 2 + 3));
}

#[test]
fn nothing_from_the_first_refused_or_waiting_request_on_is_acknowledged() {
    let mut link = Link::new(Pe(1));
    let seq = |number: u32| Seq(FIRST.0.wrapping_add(number));
    for number in 0..8 {
        link.received.arrive(seq(number));
    }
    assert_eq!(link.ack(), seq(8));
    link.waits_for_data(Some(seq(5)));
    assert_eq!(link.ack(), seq(5));
    link.refuse(seq(6));
    assert_eq!(link.ack(), seq(5), "what waits comes first");
    link.waits_for_data(None);
    assert_eq!(link.ack(), seq(6), "what is refused stays");
    link.waits_for_data(Some(seq(7)));
    assert_eq!(link.ack(), seq(6));
    link.refuse(seq(2));
    link.refuse(seq(4));
    assert_eq!(link.ack(), seq(2));
    link.waits_for_data(Some(seq(1)));
    assert_eq!(link.ack(), seq(1));
}

#[test]
fn a_token_names_one_message_and_none_is_that_of_control_messages() {
    let seqs = [0, 1, 2, SEQ_BITS - 1, SEQ_BITS, SEQ_BITS + 1, 1 << 31, u32::MAX];
    for index in [0, 1, MOST_MESSAGES - 1] {
        for seq in seqs {
            let token = MessageTable::token(index, Seq(seq));
            assert!(token.0 < 1 << 31, "{index} {seq:#x}");
            assert_eq!(token.0 % MOST_MESSAGES, index);
            assert_eq!(token.0 / MOST_MESSAGES, seq & SEQ_BITS);
        }
    }
    let (mut table, mut link) = (MessageTable::new(4), Link::new(Pe(1)));
    let seq = link.next;
    let index = send(&mut table, &mut link, 0);
    assert_eq!(table.named_by(MessageTable::token(index, seq)), Some((index, 9)));
    assert_eq!(table.named_by(MessageTable::token(index, seq.next())), None);
}

#[test]
fn slots_count_for_the_segments_that_they_stand_for() {
    let mut table = MessageTable::new(4);
    let index = table.next().unwrap().index;
    assert_eq!(table.take(1), Some(index));
    let beside = table.take_beside(2).unwrap();
    assert_eq!((table.segments(), table.left), (1, 2));
    table.forget_segment(index);
    assert_eq!(table.segments(), 0);
    assert_eq!(table.named_by(MessageTable::token(index, FIRST)), Some((index, NIL)));
    table.give_beside(beside);
    table.give_beside(index);
    assert_eq!((table.segments(), table.left), (0, 4));
    let all: Vec<u32> = (0..4).map(|_| table.take(1).unwrap()).collect();
    assert!(!table.has_room() && table.next().is_none() && table.take(1).is_none());
    table.set_aside(all[2]);
    table.set_aside(all[0]);
    assert!(!table.has_room() && table.segments() == 4, "they stay in use");
    table.restore();
    table.restore();
    assert!(table.has_room() && table.left == 2);
    table.restore();
    assert_eq!(table.left, 2, "no more were set aside");
}

#[test]
fn a_message_holds_memory_until_its_segment_is_over() {
    let mut table = MessageTable::new(2);
    let tail = Tail { addr: 4096, len: 1000 };
    let [plain, beside] = [table.take(1).unwrap(), table.take_beside(2).unwrap()];
    for index in [plain, beside] {
        assert_eq!(table.memory_of(index), None);
        table.set_tail(index, tail);
        assert_eq!((table.memory_of(index), table.parts_mut(index).1), (Some((4096, 1000)), tail));
    }
    table.forget_segment(plain);
    table.forget_fragment(beside);
    for index in [plain, beside] {
        assert_eq!((table.memory_of(index), table.parts_mut(index).1), (None, Tail::NONE));
        table.set_tail(index, tail);
        table.give_beside(index);
    }
    assert_eq!(table.take(3).and_then(|index| table.memory_of(index)), None, "of the one before");
}

#[test]
fn what_is_lost_is_sent_again_in_its_order_and_counted_once() {
    let (mut table, mut link) = (MessageTable::new(8), Link::new(Pe(1)));
    let all: Vec<u32> = (0..4).map(|at| send(&mut table, &mut link, at % 2)).collect();
    assert_eq!(table.lose(&link, |rail| rail == RailId(1)), 2);
    assert_eq!(table.lose(&link, |rail| rail == RailId(1)), 0, "they are lost already");
    let first =
        |table: &mut MessageTable, link: &Link| table.first_lost(link).map(|(index, ..)| index);
    assert_eq!(first(&mut table, &link), Some(all[1]));
    table.found(all[1], RailId(0));
    assert_eq!(first(&mut table, &link), Some(all[3]));
    table.found(all[3], RailId(0));
    assert_eq!(first(&mut table, &link), None);
    assert_eq!(table.lose(&link, |_| true), 4);
}

#[test]
fn puts_count_as_sent_until_they_are_acknowledged_or_pulled() {
    let (mut table, mut link) = (MessageTable::new(4), Link::new(Pe(1)));
    assert!(!link.has_sent_puts());
    link.last_put = link.next;
    send(&mut table, &mut link, 0);
    send(&mut table, &mut link, 0);
    assert!(link.has_sent_puts());
    assert_eq!(ack(&mut table, &mut link, FIRST), 0);
    assert!(link.has_sent_puts());
    assert_eq!(ack(&mut table, &mut link, FIRST.next()), 1);
    assert!(!link.has_sent_puts(), "the other one is none");
    link.pulls = 1;
    assert!(link.has_sent_puts());
}

#[test]
fn a_peer_that_asks_gets_what_is_new_before_a_signal_that_waits() {
    let seq = |number: u32| Seq(FIRST.0.wrapping_add(number));
    let mut link = Link::new(Pe(1));
    link.received.arrive(seq(0));
    link.asked(seq(3), true);
    assert!(!link.ack_due && !link.has_order(), "nothing waits here, and the rest is on its way");
    for number in 1..4 {
        link.received.arrive(seq(number));
    }
    link.waits_for_data(Some(seq(2)));
    link.asked(seq(4), false);
    assert!(link.ack_due && link.ack() == seq(2));
    link.carried(link.ack());
    link.asked(seq(4), false);
    assert!(!link.ack_due, "there is nothing new");
    link.asked(seq(4), true);
    assert!(link.ack_due, "it would take for lost what waits here");
}

#[test]
fn what_is_missing_is_the_first_that_the_peer_has_not_said_to_be_there() {
    let seq = |number: u32| Seq(FIRST.0.wrapping_add(number));
    let (mut table, mut link) = (MessageTable::new(4), Link::new(Pe(1)));
    assert_eq!(table.first_missing(&link), None);
    for rail in [2, 0, 1] {
        send(&mut table, &mut link, rail);
    }
    let missing = |table: &MessageTable, link: &Link| table.first_missing(link).map(|rail| rail.0);
    assert_eq!(missing(&table, &link), Some(2));
    link.has_arrived_there(seq(2));
    link.has_arrived_there(seq(1));
    assert_eq!((link.heard(), missing(&table, &link)), (seq(2), Some(1)), "what is late says less");
    link.has_arrived_there(seq(3));
    assert_eq!(missing(&table, &link), None, "none is acknowledged, and all are there");
    assert_eq!(ack(&mut table, &mut link, seq(3)), 3);
    send(&mut table, &mut link, 1);
    assert_eq!((link.heard(), missing(&table, &link)), (seq(3), Some(1)));
    link.ack_received = seq(4);
    assert_eq!(link.heard(), seq(4), "what is acknowledged is there");
}

#[test]
fn what_is_forgotten_leaves_its_slots_to_others() {
    let (mut table, mut link) = (MessageTable::new(4), Link::new(Pe(1)));
    for _ in 0..3 {
        let index = send(&mut table, &mut link, 0);
        table.forget_segment(index);
    }
    assert_eq!((table.segments(), table.left), (0, 1));
    table.forget_all(&mut link);
    assert_eq!((table.segments(), table.left, link.oldest, link.newest), (0, 4, NIL, NIL));
}
