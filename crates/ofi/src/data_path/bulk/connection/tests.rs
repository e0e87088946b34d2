//! What a connection does in an iteration, with a provider that answers as the test wants.

use std::cell::RefCell;
use std::ffi::c_int;

use libfabric_sys::{fi_cq_err_entry, fid, fid_cq, fid_fabric};

use super::*;
use crate::data_path::bulk::merged_queue::{INCOMING_MARGIN, MergedQueue};
use crate::objects::domain::tests::some_domain;
use crate::objects::tables;
use crate::provider::Provider;

const DEPTH: usize = 4;
const AGAIN: isize = -(FI_EAGAIN as isize);

/// What the provider is asked to transfer: the call, the peer, the length, the context.
type Transfer = (&'static str, u64, usize, usize);

#[derive(Default)]
struct Script {
    asked: Vec<Transfer>,
    /// For whom there is no room, and what others are answered.
    no_room: Vec<u64>,
    answer: isize,
    /// What a poll finds: contexts, or a code.
    found: Vec<usize>,
    code: isize,
    failed: usize,
    trywait: c_int,
}

thread_local! {
    /// In a thread that is not the test's own every transfer is refused.
    static SCRIPT: RefCell<Script> =
        RefCell::new(Script { answer: -(libc::EINVAL as isize), code: AGAIN, ..Script::default() });
}

fn with<T>(call: impl FnOnce(&mut Script) -> T) -> T {
    SCRIPT.with_borrow_mut(call)
}

fn ask(call: &'static str, [buf, len, _]: [usize; 3], [peer, _, _, context]: [u64; 4]) -> isize {
    let context = context as usize;
    // The buffer of a probe, a read of one byte, lies behind its context.
    assert!(call == "write" || len != 1 || buf == context + 64);
    with(|script| {
        script.asked.push((call, peer, len, context));
        if script.no_room.contains(&peer) { AGAIN } else { script.answer }
    })
}

tables::transfer!(write, *const c_void, ask);
tables::transfer!(read, *mut c_void, ask);

unsafe extern "C" fn poll(_: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
    with(|script| {
        if script.found.is_empty() {
            return script.code;
        }
        let found = script.found.drain(..count.min(script.found.len()));
        // SAFETY: there is room for as many.
        unsafe { tables::complete(entries, found.map(|context| (context, 0, 0))) }
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

/// Never read: the connections of these tests tell it.
unsafe extern "C" fn nothing(_: *mut fid_cq, _: *mut c_void, _: usize) -> isize {
    AGAIN
}

pub(in crate::data_path::bulk) struct Bed {
    pub(in crate::data_path::bulk) connection: Connection,
    pub(in crate::data_path::bulk) requests: SyncSender<Request>,
    merged: MergedQueue,
    contexts: Arc<Contexts>,
}

impl Bed {
    pub(in crate::data_path::bulk) fn new(provider: Provider) -> Self {
        SCRIPT.set(Script { code: AGAIN, ..Script::default() });
        let domain = some_domain(provider, |_| {});
        let contexts = Arc::new(Contexts::new(8));
        let mut endpoint = Endpoint::open(&domain, 16, 4, true).expect("an endpoint");
        (endpoint.ops.write, endpoint.ops.read) = (write, read);
        // SAFETY: all open, and of this thread; the functions look at no address.
        let (own, queue) = unsafe {
            let fabric = domain.fabric.as_ptr();
            tables::change(&raw mut (*fabric).ops, |table| table.trywait = Some(trywait));
            let queue = endpoint.queue_fid().cast::<fid_cq>();
            tables::change(&raw mut (*queue).ops, |table| table.readerr = Some(readerr));
            let none = ptr::null_mut();
            (QueueOps::standing_for(none, nothing), QueueOps::standing_for(none, poll))
        };
        let (merged, tell) = MergedQueue::new(own, 1, DEPTH);
        let opened = Connection::new(&Arc::new(endpoint), &contexts, "a test", DEPTH, tell);
        let (mut connection, requests) = opened.expect("a connection");
        connection.queue = queue;
        Self { connection, requests, merged, contexts }
    }

    fn give(&self, what: BulkOp, peer: u64, wr_id: u32) {
        self.requests.try_send(self.request(what, peer, wr_id)).expect("room");
    }

    pub(in crate::data_path::bulk) fn request(&self, what: BulkOp, to: u64, wr_id: u32) -> Request {
        let (to, context, wr_id) = (PeerAddr(to), self.context(wr_id), WrId(wr_id));
        Request { what, to, wr_id, context, addr: 4096, len: 100, remote: 7, key: 8 }
    }

    fn context(&self, wr_id: u32) -> usize {
        self.contexts.context(WrId(wr_id)).expect("one of them") as usize
    }

    pub(in crate::data_path::bulk) fn told(&self) -> Vec<String> {
        let wr_id = |context| self.contexts.wr_id(context as *mut c_void).map(|id| id.0);
        let told = |done| match done {
            BulkEvent::Completed { context, .. } => format!("{:?} done", wr_id(context)),
            BulkEvent::Failed(Failure { wr_id, error, .. }) => {
                format!("{:?} failed: {} {}", wr_id.map(|id| id.0), error.call, error.code)
            }
            BulkEvent::Probed(PeerAddr(peer), made) => format!("{peer} reached: {made}"),
        };
        self.merged.told().map(told).collect()
    }

    fn asked(&self) -> Vec<(&'static str, u64, Option<u32>)> {
        let wr_id = |context| self.contexts.wr_id(context as *mut c_void).map(|id| id.0);
        let asked = with(|script| std::mem::take(&mut script.asked)).into_iter();
        asked.map(|(call, peer, _, context)| (call, peer, wr_id(context))).collect()
    }
}

#[test]
fn peer_without_room_waits_alone() {
    let mut bed = Bed::new(Provider::Verbs);
    for code in [AGAIN, 0] {
        with(|script| script.code = code);
        assert_eq!(bed.connection.iterate(), Iteration::Idle);
    }
    with(|script| (script.code, script.no_room) = (AGAIN, vec![1]));
    bed.give(BulkOp::Write, 1, 0);
    bed.give(BulkOp::Write, 2, 1);
    bed.give(BulkOp::Write, 1, 2);
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    assert_eq!(bed.asked(), [("write", 1, Some(0)), ("write", 2, Some(1))], "once for each");
    with(|script| script.found = vec![bed.context(1)]);
    assert_eq!(bed.connection.iterate(), Iteration::Moved, "by the completion");
    assert_eq!(bed.connection.iterate(), Iteration::Stuck);
    assert!(bed.connection.is_busy() && bed.connection.in_flight == 0);
    bed.asked();

    bed.give(BulkOp::Write, 1, 3);
    bed.give(BulkOp::Write, 1, 4);
    bed.give(BulkOp::Write, 2, 5);
    assert_eq!(bed.connection.iterate(), Iteration::Stuck);
    assert_eq!(bed.asked(), [("write", 1, Some(0))], "no room for the third of them");
    with(|script| script.no_room.clear());
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    let all = [0, 2, 3, 4, 5].map(|id| ("write", 1 + u64::from(id == 5), Some(id)));
    assert_eq!(bed.asked(), all);
    assert_eq!(bed.connection.in_flight, 5);
    assert_eq!(bed.told(), ["Some(1) done"]);
}

#[test]
fn peer_is_reached_by_one_byte() {
    let mut bed = Bed::new(Provider::Tcp);
    for (made, told) in [(true, "9 reached: true"), (false, "9 reached: false")] {
        bed.give(BulkOp::Probe(PeerAddr(9)), 1, 3);
        assert_eq!(bed.connection.iterate(), Iteration::Moved);
        let asked = with(|script| std::mem::take(&mut script.asked));
        let [("read", 1, 1, context)] = asked[..] else { panic!("{asked:?}") };
        assert_ne!(context, bed.context(3), "the work-request id is another transfer's");
        assert!(bed.connection.is_busy());
        with(|script| match made {
            true => script.found = vec![context],
            false => (script.code, script.failed) = (-(FI_EAVAIL as isize), context),
        });
        assert_eq!(bed.connection.iterate(), Iteration::Moved);
        assert_eq!(bed.told(), [told]);
        assert!(!bed.connection.is_busy() && bed.connection.probes.is_empty());
    }
}

#[test]
fn errors_end_transfers_or_the_connection() {
    // The provider, the context that failed if it is a transfer's, and what is told.
    for (provider, wr_id, told) in [
        (Provider::Verbs, None, vec!["None failed: completion 5"]),
        (Provider::Tcp, None, vec![]),
        (Provider::Tcp, Some(2), vec!["Some(2) failed: completion 5"]),
    ] {
        let mut bed = Bed::new(provider);
        let failed = wr_id.map_or(64, |wr_id| bed.context(wr_id));
        with(|script| (script.code, script.failed) = (-(FI_EAVAIL as isize), failed));
        assert_eq!(bed.connection.iterate(), Iteration::Moved);
        assert_eq!(bed.told(), told);
        assert!(bed.connection.descriptor().is_some(), "it is not broken");
    }
    let mut bed = Bed::new(Provider::Tcp);
    with(|script| script.code = -(libc::EPIPE as isize));
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    assert_eq!(bed.told(), ["None failed: fi_cq_read 32"]);
    // Nothing is asked of it any more.
    with(|script| (script.found, script.trywait) = (vec![64], AGAIN as c_int));
    assert!(bed.connection.descriptor().is_none() && bed.connection.may_sleep());
    bed.give(BulkOp::Write, 1, 0);
    assert_eq!(bed.connection.iterate(), Iteration::Stuck);
    assert!(bed.asked().is_empty() && bed.told().is_empty() && bed.connection.is_busy());
}

#[test]
fn full_queue_reports_later_in_order() {
    let mut bed = Bed::new(Provider::Tcp);
    let room = DEPTH + INCOMING_MARGIN;
    let all = room.next_multiple_of(POLL_BATCH) + POLL_BATCH;
    with(|script| script.found = (0..all as u32).map(|at| bed.context(at % 8)).collect());
    let mut iterations = 0;
    while bed.connection.iterate() == Iteration::Moved {
        iterations += 1;
    }
    assert_eq!(iterations, room / POLL_BATCH + 1);
    bed.give(BulkOp::Write, 1, 1);
    assert_eq!(bed.connection.iterate(), Iteration::Stuck);
    assert!(bed.asked().is_empty(), "nothing more is posted meanwhile");
    let mut told = bed.told();
    assert_eq!(told.len(), room);
    assert_eq!(bed.connection.iterate(), Iteration::Moved);
    assert_eq!(bed.asked(), [("write", 1, Some(1))]);
    told.extend(bed.told());
    assert!(told.into_iter().eq((0..all).map(|at| format!("Some({}) done", at % 8))));
}

#[test]
fn memory_of_an_unclosed_connection_stays() {
    let bed = Bed::new(Provider::Tcp);
    // SAFETY: open, and of this thread.
    unsafe { tables::watch(bed.connection.endpoint.as_fid()) };
    tables::cling(true);
    drop(bed.connection);
    tables::cling(false);
    assert!(is_unclosed());
    assert_eq!(Arc::strong_count(&bed.contexts), 2);
}
