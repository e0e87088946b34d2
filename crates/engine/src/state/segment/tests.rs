//! Tests of what a segment says about itself.

use super::*;
use crate::port::{Desc, Local};
use crate::request::ResultPlace;
use crate::state::segment::work::MessageSlot;

const ADDR: usize = 4096;
const TAG: Tag = Tag(1);

fn of(work: Work) -> Segment {
    let mut segment = Segment::FREE;
    segment.set_work(work);
    segment
}

/// Every way of moving these bytes without a mechanism.
fn rma(local: Local) -> [Work; 4] {
    let transfer = Transfer { local, ..no_bytes(Direction::Write, 8) };
    let bulk = true;
    [
        Work::Transfer(transfer),
        Work::Counted { tag: TAG, bulk, transfer },
        Work::Stripe { bulk, transfer },
        Work::Reissued { bulk, transfer },
    ]
}

fn others() -> [Work; 5] {
    let (slot, len) = (MessageSlot::of(3), 8);
    [
        Work::Pooled { place: 1, len },
        Work::Message { slot, len },
        Work::CountedSignal { slot, len, tag: TAG },
        Work::fragment(Some(3), Direction::Write, len),
        Work::peer_request(Direction::Read, len),
    ]
}

#[test]
fn memory_is_that_of_bytes_which_the_fabric_moves_and_of_words_that_come_back() {
    for work in rma(Local::Memory { addr: ADDR, desc: Desc(0) }) {
        assert_eq!(of(work).memory(), Some((ADDR, 8)), "{work:?}");
    }
    for work in rma(Local::Value(7)).into_iter().chain(others()) {
        assert_eq!(of(work).memory(), None, "{work:?}");
    }
    for (flag, len) in [(None, 8), (Some(5), 16)] {
        let result = ResultPlace { addr: 64, flag };
        let fetch = Work::Fetch { slot: MessageSlot::of(3), len: 8, place: 3, result };
        assert_eq!(of(fetch).memory(), Some((64, len)));
    }
}

#[test]
fn all_are_about_as_many_bytes_as_they_were_given() {
    for work in rma(Local::Value(7)).into_iter().chain(others()) {
        assert_eq!(of(work).len(), 8, "{work:?}");
    }
    let [_, message, _, fragment, _] = others();
    for joined in [message, fragment] {
        let mut segment = of(joined);
        segment.set_len(5);
        assert_eq!(segment.len(), 5, "{joined:?}");
    }
}

#[test]
fn a_message_is_taken_once() {
    for (work, has_one) in others().into_iter().zip([false, true, true, true, false]) {
        let mut segment = of(work);
        assert_eq!(segment.message(), has_one.then_some(3), "{work:?}");
        assert_eq!(segment.take_message(), has_one.then_some(3), "{work:?}");
        assert_eq!((segment.message(), segment.take_message()), (None, None), "{work:?}");
    }
}

#[test]
fn bytes_that_are_counted_are_not_plain() {
    let transfer = no_bytes(Direction::Write, 8);
    let plain = || {
        let mut segment = Segment { op: 4, batch: Batch(5), ..Segment::FREE };
        segment.make_plain(Pe(1), Direction::Write, WriteClass::EvenPut, Batch(9));
        segment.carry(transfer);
        segment
    };
    assert!(Plain::of(&plain()).is_some());
    let (mut one, mut other) = (plain(), plain());
    one.carry_counted(transfer, TAG, WriteClass::Word);
    other.set_counted(TAG, WriteClass::Word);
    for segment in [one, other] {
        assert_eq!(*segment.work(), Work::Counted { tag: TAG, bulk: false, transfer });
        assert_eq!((segment.batch(), segment.op()), (Batch(9), NIL));
        assert_eq!((segment.class, Plain::of(&segment)), (WriteClass::Word, None));
    }
}

#[test]
fn only_what_no_operation_counts_and_nobody_waits_for_is_plain() {
    for (work, is_plain) in rma(Local::Value(7)).into_iter().zip([true, false, false, false]) {
        let mut segment = Segment { stage: Stage::Posted, plain: 9, ..Segment::FREE };
        segment.set_work(work);
        assert_eq!(Plain::of(&segment).is_some(), is_plain, "{work:?}");
        assert_eq!((segment.batch(), segment.op()), (Batch(9), NIL), "{work:?}");
        segment.count_for(NIL);
        assert_eq!(Plain::of(&segment).is_some(), is_plain, "{work:?}");
        segment.count_for(4);
        assert_eq!((segment.batch(), segment.op()), (Batch(9), 4), "{work:?}");
        assert_eq!(Plain::of(&segment), None, "{work:?}");
        segment.set_work(Work::peer_request(Direction::Read, 8));
        segment.uncount();
        assert_eq!((segment.batch(), segment.op()), (Batch(9), NIL), "{work:?}");
        assert_eq!(Plain::of(&segment), None, "{work:?}");
    }
}

#[test]
fn bytes_are_new_in_doubt_once() {
    let works = rma(Local::Value(7)).into_iter().chain(others().into_iter().skip(3));
    for (work, is_new) in works.zip([true, false, true, false, false, false]) {
        let mut segment = of(work);
        assert_eq!(segment.lose(Waits::FABRIC), is_new, "{work:?}");
        assert!(segment.is_out() && !segment.lose(Waits::NONE) && !segment.is_out(), "{work:?}");
        assert!(!is_new || matches!(segment.work(), Work::Reissued { .. }), "{work:?}");
    }
}

#[test]
fn a_read_that_was_in_doubt_holds_up_no_message() {
    let [transfer, .., reissued] = rma(Local::Value(7));
    for (work, direction, holds) in [
        (reissued, Direction::Write, true),
        (reissued, Direction::Read, false),
        (transfer, Direction::Write, false),
        (transfer, Direction::Read, false),
    ] {
        let segment = Segment { direction, ..of(work) };
        assert_eq!(segment.is_reissued_write(), holds, "{work:?} {direction:?}");
    }
}
