//! Tests of a stream's books: what is under way, what waits for it, and when that may go.

use super::*;
use crate::ids::RailId;
use crate::port::{Context, PeerAddr};
use crate::rails::paths::Path;
use crate::state::segment::{Kind, Stage};

const LIMIT: usize = 64;
const PE: Pe = Pe(1);

fn paths() -> PathTable {
    PathTable::new(&[Path { to: PeerAddr(0), remote: RailId(0) }; 2], 1)
}

fn stream(orders: bool) -> Stream {
    Stream::new(PE, paths().get(PE, RailId(0)), LIMIT, orders)
}

fn segments() -> SegmentTable {
    SegmentTable::new(8, |_| Context(0))
}

fn take(segments: &mut SegmentTable) -> u32 {
    let index = segments.take().unwrap().0;
    segments[index].stage = Stage::Ready;
    index
}

/// A put sets out; its class.
fn put(stream: &mut Stream, segments: &mut SegmentTable) -> WriteClass {
    let index = take(segments);
    stream.begin_segment(&mut segments[index]);
    segments[index].class
}

/// A signal finds puts under way, and is held back.
fn hold_back(stream: &mut Stream, segments: &mut SegmentTable) -> u32 {
    let index = take(segments);
    segments[index].class = WriteClass::Word;
    stream.begin_segment(&mut segments[index]);
    stream.hold_back(segments, index);
    index
}

#[test]
fn what_waits_by_itself_shuts_the_fast_path_until_the_last_of_it_has_left() {
    let mut stream = stream(true);
    (0..3).for_each(|_| stream.block());
    for left in (0..3).rev() {
        assert!(stream.has_blocked() && stream.is_shut() && stream.fast_limit == 0);
        stream.unblock();
        assert_eq!(stream.blocked(), left);
    }
    assert!(!stream.has_blocked() && !stream.is_shut() && stream.fast_limit == LIMIT);
}

#[test]
fn held_writes_are_outstanding_and_reads_are_not_among_them() {
    let (mut stream, mut segments) = (stream(true), segments());
    put(&mut stream, &mut segments);
    for _ in 0..2 {
        stream.begin(Direction::Read);
    }
    for _ in 0..3 {
        let index = take(&mut segments);
        stream.held.push(&mut segments, index);
    }
    assert_eq!(stream.outstanding(Direction::Write), 4);
    assert_eq!((stream.outstanding(Direction::Read), stream.all_under_way()), (2, 6));
}

/// The end of a segment is looked into when something may go then, and only then.
#[test]
fn a_fence_waits_for_the_last_write_before_it() {
    let (mut stream, mut segments) = (stream(true), segments());
    let class = put(&mut stream, &mut segments);
    assert!(!stream.end(Direction::Write, class), "nothing waits");
    for _ in 0..2 {
        put(&mut stream, &mut segments);
    }
    stream.fence();
    assert!(stream.is_closed() && !stream.end(Direction::Write, class), "one is under way");
    assert!(stream.end(Direction::Write, class));
    assert_eq!(stream.passed(&segments), Some((stream.epoch(), true)));
    stream.fence();
    assert!(!stream.is_closed() && !stream.is_waited_for(), "a fence behind nothing");
}

/// Requests that have left hold up no request; whether they have is known once each of them has a number.
#[test]
fn a_fence_behind_requests_is_looked_into_for_what_is_held() {
    for orders in [true, false] {
        let (mut stream, mut segments) = (stream(orders), segments());
        assert_eq!(stream.orders(), orders);
        stream.begin_word();
        stream.fence();
        let index = take(&mut segments);
        segments[index].kind = Kind::Message;
        segments[index].hold(stream.epoch());
        stream.held.push(&mut segments, index);
        assert!(!stream.is_waited_for(), "the request is here yet");
        stream.link().take_number();
        assert_eq!(stream.is_waited_for(), orders);
        let passed = orders.then_some((stream.epoch(), false));
        assert_eq!(stream.passed(&segments), passed);
        stream.held.pop(&segments);
        assert!(!stream.is_waited_for(), "nothing is held");
    }
}

#[test]
fn a_signal_waits_for_the_puts_before_it_and_for_none_after() {
    let (mut stream, mut segments) = (stream(true), segments());
    let old = put(&mut stream, &mut segments);
    let first: Vec<u32> = (0..2).map(|_| hold_back(&mut stream, &mut segments)).collect();
    let new = put(&mut stream, &mut segments);
    assert_ne!(old, new);
    let later: Vec<u32> = (0..2).map(|_| hold_back(&mut stream, &mut segments)).collect();
    assert!(stream.let_go(&segments).is_none(), "the first put is under way");
    assert!(!stream.is_waited_for() && stream.end(Direction::Write, old));
    for index in first {
        assert_eq!(stream.let_go(&segments), Some(index));
    }
    assert!(stream.let_go(&segments).is_none(), "the second put is");
    assert!(stream.end(Direction::Write, new));
    for index in later {
        assert_eq!(stream.let_go(&segments), Some(index));
    }
    assert!(stream.let_go(&segments).is_none() && !stream.is_waited_for());
    assert_eq!(stream.puts_under_way(), 0);
}

/// The end of what is alike is counted in one go where nothing waits for it.
#[test]
fn a_stream_is_open_while_nothing_waits_in_it() {
    let mut streams = Streams::new(Pe(0), 2, 1, LIMIT);
    assert!(!streams.is_open(PE), "nothing was ever sent");
    let mut segments = segments();
    let stream = streams.open(PE, &mut paths()).unwrap();
    let class = put(stream, &mut segments);
    assert!(streams.is_open(PE));
    let stream = streams.find_mut(PE).unwrap();
    hold_back(stream, &mut segments);
    assert!(!streams.is_open(PE), "a signal is held back");
    let stream = streams.find_mut(PE).unwrap();
    stream.end(Direction::Write, class);
    assert!(stream.let_go(&segments).is_some());
    assert!(streams.is_open(PE));
    streams.find_mut(PE).unwrap().fence();
    assert!(!streams.is_open(PE), "a fence");
}
