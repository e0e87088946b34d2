//! What the stand-in does as a driver does, called as C calls it. Every test has a device of its
//! own.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::calls::context::*;
use crate::calls::copy::*;
use crate::calls::device::cuInit;
use crate::calls::extras::*;
use crate::calls::host::*;
use crate::calls::memory::*;
use crate::calls::module::*;
use crate::calls::stream::*;
use crate::calls::vmm::*;
use crate::state::context::Raw;
use crate::state::device::{QUEUED, TURNS};
use crate::state::memory::Location;
use crate::state::status::{
    INVALID_HANDLE, INVALID_VALUE, In, NOT_READY, NOT_SUPPORTED, Out, SUCCESS,
};

const HANG: Duration = Duration::from_secs(30);

const TAKEN: usize = 8;
const HELD_UP: usize = 9;

/// Calls a function, which has to succeed.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!($name($($argument),*), SUCCESS, stringify!($name))
    };
}

/// Calls a function that makes something, which is given to C first, and has to succeed.
macro_rules! make {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let mut made = Default::default();
        call!($name(Out::to(&mut made), $($argument),*));
        made
    }};
}

fn memory_of_no_context(device: c_int) -> usize {
    const WHOLE: usize = 2 << 20;
    let location = Location { kind: 1, id: device };
    let base = make!(cuMemAddressReserve(WHOLE, 0, 0, 0));
    let handle = make!(cuMemCreate(WHOLE, In::to(&Properties::of(location)), 0));
    call!(cuMemMap(base, WHOLE, 0, handle, 0));
    call!(cuMemSetAccess(base, WHOLE, In::to(&Access { location, flags: 3 }), 1));
    base
}

/// A device with two contexts, the second of which is bound, and memory of each.
struct Bed {
    device: c_int,
    /// Addresses of the contexts.
    first: usize,
    second: usize,
    /// Streams that wait for no other.
    first_stream: usize,
    second_stream: usize,
    /// Memory of the device: of the first context, and of none.
    owned: usize,
    memory: usize,
    /// Page-locked memory, made in the second.
    host: usize,
}

fn bind(context: usize) {
    call!(cuCtxSetCurrent(context as Raw));
}

const LEN: usize = 128 << 10;

impl Bed {
    fn new(device: c_int) -> Self {
        let (mut first, mut second): (Raw, Raw) = (std::ptr::null(), std::ptr::null());
        call!(cuInit(0));
        call!(cuDevicePrimaryCtxRetain(Out::to(&mut first), device));
        call!(cuCtxSetCurrent(first));
        let first_stream = make!(cuStreamCreate(1));
        let owned = make!(cuMemAlloc_v2(LEN));
        call!(cuCtxCreate_v2(Out::to(&mut second), 0, device));
        let second_stream = make!(cuStreamCreate(1));
        let host = make!(cuMemHostAlloc(LEN, 1));
        let memory = memory_of_no_context(device);
        let (first, second) = (first as usize, second as usize);
        Self { device, first, second, first_stream, second_stream, owned, memory, host }
    }

    fn count(&self, what: usize) -> u64 {
        fake_cuda_count(self.device, what as u32)
    }

    fn spin(&self) -> Kernel {
        bind(self.first);
        let gate = fake_cuda_spin(self.first_stream);
        bind(self.second);
        assert_ne!(gate, 0);
        Kernel(gate)
    }

    /// Copies `len` bytes to the device as so many rows, and back, in the second context.
    fn there_and_back(&self, len: usize, rows: usize) {
        let (pitch, back) = (len / rows, self.host + LEN / 2);
        let from = Side { kind: 1, host: self.host, pitch, ..Side::default() };
        let to = Side { kind: 2, device: self.memory, pitch, ..Side::default() };
        let copy = Rows { from, to, width: pitch, height: rows };
        call!(cuMemcpy2DAsync_v2(In::to(&copy), self.second_stream));
        call!(cuMemcpyDtoHAsync_v2(back, self.memory, len, self.second_stream));
        call!(cuStreamSynchronize(self.second_stream));
        // SAFETY: page-locked memory, which no copy uses now.
        let [sent, came] =
            unsafe { [self.host, back].map(|at| std::slice::from_raw_parts(at as *const u8, len)) };
        assert!(sent == came, "{len} bytes in {rows} rows");
    }

    fn fill(&self, with: u8) {
        // SAFETY: page-locked memory, which no copy uses now.
        unsafe { (self.host as *mut u8).write_bytes(with, LEN / 2) };
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

/// Calls that wait until their context is idle, each with its answer in the end.
fn waiting_calls(bed: &Bed) -> [(u32, Call); 7] {
    let page = Box::leak(Box::new([0u8; 4096])).as_ptr() as usize;
    bind(bed.first);
    let (memory, host) = (make!(cuMemAlloc_v2(64)), make!(cuMemHostAlloc(64, 0)));
    call!(cuMemHostRegister_v2(page, 4096, 0));
    bind(bed.second);
    let stream = bed.first_stream;
    let launch =
        move || cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, stream, In::to(&In::to(&0)), In::none());
    [
        (SUCCESS, Box::new(move || cuMemFree_v2(memory))),
        (SUCCESS, Box::new(move || cuMemFreeHost(host))),
        (SUCCESS, Box::new(move || cuMemHostUnregister(page))),
        (SUCCESS, Box::new(|| cuCtxSetLimit(0, 8192))),
        (NOT_SUPPORTED, Box::new(|| cuModuleLoadData(Out::to(&mut 0), In::none()))),
        (NOT_SUPPORTED, Box::new(|| cuModuleUnload(0))),
        (NOT_SUPPORTED, Box::new(launch)),
    ]
}

/// Calls that wait for one of those: on its context, for its memory, and for another context.
fn held_up_calls(bed: &Bed) -> [Call; 3] {
    let Bed { device, first, second, first_stream, second_stream, owned, host, .. } = *bed;
    [
        Box::new(move || {
            bind(first);
            cuStreamQuery(first_stream)
        }),
        Box::new(move || {
            bind(second);
            cuMemcpyDtoHAsync_v2(host + LEN - 8, owned, 8, second_stream)
        }),
        Box::new(move || {
            let mut made: Raw = std::ptr::null();
            call!(cuCtxCreate_v2(Out::to(&mut made), 0, device));
            cuCtxDestroy_v2(made)
        }),
    ]
}

struct Kernel(usize);

impl Drop for Kernel {
    fn drop(&mut self) {
        fake_cuda_release(self.0);
    }
}

#[test]
fn waiting_calls_hold_up_their_context() {
    let bed = Bed::new(0);
    for (round, (answer, call)) in (1..).zip(waiting_calls(&bed)) {
        let ended = AtomicU64::new(0);
        let ends = |expected, found| {
            assert_eq!(found, expected, "call {round}");
            ended.fetch_add(1, SeqCst);
        };
        thread::scope(|scope| {
            // Dropped before the threads are waited for, whatever happens.
            let _kernel = bed.spin();
            let (ends, bed) = (&ends, &bed);
            scope.spawn(move || {
                bind(bed.first);
                ends(answer, call());
            });
            wait("a call that waits", || bed.count(TAKEN) == 1);
            for (number, other) in (1..).zip(held_up_calls(bed)) {
                scope.spawn(move || ends(SUCCESS, other()));
                wait("a call that is held up", || bed.count(HELD_UP) == number);
            }
            bind(bed.first);
            let (mut base, mut len) = (0, 0);
            call!(cuMemGetAddressRange_v2(Out::to(&mut base), Out::to(&mut len), bed.owned + 5));
            assert_eq!((base, len), (bed.owned, LEN));
            bind(bed.second);
            for (len, rows) in [(64 << 10, 1), (16 << 10, 2), (8, 2), (32 << 10, 1)] {
                bed.fill(round);
                bed.there_and_back(len, rows);
            }
            call!(cuStreamWriteValue64_v2(bed.second_stream, bed.memory, 77, 0));
            call!(cuStreamWriteValue64_v2(bed.second_stream, bed.owned, 77, 0));
            call!(cuStreamSynchronize(bed.second_stream));
            assert_eq!(ended.load(SeqCst), 0, "call {round}");
        });
        assert_eq!((bed.count(TAKEN), bed.count(HELD_UP)), (0, 0), "call {round}");
    }
    assert_eq!(bed.count(TURNS), 0);
}

#[test]
fn short_copies_wait_for_a_turn() {
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
fn contexts_share_copy_engines() {
    let bed = Bed::new(5);
    let half = bed.host + LEN / 2;
    let copies = |ours_to_device: bool| {
        bind(bed.first);
        call!(cuMemcpyDtoHAsync_v2(bed.host, bed.owned, 8, bed.first_stream));
        bind(bed.second);
        match ours_to_device {
            true => call!(cuMemcpyHtoDAsync_v2(bed.memory, half, LEN / 2, bed.second_stream)),
            false => call!(cuMemcpyDtoHAsync_v2(half, bed.memory, 8, bed.second_stream)),
        }
        call!(cuStreamSynchronize(bed.second_stream));
        bind(bed.first);
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
fn events_belong_to_their_context() {
    let bed = Bed::new(2);
    let event = make!(cuEventCreate(0));
    call!(cuEventRecord(event, bed.second_stream));
    assert_eq!(cuEventRecord(event, bed.first_stream), INVALID_HANDLE);
}

#[test]
fn words_in_pool_memory_are_refused() {
    let bed = Bed::new(3);
    let pool = make!(cuMemAllocAsync(4096, bed.second_stream));
    let refused = cuStreamWriteValue64_v2(bed.second_stream, pool, 1, 0);
    assert_eq!(refused, INVALID_VALUE);
    call!(cuMemcpyHtoDAsync_v2(pool, bed.host, 4096, bed.second_stream));
    call!(cuStreamSynchronize(bed.second_stream));
}

#[test]
fn word_halves_arrive_apart() {
    let bed = Bed::new(4);
    bed.fill(0xff);
    bed.there_and_back(8, 1);
    call!(fake_cuda_latency(bed.device, 2_000_000));
    // SAFETY: page-locked memory, aligned, and used by copies and through here alone.
    let word = unsafe { AtomicU64::from_ptr(bed.host as *mut u64) };
    let (mut low, mut high) = (false, false);
    wait("both halves alone", || {
        word.store(0, SeqCst);
        call!(cuMemcpyDtoHAsync_v2(bed.host, bed.memory, 8, bed.second_stream));
        while cuStreamQuery(bed.second_stream) == NOT_READY {
            let seen = word.load(SeqCst);
            low |= seen == 0xffff_ffff;
            high |= seen == 0xffff_ffff << 32;
        }
        assert_eq!(word.load(SeqCst), u64::MAX);
        low && high
    });
}
