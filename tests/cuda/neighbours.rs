//! What the program does on its streams and what we do leave one another alone: a kernel that does not
//! end, a graph that is captured.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use nvshmem_transport_libfabric::cuda::{
    CopyEngine, Direction, PinnedPool, Transfer, Word, WordAccess, Words, WordsOptions,
};
use nvshmem_transport_libfabric::engine::atomic::Width;
use nvshmem_transport_libfabric::engine::port::copies::Reach;
use std::sync::Arc;
use std::thread;

use crate::bed::case::Case;
use crate::bed::stage::{CHUNK, Stage};
use crate::bed::{Bed, call, fill, pattern, peek, status, wait};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::any("a_spinning_kernel_does_not_hold_up_copies_and_words", spinning),
        Case::any("a_spinning_kernel_does_not_hold_up_staging", staging),
        Case::any("a_graph_that_is_captured_is_not_disturbed", captured),
    ]
}

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: u32 = 600;

/// A kernel that ends when the word at its argument is not zero.
const SPIN: &std::ffi::CStr = c"
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .pred %ended;
    .reg .u32 %seen;
    .reg .u64 %at;
    ld.param.u64 %at, [flag];
again:
    ld.volatile.u32 %seen, [%at];
    setp.eq.u32 %ended, %seen, 0;
    @%ended bra again;
    ret;
}
";

/// A kernel that spins.
enum Spinning {
    /// The fake driver's.
    Fake(usize),
    /// One that waits for this word.
    Real(usize),
}

impl Spinning {
    fn start(bed: &Bed, stream: usize) -> Self {
        if bed.is_fake() {
            // SAFETY: the type of that function in the fake driver.
            let gate = unsafe {
                let spin = bed.raw.get::<unsafe extern "C" fn(usize) -> usize>(b"fake_cuda_spin");
                spin.expect("the fake driver")(stream)
            };
            assert_ne!(gate, 0);
            return Spinning::Fake(gate);
        }
        let flag = bed.host(64);
        fill(flag, &[0; 4]);
        let (mut module, mut function) = (ptr::null_mut::<c_void>(), ptr::null_mut::<c_void>());
        call!(bed.raw, cuModuleLoadData(
            &raw mut module => *mut *mut c_void, SPIN.as_ptr().cast() => *const c_void
        ));
        call!(bed.raw, cuModuleGetFunction(
            &raw mut function => *mut *mut c_void,
            module => *mut c_void,
            c"spin".as_ptr().cast() => *const c_void
        ));
        let mut argument = flag;
        let mut arguments = [(&raw mut argument).cast::<c_void>()];
        call!(bed.raw, cuLaunchKernel(
            function => *mut c_void, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32, 1 => u32,
            0 => u32, stream => usize,
            arguments.as_mut_ptr() => *mut *mut c_void, ptr::null_mut() => *mut *mut c_void
        ));
        Spinning::Real(flag)
    }

    fn end(self, bed: &Bed) {
        match self {
            Spinning::Fake(gate) => call!(bed.raw, fake_cuda_release(gate => usize)),
            // SAFETY: a word of page-locked memory, which the kernel reads.
            Spinning::Real(flag) => unsafe {
                AtomicU32::from_ptr(flag as *mut u32).store(1, Ordering::Release);
            },
        }
    }
}

fn spinning() {
    let bed = Bed::new();
    let len = 1 << 20;
    let device = bed.alloc(len);
    let range = Arc::new(bed.range(device, len));
    // All that may wait for the device is made before.
    let mut pool = bed.pool(len, 1);
    let chunk = pool.take().expect("one");
    let mut engine = bed.engine(4);
    let mut words = Words::new(&bed.context(), &crate::words::stream_only()).expect("words");
    words.attach(&range).expect("its context");
    let host = bed.host(64);
    let mut blocking = 0;
    call!(bed.raw, cuStreamCreate(&raw mut blocking => *mut usize, 0 => u32));
    for on in [0, blocking] {
        let kernel = Spinning::start(&bed, on);
        assert_eq!(status!(bed.raw, cuStreamQuery(on => usize)), NOT_READY, "it spins");
        for round in 0..8 {
            let bytes = pattern(len, round);
            fill(chunk.addr(), &bytes);
            let there = Transfer {
                direction: Direction::ToDevice,
                range: &range,
                addr: device,
                chunk: &chunk,
                offset: 0,
                len,
            };
            engine.start(&there).expect("room for it");
            let word = Word { range: &range, addr: device, width: Width::Eight };
            engine.start_store(&word, 77).expect("room for it");
            engine.start_load(&word).expect("room for it");
            wait(&mut engine).result.expect("the copy is not held up");
            wait(&mut engine).result.expect("nor the store");
            assert_eq!(wait(&mut engine).result, Ok(77));
            engine.start(&Transfer { direction: Direction::FromDevice, ..there }).expect("room");
            wait(&mut engine).result.expect("nor the way back");
            assert!(peek(chunk.addr() + 8, len - 8) == bytes[8..]);
            words.store(device + 8, Width::Four, round as u64).expect("not held up");
            assert_eq!(words.load(device + 8, Width::Four), Ok(round as u64));
        }
        assert_eq!(status!(bed.raw, cuStreamQuery(on => usize)), NOT_READY, "it still spins");
        if on == blocking {
            // What is not private waits: the legacy stream behind the blocking one.
            let queued = status!(bed.raw, cuMemcpyHtoDAsync_v2(
                device => usize, host => usize, 8 => usize, 0 => usize
            ));
            assert_eq!(queued, 0);
            assert_eq!(status!(bed.raw, cuStreamQuery(0 => usize)), NOT_READY);
        }
        kernel.end(&bed);
        call!(bed.raw, cuStreamSynchronize(on => usize));
    }
    call!(bed.raw, cuStreamSynchronize(0 => usize));
}

fn staging() {
    let bed = Bed::new();
    let len = 1 << 20;
    let (first, second, unregistered) = (bed.alloc(len), bed.heap(1), bed.alloc(len));
    // The first memory of the device: what may wait for kernels is made here.
    let (mut stage, _region) = Stage::new(&bed, first, len);
    let kernel = Spinning::start(&bed, 0);
    for round in 0..8 {
        // Registered, used and released while it spins.
        let region = stage.register(&bed, second, len);
        for memory in [first, second, unregistered] {
            assert_eq!(stage.port.reach(memory, CHUNK), Ok(Reach::Staged));
            let bytes = pattern(CHUNK, round + memory);
            stage.copy_in(memory, &bytes);
            stage.port.store_flag(memory + CHUNK, round as u64).expect("a word of it");
            stage.port.store(memory + CHUNK + 9, &bytes[..77]).expect("bytes of it");
            assert!(stage.copy_out(memory, CHUNK) == bytes);
            let mut seen = [0; 77];
            stage.port.load(memory + CHUNK + 9, &mut seen).expect("bytes of it");
            assert_eq!(seen, bytes[..77]);
        }
        drop(region);
    }
    assert_eq!(status!(bed.raw, cuStreamQuery(0 => usize)), NOT_READY, "it still spins");
    kernel.end(&bed);
    call!(bed.raw, cuStreamSynchronize(0 => usize));
}

/// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED` and `_INVALIDATED`.
const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;

fn captured() {
    let bed = Bed::new();
    let device = bed.alloc(4096);
    let range = Arc::new(bed.range(device, 4096));
    let mut stream = 0;
    call!(bed.raw, cuStreamCreate(&raw mut stream => *mut usize, 1 => u32));
    let mut graph = ptr::null_mut::<c_void>();
    call!(bed.raw, cuStreamBeginCapture_v2(stream => usize, 0 => u32));
    // All of ours, on this thread and on another.
    let context = bed.context();
    let work = |bytes: Vec<u8>| {
        let mut pool = PinnedPool::new(&context, 4096, 1).expect("while a graph is captured");
        let mut engine = CopyEngine::new(&context, 2).expect("while a graph is captured");
        let mut words = Words::new(&context, &WordsOptions::default()).expect("the same");
        words.attach(&range).expect("its context");
        let chunk = pool.take().expect("one");
        fill(chunk.addr(), &bytes);
        let there = Transfer {
            direction: Direction::ToDevice,
            range: &range,
            addr: device,
            chunk: &chunk,
            offset: 0,
            len: 4096,
        };
        engine.start(&there).expect("room for it");
        wait(&mut engine).result.expect("it goes well");
        words.store(device, Width::Eight, 5).expect("the same");
        assert_eq!(words.load(device, Width::Eight), Ok(5));
    };
    work(pattern(4096, 1));
    thread::scope(|scope| scope.spawn(|| work(pattern(4096, 2))).join().expect("no panic"));
    call!(bed.raw, cuStreamEndCapture(stream => usize, &raw mut graph => *mut *mut c_void));
    assert!(bed.read(device + 8, 4088) == pattern(4096, 2)[8..]);

    // The driver minds if it is not told, and this thread's mode is as it was.
    call!(bed.raw, cuStreamBeginCapture_v2(stream => usize, 0 => u32));
    work(pattern(4096, 3));
    let mut addr = 0;
    let refused = status!(bed.raw, cuMemAlloc_v2(&raw mut addr => *mut usize, 64 => usize));
    assert_eq!(refused, UNSUPPORTED);
    let ended =
        status!(bed.raw, cuStreamEndCapture(stream => usize, &raw mut graph => *mut *mut c_void));
    assert_eq!(ended, INVALIDATED);
}
