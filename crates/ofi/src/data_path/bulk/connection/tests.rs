//! What a connection does in an iteration, with a provider that answers as the test wants.

use std::cell::RefCell;
use std::ffi::c_int;

use libfabric_sys::{fi_cq_err_entry, fid, fid_cq, fid_ep, fid_fabric};

use super::*;
use crate::objects::domain::tests::some_domain;
use crate::objects::tables;
use crate::provider::Provider;

const DEPTH: u32 = 4;
const AGAIN: isize = -(FI_EAGAIN as isize);
const NOBODYS: usize = 64;

/// What the provider is asked to transfer: the call, the peer, the length, the data, the context.
type Asked = (&'static str, u64, usize, u64, usize);

#[derive(Default)]
struct Script {
    asked: Vec<Asked>,
    /// For whom there is no room, and what others are answered.
    no_room: Vec<u64>,
    answer: isize,
    /// What a poll finds: contexts with flags, or a code.
    found: Vec<(usize, u64)>,
    code: isize,
    failed: usize,
    trywait: c_int,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

fn with<T>(call: impl FnOnce(&mut Script) -> T) -> T {
    SCRIPT.with_borrow_mut(call)
}

fn ask(asked: Asked) -> isize {
    with(|script| {
        script.asked.push(asked);
        if script.no_room.contains(&asked.1) { AGAIN } else { script.answer }
    })
}

unsafe extern "C" fn write(
    _: *mut fid_ep,
    _: *const c_void,
    len: usize,
    _: *mut c_void,
    peer: u64,
    _: u64,
    _: u64,
    context: *mut c_void,
) -> isize {
    ask(("write", peer, len, 0, context as usize))
}

unsafe extern "C" fn writedata(
    _: *mut fid_ep,
    _: *const c_void,
    len: usize,
    _: *mut c_void,
    data: u64,
    peer: u64,
    _: u64,
    _: u64,
    context: *mut c_void,
) -> isize {
    ask(("writedata", peer, len, data, context as usize))
}

unsafe extern "C" fn read(
    _: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _: *mut c_void,
    peer: u64,
    remote: u64,
    _: u64,
    context: *mut c_void,
) -> isize {
    // Where a byte goes that tells nothing else is behind the context.
    assert!(len != 1 || buf as usize == context as usize + 64);
    ask(("read", peer, len, remote, context as usize))
}

unsafe extern "C" fn poll(_: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
    with(|script| {
        if script.found.is_empty() {
            return script.code;
        }
        let found = script.found.drain(..count.min(script.found.len())).enumerate();
        let found = found.map(|(at, (context, flags))| (context, flags, at as u64));
        // SAFETY: there is room for as many.
        unsafe { tables::complete(entries, found) }
    })
}

unsafe extern "C" fn readerr(_: *mut fid_cq, entry: *mut fi_cq_err_entry, _: u64) -> isize {
    with(|script| {
        script.code = AGAIN;
        // SAFETY: room for an entry.
        unsafe { ((*entry).op_context, (*entry).err) = (script.failed as *mut c_void, libc::EIO) };
    });
    1
}

unsafe extern "C" fn trywait(_: *mut fid_fabric, _: *mut *mut fid, _: c_int) -> c_int {
    with(|script| script.trywait)
}

struct Bed {
    connection: Connection,
    ends: Ends,
    contexts: Arc<Contexts>,
    news: Arc<News>,
}

impl Bed {
    fn new(outlives_receives: bool) -> Self {
        SCRIPT.set(Script { code: AGAIN, ..Script::default() });
        let domain = some_domain(Provider::TcpRxm, false, |_| {});
        let (contexts, news) = (Arc::new(Contexts::new(8)), Arc::default());
        let plan = Plan { name: "a test", depth: DEPTH, peers: 4, outlives_receives, near: None };
        let opened = Connection::open(&domain, &plan, &contexts, &news);
        let (connection, ends) = opened.expect("a connection");
        let (endpoint, queue) = (connection.endpoint.as_fid(), connection.endpoint.queue());
        // SAFETY: all open, and of this thread.
        unsafe {
            tables::change(&raw mut (*endpoint.cast::<fid_ep>()).rma, |table| {
                table.write = Some(write);
                table.writedata = Some(writedata);
                table.read = Some(read);
            });
            tables::change(&raw mut (*queue.as_fid().cast::<fid_cq>()).ops, |table| {
                table.read = Some(poll);
                table.readerr = Some(readerr);
            });
            let fabric = domain.fabric().as_ptr();
            tables::change(&raw mut (*fabric).ops, |table| table.trywait = Some(trywait));
        }
        Self { connection, ends, contexts, news }
    }

    /// Hands over a transfer of so many bytes, by the work-request id of that number.
    fn give(&self, what: What, peer: u64, wr_id: u32) {
        let context = self.context(wr_id);
        let (to, wr_id, len) = (PeerAddr(peer), WrId(wr_id), 100 + wr_id as usize);
        let request = Request { what, to, wr_id, context, addr: 4096, len, remote: 7, key: 8 };
        self.ends.requests.try_send(request).expect("room");
    }

    fn context(&self, wr_id: u32) -> usize {
        self.contexts.context(WrId(wr_id)).expect("one of them") as usize
    }

    fn told(&self) -> Vec<String> {
        let wr_id = |context| self.contexts.wr_id(context as *mut c_void);
        let told = |done| match done {
            Done::Completed(Entry { context, .. }) => format!("{:?} done", wr_id(context)),
            Done::Failed(Failure { wr_id, error, .. }) => {
                format!("{wr_id:?} failed: {} {}", error.call, error.code)
            }
            Done::Reached(PeerAddr(peer), made) => format!("{peer} reached: {made}"),
        };
        self.ends.done.try_iter().map(told).collect()
    }
}

fn asked(bed: &Bed) -> Vec<(&'static str, u64, u32)> {
    let wr_id = |context| bed.contexts.wr_id(context as *mut c_void);
    let asked = with(|script| std::mem::take(&mut script.asked));
    let short =
        |(call, peer, _, _, context): Asked| (call, peer, wr_id(context).map_or(99, |id| id.0));
    asked.into_iter().map(short).collect()
}

#[test]
fn a_peer_without_room_waits_and_no_other_does() {
    let mut bed = Bed::new(false);
    with(|script| script.no_room = vec![1]);
    bed.give(What::Write, 1, 0);
    bed.give(What::Write, 2, 1);
    bed.give(What::Write, 1, 2);
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    assert_eq!(asked(&bed), [("write", 1, 0), ("write", 2, 1)], "once for each");
    with(|script| script.found = vec![(bed.context(1), 0)]);
    assert_eq!(bed.connection.iterate(), Iteration::Moved, "by the completion");
    assert_eq!(asked(&bed), [("write", 1, 0)]);
    assert_eq!(bed.connection.iterate(), Iteration::Stuck);
    assert!(bed.connection.is_busy() && bed.connection.under_way == 0);
    asked(&bed);

    bed.give(What::Write, 1, 3);
    bed.give(What::Write, 1, 4);
    bed.give(What::Write, 2, 5);
    assert_eq!(bed.connection.iterate(), Iteration::Stuck);
    assert_eq!(asked(&bed), [("write", 1, 0)], "no room for the third of them");
    with(|script| script.no_room.clear());
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    assert_eq!(asked(&bed), [0, 2, 3, 4, 5].map(|id| ("write", 1 + u64::from(id == 5), id)));
    assert_eq!(bed.connection.under_way, 5);
    assert_eq!(bed.told(), ["Some(WrId(1)) done"]);
}

#[test]
fn what_is_refused_for_good_is_told_by_its_call() {
    let mut bed = Bed::new(false);
    with(|script| script.answer = -(libc::EINVAL as isize));
    bed.give(What::Write, 1, 0);
    bed.give(What::WriteWithData(5), 1, 1);
    bed.give(What::Read, 1, 2);
    bed.give(What::Reach(PeerAddr(9)), 1, 3);
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    let told = [
        "Some(WrId(0)) failed: fi_write 22",
        "Some(WrId(1)) failed: fi_writedata 22",
        "Some(WrId(2)) failed: fi_read 22",
        "9 reached: false",
    ];
    assert_eq!(bed.told(), told);
    assert!(!bed.connection.is_busy());
    assert!(bed.connection.tried.is_empty(), "nothing is under way");
}

#[test]
fn a_peer_is_reached_when_a_byte_has_come_from_it() {
    let mut bed = Bed::new(true);
    for (made, told) in [(true, "9 reached: true"), (false, "9 reached: false")] {
        bed.give(What::Reach(PeerAddr(9)), 1, 3);
        assert_eq!(bed.connection.iterate(), Iteration::Moved);
        let asked = with(|script| std::mem::take(&mut script.asked));
        let [("read", 1, 1, 7, context)] = asked[..] else { panic!("{asked:?}") };
        assert_ne!(context, bed.context(3), "the work-request id is another transfer's");
        assert!(bed.connection.is_busy());
        with(|script| match made {
            true => script.found = vec![(context, 0)],
            false => (script.code, script.failed) = (-(FI_EAVAIL as isize), context),
        });
        assert_eq!(bed.connection.iterate(), Iteration::Moved);
        assert_eq!(bed.told(), [told]);
        assert!(!bed.connection.is_busy() && bed.connection.tried.is_empty());
    }
}

#[test]
fn an_error_of_nothing_of_ours_is_that_of_the_connection_unless_it_goes_on() {
    for (outlives, told) in [(false, vec!["None failed: completion 5"]), (true, vec![])] {
        let mut bed = Bed::new(outlives);
        with(|script| (script.code, script.failed) = (-(FI_EAVAIL as isize), NOBODYS));
        assert_eq!(bed.connection.iterate(), Iteration::Moved);
        assert_eq!(bed.told(), told);
        assert!(bed.connection.descriptor().is_some(), "it is not broken");
    }
}

#[test]
fn nothing_is_asked_of_a_queue_that_is_broken() {
    for by_itself in [true, false] {
        let mut bed = Bed::new(true);
        assert!(bed.connection.descriptor().is_some_and(|fd| fd > 0));
        if by_itself {
            with(|script| script.code = -(libc::EPIPE as isize));
            assert_eq!(bed.connection.iterate(), Iteration::Moved);
            assert_eq!(bed.told(), ["None failed: fi_cq_read 32"]);
        } else {
            bed.connection.end(crate::error::refused("a test", String::new()));
            assert_eq!(bed.told(), ["None failed: a test 22"]);
        }
        assert_eq!(bed.connection.descriptor(), None);
        with(|script| (script.found, script.trywait) = (vec![(NOBODYS, 0)], AGAIN as c_int));
        assert!(bed.connection.may_sleep());
        bed.give(What::Write, 1, 0);
        assert_eq!(bed.connection.iterate(), Iteration::Stuck);
        assert!(asked(&bed).is_empty() && bed.told().is_empty());
        assert!(bed.connection.is_busy(), "nothing goes on");
    }
}

#[test]
fn who_has_something_to_do_may_not_sleep() {
    let mut bed = Bed::new(false);
    for (answer, may_sleep) in [(0, true), (AGAIN as c_int, false)] {
        with(|script| script.trywait = answer);
        assert_eq!(bed.connection.may_sleep(), may_sleep);
    }
    with(|script| script.trywait = 0);
    bed.give(What::Write, 1, 0);
    assert!(!bed.connection.may_sleep(), "something is handed over");
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    assert_eq!(asked(&bed), [("write", 1, 0)], "and is not lost");
}

#[test]
fn what_there_is_no_room_to_tell_is_told_later_and_in_order() {
    let mut bed = Bed::new(false);
    let room = DEPTH as usize + COMES_IN;
    let all = room.next_multiple_of(POLL_BATCH) + POLL_BATCH;
    with(|script| script.found = vec![(bed.context(0), 0); all]);
    let mut iterations = 0;
    while bed.connection.iterate() == Iteration::Moved {
        iterations += 1;
    }
    assert_eq!(iterations, room / POLL_BATCH + 1);
    assert_eq!(bed.news.told(), room as u64, "of what it can take");
    bed.give(What::Write, 1, 1);
    assert_eq!(bed.connection.iterate(), Iteration::Stuck);
    assert!(asked(&bed).is_empty(), "nothing more is posted meanwhile");
    assert_eq!(bed.told().len(), room);
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    assert_eq!(asked(&bed), [("write", 1, 1)]);
    assert_eq!(bed.told().len() + room, all);
    assert_eq!(bed.news.told(), all as u64);
    drop(bed.ends);
    with(|script| script.found = vec![(bed.contexts.context(WrId(0)).unwrap() as usize, 0)]);
    assert_eq!(bed.connection.iterate(), Iteration::Moved, "nobody is there to hear it");
}

#[test]
fn what_the_provider_may_write_to_stays_where_a_connection_cannot_be_closed() {
    let bed = Bed::new(false);
    // SAFETY: open, and of this thread.
    unsafe { tables::watch(bed.connection.endpoint.as_fid()) };
    tables::cling(true);
    drop(bed.connection);
    tables::cling(false);
    assert!(is_unclosed());
    assert_eq!(Arc::strong_count(&bed.contexts), 2);
}

#[test]
fn a_peer_without_room_is_left_alone_and_after_some_all_are() {
    let mut refusals = Refusals::default();
    assert!(!refusals.has(PeerAddr(1)));
    for peer in 1..REFUSALS as u64 {
        refusals.add(PeerAddr(peer));
        assert!((1..=peer).all(|peer| refusals.has(PeerAddr(peer))));
        assert!(!refusals.has(PeerAddr(peer + 1)) && !refusals.has(PeerAddr(0)));
    }
    for _ in 0..2 {
        refusals.add(PeerAddr(99));
        assert!(refusals.has(PeerAddr(0)), "an iteration ends");
    }
}
