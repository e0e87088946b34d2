//! Memory that the layer allocates: page-locked bounce buffers, device memory, heaps.

use std::collections::BTreeSet;
use std::ffi::c_int;

use cuda::{
    Backing, DeviceHeap, DeviceMemory, Kind, PinnedMemory, PinnedPool, Pointer, Scratch, Stream,
};

use crate::bed::case::Case;
use crate::bed::{Bed, GRANULARITY, HANG, allocations, call, fill};
use test_support::random::pattern;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::any("a_pool_gives_each_chunk_to_one", bounces),
        Case::fake("a_pool_takes_what_it_says_and_gives_it_back", peak),
        Case::fake("a_pool_that_cannot_be_locked_says_how_much_was_asked", out_of_memory),
        Case::fake("a_heap_is_zero_and_is_given_back", heap),
        Case::fake("a_heap_without_the_vmm_interface_is_zero_and_is_given_back", heap)
            .with(&[("FAKE_CUDA_VMM", "0")]),
        Case::fake("device_memory_is_filled_and_given_back", device_memory),
    ]
}

fn bounces() {
    let bed = Bed::new();
    let mut pool = bed.pool(4096, 5);
    assert_eq!((pool.available(), pool.bounce_len(), pool.memory().len()), (5, 4096, 5 * 4096));
    let start = pool.memory().addr();
    let kind = Pointer::of(bed.driver, start).expect("it answers").kind;
    assert_eq!(kind, Kind::RegisteredHost);
    let mut taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    let addresses: BTreeSet<_> = taken.iter().map(|bounce| bounce.addr()).collect();
    let expected: BTreeSet<_> = (0..5).map(|index| start + index * 4096).collect();
    assert_eq!(addresses, expected);
    assert!(pool.take().is_none(), "all are in use");
    let before = allocations();
    let last = taken.pop().expect("five");
    let addr = last.addr();
    pool.give(last);
    let again = pool.take().expect("one is back");
    assert_eq!((again.addr(), again.len()), (addr, 4096));
    pool.give(again);
    assert_eq!(allocations(), before, "taking and giving back allocates nothing");
    // A bounce buffer of another pool does not come into this one.
    let mut other = bed.pool(4096, 1);
    pool.give(other.take().expect("one"));
    assert_eq!(pool.available(), 1);
}

fn peak() {
    let bed = Bed::new();
    let mut pool = bed.pool(1 << 20, 4);
    assert_eq!(bed.count(3), 4 << 20);
    let bounce = pool.take().expect("four");
    drop(pool);
    assert_eq!(bed.count(3), 4 << 20, "a bounce buffer is in use");
    drop(bounce);
    assert_eq!(bed.count(3), 0);
}

fn out_of_memory() {
    let bed = Bed::new();
    let limits = (1 << 20, u64::MAX);
    call!(bed.raw, fake_cuda_limits(0 => c_int, limits.0 => u64, limits.1 => u64));
    let context = bed.context();
    let error = PinnedPool::new(&context, 1 << 18, 5).expect_err("too much");
    let said = error.to_string();
    assert!(said.contains("1310720 bytes of page-locked memory"), "{said}");
    assert!(said.contains("CUDA_ERROR_OUT_OF_MEMORY (2)"), "{said}");
    assert_eq!(bed.count(3), 0);
    PinnedPool::new(&context, 1 << 18, 4).expect("that fits");
    PinnedPool::new(&context, usize::MAX, 2).expect_err("more than there are addresses");
}

/// What the fake driver calls bytes of the device's memory that are in use.
const IN_USE: u32 = 4;

fn heap() {
    let bed = Bed::new();
    let context = bed.context();
    let is_mapped = std::env::var_os("FAKE_CUDA_VMM").is_none();
    for len in [0, 1, GRANULARITY, GRANULARITY + 1] {
        let heap = DeviceHeap::new(&context, len).expect("there is room");
        let whole = if is_mapped { len.max(1).next_multiple_of(GRANULARITY) } else { len.max(1) };
        assert_eq!(heap.len(), whole, "for {len} bytes");
        let mapped = Backing::Mapped { for_nics: false };
        assert_eq!(heap.backing(), if is_mapped { mapped } else { Backing::Allocated });
        assert_eq!(Pointer::of(bed.driver, heap.addr()).expect("it answers").kind, Kind::Device);
        assert!(bed.read(heap.addr(), whole).iter().all(|byte| *byte == 0), "for {len} bytes");
        assert!(bed.count(IN_USE) >= whole as u64);
        drop(heap);
        assert_eq!(bed.count(IN_USE), 0, "all is given back");
    }
    call!(bed.raw, fake_cuda_limits(0 => c_int, u64::MAX => u64, 4096 => u64));
    let error = DeviceHeap::new(&context, 2 * GRANULARITY).expect_err("there is less");
    assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY (2)"), "{error}");
    assert_eq!(bed.count(IN_USE), 0);
}

fn device_memory() {
    const LEN: usize = 4096;
    let bed = Bed::new();
    let context = bed.context();
    let memory = DeviceMemory::new(&context, LEN).expect("there is room");
    let stream = Stream::new(&context).expect("a stream");
    for from in [LEN, 2 * LEN] {
        let bytes = pattern(from, from);
        let host = PinnedMemory::new(&context, from).expect("there is room");
        fill(host.addr(), &bytes);
        memory.fill(&host, &stream).expect("it is as long");
        let start = std::time::Instant::now();
        while !stream.is_idle().expect("it goes well") {
            assert!(start.elapsed() < HANG, "it does not end");
        }
        assert!(bed.read(memory.addr(), memory.len()) == bytes[..LEN], "{from} bytes");
    }
    let short = PinnedMemory::new(&context, LEN - 1).expect("there is room");
    let error = memory.fill(&short, &stream).expect_err("it is shorter");
    assert!(error.to_string().contains("4096 bytes of 4095"), "{error}");
    let scratch = Scratch::new(&context).expect("there is room");
    let page = scratch.range();
    assert_eq!((page.len(), page.addr() % page.len()), (64 << 10, 0));
    assert!(bed.count(IN_USE) > 0);
    drop((memory, scratch));
    assert_eq!(bed.count(IN_USE), 0, "all is given back");
}
