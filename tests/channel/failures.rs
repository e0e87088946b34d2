//! The end of a channel, and what producers and users are told of what is wrong. Nothing hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use engine::atomic::AtomicOp;
use engine::ids::Pe;
use nvshmem_transport_libfabric::channel::ring::descriptor::{
    Descriptor, RegionAddr as At, RegionIndex,
};
use nvshmem_transport_libfabric::channel::ring::slot::{Slot, lap};
use nvshmem_transport_libfabric::channel::sys as c;
use nvshmem_transport_libfabric::channel::{Channel, Options};

use super::memory::{on_host, symmetric};
use super::traffic::{bootstrap, options, producer};
use test_jobs::Place;
use test_jobs::memory::Heap;
use test_jobs::{Meeting, Stopped, is_gone};

pub(crate) fn stop(place: &Place) {
    const COUNT: u64 = 1500;
    let mut memory = vec![0_u64; 512];
    let heap = Heap::of(memory.as_mut_ptr().cast(), 4096);
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    // SAFETY: `memory` outlives the channel, which is stopped below.
    unsafe { channel.register_symmetric(heap.at(0), 4096).unwrap() };
    channel.barrier().unwrap();
    let to = (place.me as i32 + 1) % place.n_pes as i32;
    let p = producer(&channel);
    for _ in 0..COUNT {
        assert_eq!(p.signal(heap.at(0).cast(), 1, c::NLF_KIND_ADD, to), 0);
        assert_eq!(p.put_nbi(heap.at(64), heap.at(128), 64, to), 0);
    }
    channel.stop().unwrap();
    assert_eq!(heap.word(0).load(Ordering::Acquire), COUNT, "all that was pushed");
}

fn push_raw(channel: &Channel, words: [u64; 4], second: Option<[u64; 4]>) {
    // SAFETY: the context lives, and nobody else produces in this test.
    unsafe {
        let context = &*channel.context();
        let ring = &*context.rings;
        let head = AtomicU64::from_ptr(&raw mut (*ring.producers).head);
        let count = 1 + u64::from(second.is_some());
        let number = head.fetch_add(count, Ordering::AcqRel);
        for (at, words) in [Some(words), second].into_iter().flatten().enumerate() {
            let number = number + at as u64;
            let slot =
                &*ring.slots.add(number as usize & ((1 << context.slots_log2) - 1)).cast::<Slot>();
            let due = lap(number, context.slots_log2);
            let word = |at: usize| words[at] & !c::NLF_LAP | due;
            slot.words[0].store(words[0], Ordering::Relaxed);
            slot.words[2].store(words[2], Ordering::Relaxed);
            slot.words[1].store(word(1), Ordering::Release);
            slot.words[3].store(word(3), Ordering::Release);
        }
    }
}

/// What the device API would not let through, or may let through as it knows less than the proxy:
/// the context ends with a word that says what was wrong, and everybody who waits is told.
pub(crate) fn bad_requests(place: &Place) {
    let len = 4096;
    let at = |region, offset| At::new(RegionIndex::new(region).unwrap(), offset).unwrap();
    let put = |pe, dst, src, bytes| Descriptor::Put { pe: Pe(pe), dst, src, bytes };
    let signal = |signal| Descriptor::PutSignal {
        pe: Pe(0),
        dst: at(0, 0),
        src: at(0, 8),
        bytes: 8,
        signal,
        op: AtomicOp::SignalSet,
        value: 1,
    };
    let cases = [
        (put(1, at(0, 0), at(0, 8), 8), c::NLF_ERROR_PE, "there is no PE 1"),
        (
            Descriptor::Fence { pe: Some(Pe(9)) },
            c::NLF_ERROR_PE,
            "fence on ring 0: there is no PE 9",
        ),
        (put(0, at(0, len - 7), at(0, 8), 8), c::NLF_ERROR_ADDRESS, "8 bytes at"),
        (signal(at(0, 4)), c::NLF_ERROR_ALIGNMENT, "put with signal"),
    ];
    let failed = c::NLF_ERROR_FAILED as i32;
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    for absurd in [1 << 60, usize::MAX >> 1, usize::MAX - 7, usize::MAX] {
        let refused = channel.allocate_symmetric(absurd).unwrap_err().to_string();
        assert!(refused.contains(&absurd.to_string()), "{refused}");
    }
    channel.allocate_symmetric(8).unwrap();
    channel.stop().unwrap();
    let check = |push: &dyn Fn(&Channel), code: u32, text: &str| {
        let channel = Channel::new(bootstrap(place), &options()).unwrap();
        let heap = on_host(&channel, len as usize);
        let mut own = vec![0_u64; 8];
        // SAFETY: `own` outlives the channel, which is stopped below.
        unsafe { channel.register_local(own.as_mut_ptr().cast(), 64).unwrap() };
        heap.word(256).store(77, Ordering::Relaxed);
        // In order: what was pushed before is done.
        let p = producer(&channel);
        assert_eq!(p.put_nbi(heap.at(512), heap.at(256), 8, 0), 0);
        push(&channel);
        assert_eq!(p.put_nbi(heap.at(520), heap.at(256), 8, 0), 0, "there is room");
        let status = p.quiet();
        assert!(status == failed || status == code as i32, "status {status} of {text}");
        assert_eq!(heap.word(520).load(Ordering::Acquire), 0, "nothing behind it is taken");
        // SAFETY: the error lives, and is complete once quiet has said so.
        let error = unsafe { (*channel.context()).error.read_volatile() };
        assert_eq!(error.code, code, "{text}");
        let why = channel.error().unwrap();
        assert!(why.contains(text), "{why}");
        let end = channel.stop().unwrap_err().to_string();
        assert!(end.contains("failed") && end.contains(text), "{end}");
    };
    for (descriptor, code, text) in cases {
        let encoded = descriptor.encode();
        check(&|channel| push_raw(channel, encoded.first, encoded.second), code, text);
    }
    let garbage = [!c::NLF_LAP; 4];
    let none = c::NLF_ERROR_DESCRIPTOR;
    check(&|channel| push_raw(channel, garbage, None), none, "no descriptor");
    check(&|channel| push_raw(channel, [0; 4], None), none, "no descriptor");
}

pub(crate) const DEAD: i32 = 3;

pub(crate) fn dead_peer(place: &Place) {
    let options = Options { drain: Duration::from_secs(1), ..options() };
    let channel = Channel::new(bootstrap(place), &options).unwrap();
    let (heap, _own) = symmetric(&channel, place, 1 << 20);
    channel.barrier().unwrap();
    let p = producer(&channel);
    if place.me == 1 {
        // Without an end, and without the files that some providers leave when a process aborts.
        // SAFETY: ends the process.
        unsafe { libc::_exit(DEAD) };
    }
    let mut status = 0;
    // What goes into its memory may still arrive when its process has just gone.
    while status == 0 {
        for _ in 0..64 {
            status = p.signal(heap.at(0).cast(), 1, c::NLF_KIND_ADD, 1);
            if status == 0 {
                status = p.put_nbi(heap.at(4096), heap.at(8192), 1 << 16, 1);
            }
        }
        if status == 0 {
            status = p.quiet();
        }
    }
    assert_eq!(status, c::NLF_ERROR_FAILED as i32);
    let why = channel.error().unwrap();
    assert!(why.contains("PE 1") || why.contains("rail"), "{why}");
    drop(channel);
}

/// A PE stops beyond the deadline of a get and goes on. The memory stays until the channel ends.
pub(crate) fn memory_in_use(place: &Place) {
    const LEN: usize = 1 << 20;
    let peer = Meeting::of(place).pids()[1];
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    let heap = on_host(&channel, LEN);
    if place.me == 1 {
        // Its proxy thread serves the other PE, which comes to the barrier, or goes without a word.
        let _ = channel.barrier();
        return drop(channel);
    }
    let mut memory = vec![0_u8; LEN];
    // SAFETY: `memory` outlives the channel, which is dropped below.
    unsafe { channel.register_local(memory.as_mut_ptr(), LEN).unwrap() };
    let p = producer(&channel);
    // The connection is there when the other PE stops, so the request gets to it.
    assert_eq!(p.get_nbi(memory.as_mut_ptr(), heap.at(0), LEN, 1), 0);
    assert_eq!(p.quiet(), 0);
    channel.release(memory.as_mut_ptr()).unwrap();
    // SAFETY: as above.
    unsafe { channel.register_local(memory.as_mut_ptr(), LEN).unwrap() };
    let stopped = Stopped::new(peer);
    assert_eq!(p.get_nbi(memory.as_mut_ptr(), heap.at(0), LEN, 1), 0);
    assert_eq!(p.quiet(), c::NLF_ERROR_FAILED as i32);
    for _ in 0..2 {
        let why = channel.release(memory.as_mut_ptr()).unwrap_err().to_string();
        assert!(why.contains("PE 1") && why.contains("cannot be released yet"), "{why}");
    }
    drop(channel);
    memory.fill(0x77);
    drop(stopped);
    // A peer that has ended has sent everything that it had to send.
    while !is_gone(peer) {
        thread::yield_now();
    }
    assert!(memory.iter().all(|byte| *byte == 0x77), "bytes have arrived");
}
