//! Channels of a process: hung threads, many channels in turn.

use std::sync::mpsc;
use std::time::Duration;

use nvshmem_transport_libfabric::channel::sys as c;
use nvshmem_transport_libfabric::channel::{Channel, Options};

use test_support::held::Cycles;

use super::memory::{on_host, symmetric};
use super::traffic::{bootstrap, options, producer};
use test_jobs::Place;
use test_jobs::memory::{device, on_device};

/// The proxy thread does not come back from a call. Who waits is told, and the channel ends.
pub(crate) fn stuck(place: &Place) {
    let options = Options { drain: Duration::from_millis(100), ..options() };
    let channel = Channel::new(bootstrap(place), &options).unwrap();
    let heap = on_host(&channel, 4096);
    let p = producer(&channel);
    assert_eq!(p.put_nbi(heap.at(64), heap.at(0), 8, 0), 0);
    assert_eq!(p.quiet(), 0);
    let (release, held) = mpsc::channel::<()>();
    let (enter, entered) = mpsc::channel();
    channel
        .send_to_proxy(move |_| {
            enter.send(()).unwrap();
            while held.recv().is_ok() {}
        })
        .unwrap();
    entered.recv().unwrap();
    assert_eq!(p.put_nbi(heap.at(64), heap.at(0), 8, 0), 0);
    assert_eq!(p.quiet(), c::NLF_ERROR_FAILED as i32, "after the deadline");
    let why = channel.error().unwrap();
    assert!(why.contains("proxy thread has not made an iteration"), "{why}");
    let end = channel.stop().unwrap_err().to_string();
    assert!(end.contains("does not come back") && end.contains("not freed"), "{end}");
    // Memory that a stuck thread may still use stays valid.
    heap.word(0).store(1, std::sync::atomic::Ordering::Relaxed);
    drop(release);
    let channel = Channel::new(bootstrap(place), &options).unwrap();
    let heap = on_host(&channel, 4096);
    let p = producer(&channel);
    assert_eq!(p.put_nbi(heap.at(64), heap.at(0), 8, 0), 0);
    assert_eq!(p.quiet(), 0);
    channel.stop().unwrap();
}

pub(crate) fn cycles(place: &Place) {
    let provider = std::env::var("NVSHMEM_LIBFABRIC_PROVIDER").unwrap();
    let library = if std::env::var("NVSHMEM_LIBFABRIC_LIBRARY").is_ok() { " 2.x" } else { "" };
    let mut used = None;
    let mut cycles = Cycles::new(12, format!("{provider}{library}"), place.me == 0);
    for cycle in 1..=cycles.count {
        let channel = Channel::new(bootstrap(place), &options()).unwrap();
        let (heap, _own) = symmetric(&channel, place, 1 << 16);
        let p = producer(&channel);
        let to = 1 - place.me as i32;
        for _ in 0..8 {
            assert_eq!(p.put_nbi(heap.at(0), heap.at(4096), 4096, to), 0);
            assert_eq!(p.signal(heap.at(8192).cast(), 1, c::NLF_KIND_ADD, to), 0);
        }
        assert_eq!(p.quiet_all(), 0);
        channel.stop().unwrap();
        if on_device() {
            assert_eq!(
                *used.get_or_insert(device().used()),
                device().used(),
                "memory of the device"
            );
        }
        cycles.over(cycle).unwrap();
    }
}
