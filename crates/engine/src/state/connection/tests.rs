//! Tests of a connection's books: what is under way, what waits for it, and when that may go.

use super::*;
use crate::ids::RailId;
use crate::port::{Addressing, Context, PeerAddr};
use crate::rails::paths::Path;
use crate::state::connection::connections::Connections;
use crate::state::segment::Stage;
use crate::state::segment::work::{MessageSlot, Work};
use crate::wire::handle::Handle;

const LIMIT: usize = 64;
const PE: Pe = Pe(1);

fn paths() -> PathTable {
    PathTable::new(&[Path { to: PeerAddr(0), remote: RailId(0) }; 2], 1)
}

fn connection() -> Connection {
    Connection::new(PE, Receiver::default(), paths().get(PE, RailId(0)), LIMIT)
}

fn segments() -> SegmentTable {
    SegmentTable::new(8, |_| Context(0))
}

fn take(segments: &mut SegmentTable) -> u32 {
    let index = segments.take().unwrap().0;
    segments[index].stage = Stage::Ready;
    index
}

fn put(connection: &mut Connection, segments: &mut SegmentTable) -> WriteClass {
    let index = take(segments);
    connection.begin_segment(&mut segments[index]);
    segments[index].class
}

fn hold_back(connection: &mut Connection, segments: &mut SegmentTable) -> u32 {
    let index = take(segments);
    segments[index].class = WriteClass::Word;
    connection.begin_segment(&mut segments[index]);
    connection.hold_back(segments, index);
    index
}

#[test]
fn what_waits_by_itself_shuts_the_fast_path_until_the_last_of_it_has_left() {
    let mut connection = connection();
    (0..3).for_each(|_| connection.block());
    for left in (0..3).rev() {
        assert!(
            connection.has_blocked() && connection.bars_fast_path() && connection.fast_limit == 0
        );
        connection.unblock();
        assert_eq!(connection.blocked(), left);
    }
    assert!(
        !connection.has_blocked() && !connection.bars_fast_path() && connection.fast_limit == LIMIT
    );
}

#[test]
fn held_writes_are_outstanding_and_reads_are_not_among_them() {
    let (mut connection, mut segments) = (connection(), segments());
    put(&mut connection, &mut segments);
    for _ in 0..2 {
        connection.begin(Direction::Read);
    }
    for _ in 0..3 {
        let index = take(&mut segments);
        connection.held.push(&mut segments, index);
    }
    assert_eq!(connection.outstanding(Direction::Write), 4);
    assert_eq!((connection.outstanding(Direction::Read), connection.all_under_way()), (2, 6));
}

/// The end of a segment is looked into when something may go then, and only then.
#[test]
fn a_fence_waits_for_the_last_write_before_it() {
    let (mut connection, mut segments) = (connection(), segments());
    let class = put(&mut connection, &mut segments);
    assert!(!connection.end(Direction::Write, class), "nothing waits");
    for _ in 0..2 {
        put(&mut connection, &mut segments);
    }
    connection.fence();
    assert!(connection.is_closed() && !connection.end(Direction::Write, class), "one is under way");
    assert!(connection.end(Direction::Write, class));
    assert_eq!(connection.passed(&segments), Some((connection.epoch(), true)));
    connection.fence();
    assert!(!connection.is_closed() && !connection.is_waited_for(), "a fence behind nothing");
}

#[test]
fn a_fence_behind_requests_is_looked_into_for_what_is_held() {
    let (mut connection, mut segments) = (connection(), segments());
    connection.begin_word();
    connection.fence();
    let index = take(&mut segments);
    segments[index].set_work(Work::Message { slot: MessageSlot::of(0), len: 8 });
    segments[index].hold(connection.epoch());
    connection.held.push(&mut segments, index);
    assert!(!connection.is_waited_for(), "the request is here yet");
    connection.channel().take_number();
    assert!(connection.is_waited_for());
    assert_eq!(connection.passed(&segments), Some((connection.epoch(), false)));
    connection.held.pop(&segments);
    assert!(!connection.is_waited_for(), "nothing is held");
}

#[test]
fn a_signal_waits_for_the_puts_before_it_and_for_none_after() {
    let (mut connection, mut segments) = (connection(), segments());
    let old = put(&mut connection, &mut segments);
    let first: Vec<u32> = (0..2).map(|_| hold_back(&mut connection, &mut segments)).collect();
    let new = put(&mut connection, &mut segments);
    assert_ne!(old, new);
    let later: Vec<u32> = (0..2).map(|_| hold_back(&mut connection, &mut segments)).collect();
    assert!(connection.let_go(&mut segments).is_none(), "the first put is under way");
    assert!(!connection.is_waited_for() && connection.end(Direction::Write, old));
    for index in first {
        assert_eq!(connection.let_go(&mut segments), Some(index));
    }
    assert!(connection.let_go(&mut segments).is_none(), "the second put is");
    assert!(connection.end(Direction::Write, new));
    for index in later {
        assert_eq!(connection.let_go(&mut segments), Some(index));
    }
    assert!(connection.let_go(&mut segments).is_none() && !connection.is_waited_for());
    assert_eq!(connection.puts_under_way(), 0);
}

#[test]
fn a_connection_is_open_while_nothing_waits_in_it() {
    let mut connections = Connections::new(Pe(0), 2, 1, LIMIT);
    assert!(!connections.has_no_waiter(PE), "nothing was ever sent");
    let mut segments = segments();
    let connection = connections.open(PE, &mut paths(), Receiver::default).unwrap();
    let class = put(connection, &mut segments);
    assert!(connections.has_no_waiter(PE));
    let connection = connections.find_mut(PE).unwrap();
    hold_back(connection, &mut segments);
    assert!(!connections.has_no_waiter(PE), "a signal is held back");
    let connection = connections.find_mut(PE).unwrap();
    connection.end(Direction::Write, class);
    assert!(connection.let_go(&mut segments).is_some());
    assert!(connections.has_no_waiter(PE));
    connections.find_mut(PE).unwrap().fence();
    assert!(!connections.has_no_waiter(PE), "a fence");
}

#[test]
fn handles_are_learned_that_have_a_key_for_each_rail_of_the_paths() {
    let paths = PathTable::new(
        &[0, 1, 0, 1].map(|at| Path { to: PeerAddr(at), remote: RailId(at as u8) }),
        2,
    );
    let handle = |keys: usize, staged: bool| {
        let keys = vec![7; keys];
        let (base, len, slot, stamp) = (4096, 64, 1, 2);
        let (addressing, staged) = (Addressing::Virtual, staged.then_some(64));
        Handle { owner: PE, base, len, slot, stamp, addressing, staged, direct: true, keys }
            .encode()
    };
    let mut connection = Connection::new(PE, Receiver::default(), paths.get(PE, RailId(0)), LIMIT);
    for (bytes, is_learned) in [
        (handle(1, false), false),
        (handle(0, true), false),
        (handle(2, false), true),
        (handle(3, false), true),
    ] {
        connection.learn(&HandleView::check(&bytes).unwrap(), &paths);
        let takes = HandleView::keyed(&bytes, connection.handles()).is_some();
        assert_eq!(takes, is_learned);
    }
    assert!(HandleView::keyed(&handle(1, false), connection.handles()).is_none());
}
