//! Messages of one rail: what does not fit, what completes twice, what takes a receive.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use libfabric_sys::FI_ETRUNC;

use super::*;
use crate::data_path::port::OfiPort;
use crate::data_path::rail::Receives;
use crate::objects::completion_queue::Entries;
use crate::objects::contexts::Contexts;
use crate::objects::endpoint::MessageBuffer;
use crate::objects::fabric::Fabrics;
use crate::options::{Devices, Options};
use crate::provider::Provider;
use crate::{Discovery, MemoryKinds};
use engine::ids::RailId;
use engine::port::packet::LongPacket;
use engine::port::{Desc, Messaging, POLL_BATCH, Polled};

const RAIL: RailId = RailId(0);
const HANG: Duration = Duration::from_secs(60);

pub(crate) fn rail(provider: Provider) -> Rail {
    let devices = match provider {
        Provider::Shm => Devices::Include(vec![String::from("shm")]),
        _ => Devices::Any,
    };
    let options = Options { provider, devices, ..crate::options::tests::options() };
    let found =
        Discovery::run(&options, true, MemoryKinds::Host).unwrap_or_else(|error| panic!("{error}"));
    let (mut fabrics, contexts) = (Fabrics::default(), Arc::new(Contexts::new(1)));
    let device = &found.devices()[0];
    Rail::open(&mut fabrics, device, &options, &contexts, 1, Receives::Messages)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Our own `send` refuses it, so this goes to the endpoint. Not of shm, which has such a
/// message copied from the sender's memory, and there tries for ever to copy what there is no
/// room for (libfabric 1.17).
#[test]
fn a_message_longer_than_its_buffer_is_told_and_the_rail_goes_on() {
    for provider in [Provider::Tcp, Provider::TcpRxm] {
        let contexts = || Arc::new(Contexts::new(1));
        // Dropped after the endpoint that sends from it.
        let sender = Arc::new(rail(provider));
        let mut long = vec![1_u8; sender.limits().longest_message + 44];
        let context = contexts();
        let mut from = OfiPort::new(&[Arc::clone(&sender)], contexts()).expect("a port");
        let mut to = OfiPort::new(&[Arc::new(rail(provider))], contexts()).expect("a port");
        let peer = from.insert(RAIL, &[to.address(RAIL)]).expect("insert")[0];

        let buffer = MessageBuffer {
            buf: long.as_mut_ptr().cast(),
            len: long.len(),
            desc: std::ptr::null_mut::<c_void>(),
            context: context.context(WrId(0)).expect("it has one"),
        };
        for round in 0..8 {
            let start = Instant::now();
            let came = loop {
                assert!(start.elapsed() < HANG, "{provider:?}: nothing in round {round}");
                // As often as it will: with libfabric 1.17 each ends the connection, and what
                // is behind it is lost.
                // SAFETY: one thread, no gate with this threading level; buffer and context
                // were declared before the rail, so they outlive it.
                let _ = unsafe { sender.endpoint().send(&buffer, peer.0) };
                // What the sender hears of it is its own: it has no buffer of ours.
                let _ = from.poll(RAIL, &mut [WrId(0); POLL_BATCH]);
                let polled = to.poll(RAIL, &mut [WrId(0); POLL_BATCH]);
                assert!(matches!(polled, Polled::Empty), "{provider:?}: {polled:?}");
                match to.receive(RAIL, &mut LongPacket::EMPTY.clone()) {
                    Incoming::Nothing => {}
                    came => break came,
                }
            };
            assert_eq!(came, Incoming::Broken { code: FI_ETRUNC as i32 }, "{provider:?}");
        }
    }
}

#[test]
fn completions_of_buffers_that_are_not_in_use_are_noticed() {
    let rail = rail(Provider::Shm);
    let gate = rail.domain().gate().clone();
    let mut messages = Messages::new(&rail);
    let context =
        |id| rail.message_buffers().buffer(id, 1, rail.messages_desc()).map(|b| b.context);
    let entry = |op_context, len| fi_cq_data_entry {
        op_context,
        len,
        flags: 0,
        buf: std::ptr::null_mut(),
        data: 0,
    };
    let send = context(BufferId::Send(0)).expect("it exists");
    let receive = context(BufferId::Receive(0)).expect("it exists");
    assert!(messages.take_entry(&rail, &entry(send, 0)).is_err());
    assert!(messages.take_entry(&rail, &entry(receive, 0)).is_err(), "not posted yet");
    messages.settle(&rail, &gate).expect("posted");
    assert!(messages.is_settled());
    assert!(messages.take_entry(&rail, &entry(receive, 5)).is_ok());
    assert!(messages.take_entry(&rail, &entry(receive, 5)).is_err(), "completed twice");
    let other = context(BufferId::Receive(1)).expect("it exists");
    let longest = rail.limits().longest_message;
    let too_long = entry(other, longest + 1);
    messages.take_entry(&rail, &too_long).expect("it is told of");
    assert!(matches!(messages.arrived.last(), Some(Arrived::Broken { .. })));
    let nobodys = entry(std::ptr::null_mut(), 0);
    assert!(messages.take_entry(&rail, &nobodys).is_err());

    // Immediate data comes without a context, and what nobody takes is not piled up.
    let flags = FI_REMOTE_CQ_DATA;
    let landed = fi_cq_data_entry { flags, data: 7, ..nobodys };
    let taken = (0..10_000).take_while(|_| messages.take_entry(&rail, &landed).is_ok()).count();
    assert!((POLL_BATCH..10_000).contains(&taken), "{taken}");
}

/// A receive that fails ends the rail, unless what it failed by is known to leave the others be.
#[test]
fn what_a_failed_receive_ends_depends_on_the_provider_and_the_error() {
    let too_long = FI_ETRUNC as i32;
    for (provider, outlives) in [(Provider::Shm, false), (Provider::Tcp, true)] {
        let rail = rail(provider);
        assert_eq!(rail.outlives_receives(), outlives, "{provider:?}");
        let gate = rail.domain().gate().clone();
        let mut messages = Messages::new(&rail);
        let context = |index| {
            let id = BufferId::Receive(index);
            let buffer = rail.message_buffers().buffer(id, 1, rail.messages_desc());
            buffer.expect("it exists").context
        };
        let goes_on = |messages: &mut Messages, context, code| {
            let text = String::from("on purpose");
            let mut error = PortError { call: "completion", code, text };
            matches!(messages.failed(&rail, context, &mut error), Failed::Received)
        };
        assert!(!goes_on(&mut messages, context(0), too_long), "{provider:?}: not posted yet");
        messages.settle(&rail, &gate).expect("posted");
        assert!(goes_on(&mut messages, context(0), too_long), "{provider:?}");
        assert!(!goes_on(&mut messages, context(0), too_long), "{provider:?}: it has failed");
        assert_eq!(goes_on(&mut messages, context(1), libc::EIO), outlives, "{provider:?}");
        assert!(!goes_on(&mut messages, context(1), libc::EIO), "{provider:?}: it has failed");
        let nobodys = std::ptr::null_mut();
        assert_eq!(goes_on(&mut messages, nobodys, libc::EIO), outlives, "{provider:?}");
    }
}

#[test]
fn a_receive_that_immediate_data_takes_is_posted_again() {
    let rail = rail(Provider::Shm);
    let gate = rail.domain().gate().clone();
    let mut messages = Messages::new(&rail);
    messages.settle(&rail, &gate).expect("posted");
    let all = messages.receives.len() as u32;
    for index in 0..all {
        let buffer = rail.message_buffers().buffer(BufferId::Receive(index), 1, Desc(0));
        let entry = fi_cq_data_entry {
            op_context: buffer.expect("it exists").context,
            len: 1 << 20,
            flags: FI_REMOTE_CQ_DATA,
            buf: std::ptr::null_mut(),
            data: u64::from(index),
        };
        messages.take_entry(&rail, &entry).expect("there is room for all of them");
        assert!(messages.take_entry(&rail, &entry).is_err(), "completed twice");
    }
    assert!(messages.receives.iter().all(|receive| !receive.posted));
    // shm, which still has the buffers, has room for each once more.
    for index in 0..all {
        let next = messages.receive(&rail, &gate, &mut LongPacket::EMPTY.clone());
        assert_eq!(next, Incoming::ImmediateData(index.into()));
    }
    assert!(messages.receives.iter().all(|receive| receive.posted));
}

#[test]
fn a_receive_that_the_provider_has_no_room_for_is_posted_later() {
    let rail = rail(Provider::TcpRxm);
    let gate = rail.domain().gate().clone();
    let mut messages = Messages::new(&rail);
    messages.settle(&rail, &gate).expect("posted");
    let endpoint = rail.endpoint();
    let peers = endpoint.vector().insert(&[endpoint.address()], endpoint.address().len());
    let peer = peers.expect("insert")[0];
    // Completions that are made up: ofi_rxm still has the buffers, and at last no room for another.
    let all = messages.receives.len() as u32;
    let left_out = (0..1 << 20).map(|number| number % all).find(|&index| {
        let buffer = rail.message_buffers().buffer(BufferId::Receive(index), 1, Desc(0));
        let entry = fi_cq_data_entry {
            op_context: buffer.expect("it exists").context,
            len: 8,
            flags: 0,
            buf: std::ptr::null_mut(),
            data: 0,
        };
        messages.take_entry(&rail, &entry).expect("it was posted");
        let taken = messages.receive(&rail, &gate, &mut LongPacket::EMPTY.clone());
        assert_eq!(taken, Incoming::Message);
        !messages.receives[index as usize].posted
    });
    let left_out = left_out.expect("it has room without end") as usize;
    assert!(!messages.is_settled());
    messages.settle(&rail, &gate).expect("no error");
    assert!(!messages.is_settled() && !messages.receives[left_out].posted, "no room yet");

    // A message takes one of those that it has.
    let start = Instant::now();
    while !messages.is_settled() {
        assert!(start.elapsed() < HANG, "there is no room");
        let _ = messages.send(&rail, &gate, peer, WrId(0), b"ping").expect("no error");
        // SAFETY: one thread, no gate with this threading level.
        let _ = unsafe { endpoint.queue().read(&mut Entries::new()) };
        messages.settle(&rail, &gate).expect("no error");
    }
    assert!(messages.receives[left_out].posted, "it is forgotten");
}

#[test]
fn a_failed_send_is_reported_with_its_wr_id() {
    let rail = rail(Provider::Shm);
    let gate = rail.domain().gate().clone();
    let mut messages = Messages::new(&rail);
    messages.inject_size = 0;
    let endpoint = rail.endpoint();
    let peers = endpoint.vector().insert(&[endpoint.address()], endpoint.address().len());
    let peer = peers.expect("insert")[0];
    let all = rail.message_buffers().sends();
    let start = Instant::now();
    let mut wr_id = 0;
    while wr_id < all as u32 {
        assert!(start.elapsed() < HANG, "shm has room for them");
        let posted = messages.send(&rail, &gate, peer, WrId(wr_id), b"ping");
        if posted.expect("no error") == Posted::Yes {
            wr_id += 1;
        } else {
            // The first one needs the peer, ourselves, to be polled. What completes is not
            // looked at, so that all buffers stay in use.
            let mut entries = Entries::new();
            // SAFETY: one thread, no gate with this threading level.
            let _ = unsafe { endpoint.queue().read(&mut entries) };
        }
    }
    let again = messages.send(&rail, &gate, peer, WrId(9), b"ping");
    assert_eq!(again, Ok(Posted::Again), "every buffer is in use");

    let index = messages.sending.iter().position(|wr_id| *wr_id == Some(WrId(3)));
    let id = BufferId::Send(index.expect("in use") as u32);
    let buffer = rail.message_buffers().buffer(id, 1, rail.messages_desc());
    let context = buffer.expect("it exists").context;
    let mut error = stranger();
    assert_eq!(messages.failed(&rail, context, &mut error), Failed::Sent(WrId(3)));
    assert_eq!(error.call, "sending a message");
    assert_eq!(messages.free.len(), 1);
    assert_eq!(messages.failed(&rail, context, &mut error), Failed::Rail, "only once");
    assert_eq!(messages.free.len(), 1);
}
