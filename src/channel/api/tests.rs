//! Channels of this process: of one PE, and of two that are threads.

use std::sync::mpsc;
use std::thread;

use channel_producer::Producer;

use super::*;
use crate::bootstrap::Callback;
use crate::job::tests::{Room, settings};
use crate::logging::heard::heard;

fn options() -> Options {
    let drain = Duration::from_secs(60);
    Options { rings: 2, slots: 64, spins: 0, drain, settings: settings(1, &[]) }
}

fn bootstrap(n_pes: u32, me: u32, room: &Arc<Room>) -> Box<Callback> {
    let room = Arc::clone(room);
    let gather = move |mine: &[u8], all: &mut [u8]| {
        all.copy_from_slice(&room.gather(me, mine));
        0
    };
    Box::new(Callback::new(n_pes, me, gather).unwrap())
}

pub(crate) fn alone_in_its_job() -> Channel {
    Channel::new(bootstrap(1, 0, &Arc::new(Room::new(1))), &options()).unwrap()
}

fn producer(channel: &Channel) -> Producer {
    // SAFETY: the tests end what they push before the channel.
    unsafe { Producer::new(channel.context()) }
}

#[test]
fn too_many_pes_are_refused() {
    for (n_pes, is_many) in
        [(c::NLF_MAX_PES, false), (c::NLF_MAX_PES + 1, true), (c::NLF_MAX_PES + 2, true)]
    {
        let nobody = Callback::new(n_pes, 0, |_, _| 7).unwrap();
        let refused = Channel::new(Box::new(nobody), &options()).unwrap_err().to_string();
        assert_eq!(refused.contains(&format!("not {n_pes}")), is_many, "{refused}");
    }
}

#[test]
fn memory_is_released_by_its_address() {
    let channel = alone_in_its_job();
    assert_eq!((channel.me(), channel.n_pes(), channel.error()), (0, 1, None));
    let heap = channel.allocate_symmetric(4096).unwrap();
    let mut own = vec![3_u8; 64];
    // SAFETY: it outlives the channel.
    let refused = unsafe {
        channel.register_local(own.as_mut_ptr(), 64).unwrap();
        channel.register_local(own.as_mut_ptr(), 0).unwrap_err().to_string()
    };
    assert!(refused.contains("0 bytes"), "{refused}");
    let p = producer(&channel);
    assert_eq!(p.put_nbi(heap, own.as_ptr(), 64, 0), 0);
    assert_eq!(p.quiet(), 0);
    // SAFETY: delivered, and nobody else's.
    assert_eq!(unsafe { std::slice::from_raw_parts(heap, 64) }, own);
    assert_eq!(channel.done(0) + channel.done(1), 1);
    for wrong in [own.as_mut_ptr().wrapping_add(1), heap.wrapping_add(64)] {
        let refused = channel.release(wrong).unwrap_err().to_string();
        assert!(refused.contains("no region of this channel begins at"), "{refused}");
    }
    channel.release(own.as_mut_ptr()).unwrap();
    assert_ne!(p.put_nbi(heap, own.as_ptr(), 64, 0), 0, "it is no region any more");
    channel.release(heap).unwrap();
    assert!(channel.release(heap).is_err());
    drop(channel);
}

#[test]
fn proxy_panic_is_reported_everywhere() {
    let channel = alone_in_its_job();
    let heap = channel.allocate_symmetric(64).unwrap();
    let (enter, entered) = mpsc::channel();
    let (goes_on, waits) = mpsc::channel::<()>();
    let panics = move |_: &mut ProxyView<'_>| {
        enter.send(()).unwrap();
        let _ = waits.recv();
        panic!("on purpose");
    };
    channel.send_to_proxy(panics).unwrap();
    entered.recv().unwrap();
    let p = producer(&channel);
    assert_eq!(p.put_nbi(heap, heap.wrapping_add(8), 8, 0), 0);
    drop(goes_on);
    assert_eq!(p.quiet(), c::NLF_ERROR_FAILED as i32);
    let why = channel.error().unwrap();
    assert!(why.contains("internal error of the proxy thread"), "{why}");
    assert!(matches!(channel.on_proxy(|_| ()), Err(ChannelError::Ended)));
    let (end, said) = heard(|| channel.stop().unwrap_err().to_string());
    assert!(said.contains("WARN the channel's proxy thread has panicked"), "{said}");
    assert!(end.contains("has ended"), "{end}");
}

/// PE 1 makes each collective call once PE 0, in it already, has registered memory beside it.
#[test]
fn local_registration_runs_beside_collectives() {
    let room = &Arc::new(Room::new(2));
    let (enters, entered) = mpsc::channel();
    let (tells, told) = mpsc::channel();
    let calls: [fn(&Channel, *mut u8); 3] = [
        |channel, _| channel.barrier().unwrap(),
        |channel, _| assert!(!channel.allocate_symmetric(4096).unwrap().is_null()),
        |channel, heap| channel.release(heap).unwrap(),
    ];
    let heap = |channel: &Channel| channel.allocate_symmetric(64).unwrap() as usize;
    thread::scope(|scope| {
        scope.spawn(move || {
            let channel = Channel::new(bootstrap(2, 1, room), &options()).unwrap();
            let heap = heap(&channel);
            let told = calls.map(|call| {
                // Goes on in any case, so that all threads end.
                let is_told = told.recv_timeout(Duration::from_secs(20)).is_ok();
                call(&channel, heap as *mut u8);
                is_told
            });
            assert_eq!(told, [true; 3], "local memory waits for a collective call");
        });
        let mut inner = bootstrap(2, 0, room);
        let gather = move |mine: &[u8], all: &mut [u8]| {
            let _ = enters.send(());
            all.copy_from_slice(&inner.allgather(mine).unwrap());
            0
        };
        let outer = Box::new(Callback::new(2, 0, gather).unwrap());
        let channel = &Channel::new(outer, &options()).unwrap();
        let heap = heap(channel);
        for call in calls {
            while entered.try_recv().is_ok() {}
            thread::scope(|scope| {
                scope.spawn(move || call(channel, heap as *mut u8));
                entered.recv().unwrap();
                let mut own = [7_u64; 8];
                // SAFETY: released below.
                unsafe { channel.register_local(own.as_mut_ptr().cast(), 64).unwrap() };
                channel.release(own.as_mut_ptr().cast()).unwrap();
                let _ = tells.send(());
            });
        }
    });
}
