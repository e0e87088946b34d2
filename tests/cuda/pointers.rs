//! What addresses are, where allocations end, and which context they belong to.

use std::{ptr, thread};

use cuda::RangeError;

use crate::prelude::*;

cases! {
    Any: kinds_of_memory_are_told, reused_address_has_another_number, range_knows_its_allocations,
        range_of_two_kinds_is_refused, empty_ranges_are_refused, bound_context_comes_back,
        memory_mapped_anew_is_another;
    Fake: memory_of_a_node_is_told, range_on_two_devices_is_refused, program_context_is_used,
        bound_context_serves, destroyed_context_is_an_error;
}

fn kind(bed: &Bed, addr: usize) -> Kind {
    Pointer::of(bed.driver, addr).expect("every address is answered").kind
}

fn kinds_of_memory_are_told(bed: &Bed) {
    let plain = vec![0_u8; 1 << 16];
    let addr = plain.as_ptr() as usize;
    assert_eq!(kind(bed, addr), Kind::Host);
    assert!(matches!(Memory::examine(bed.driver, addr, plain.len()), Ok(Memory::Host(Kind::Host))));
    let page = addr.next_multiple_of(4096);
    call!(bed.raw, cuMemHostRegister_v2(page => usize, 8192 => usize, 0 => u32));
    assert_eq!(kind(bed, page + 5), Kind::RegisteredHost);
    let inside = Memory::examine(bed.driver, page + 1, 4096);
    assert!(matches!(inside, Ok(Memory::Host(Kind::RegisteredHost))), "{inside:?}");
    let beyond = Memory::examine(bed.driver, page + 1, 16_384);
    assert!(matches!(beyond, Ok(Memory::Host(Kind::Host))), "not all is locked: {beyond:?}");
    call!(bed.raw, cuMemHostUnregister(page => usize));
    assert_eq!(kind(bed, page + 5), Kind::Host);

    let locked = bed.host(4096);
    assert_eq!(kind(bed, locked + 4095), Kind::RegisteredHost);
    bed.free_host(locked);

    let device = bed.alloc(1 << 20);
    let pointer = Pointer::of(bed.driver, device + 77).expect("it answers");
    assert_eq!((pointer.kind, pointer.device), (Kind::Device, Some(bed.device)));
    let range = bed.range(device + 77, 1000);
    assert_eq!((range.addr(), range.len(), range.kind()), (device + 77, 1000, Kind::Device));
    assert!(range.context().is(&bed.context()));
    assert_eq!(range.context().to_string(), format!("primary context of device {}", bed.device));
    assert!(!range.kind().cpu_accessible());

    let managed = bed.managed(1 << 20);
    assert_eq!(kind(bed, managed), Kind::Managed);
    assert!(matches!(Memory::examine(bed.driver, managed, 1 << 20), Ok(Memory::Managed(_))));

    let heap = bed.heap(1);
    let pointer = Pointer::of(bed.driver, heap + 1).expect("it answers");
    assert_eq!((pointer.kind, pointer.device), (Kind::Device, Some(bed.device)));
    assert!(bed.range(heap, GRANULARITY).context().is(&bed.context()));
    bed.free(device);
    bed.free(managed);

    let mut pool = 0;
    call!(bed.raw, cuMemAllocAsync(&raw mut pool => *mut usize, 4096 => usize, 0 => usize));
    call!(bed.raw, cuStreamSynchronize(0 => usize));
    assert_eq!(kind(bed, pool), Kind::DevicePool);
    bed.free(pool);
}

fn memory_of_a_node_is_told(bed: &Bed) {
    let open = bed.vmm(&[(ON_NUMA_NODE, 0); 2], true);
    assert_eq!(kind(bed, open), Kind::HostNuma);
    let memory = Memory::examine(bed.driver, open, 2 * GRANULARITY);
    assert!(matches!(memory, Ok(Memory::Host(Kind::HostNuma))), "{memory:?}");
    // SAFETY: mapped for the CPU, as the driver says, and ours.
    unsafe { (open as *mut u64).write_volatile(7) };

    let closed = bed.vmm(&[(ON_NUMA_NODE, 0); 2], false);
    assert_eq!(kind(bed, closed), Kind::HostNumaDeviceOnly);
    let range = bed.range(closed, 2 * GRANULARITY);
    assert_eq!(range.kind(), Kind::HostNumaDeviceOnly);
    assert_eq!(range.allocations().count(), 2);
}

fn reused_address_has_another_number(bed: &Bed) {
    let first = bed.alloc(1 << 20);
    let number = Pointer::of(bed.driver, first).expect("it answers").buffer;
    assert_ne!(number, 0);
    assert_eq!(Pointer::of(bed.driver, first + 99).expect("it answers").buffer, number);
    bed.free(first);
    let second = bed.alloc(1 << 20);
    assert_ne!(Pointer::of(bed.driver, second).expect("it answers").buffer, number);
    bed.free(second);
}

fn range_knows_its_allocations(bed: &Bed) {
    let heap = bed.heap(3);
    let g = GRANULARITY;
    let all: Vec<_> = bed.range(heap, 3 * g).allocations().collect();
    assert_eq!(all, [(heap, g), (heap + g, g), (heap + 2 * g, g)]);
    let range = bed.range(heap + 10, 2 * g);
    let all: Vec<_> = range.allocations().collect();
    assert_eq!(all, [(heap + 10, g - 10), (heap + g, g), (heap + 2 * g, 10)]);
    // Memory of the VMM interface refuses it, plain memory does not.
    if bed.is_fake() {
        refused(range.set_sync_memops(), &["SYNC_MEMOPS"]);
    }
    let plain = bed.alloc(4096);
    bed.range(plain, 4096).set_sync_memops().expect("it is for plain memory");
    bed.free(plain);
}

fn memory_mapped_anew_is_another(bed: &Bed) {
    let g = GRANULARITY;
    let base = bed.reserve(3 * g);
    (0..3).for_each(|nth| bed.map_at(base + nth * g, g));
    let range = bed.range(base, 3 * g);
    bed.unmap(base + g, g);
    bed.map_at(base + g, g);
    for (at, len, is_current) in
        [(0, g, true), (g - 8, 9, false), (g, 8, false), (2 * g - 8, 8, false), (2 * g, g, true)]
    {
        assert_eq!(range.is_current(base + at, len), Ok(is_current), "{len} bytes at {at:#x}");
    }
}

fn range_of_two_kinds_is_refused(bed: &Bed) {
    if bed.is_fake() {
        let heap = bed.vmm(&[(ON_DEVICE, 0), (ON_NUMA_NODE, 0)], false);
        let error = Memory::examine(bed.driver, heap, 2 * GRANULARITY).expect_err("two kinds");
        let expected = RangeError::Mixed {
            addr: heap,
            first: Kind::Device,
            at: heap + GRANULARITY,
            then: Kind::HostNumaDeviceOnly,
        };
        assert_eq!(error, expected);
        let said = error.to_string();
        assert!(said.contains("device memory") && said.contains("NUMA"), "{said}");
    }
    // From host memory into device memory, however far that is.
    let plain = [0_u8; 64];
    for high in [bed.alloc(4096), bed.managed(4096)] {
        let low = plain.as_ptr() as usize;
        if low < high {
            let error = Memory::examine(bed.driver, low, high - low + 1).expect_err("two kinds");
            assert!(matches!(error, RangeError::Mixed { first: Kind::Host, .. }), "{error:?}");
        } else {
            Memory::examine(bed.driver, high, low - high + 1).expect_err("it leaves it");
        }
        bed.free(high);
    }
}

fn range_on_two_devices_is_refused(bed: &Bed) {
    let heap = bed.vmm(&[(ON_DEVICE, 0), (ON_DEVICE, 1)], false);
    let error = Memory::examine(bed.driver, heap, GRANULARITY + 1).expect_err("two devices");
    let at = heap + GRANULARITY;
    let (first, then) = (Ordinal(0), Ordinal(1));
    assert_eq!(error, RangeError::Devices { addr: heap, first, at, then });
    let range = bed.range(at, GRANULARITY);
    assert_eq!(range.context().device(), Ordinal(1));
}

fn empty_ranges_are_refused(bed: &Bed) {
    for (addr, len) in [(0x1000, 0), (0, 8), (usize::MAX - 3, 8)] {
        let error = Memory::examine(bed.driver, addr, len).expect_err("no range");
        assert_eq!(error, RangeError::Bounds { addr, len });
    }
    // Device memory, but more of it than there is.
    let device = bed.alloc(4096);
    let error = Memory::examine(bed.driver, device, 1 << 40).expect_err("it leaves the allocation");
    println!("{error}");
    bed.free(device);
}

fn bound(bed: &Bed) -> *mut c_void {
    let mut current = ptr::null_mut();
    call!(bed.raw, cuCtxGetCurrent(&raw mut current => *mut *mut c_void));
    current
}

fn bound_context_comes_back(bed: &Bed) {
    let context = bed.context();
    assert_eq!(bound(bed), bed.handle);
    drop(context.bind().expect("it is there"));
    assert_eq!(bound(bed), bed.handle);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(bound(bed).is_null(), "nothing is bound on a fresh thread");
            let outer = context.bind().expect("it is there");
            assert_eq!(bound(bed), bed.handle);
            drop(context.bind().expect("again"));
            assert_eq!(bound(bed), bed.handle, "the inner one has changed nothing");
            drop(outer);
            assert!(bound(bed).is_null(), "what was bound is back");
        });
    });
    if bed.is_fake() {
        let mut other = ptr::null_mut::<c_void>();
        call!(bed.raw, cuDevicePrimaryCtxRetain(&raw mut other => *mut *mut c_void, 1 => c_int));
        call!(bed.raw, cuCtxSetCurrent(other => *mut c_void));
        {
            let _bound = context.bind().expect("it is there");
            assert_eq!(bound(bed), bed.handle);
        }
        assert_eq!(bound(bed), other);
    }
}

fn program_context_is_used(bed: &Bed) {
    let own = bed.make_context(3);
    let made = bed.count(1);
    let device = bed.alloc(4096);
    call!(bed.raw, cuCtxSetCurrent(bed.handle => *mut c_void));
    let range = bed.range(device, 4096);
    assert_eq!(range.context().device(), Ordinal(3));
    assert!(!range.context().is(&bed.context()));
    let inner = range.context().bind().expect("it is there");
    assert_eq!(bound(bed), own);
    drop(inner);
    assert_eq!(bed.count(1), made, "no primary context of device 3 was made");
    assert!(range.context().to_string().contains("device 3"), "{}", range.context());
    drop(Context::primary(bed.driver, Ordinal(4)).expect("the primary context"));
    let released = status!(bed.raw, cuDevicePrimaryCtxRelease_v2(4 => c_int));
    assert_ne!(released, 0, "it was released");
    bed.make_context(0);
    assert!(!bed.range(bed.alloc(4096), 4096).context().is(&bed.context()));
}

fn bound_context_serves(bed: &Bed) {
    let heap = bed.vmm(&[(ON_DEVICE, 3)], false);
    let own = bed.make_context(3);
    let made = bed.count(1);
    let used_in = || {
        let range = bed.range(heap, GRANULARITY);
        assert_eq!(range.context().device(), Ordinal(3));
        let _bound = range.context().bind().expect("it is there");
        (bound(bed), bed.count(1))
    };
    let current = || Context::current(bed.driver).expect("it answers");
    assert_eq!(used_in(), (own, made), "the one that is bound");
    let context = current().expect("one is bound");
    assert_eq!((context.device(), context.is_own()), (Ordinal(3), false));
    assert!(!context.is(&bed.context()));
    // One of another device is bound, or none: the primary one is made.
    for other in [bed.handle, ptr::null_mut()] {
        // Without one, those below on the thread's stack go as well.
        while bound(bed) != other {
            call!(bed.raw, cuCtxSetCurrent(other => *mut c_void));
        }
        let (context, made_now) = used_in();
        assert!(context != own && context != bed.handle && made_now > made);
        assert_eq!(current().is_some(), !other.is_null());
    }
}

fn destroyed_context_is_an_error(bed: &Bed) {
    let own = bed.make_context(2);
    let device = bed.alloc(4096);
    let range = bed.range(device, 4096);
    call!(bed.raw, cuCtxDestroy_v2(own => *mut c_void));
    refused(range.context().bind(), &["CUDA_ERROR_CONTEXT_IS_DESTROYED (709)"]);
}
