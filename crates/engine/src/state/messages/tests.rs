//! Tests of the channel between two proxy lanes.

use super::reliable_channel::*;
use super::table::*;
use crate::ids::{Pe, RailId};
use crate::port::Tail;
use crate::state::batch::{Batch, Batches};
use crate::state::segment::{NIL, Segment, Stage, WriteClass};
use crate::wire::window::{Seq, WINDOW};

fn send(table: &mut MessageTable, channel: &mut ReliableChannel, rail: u8) -> u32 {
    let index = table.take(9).unwrap();
    let seq = channel.take_number();
    table.sent(channel, index, seq, RailId(rail));
    index
}

fn ack(table: &mut MessageTable, channel: &mut ReliableChannel, before: Seq) -> u32 {
    let mut acked = 0;
    while let Some((index, _)) = table.pop_acked(channel, before) {
        table.give(index);
        acked += 1;
    }
    acked
}

#[test]
fn a_peer_has_at_most_a_window_and_half_of_the_slots_without_an_acknowledgement() {
    let (mut table, mut channel) = (MessageTable::new(MOST_MESSAGES), ReliableChannel::new(Pe(1)));
    for sent in 0..WINDOW {
        assert_eq!((channel.room(), channel.unacknowledged()), (WINDOW - sent, sent));
        assert!(channel.has_room() && channel.has_room_for_new(&table), "{sent}");
        send(&mut table, &mut channel, 0);
    }
    assert!(!channel.has_room() && !channel.has_room_for_new(&table));
    assert_eq!((channel.room(), channel.counts()), (0, (WINDOW, 0)));
    assert!(channel.is_within_quota(&table), "there are slots");
    let fourth = Seq(FIRST.0.wrapping_add(3));
    assert_eq!(ack(&mut table, &mut channel, fourth), 3);
    assert_eq!(channel.room(), 3);

    let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
    send(&mut table, &mut channel, 0);
    assert!(channel.has_room_for_new(&table) && channel.is_within_quota(&table));
    channel.unsent = 1;
    assert!(channel.is_within_quota(&table), "two, and three are left");
    channel.unsent = 0;
    send(&mut table, &mut channel, 0);
    assert!(
        !channel.has_room_for_new(&table) && !channel.is_within_quota(&table),
        "as many as are left"
    );
    assert!(channel.has_room(), "those that have a slot");
}

#[test]
fn who_waits_asks_once_and_again_when_told_to() {
    let (mut table, mut channel) = (MessageTable::new(MOST_MESSAGES), ReliableChannel::new(Pe(1)));
    channel.want_ack();
    channel.ask_again();
    assert!(!channel.request_due && !channel.enters_control(), "nothing was sent");
    send(&mut table, &mut channel, 0);
    channel.want_ack();
    assert!(channel.request_due && channel.requested() == channel.next);
    assert!(channel.enters_control() && !channel.enters_control(), "it is there already");
    channel.request_due = false;
    channel.want_ack();
    assert!(!channel.request_due, "it was asked");
    channel.ask_again();
    assert!(channel.request_due);
    channel.request_due = false;
    for number in 1..REQUEST_EVERY {
        send(&mut table, &mut channel, 0);
        assert!(!channel.request_due, "{number}");
    }
    send(&mut table, &mut channel, 0);
    assert!(channel.request_due && channel.requested() == channel.next, "unasked");
}

#[test]
fn half_a_window_is_acknowledged_unasked_and_what_is_asked_for_as_soon_as_it_is_here() {
    let mut channel = ReliableChannel::new(Pe(1));
    let mut seq = FIRST;
    let arrive = |channel: &mut ReliableChannel, seq: &mut Seq| {
        channel.received.arrive(*seq);
        *seq = seq.next();
        channel.check_wanted();
    };
    for _ in 1..WINDOW / 2 {
        arrive(&mut channel, &mut seq);
        assert!(!channel.ack_due);
    }
    arrive(&mut channel, &mut seq);
    assert!(channel.ack_due);
    channel.carried(channel.ack());
    assert!(!channel.ack_due);
    channel.asked(Seq(seq.0.wrapping_add(2)), false);
    assert!(!channel.ack_due, "two of them are not here");
    channel.asked(Seq(seq.0.wrapping_add(3)), false);
    channel.asked(Seq(seq.0.wrapping_add(1)), false);
    for _ in 0..2 {
        arrive(&mut channel, &mut seq);
        assert!(!channel.ack_due, "the furthest question counts");
    }
    arrive(&mut channel, &mut seq);
    assert!(channel.ack_due);
    assert_eq!(channel.counts(), (0, WINDOW / 2 + 3));
}

#[test]
fn nothing_from_the_first_refused_or_waiting_request_on_is_acknowledged() {
    let mut channel = ReliableChannel::new(Pe(1));
    let seq = |number: u32| Seq(FIRST.0.wrapping_add(number));
    for number in 0..8 {
        channel.received.arrive(seq(number));
    }
    assert_eq!(channel.ack(), seq(8));
    channel.waits_for_data(Some(seq(5)));
    assert_eq!(channel.ack(), seq(5));
    channel.refuse(seq(6));
    assert_eq!(channel.ack(), seq(5), "what waits comes first");
    channel.waits_for_data(None);
    assert_eq!(channel.ack(), seq(6), "what is refused stays");
    channel.waits_for_data(Some(seq(7)));
    assert_eq!(channel.ack(), seq(6));
    channel.refuse(seq(2));
    channel.refuse(seq(4));
    assert_eq!(channel.ack(), seq(2));
    channel.waits_for_data(Some(seq(1)));
    assert_eq!(channel.ack(), seq(1));
}

#[test]
fn a_wr_id_names_one_message_and_none_is_that_of_control_messages() {
    let seqs = [0, 1, 2, SEQ_BITS - 1, SEQ_BITS, SEQ_BITS + 1, 1 << 31, u32::MAX];
    for index in [0, 1, MOST_MESSAGES - 1] {
        for seq in seqs {
            let wr_id = MessageTable::wr_id(index, Seq(seq));
            assert!(wr_id.0 < 1 << 31, "{index} {seq:#x}");
            assert_eq!(wr_id.0 % MOST_MESSAGES, index);
            assert_eq!(wr_id.0 / MOST_MESSAGES, seq & SEQ_BITS);
        }
    }
    let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
    let seq = channel.next;
    let index = send(&mut table, &mut channel, 0);
    assert_eq!(table.named_by(MessageTable::wr_id(index, seq)), Some((index, 9)));
    assert_eq!(table.named_by(MessageTable::wr_id(index, seq.next())), None);
}

#[test]
fn what_has_not_left_is_the_newest_message_no_longer() {
    for sent in 0..3 {
        let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
        (0..sent).for_each(|_| assert!(send(&mut table, &mut channel, 0) < 4));
        let (next, before) = (channel.next, channel.unacked().collect::<Vec<_>>());
        let (slot, _) = table.next_slot().unwrap().take(&mut channel, RailId(1), 8, Batch(2));
        channel.take_number();
        assert_eq!((channel.unacked().last(), table.left), (Some(slot), 3 - sent));
        assert_eq!(table.take_back(&mut channel), slot);
        table.give_segment(slot, 7);
        assert_eq!((channel.next, channel.unsent, channel.ack_due), (next, 1, true));
        assert_eq!(channel.unacked().collect::<Vec<_>>(), before);
        let seq = channel.take_number();
        table.sent(&mut channel, slot, seq, RailId(0));
        let all = channel.next;
        assert_eq!(ack(&mut table, &mut channel, all), sent + 1);
    }
}

#[test]
fn a_message_that_stands_for_itself_ends_by_its_acknowledgement() {
    let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
    let (first, _) = table.next_slot().unwrap().take(&mut channel, RailId(1), 4, Batch(2));
    channel.take_number();
    send(&mut table, &mut channel, 0);
    let (last, _) = table.next_slot().unwrap().take(&mut channel, RailId(0), 8, Batch::NONE);
    channel.take_number();
    assert_eq!((table.segments(), table.left, table.has_without()), (1, 1, true));
    let would_be = table.would_be(first).unwrap();
    let Segment { pe, rail, stage, class, .. } = would_be;
    assert_eq!((pe, rail, stage), (Pe(1), RailId(1), Stage::Sent));
    assert_eq!((class, would_be.len(), would_be.batch()), (WriteClass::Word, 4, Batch(2)));
    let whom: Vec<_> = table.all_without().map(|segment| segment.message()).collect();
    assert_eq!(whom, [Some(first), Some(last)]);
    let (all, mut batches) = (channel.next, Batches::new());
    (0..2).for_each(|_| batches.begin(Batch(2)));
    let mut end = |table: &mut MessageTable, channel: &mut ReliableChannel, ack| {
        table.end_acked(channel, ack, &mut batches)
    };
    assert_eq!(end(&mut table, &mut channel, FIRST), 0, "it is not acknowledged");
    assert_eq!(end(&mut table, &mut channel, all), 1, "one with a segment comes next");
    let (slot, segment) = table.pop_acked(&mut channel, all).unwrap();
    assert_eq!(segment, 9);
    table.give(slot);
    assert_eq!(end(&mut table, &mut channel, all), 1);
    assert_eq!(end(&mut table, &mut channel, FIRST), 0, "that is over");
    assert!(!batches.is_done(Batch(2)), "one was of it, and one of none");
    assert_eq!((table.segments(), table.left, table.has_without()), (0, 4, false));
    assert_eq!((table.would_be(first).is_none(), channel.unacknowledged()), (true, 0));
}

#[test]
fn a_message_stands_for_itself_from_when_its_segment_is_gone_until_it_has_another() {
    let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
    let index = send(&mut table, &mut channel, 1);
    let left = Segment::sent((Pe(1), RailId(1)), index, 400, Batch(2));
    table.take_segment(index, &left);
    assert_eq!((table.segments(), table.has_without()), (0, true));
    let would_be = table.would_be(index).unwrap();
    assert_eq!((would_be.len(), would_be.batch()), (400, Batch(2)));
    table.give_segment(index, 5);
    assert_eq!((table.segments(), table.has_without()), (1, false));
    assert!(table.would_be(index).is_none());
    assert_eq!(table.named_by(MessageTable::wr_id(index, FIRST)), Some((index, 5)));
}

#[test]
fn slots_count_for_the_segments_that_they_stand_for() {
    let mut table = MessageTable::new(4);
    let index = table.take(1).unwrap();
    let beside = table.take_beside(2).unwrap();
    assert_eq!((table.segments(), table.left), (1, 2));
    table.forget_segment(index);
    assert_eq!(table.segments(), 0);
    assert_eq!(table.named_by(MessageTable::wr_id(index, FIRST)), Some((index, NIL)));
    table.give_beside(beside);
    table.give_beside(index);
    assert_eq!((table.segments(), table.left), (0, 4));
    let all: Vec<u32> = (0..4).map(|_| table.take(1).unwrap()).collect();
    assert!(!table.has_room() && table.next_slot().is_none() && table.take(1).is_none());
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
    let (mut table, mut channel) = (MessageTable::new(8), ReliableChannel::new(Pe(1)));
    let all: Vec<u32> = (0..4).map(|at| send(&mut table, &mut channel, at % 2)).collect();
    assert_eq!(table.lose(&channel, |rail| rail == RailId(1)), 2);
    assert_eq!(table.lose(&channel, |rail| rail == RailId(1)), 0, "they are lost already");
    let first = |table: &mut MessageTable, channel: &ReliableChannel| {
        table.first_lost(channel).map(|(index, ..)| index)
    };
    assert_eq!(first(&mut table, &channel), Some(all[1]));
    table.found(all[1], RailId(0));
    assert_eq!(first(&mut table, &channel), Some(all[3]));
    table.found(all[3], RailId(0));
    assert_eq!(first(&mut table, &channel), None);
    assert_eq!(table.lose(&channel, |_| true), 4);
}

#[test]
fn puts_count_as_sent_until_they_are_acknowledged_or_pulled() {
    let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
    assert!(!channel.has_sent_puts());
    channel.last_put = channel.next;
    send(&mut table, &mut channel, 0);
    send(&mut table, &mut channel, 0);
    assert!(channel.has_sent_puts());
    assert_eq!(ack(&mut table, &mut channel, FIRST), 0);
    assert!(channel.has_sent_puts());
    assert_eq!(ack(&mut table, &mut channel, FIRST.next()), 1);
    assert!(!channel.has_sent_puts(), "the other one is none");
    channel.pulls = 1;
    assert!(channel.has_sent_puts());
}

#[test]
fn a_peer_that_asks_gets_what_is_new_before_a_signal_that_waits() {
    let seq = |number: u32| Seq(FIRST.0.wrapping_add(number));
    let mut channel = ReliableChannel::new(Pe(1));
    channel.received.arrive(seq(0));
    channel.asked(seq(3), true);
    assert!(
        !channel.ack_due && !channel.has_order(),
        "nothing waits here, and the rest is on its way"
    );
    for number in 1..4 {
        channel.received.arrive(seq(number));
    }
    channel.waits_for_data(Some(seq(2)));
    channel.asked(seq(4), false);
    assert!(channel.ack_due && channel.ack() == seq(2));
    channel.carried(channel.ack());
    channel.asked(seq(4), false);
    assert!(!channel.ack_due, "there is nothing new");
    channel.asked(seq(4), true);
    assert!(channel.ack_due, "it would take for lost what waits here");
}

#[test]
fn what_is_missing_is_the_first_that_the_peer_has_not_said_to_be_there() {
    let seq = |number: u32| Seq(FIRST.0.wrapping_add(number));
    let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
    assert_eq!(table.first_missing(&channel), None);
    for rail in [2, 0, 1] {
        send(&mut table, &mut channel, rail);
    }
    let missing = |table: &MessageTable, channel: &ReliableChannel| {
        table.first_missing(channel).map(|rail| rail.0)
    };
    assert_eq!(missing(&table, &channel), Some(2));
    channel.has_arrived_there(seq(2));
    channel.has_arrived_there(seq(1));
    assert_eq!(
        (channel.heard(), missing(&table, &channel)),
        (seq(2), Some(1)),
        "what is late says less"
    );
    channel.has_arrived_there(seq(3));
    assert_eq!(missing(&table, &channel), None, "none is acknowledged, and all are there");
    assert_eq!(ack(&mut table, &mut channel, seq(3)), 3);
    send(&mut table, &mut channel, 1);
    assert_eq!((channel.heard(), missing(&table, &channel)), (seq(3), Some(1)));
    assert_eq!(ack(&mut table, &mut channel, seq(4)), 1);
    assert_eq!(channel.heard(), seq(4), "what is acknowledged is there");
}

#[test]
fn what_is_forgotten_leaves_its_slots_to_others() {
    let (mut table, mut channel) = (MessageTable::new(4), ReliableChannel::new(Pe(1)));
    for _ in 0..3 {
        let index = send(&mut table, &mut channel, 0);
        table.forget_segment(index);
    }
    assert_eq!((table.segments(), table.left), (0, 1));
    table.forget_all(&mut channel);
    assert_eq!((table.segments(), table.left, channel.unacknowledged()), (0, 4, 0));
}
