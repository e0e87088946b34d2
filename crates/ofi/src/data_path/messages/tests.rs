//! Messages of one rail: double completions, failures, taken receives, lack of room.

use std::ptr;

use libfabric_sys::{fi_addr_t, fid_ep};

use super::*;
use crate::data_path::rail::tests::open;
use crate::options::{Devices, Options};
use crate::provider::Provider;
use crate::{Discovery, MemoryKinds};
use engine::port::packet::LongPacket;

const TOO_LONG: i32 = FI_ETRUNC as i32;

fn rail(provider: Provider) -> Rail {
    let devices = match provider {
        Provider::Shm => Devices::Include(vec![String::from("shm")]),
        _ => Devices::Any,
    };
    let options = Options { provider, devices, ..crate::options::tests::options() };
    let found = Discovery::run(&options, true, MemoryKinds::Host).expect("a device");
    open(&found.devices()[0], 1).expect("a rail")
}

fn context(rail: &Rail, id: BufferId) -> *mut c_void {
    rail.message_buffers.buffer(id, 1, rail.messages_desc()).expect("it exists").context
}

fn entry(op_context: *mut c_void, flags: u64, len: usize, data: u64) -> fi_cq_data_entry {
    fi_cq_data_entry { op_context, len, flags, buf: ptr::null_mut(), data }
}

fn failed(messages: &mut Messages, rail: &Rail, context: *mut c_void, code: i32) -> FailedOp {
    let mut error = PortError { call: "completion", code, text: String::from("on purpose") };
    messages.failed(rail, context, &mut error)
}

#[test]
fn completions_of_unused_buffers_are_noticed() {
    let rail = rail(Provider::Shm);
    let gate = rail.domain.gate.clone();
    let mut messages = Messages::new(&rail);
    let [send, receive] = [BufferId::Send(0), BufferId::Receive(0)].map(|id| context(&rail, id));
    assert!(messages.take_entry(&rail, &entry(send, 0, 0, 0)).is_err());
    assert!(messages.take_entry(&rail, &entry(receive, 0, 0, 0)).is_err(), "not posted yet");
    messages.repost(&rail, &gate).expect("posted");
    assert!(!messages.needs_repost);
    assert!(messages.take_entry(&rail, &entry(receive, 0, 5, 0)).is_ok());
    assert!(messages.take_entry(&rail, &entry(receive, 0, 5, 0)).is_err(), "completed twice");
    let other = context(&rail, BufferId::Receive(1));
    let longest = rail.limits.longest_message;
    messages.take_entry(&rail, &entry(other, 0, longest + 1, 0)).expect("it is told of");
    assert!(matches!(messages.arrived.last(), Some(Arrived::Broken { .. })));
    assert!(messages.take_entry(&rail, &entry(ptr::null_mut(), 0, 0, 0)).is_err());

    // Immediate data comes without a context, and what nobody takes is not piled up.
    let landed = entry(ptr::null_mut(), FI_REMOTE_CQ_DATA, 0, 7);
    let taken = (0..10_000).take_while(|_| messages.take_entry(&rail, &landed).is_ok()).count();
    assert!((POLL_BATCH..10_000).contains(&taken), "{taken}");
}

/// A receive that fails ends the rail, unless what it failed by is known to leave the others be.
#[test]
fn failed_receive_may_end_the_rail() {
    for (provider, outlives) in [(Provider::Shm, false), (Provider::Tcp, true)] {
        let rail = rail(provider);
        let mut messages = Messages::new(&rail);
        let [first, second] = [0, 1].map(|index| context(&rail, BufferId::Receive(index)));
        let mut goes_on =
            |context, code| failed(&mut messages, &rail, context, code) == FailedOp::Received;
        assert!(!goes_on(first, TOO_LONG), "{provider:?}: not posted yet");
        messages.repost(&rail, &rail.domain.gate).expect("posted");
        let mut goes_on =
            |context, code| failed(&mut messages, &rail, context, code) == FailedOp::Received;
        assert!(goes_on(first, TOO_LONG) && !goes_on(first, TOO_LONG), "{provider:?}: once");
        assert_eq!(goes_on(second, libc::EIO), outlives, "{provider:?}");
        assert!(!goes_on(second, libc::EIO), "{provider:?}: it has failed");
        assert_eq!(goes_on(ptr::null_mut(), libc::EIO), outlives, "{provider:?}");
    }
}

#[test]
fn failed_send_names_its_wr_id() {
    let rail = rail(Provider::Shm);
    let mut messages = Messages::new(&rail);
    let free = messages.free.len();
    let index = messages.free.pop().expect("nothing is sent");
    messages.sending[index as usize] = Some(WrId(3));
    let context = context(&rail, BufferId::Send(index));
    assert_eq!(failed(&mut messages, &rail, context, libc::EIO), FailedOp::Sent(WrId(3)));
    assert_eq!(failed(&mut messages, &rail, context, libc::EIO), FailedOp::Rail, "only once");
    assert_eq!(messages.free.len(), free);
    messages.free.clear();
    messages.inject_size = 0;
    let posted = messages.send(&rail, &rail.domain.gate, PeerAddr(0), WrId(9), b"ping");
    assert_eq!(posted, Ok(Posted::Again), "every buffer is in use");
}

thread_local! {
    static ANSWER: std::cell::Cell<isize> = const { std::cell::Cell::new(0) };
}

unsafe extern "C" fn recv(
    _: *mut fid_ep,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: fi_addr_t,
    _: *mut c_void,
) -> isize {
    ANSWER.get()
}

#[test]
fn receives_repost_when_there_is_room() {
    let rail = rail(Provider::Shm);
    let gate = rail.domain.gate.clone();
    let mut messages = Messages::new(&rail);
    messages.ops.receive = recv;
    messages.repost(&rail, &gate).expect("posted");
    let all = messages.receives.len() as u64;
    for index in 0..all {
        let entry = entry(
            context(&rail, BufferId::Receive(index as u32)),
            if index % 2 == 0 { FI_REMOTE_CQ_DATA } else { 0 },
            8,
            index,
        );
        messages.take_entry(&rail, &entry).expect("there is room for all of them");
        assert!(messages.take_entry(&rail, &entry).is_err(), "completed twice");
    }
    ANSWER.set(-(FI_EAGAIN as isize));
    assert!(messages.has_arrived());
    for index in 0..all {
        let next = messages.receive(&rail, &gate, &mut LongPacket::EMPTY.clone());
        let data = Incoming::ImmediateData(index);
        assert_eq!(next, if index % 2 == 0 { data } else { Incoming::Message });
    }
    let last = messages.receive(&rail, &gate, &mut LongPacket::EMPTY.clone());
    assert!(last == Incoming::Nothing && !messages.has_arrived());
    assert_eq!(messages.repost(&rail, &gate), Ok(()));
    assert!(messages.needs_repost && messages.receives.iter().all(|receive| !receive.posted));
    ANSWER.set(0);
    assert_eq!(messages.repost(&rail, &gate), Ok(()));
    assert!(!messages.needs_repost && messages.receives.iter().all(|receive| receive.posted));

    messages.take_entry(&rail, &entry(context(&rail, BufferId::Receive(0)), 0, 8, 0)).expect("one");
    ANSWER.set(-(libc::EINVAL as isize));
    assert_eq!(messages.receive(&rail, &gate, &mut LongPacket::EMPTY.clone()), Incoming::Message);
    assert!(messages.needs_repost, "the next poll tells of it");
    let refused = messages.repost(&rail, &gate).map_err(|error| (error.call, error.code));
    assert_eq!(refused, Err(("fi_recv", libc::EINVAL)));
    assert!(!messages.needs_repost && messages.repost(&rail, &gate).is_ok(), "told once");
}
