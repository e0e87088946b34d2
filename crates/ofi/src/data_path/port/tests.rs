//! The calls of the hot path, with a scripted provider; what a port says of its rails.

use std::cell::RefCell;
use std::ffi::c_void;
use std::os::unix::net::UnixStream;

use libfabric_sys::{FI_EAGAIN, FI_EAVAIL, FI_REMOTE_CQ_DATA, FI_THREAD_DOMAIN, fi_info, fid_cq};

use super::*;
use crate::data_path::rail::Receives;
use crate::objects::domain::tests::some_device;
use crate::objects::fabric::Fabrics;
use crate::objects::tables;
use crate::options::Options;
use crate::provider::Provider;
use engine::port::{DataPath, Desc, Direction, Local, Polled, Transfer};

const RAIL: RailId = RailId(0);
const NO_RAIL: RailId = RailId(7);
const WR_IDS: u32 = 4;

#[derive(Default)]
struct Script {
    /// What polls find, one after the other: contexts, with the same flags.
    found: Vec<Vec<usize>>,
    flags: u64,
    code: isize,
    polls: usize,
    /// Answer to transfers, and the last one: call; buffer, length and descriptor; the rest.
    answer: isize,
    asked: Option<(&'static str, [usize; 3], [u64; 4])>,
}

thread_local! {
    static SCRIPT: RefCell<Script> = RefCell::default();
}

fn with<T>(call: impl FnOnce(&mut Script) -> T) -> T {
    SCRIPT.with_borrow_mut(call)
}

unsafe extern "C" fn poll(_: *mut fid_cq, entries: *mut c_void, count: usize) -> isize {
    with(|script| {
        script.polls += 1;
        let Some(found) = script.found.pop() else { return script.code };
        assert!(found.len() <= count);
        let found = found.into_iter().map(|context| (context, script.flags, 5));
        // SAFETY: there is room for as many.
        unsafe { tables::complete(entries, found) }
    })
}

fn ask(call: &'static str, [buf, len, desc]: [usize; 3], rest: [u64; 4]) -> isize {
    with(|script| {
        script.asked = Some((call, [buf, len, desc], rest));
        script.answer
    })
}

tables::transfer!(write, *const c_void, ask);
tables::transfer!(read, *mut c_void, ask);

/// A port over rails whose answers are changed so, whose provider follows the script.
fn port(changes: &[fn(&mut fi_info)]) -> OfiPort {
    let (contexts, options) = (Arc::new(Contexts::new(WR_IDS)), Options::default());
    let open = |change: &fn(&mut fi_info)| {
        let device = some_device(Provider::TcpRxm, change);
        let (mut fabrics, receives) = (Fabrics::default(), Receives::Messages);
        Rail::open(&mut fabrics, &device, &options, &contexts, 4, receives).map(Arc::new)
    };
    let rails: Result<Vec<_>, _> = changes.iter().map(open).collect();
    let mut port = OfiPort::new(&rails.expect("rails"), contexts).expect("a port");
    SCRIPT.set(Script { code: -(FI_EAGAIN as isize), ..Script::default() });
    for rail in &mut port.rails {
        // SAFETY: the function looks at no address.
        rail.queue = unsafe { QueueOps::standing_for(std::ptr::null_mut(), poll) };
    }
    port
}

fn plain(_: &mut fi_info) {}

fn gated(raw: &mut fi_info) {
    // SAFETY: the attributes of an answer exist.
    unsafe { (*raw.domain_attr).threading = FI_THREAD_DOMAIN };
}

fn polled(port: &mut OfiPort, rail: RailId) -> Result<Vec<WrId>, String> {
    let mut done = Vec::new();
    let polled = port.drain(rail, &mut |index: usize| {
        let is_known = index < WR_IDS as usize;
        done.extend(is_known.then_some(WrId(index as u32)));
        is_known
    });
    match polled {
        Polled::Completed(0) => panic!("nothing is told by itself"),
        Polled::Empty | Polled::Completed(_) => Ok(done),
        Polled::Failed(failure) => {
            assert!(failure.wr_id.is_none(), "{failure:?}");
            Err(failure.error.text)
        }
    }
}

/// What the look found is what the poll behind it gives; the provider is asked once.
#[test]
fn look_for_completions_is_a_poll() {
    let mut port = port(&[plain]);
    let context = port.contexts.context(WrId(2)).expect("one of them") as usize;
    assert!(!port.has_completions(RAIL));
    assert_eq!(with(|script| script.polls), 1);
    with(|script| script.found = vec![vec![context]]);
    assert!(port.has_completions(RAIL));
    assert_eq!(polled(&mut port, RAIL), Ok(vec![WrId(2)]));
    assert_eq!(with(|script| script.polls), 2);
    assert_eq!(polled(&mut port, RAIL), Ok(vec![]));
    assert_eq!(with(|script| script.polls), 3);
    with(|script| script.code = -(FI_EAVAIL as isize));
    assert!(port.has_completions(RAIL), "an error");
    assert!(port.has_completions(NO_RAIL), "which the poll says");
    with(|script| script.code = 0);
    assert!(port.has_completions(RAIL));
    assert_eq!(polled(&mut port, RAIL), Ok(vec![]), "of nothing");

    let mut waits = self::port(&[gated, plain]);
    assert!(waits.has_completions(RAIL) && with(|script| script.polls) == 0, "not beside others");
    // What an idle rail has answered is not the next one's answer.
    assert!(!waits.has_completions(RailId(1)) && waits.has_completions(RAIL));
    assert_eq!(polled(&mut waits, RAIL), Ok(vec![]));
    assert_eq!(with(|script| script.polls), 2);
}

#[test]
fn unknown_completion_breaks_the_rail() {
    let mut port = port(&[plain]);
    let first = port.contexts.context(WrId(0)).expect("one of them") as usize;
    let behind = first + WR_IDS as usize * 64;
    for found in [vec![behind], vec![first, behind], vec![behind, first]] {
        with(|script| script.found = vec![found]);
        let error = polled(&mut port, RAIL).expect_err("one is nobody's");
        assert!(error.contains("unknown context"), "{error}");
    }
    // Immediate data has no context, and is the lane's to take.
    with(|script| (script.found, script.flags) = (vec![vec![0, 0]], FI_REMOTE_CQ_DATA));
    assert_eq!(polled(&mut port, RAIL), Ok(vec![]));
    assert!(port.now() > 1, "nanoseconds");
    assert!(port.has_message(RAIL) && !port.has_message(NO_RAIL));
    for incoming in [Incoming::ImmediateData(5), Incoming::ImmediateData(5), Incoming::Nothing] {
        assert_eq!(port.receive(RAIL, &mut LongPacket::EMPTY.clone()), incoming);
    }
}

#[test]
fn fast_post_is_what_was_asked() {
    let mut port = port(&[plain]);
    let mut fast = port.fast(RAIL);
    (fast.ops.write, fast.ops.read) = (write, read);
    let context = port.contexts.context(WrId(1)).expect("one of them");
    let (memory, value) = (Local::Memory { addr: 4096, desc: Desc(9) }, Local::Value(0x1234));
    let mut post = |rail, direction, local, len, answer| {
        let transfer = Transfer { direction, local, len, remote: 70, key: 80 };
        with(|script| (script.answer, script.asked) = (answer, None));
        let posted = port.try_post(fast, rail, PeerAddr(3), WrId(1), &transfer);
        (posted, with(|script| script.asked.take()))
    };
    let rest = [3, 70, 80, context as u64];
    for (direction, call) in [(Direction::Write, "write"), (Direction::Read, "read")] {
        let asked = Some((call, [4096, 100, 9], rest));
        assert_eq!(post(RAIL, direction, memory, 100, 0), (true, asked));
        assert_eq!(post(RAIL, direction, memory, 100, -(FI_EAGAIN as isize)), (false, asked));
    }
    let (posted, asked) = post(RAIL, Direction::Write, value, 8, 0);
    let Some(("write", [at, 8, 0], _)) = asked else { panic!("{asked:?}") };
    // SAFETY: the contexts keep the value there.
    assert!(posted && unsafe { *(at as *const u64) } == 0x1234);
    for (rail, direction, len) in
        [(NO_RAIL, Direction::Write, 8), (RAIL, Direction::Write, 9), (RAIL, Direction::Read, 8)]
    {
        assert_eq!(post(rail, direction, value, len, 0), (false, None), "no inline write");
    }
    let long = [0; MAX_MESSAGE + 1];
    assert!(!port.try_send(fast, RAIL, PeerAddr(3), WrId(1), &long), "no message");
}

#[test]
fn gated_rail_has_no_fast_path() {
    let mut gated = port(&[gated]);
    let (fast, real) = (gated.fast(RAIL).ops, gated.rails[0].rail.endpoint.ops);
    let addresses = |ops: EndpointOps| [ops.write as usize, ops.read as usize, ops.inject as usize];
    assert!(!gated.has_fast_path() && fast.inject_size == 0);
    assert!(addresses(fast).iter().zip(addresses(real)).all(|(fast, real)| *fast != real));
    let (direction, local) = (Direction::Write, Local::Memory { addr: 4096, desc: Desc(9) });
    let transfer = Transfer { direction, local, len: 8, remote: 70, key: 80 };
    assert!(!gated.try_post(gated.fast(RAIL), RAIL, PeerAddr(3), WrId(1), &transfer));
}

#[test]
fn process_ends_once() {
    let mut port = port(&[plain]);
    let pairs = [(); 2].map(|()| UnixStream::pair().expect("sockets"));
    let [(first, _stays), (second, ends)] = pairs;
    port.watch_processes(vec![(Pe(3), first.into()), (Pe(4), second.into())]);
    assert_eq!(port.ended_process(), None);
    drop(ends);
    assert_eq!([port.ended_process(), port.ended_process()], [Some(Pe(4)), None]);
}
