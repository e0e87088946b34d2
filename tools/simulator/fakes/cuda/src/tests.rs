//! What the stand-in does as a driver does, called as C calls it. Every test has a device of its
//! own.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::state::status::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, SUCCESS};

unsafe extern "C" {
    fn cuInit(flags: u32) -> u32;
    fn cuDevicePrimaryCtxRetain(into: *mut usize, number: c_int) -> u32;
    fn cuCtxCreate_v2(into: *mut usize, flags: u32, number: c_int) -> u32;
    fn cuCtxDestroy_v2(context: usize) -> u32;
    fn cuCtxSetCurrent(context: usize) -> u32;
    fn cuCtxSetLimit(limit: u32, value: usize) -> u32;
    fn cuMemAlloc_v2(into: *mut usize, len: usize) -> u32;
    fn cuMemFree_v2(base: usize) -> u32;
    fn cuMemAllocAsync(into: *mut usize, len: usize, on: usize) -> u32;
    fn cuMemFreeAsync(base: usize, on: usize) -> u32;
    fn cuMemHostAlloc(into: *mut *mut c_void, len: usize, flags: u32) -> u32;
    fn cuMemFreeHost(base: *mut c_void) -> u32;
    fn cuMemHostRegister_v2(base: *mut c_void, len: usize, flags: u32) -> u32;
    fn cuMemHostUnregister(base: *mut c_void) -> u32;
    fn cuMemAddressReserve(
        into: *mut usize,
        len: usize,
        align: usize,
        at: usize,
        flags: u64,
    ) -> u32;
    fn cuMemCreate(into: *mut usize, len: usize, properties: *const [c_int; 8], flags: u64) -> u32;
    fn cuMemMap(base: usize, len: usize, offset: usize, handle: usize, flags: u64) -> u32;
    fn cuMemSetAccess(base: usize, len: usize, access: *const [c_int; 3], count: usize) -> u32;
    fn cuMemGetAddressRange_v2(base: *mut usize, len: *mut usize, address: usize) -> u32;
    fn cuModuleLoadData(into: *mut usize, image: *const c_void) -> u32;
    fn cuModuleUnload(module: usize) -> u32;
    fn cuLaunchKernel(
        kernel: usize,
        blocks_x: u32,
        blocks_y: u32,
        blocks_z: u32,
        threads_x: u32,
        threads_y: u32,
        threads_z: u32,
        shared: u32,
        stream: usize,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
    fn cuStreamCreate(into: *mut usize, flags: u32) -> u32;
    fn cuStreamQuery(stream: usize) -> u32;
    fn cuStreamSynchronize(stream: usize) -> u32;
    fn cuStreamWriteValue64_v2(on: usize, to: usize, value: u64, flags: u32) -> u32;
    fn cuEventCreate(into: *mut usize, flags: u32) -> u32;
    fn cuEventQuery(event: usize) -> u32;
    fn cuEventRecord(event: usize, stream: usize) -> u32;
    fn cuMemcpyHtoDAsync_v2(to: usize, from: *const c_void, len: usize, on: usize) -> u32;
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: usize, len: usize, on: usize) -> u32;
    fn cuMemcpy2DAsync_v2(rows: *const [usize; 16], on: usize) -> u32;
    fn fake_cuda_spin(stream: usize) -> usize;
    fn fake_cuda_release(gate: usize) -> u32;
    fn fake_cuda_latency(number: c_int, copy_ns: u64) -> u32;
    fn fake_cuda_count(number: c_int, what: u32) -> u64;
    fn fake_cuda_window(address: usize, len: usize) -> usize;
}

const HANG: Duration = Duration::from_secs(30);

const TURNS: u32 = 7;
const QUEUED: u32 = 15;
const TAKEN: u32 = 8;
const HELD_UP: u32 = 9;

/// Calls a function.
macro_rules! ask {
    ($name:ident($($argument:expr),*)) => {{
        // SAFETY: the types are those of the functions above; pointers lead to places of the
        // test's, or are null where that is answered, as every number is.
        unsafe { $name($($argument),*) }
    }};
}

/// Calls a function, which has to succeed.
macro_rules! call {
    ($name:ident($($argument:expr),*)) => {
        assert_eq!(ask!($name($($argument),*)), SUCCESS, stringify!($name))
    };
}

fn memory_of_no_context(device: c_int) -> usize {
    const WHOLE: usize = 2 << 20;
    let (mut base, mut handle) = (0, 0);
    // `CUmemAllocationProp` and `CUmemAccessDesc`.
    let properties = [1, 0, 1, device, 0, 0, 0, 0];
    let access = [1, device, 3];
    call!(cuMemAddressReserve(&raw mut base, WHOLE, 0, 0, 0));
    call!(cuMemCreate(&raw mut handle, WHOLE, &raw const properties, 0));
    call!(cuMemMap(base, WHOLE, 0, handle, 0));
    call!(cuMemSetAccess(base, WHOLE, &raw const access, 1));
    base
}

/// A device with two contexts, the second of which is bound, and memory of each.
struct Bed {
    device: c_int,
    first: usize,
    second: usize,
    /// Streams that wait for no other.
    first_stream: usize,
    second_stream: usize,
    /// Memory of the device: of the first context, and of none.
    owned: usize,
    memory: usize,
    /// Page-locked memory, made in the second.
    host: *mut c_void,
}

const LEN: usize = 128 << 10;

impl Bed {
    fn new(device: c_int) -> Self {
        let (mut first, mut second, mut first_stream, mut second_stream) = (0, 0, 0, 0);
        let (mut owned, mut host) = (0, ptr::null_mut());
        call!(cuInit(0));
        call!(cuDevicePrimaryCtxRetain(&raw mut first, device));
        call!(cuCtxSetCurrent(first));
        call!(cuStreamCreate(&raw mut first_stream, 1));
        call!(cuMemAlloc_v2(&raw mut owned, LEN));
        call!(cuCtxCreate_v2(&raw mut second, 0, device));
        call!(cuCtxSetCurrent(second));
        call!(cuStreamCreate(&raw mut second_stream, 1));
        call!(cuMemHostAlloc(&raw mut host, LEN, 1));
        let memory = memory_of_no_context(device);
        Self { device, first, second, first_stream, second_stream, owned, memory, host }
    }

    fn count(&self, what: u32) -> u64 {
        ask!(fake_cuda_count(self.device, what))
    }

    fn spin(&self) -> Kernel {
        call!(cuCtxSetCurrent(self.first));
        let gate = ask!(fake_cuda_spin(self.first_stream));
        call!(cuCtxSetCurrent(self.second));
        assert_ne!(gate, 0);
        Kernel(gate)
    }

    /// Copies `len` bytes to the device as so many rows, and back, in the second context.
    fn there_and_back(&self, len: usize, rows: usize) {
        let pitch = len / rows;
        let to_device: [usize; 16] = [
            0,
            0,
            1,
            self.host as usize,
            0,
            0,
            pitch,
            0,
            0,
            2,
            0,
            self.memory,
            0,
            pitch,
            pitch,
            rows,
        ];
        call!(cuMemcpy2DAsync_v2(&raw const to_device, self.second_stream));
        let back = self.host.wrapping_byte_add(LEN / 2);
        call!(cuMemcpyDtoHAsync_v2(back, self.memory, len, self.second_stream));
        call!(cuStreamSynchronize(self.second_stream));
        // SAFETY: page-locked memory, which no copy uses now.
        let [sent, came] =
            unsafe { [self.host, back].map(|at| std::slice::from_raw_parts(at.cast::<u8>(), len)) };
        assert!(sent == came, "{len} bytes in {rows} rows");
    }

    fn fill(&self, with: u8) {
        // SAFETY: page-locked memory, which no copy uses now.
        unsafe { self.host.cast::<u8>().write_bytes(with, LEN / 2) };
    }
}

fn wait(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < HANG, "{what}");
        thread::yield_now();
    }
}

type Call = Box<dyn Fn() -> u32 + Send + Sync>;

fn calls(bed: &Bed) -> Vec<(&'static str, u32, Call)> {
    let (mut memory, mut host, page) = (0, ptr::null_mut(), Box::leak(Box::new([0u8; 4096])));
    call!(cuCtxSetCurrent(bed.first));
    call!(cuMemAlloc_v2(&raw mut memory, 64));
    call!(cuMemHostAlloc(&raw mut host, 64, 0));
    call!(cuMemHostRegister_v2(page.as_mut_ptr().cast(), page.len(), 0));
    call!(cuCtxSetCurrent(bed.second));
    let (host, page, stream) = (host as usize, page.as_mut_ptr() as usize, bed.first_stream);
    let launch = move || {
        let none = ptr::null_mut::<*mut c_void>;
        ask!(cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, stream, none(), none()))
    };
    let load = || ask!(cuModuleLoadData(ptr::null_mut(), ptr::null()));
    let unregister = move || ask!(cuMemHostUnregister(page as *mut c_void));
    vec![
        ("cuMemFree", SUCCESS, Box::new(move || ask!(cuMemFree_v2(memory)))),
        ("cuMemFreeHost", SUCCESS, Box::new(move || ask!(cuMemFreeHost(host as *mut c_void)))),
        ("cuMemHostUnregister", SUCCESS, Box::new(unregister)),
        ("cuCtxSetLimit", SUCCESS, Box::new(|| ask!(cuCtxSetLimit(0, 8192)))),
        ("cuModuleLoadData", NOT_SUPPORTED, Box::new(load)),
        ("cuModuleUnload", NOT_SUPPORTED, Box::new(|| ask!(cuModuleUnload(0)))),
        ("cuLaunchKernel", NOT_SUPPORTED, Box::new(launch)),
    ]
}

struct Kernel(usize);

impl Drop for Kernel {
    fn drop(&mut self) {
        ask!(fake_cuda_release(self.0));
    }
}

#[test]
fn calls_that_wait_for_a_kernel_hold_up_their_context_and_no_other() {
    let bed = Bed::new(0);
    let Bed { device, first, second, first_stream, second_stream, owned, .. } = bed;
    let host = bed.host as usize;
    for (round, (name, answer, call)) in calls(&bed).into_iter().enumerate() {
        let (ended, asked) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            // Dropped before the threads are waited for, whatever happens.
            let _kernel = bed.spin();
            scope.spawn(|| {
                call!(cuCtxSetCurrent(bed.first));
                assert_eq!(call(), answer, "{name}");
                ended.store(true, SeqCst);
            });
            wait(name, || bed.count(TAKEN) == 1);
            let others: [(&str, Call); 3] = [
                (
                    "a query",
                    Box::new(move || {
                        call!(cuCtxSetCurrent(first));
                        ask!(cuStreamQuery(first_stream))
                    }),
                ),
                (
                    "a copy of the context's memory",
                    Box::new(move || {
                        call!(cuCtxSetCurrent(second));
                        let last = host.wrapping_add(LEN - 8) as *mut c_void;
                        ask!(cuMemcpyDtoHAsync_v2(last, owned, 8, second_stream))
                    }),
                ),
                (
                    "another context",
                    Box::new(move || {
                        let mut made = 0;
                        call!(cuCtxCreate_v2(&raw mut made, 0, device));
                        ask!(cuCtxDestroy_v2(made))
                    }),
                ),
            ];
            for (number, (what, other)) in others.into_iter().enumerate() {
                let asked = &asked;
                scope.spawn(move || {
                    assert_eq!(other(), SUCCESS, "{what}");
                    asked.store(true, SeqCst);
                });
                wait(what, || bed.count(HELD_UP) == number as u64 + 1);
            }
            call!(cuCtxSetCurrent(first));
            let (mut base, mut len) = (0, 0);
            call!(cuMemGetAddressRange_v2(&raw mut base, &raw mut len, owned + 5));
            assert_eq!((base, len), (owned, LEN));
            call!(cuCtxSetCurrent(second));
            for (len, rows) in [(64 << 10, 1), (16 << 10, 2), (8, 2), (32 << 10, 1)] {
                bed.fill(round as u8 + 1);
                bed.there_and_back(len, rows);
            }
            call!(cuStreamWriteValue64_v2(bed.second_stream, bed.memory, 77, 0));
            call!(cuStreamWriteValue64_v2(bed.second_stream, bed.owned, 77, 0));
            call!(cuStreamSynchronize(bed.second_stream));
            assert!(!ended.load(SeqCst) && !asked.load(SeqCst), "{name}");
        });
        assert_eq!((bed.count(TAKEN), bed.count(HELD_UP)), (0, 0), "{name}");
    }
    assert_eq!(bed.count(TURNS), 0);
}

#[test]
fn short_copies_to_the_device_wait_for_a_turn_beside_a_kernel_of_another_context() {
    let bed = Bed::new(1);
    let short = || {
        call!(cuMemcpyHtoDAsync_v2(bed.memory, bed.host, (32 << 10) - 1, bed.second_stream));
        call!(cuStreamSynchronize(bed.second_stream));
    };
    short();
    assert_eq!(bed.count(TURNS), 0, "nothing runs beside it");
    let kernel = bed.spin();
    // The kernel runs, as soon as its stream has come to it.
    wait("a turn", || {
        short();
        bed.count(TURNS) > 0
    });
    let before = bed.count(TURNS);
    bed.there_and_back(8 << 10, 2);
    bed.there_and_back(32 << 10, 1);
    assert_eq!(bed.count(TURNS), before, "rows, and long copies");
    bed.there_and_back(8 << 10, 1);
    assert_eq!(bed.count(TURNS), before + 1, "one row is a copy as any other");
    call!(cuMemcpyHtoDAsync_v2(bed.owned, bed.host, 8, bed.second_stream));
    call!(cuStreamSynchronize(bed.second_stream));
    assert_eq!(bed.count(TURNS), before + 1, "memory of the kernel's own context");
    drop(kernel);
}

/// A copy of the program's, in its own context, keeps the engine of its direction and no other.
#[test]
fn copy_engines_are_shared_by_contexts() {
    let bed = Bed::new(5);
    let half = bed.host.wrapping_byte_add(LEN / 2);
    let copies = |ours_to_device: bool| {
        call!(cuCtxSetCurrent(bed.first));
        call!(cuMemcpyDtoHAsync_v2(bed.host, bed.owned, 8, bed.first_stream));
        call!(cuCtxSetCurrent(bed.second));
        match ours_to_device {
            true => call!(cuMemcpyHtoDAsync_v2(bed.memory, half, LEN / 2, bed.second_stream)),
            false => call!(cuMemcpyDtoHAsync_v2(half, bed.memory, 8, bed.second_stream)),
        }
        call!(cuStreamSynchronize(bed.second_stream));
        call!(cuCtxSetCurrent(bed.first));
        call!(cuStreamSynchronize(bed.first_stream));
    };
    call!(fake_cuda_latency(bed.device, 5_000_000));
    (0..3).for_each(|_| copies(true));
    assert_eq!(bed.count(QUEUED), 0, "the other direction");
    wait("a copy that waits for another", || {
        copies(false);
        bed.count(QUEUED) > 0
    });
}

#[test]
fn what_is_made_in_a_context_ends_with_it() {
    let bed = Bed::new(2);
    let (mut event, mut memory) = (0, 0);
    call!(cuEventCreate(&raw mut event, 0));
    call!(cuEventRecord(event, bed.second_stream));
    wait("an event", || match ask!(cuEventQuery(event)) {
        NOT_READY => false,
        status => status == SUCCESS,
    });
    assert_eq!(ask!(cuEventRecord(event, bed.first_stream)), INVALID_HANDLE);
    call!(cuMemAlloc_v2(&raw mut memory, LEN));
    let (pinned, used) = (bed.count(3), bed.count(4));
    call!(cuCtxDestroy_v2(bed.second));
    assert_eq!((bed.count(3), bed.count(4)), (pinned - LEN as u64, used - LEN as u64));
    call!(cuCtxSetCurrent(bed.first));
    assert_ne!(ask!(fake_cuda_window(bed.owned, LEN)), 0, "and the first context's was not");
}

#[test]
fn words_in_memory_of_a_pool_are_refused() {
    let bed = Bed::new(3);
    let mut pool = 0;
    call!(cuMemAllocAsync(&raw mut pool, 4096, bed.second_stream));
    let refused = ask!(cuStreamWriteValue64_v2(bed.second_stream, pool, 1, 0));
    assert_eq!(refused, INVALID_VALUE);
    call!(cuMemcpyHtoDAsync_v2(pool, bed.host, 4096, bed.second_stream));
    call!(cuMemFreeAsync(pool, bed.second_stream));
    call!(cuStreamSynchronize(bed.second_stream));
    assert_eq!(ask!(cuMemFreeAsync(pool, bed.second_stream)), INVALID_VALUE, "it was freed");
}

#[test]
fn half_of_a_word_comes_to_the_host_before_the_other() {
    let bed = Bed::new(4);
    bed.fill(0xff);
    bed.there_and_back(8, 1);
    call!(fake_cuda_latency(bed.device, 2_000_000));
    // SAFETY: page-locked memory, aligned, and used by copies and through here alone.
    let word = unsafe { AtomicU64::from_ptr(bed.host.cast()) };
    let (mut low, mut high) = (false, false);
    wait("both halves alone", || {
        word.store(0, SeqCst);
        call!(cuMemcpyDtoHAsync_v2(bed.host, bed.memory, 8, bed.second_stream));
        while ask!(cuStreamQuery(bed.second_stream)) == NOT_READY {
            let seen = word.load(SeqCst);
            low |= seen == 0xffff_ffff;
            high |= seen == 0xffff_ffff << 32;
        }
        assert_eq!(word.load(SeqCst), u64::MAX);
        low && high
    });
}
