//! Symmetric memory on a device: given, given back, refused where there is none; kernels' memory.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::Ordering;

use channel_producer::{Producer, set_block};
use nvshmem_transport_libfabric::channel::sys as c;
use nvshmem_transport_libfabric::channel::{Channel, MemoryLocation};

use super::memory::on_device;
use super::traffic::{AT_LEAST, bootstrap, options, producer};
use test_jobs::Place;
use test_jobs::memory::{Heap, Kind, Memory, device};

const GRANULE: u64 = 2 << 20;

/// A process without CUDA is told so, and its channel stays as it is.
pub(crate) fn no_driver(place: &Place) {
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    for _ in 0..2 {
        let failed = channel.allocate_symmetric_on(MemoryLocation::Device, 4096).unwrap_err();
        let why = failed.to_string();
        assert!(why.contains("4096 bytes on a device") && why.contains("no CUDA driver"), "{why}");
    }
    let heap = Heap::of(channel.allocate_symmetric_on(MemoryLocation::Host, 64).unwrap(), 64);
    assert_eq!(producer(&channel).put_nbi(heap.at(0), heap.at(8), 8, 0), 0);
    channel.stop().unwrap();
}

/// One PE has no context on the thread that asks, or no memory. All are told, and nothing is left.
pub(crate) fn refused(place: &Place) {
    const MORE: usize = 100 << 20;
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    let first = on_device(&channel, 64);
    let used = device().used();
    let bound = (place.me != 0).then(|| device().bind());
    let why = channel.allocate_symmetric_on(MemoryLocation::Device, 4096).unwrap_err().to_string();
    let expected = if place.me == 0 { "4096 bytes on a device: no context" } else { "PE 0 cannot" };
    assert!(why.contains(expected) && why.contains("cudaSetDevice"), "{why}");
    drop(bound);
    assert_eq!(device().used(), used, "given back");
    let bound = device().bind();
    if place.me == 1 {
        device().limit(used + 2 * GRANULE);
    }
    let why = channel.allocate_symmetric_on(MemoryLocation::Device, MORE).unwrap_err().to_string();
    assert!(why.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{why}");
    assert!(place.me == 1 || why.contains("PE 1 cannot"), "{why}");
    assert_eq!(device().used(), used, "given back");
    drop(bound);
    // More than was allocated is no memory to register.
    let own = Memory::new(Kind::Own, 1 << 16);
    // SAFETY: refused.
    unsafe { channel.register_symmetric(own.at(0), 1 << 30).unwrap_err() };
    let last = on_device(&channel, 4096);
    let p = producer(&channel);
    assert_eq!(p.put_nbi(last.at(0), first.at(0), 64, 1 - place.me as i32), 0);
    assert_eq!(p.quiet_all(), 0);
    let used = device().used();
    channel.release(last.at(0)).unwrap();
    assert!(device().used() < used, "given back at once");
    let why = channel.release(last.at(0)).unwrap_err().to_string();
    assert!(why.contains("no region"), "{why}");
    channel.stop().unwrap();
}

/// A channel's context as kernels have it, on their device, seen by CPU threads through windows.
struct Seen {
    context: Box<c::nlf_context>,
    _rings: Vec<c::nlf_ring>,
    /// What the proxy thread publishes is on the device.
    is_published_there: bool,
}

impl Seen {
    fn new(channel: &Channel) -> Self {
        fn see<T>(addr: *const T, count: usize) -> *mut T {
            device().look(addr.cast_mut().cast(), size_of::<T>() * count).cast()
        }
        // SAFETY: the channel lives, and what it points to is as long as the header says.
        unsafe {
            let mut context = Box::new(*see(channel.context(), 1));
            assert!(device().has(channel.context() as usize), "the context is on the device");
            let rings = see(context.rings, context.n_rings as usize);
            let rings = std::slice::from_raw_parts(rings, context.n_rings as usize);
            let is_published_there = device().has(rings[0].published as usize);
            let there = |ring: &c::nlf_ring| {
                assert!(
                    device().has(ring.producers as usize) && !device().has(ring.slots as usize)
                );
                c::nlf_ring {
                    slots: ring.slots,
                    producers: see(ring.producers, 1),
                    published: see(ring.published, 1),
                }
            };
            let rings: Vec<c::nlf_ring> = rings.iter().map(there).collect();
            context.rings = rings.as_ptr();
            context.regions = see(context.regions, c::NLF_MAX_REGIONS as usize);
            context.error_claims = see(context.error_claims, 1);
            context.own_producers = see(context.own_producers, 1);
            Self { context, _rings: rings, is_published_there }
        }
    }

    fn producer(&self) -> Producer {
        // SAFETY: scenarios end with it what uses it.
        unsafe { Producer::new(&raw const *self.context) }
    }
}

pub(crate) fn near_kernels(place: &Place) {
    const ROUNDS: u64 = 700;
    let to = (place.me as i32 + 1) % place.n_pes as i32;
    let _bound = device().bind();
    let windows = std::env::var("NVSHMEM_LIBFABRIC_DEBUG").is_ok_and(|way| way != "words=stream");
    for round in 0..2 {
        let used = device().used();
        let channel = Channel::new(bootstrap(place), &options()).unwrap();
        let heap = on_device(&channel, 1 << 16);
        let flags = on_device(&channel, 64);
        let seen = Seen::new(&channel);
        assert_eq!(seen.is_published_there, windows);
        let p = seen.producer();
        channel.barrier().unwrap();
        // More than there are slots, so room is looked for as well.
        for round in 1..=ROUNDS {
            set_block(round as u32 % 2);
            heap.word(0).store(round, Ordering::Relaxed);
            let (dst, from) = (heap.at(4096 + 8 * round as usize), heap.at(0));
            assert_eq!(
                p.put_signal_nbi(dst, from, 8, flags.at(0).cast(), 1, c::NLF_KIND_ADD, to),
                0
            );
            if round % 7 != 0 {
                assert_eq!(p.signal(flags.at(8).cast(), 1, c::NLF_KIND_ADD, to), 0);
            }
            // The source changes only when it has been read.
            assert_eq!(p.quiet(), 0);
        }
        // SAFETY: a word of the heap.
        assert_eq!(unsafe { p.wait_until(flags.here(0, 8).cast(), AT_LEAST, ROUNDS) }, 0);
        assert!(
            (1..=ROUNDS).all(|at| heap.word(4096 + 8 * at as usize).load(Ordering::Acquire) == at)
        );
        for _ in 0..2000 {
            assert_eq!(p.put_nbi(heap.at(16), heap.at(24), 8, to), 0);
        }
        assert_eq!(p.barrier_all(), 0);
        let mut got = 0;
        assert_eq!(p.g(&mut got, heap.at(4096 + 8).cast(), to), 0);
        assert_eq!(got, 1);
        assert_eq!(p.sync_all(), 0);
        channel.drain().unwrap();
        assert_eq!(p.put_nbi(heap.at(16), heap.at(24), 8, to), 0, "there is room");
        assert_eq!(p.quiet_all(), c::NLF_ERROR_STOPPED as i32);
        channel.stop().unwrap();
        assert!(round == 0 || device().used() == used, "all is given back");
    }
}

/// A program may have a context of its own: what kernels are given is memory of that one. All is
/// given back, though copies that were timed may have taken too long.
pub(crate) fn own_context(place: &Place) {
    const CONTEXT: u32 = 1;
    let device = device();
    let mut context: *mut c_void = ptr::null_mut();
    type Create = unsafe extern "C" fn(*mut *mut c_void, u32, c_int) -> u32;
    // SAFETY: its type in CUDA's header, and a place for the handle. It is bound from here on.
    let status = unsafe { device.call::<Create>(b"cuCtxCreate_v2")(&raw mut context, 0, 0) };
    assert_eq!(status, 0);
    let used = device.used();
    let channel = Channel::new(bootstrap(place), &options()).unwrap();
    type Attribute = unsafe extern "C" fn(*mut c_void, u32, usize) -> u32;
    // SAFETY: its type in CUDA's header.
    let attribute = unsafe { device.call::<Attribute>(b"cuPointerGetAttribute") };
    let mut found: *mut c_void = ptr::null_mut();
    // SAFETY: a place for the handle.
    let status = unsafe { attribute((&raw mut found).cast(), CONTEXT, channel.context() as usize) };
    assert_eq!((status, found), (0, context), "of the program's context");
    let addr = channel.allocate_symmetric_on(MemoryLocation::Device, 64).unwrap();
    channel.release(addr).unwrap();
    channel.stop().unwrap();
    assert_eq!(device.used(), used, "given back");
}
