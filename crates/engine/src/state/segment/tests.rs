//! Tests of what a segment says about itself.

use super::*;

const ADDR: usize = 4096;

/// A segment of eight bytes of local memory.
fn of(kind: Kind) -> Segment {
    let mut segment = Segment { kind, ..Segment::FREE };
    segment.transfer.local = Local::Memory { addr: ADDR, desc: Desc(0) };
    segment.transfer.len = 8;
    segment
}

/// What an earlier segment has left in the slot of an atomic, or of what others move, is not in
/// use.
#[test]
fn memory_is_that_of_bytes_which_the_fabric_moves_and_of_words_that_come_back() {
    use Kind::*;
    for kind in [Transfer, Counted, Stripe, Reissued] {
        assert_eq!(of(kind).memory(), Some((ADDR, 8)), "{kind:?}");
        let mut inline = of(kind);
        inline.transfer.local = Local::Value(7);
        assert_eq!(inline.memory(), None, "{kind:?}: it has left the memory");
    }
    for kind in [Pooled, Message, CountedSignal, Staged, PeerRequest] {
        assert_eq!(of(kind).memory(), None, "{kind:?}");
    }
    for (flag, len) in [(None, 8), (Some(5), 16)] {
        let mut fetch = of(Transfer);
        fetch.set_fetch(Some(ResultPlace { addr: 64, flag }), 3);
        assert_eq!((fetch.memory(), fetch.fetch_place()), (Some((64, len)), 3));
    }
}

#[test]
fn a_read_that_was_in_doubt_holds_up_no_message() {
    for (kind, direction, holds) in [
        (Kind::Reissued, Direction::Write, true),
        (Kind::Reissued, Direction::Read, false),
        (Kind::Transfer, Direction::Write, false),
        (Kind::Transfer, Direction::Read, false),
    ] {
        let segment = Segment { direction, ..of(kind) };
        assert_eq!(segment.is_reissued_write(), holds, "{kind:?} {direction:?}");
    }
}
