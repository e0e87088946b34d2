//! Memory that the layer allocates on a device.

use cuda::{DeviceHeap, DeviceMemory};

use crate::prelude::*;

cases! {
    Fake: heap_is_zero_and_given_back, device_memory_is_given_back;
    Fake ("FAKE_CUDA_VMM" = "0"): heap_is_zero_and_given_back;
    Fake ("FAKE_CUDA_VMM" = "2"): heap_is_zero_and_given_back;
    Faults: device_memory_faults_under_the_cpu;
}

/// The fake driver's counter of device memory in use, in bytes.
const IN_USE: u32 = 4;

fn heap_is_zero_and_given_back(bed: &Bed) {
    let context = bed.context();
    let is_mapped = std::env::var_os("FAKE_CUDA_VMM").is_none();
    // The memory is zeroed late.
    bed.slow(5_000_000);
    for len in [0, 1, GRANULARITY, GRANULARITY + 1] {
        let heap = DeviceHeap::new(&context, len).expect("there is room");
        let whole = if is_mapped { len.max(1).next_multiple_of(GRANULARITY) } else { len.max(1) };
        assert_eq!(heap.len(), whole, "for {len} bytes");
        assert_eq!(Pointer::of(bed.driver, heap.addr()).expect("it answers").kind, Kind::Device);
        assert!(bed.read(heap.addr(), whole).iter().all(|byte| *byte == 0), "for {len} bytes");
        assert!(bed.count(IN_USE) >= whole as u64);
        assert!(bed.has_logged(if is_mapped { ", mapped" } else { ", by cuMemAlloc" }));
        let addr = heap.addr();
        drop(heap);
        assert_eq!(bed.count(IN_USE), 0, "all is given back");
        assert_ne!(status!(bed.raw, cuMemAddressFree(addr => usize, whole => usize)), 0, "as well");
    }
    call!(bed.raw, fake_cuda_limits(0 => c_int, u64::MAX => u64, 4096 => u64));
    let call = if is_mapped { "cuMemCreate" } else { "cuMemAlloc_v2" };
    refused(DeviceHeap::new(&context, 2 * GRANULARITY), &[call, "CUDA_ERROR_OUT_OF_MEMORY (2)"]);
    assert_eq!(bed.count(IN_USE), 0);
}

fn device_memory_is_given_back(bed: &Bed) {
    let context = bed.context();
    let memory = DeviceMemory::new(&context, 4096).expect("there is room");
    assert_eq!((memory.range().addr(), memory.range().len()), (memory.addr(), 4096));
    let page = DeviceMemory::page(&context).expect("there is room");
    assert_eq!((page.range().len(), page.addr() % (64 << 10)), (64 << 10, 0));
    assert_eq!(bed.count(IN_USE), 4096 + (128 << 10), "at any place there is a page in as many");
    drop((memory, page));
    assert_eq!(bed.count(IN_USE), 0, "all is given back");
}

fn device_memory_faults_under_the_cpu(bed: &Bed) {
    let addr = bed.alloc(4096) + 100;
    // SAFETY: it is not: that is what is shown.
    println!("read {}", unsafe { (addr as *const u8).read_volatile() });
}
