//! The program's streams and ours leave one another alone: endless kernels, captured graphs.

use std::sync::atomic::{AtomicU32, Ordering};
use std::{ptr, thread};

use cuda::{StagingContext, WaitingKernel};

use crate::bed::until;
use crate::prelude::*;

cases! {
    Any: spinning_kernel_holds_nothing_up, program_calls_hold_nothing_up,
        captured_graph_is_not_disturbed;
    Fake ("FAKE_CUDA_CONTEXTS" = "0"): staging_without_a_context;
    Fake ("FAKE_CUDA_ROWS" = "0"): rows_may_be_kernels;
    Fake ("FAKE_CUDA_KERNELS" = "0"): program_calls_hold_nothing_up;
    Fake ("FAKE_CUDA_MPS" = "1"): spinning_kernel_holds_nothing_up, program_calls_hold_nothing_up;
    Fake ("CUDA_DEVICE_MAX_CONNECTIONS" = "2"): program_context_is_warned_of;
    Fake: own_context_has_no_stacks, program_context_makes_another, kernel_waits_for_its_word;
    Fake ("FAKE_CUDA_LIMITS" = "0"): own_context_may_keep_stacks;
}

const NOT_READY: u32 = 600;

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

pub(crate) enum Spinning {
    Fake(usize),
    /// One that waits for this word.
    Real(usize),
}

impl Spinning {
    pub(crate) fn start(bed: &Bed, stream: usize) -> Self {
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

    pub(crate) fn end(self, bed: &Bed) {
        match self {
            Spinning::Fake(gate) => call!(bed.raw, fake_cuda_release(gate => usize)),
            // SAFETY: a word of page-locked memory, which the kernel reads.
            Spinning::Real(flag) => unsafe {
                AtomicU32::from_ptr(flag as *mut u32).store(1, Ordering::Release);
            },
        }
    }
}

fn spinning_kernel_holds_nothing_up(bed: &Bed) {
    let len = 1 << 20;
    let (first, second, unregistered) = (bed.alloc(len), bed.heap(1), bed.alloc(len));
    // The first memory of the device: what may wait for kernels is made here.
    let (mut stage, _region) = Stage::new(bed, first, len);
    let blocking = bed.stream(0);
    for (round, on) in [(0, 0), (1, 0), (2, blocking), (3, blocking)] {
        let kernel = Spinning::start(bed, on);
        let region = stage.register(bed, second, len);
        drop(Stage::new(bed, second, len));
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
        assert_eq!(status!(bed.raw, cuStreamQuery(on => usize)), NOT_READY, "it still spins");
        kernel.end(bed);
        call!(bed.raw, cuStreamSynchronize(on => usize));
    }
}

const UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;

fn captured_graph_is_not_disturbed(bed: &Bed) {
    let device = bed.alloc(4096);
    let stream = bed.stream(1);
    let mut graph = ptr::null_mut::<c_void>();
    call!(bed.raw, cuStreamBeginCapture_v2(stream => usize, 0 => u32));
    let work = |bytes: Vec<u8>| {
        let staging = Staging::new(options(2, WordsOptions::default()));
        let range = match Memory::examine(bed.driver, device, 4096) {
            Ok(Memory::Device(range)) => range,
            other => panic!("{other:?}"),
        };
        let region = staging.register(device, range, None, Access::LocalAndRemote);
        let _region = region.expect("while a graph is captured");
        let mut stage = Stage::take(staging);
        stage.copy_in(device, &bytes);
        stage.port.store_flag(device, 5).expect("a word of it");
        assert_eq!(stage.word(device), 5);
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

type Call<'a> = (&'static str, Box<dyn Fn() + Send + Sync + 'a>);

fn calls(bed: &Bed) -> Vec<Call<'_>> {
    let (memory, host) = (bed.alloc(64), bed.host(64));
    let page = Box::leak(Box::new([0_u8; 8192])).as_mut_ptr() as usize;
    let page = page.next_multiple_of(4096);
    call!(bed.raw, cuMemHostRegister_v2(page => usize, 4096 => usize, 0 => u32));
    vec![
        ("cuMemFree", Box::new(move || bed.free(memory))),
        ("cuMemFreeHost", Box::new(move || bed.free_host(host))),
        (
            "cuMemHostUnregister",
            Box::new(move || call!(bed.raw, cuMemHostUnregister(page => usize))),
        ),
        ("cuCtxSetLimit", Box::new(|| call!(bed.raw, cuCtxSetLimit(0 => u32, 8192 => usize)))),
        (
            "cuModuleLoadData",
            Box::new(|| {
                let mut module = ptr::null_mut::<c_void>();
                // The stand-in refuses it, in the end.
                let _ = status!(bed.raw, cuModuleLoadData(
                    &raw mut module => *mut *mut c_void, SPIN.as_ptr().cast() => *const c_void
                ));
            }),
        ),
    ]
}

/// While a kernel waits for staged data, no call of the program holds that up: VMM or pool memory,
/// bytes and words, both ways, registered or not.
fn program_calls_hold_nothing_up(bed: &Bed) {
    let len = 1 << 20;
    let (heap, other) = (bed.heap(1), bed.heap(1));
    let mut pool = 0;
    call!(bed.raw, cuMemAllocAsync(&raw mut pool => *mut usize, len => usize, 0 => usize));
    call!(bed.raw, cuStreamSynchronize(0 => usize));
    let (mut stage, _region) = Stage::new(bed, heap, len);
    let stream = bed.stream(1);
    let before = if bed.is_fake() { bed.count(7) } else { 0 };
    for (round, (name, call)) in calls(bed).into_iter().enumerate() {
        let kernel = Spinning::start(bed, stream);
        let ended = AtomicU32::new(0);
        thread::scope(|scope| {
            let begun = Arc::new(AtomicU32::new(0));
            let (seen, ended, bed) = (Arc::clone(&begun), &ended, bed);
            scope.spawn(move || {
                call!(bed.raw, cuCtxSetCurrent(bed.handle => *mut c_void));
                seen.store(1, Ordering::Release);
                call();
                ended.store(1, Ordering::Release);
            });
            until(|| (begun.load(Ordering::Acquire) == 1).then_some(()));
            if bed.is_fake() {
                until(|| (bed.count(8) == 1).then_some(()));
            } else {
                // It should be in the call by then; if not, this shows less, and fails no more.
                thread::sleep(std::time::Duration::from_millis(50));
            }
            // With a deadline of its own: what is held up never comes back.
            for memory in [heap, other, pool] {
                for len in [1, 2, 8, 13, 56, 4096, 4099, CHUNK] {
                    stage.carries(memory + 64, &pattern(len, round + len));
                }
                stage.port.store_flag(memory, round as u64 + 7).expect("a word");
                assert_eq!(stage.word(memory), round as u64 + 7, "{name}");
                let bytes = pattern(77, round);
                stage
                    .port
                    .queue_write(memory + 9, &bytes, DeferredOrder::After)
                    .expect("some bytes");
                stage.port.flush().expect("they are there");
                let mut seen = [0; 77];
                stage.port.load(memory + 9, &mut seen).expect("some bytes");
                assert_eq!(seen, bytes[..]);
            }
            assert_eq!(ended.load(Ordering::Acquire), 0, "{name} has not waited for the kernel");
            kernel.end(bed);
        });
        assert_eq!(ended.load(Ordering::Acquire), 1);
        if bed.is_fake() {
            // Single words alone waited for a turn: three of each memory, and the pool's flag.
            let turns = bed.count(7) - before;
            assert!(turns <= 10 * (round as u64 + 1), "{turns} copies waited for a turn, {name}");
        }
    }
}

fn staging_without_a_context(bed: &Bed) {
    let contexts = bed.count(1);
    let (mut stage, region, heap) = Stage::on_heap(bed, 1);
    assert_eq!(bed.count(1), contexts, "contexts that were made");
    let owned = stage.register(bed, bed.alloc(4096), 4096);
    assert!(!owned.is_held_up(), "no more than all else");
    stage.carries(heap, &pattern(CHUNK, 1));
    drop((stage, region, owned));
    assert!(handles().all(|stream| status!(bed.raw, cuStreamDestroy_v2(stream => usize)) != 0));
}

/// Handles that the fake driver may have given out.
fn handles() -> impl Iterator<Item = usize> {
    (0x1000..0x8000).step_by(16)
}

fn own_context_has_no_stacks(bed: &Bed) {
    assert_eq!(least_stack(bed), 0);
    // The module that measures is unloaded, and no event is left.
    assert!(handles().all(|module| status!(bed.raw, cuModuleUnload(module => usize)) != 0));
    assert!(handles().all(|event| status!(bed.raw, cuEventDestroy_v2(event => usize)) != 0));
}

fn own_context_may_keep_stacks(bed: &Bed) {
    assert!(least_stack(bed) > 0);
}

/// Bytes of a kernel's stack in the context that has the fewest, once memory is staged.
fn least_stack(bed: &Bed) -> u64 {
    let (contexts, before) = (bed.count(1), bed.count(10));
    assert!(before > 0, "the program's context has stacks");
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    assert_eq!(bed.count(1), contexts + 1, "contexts that were made");
    stage.carries(heap, &pattern(CHUNK, 1));
    bed.count(10)
}

fn program_context_is_warned_of(bed: &Bed) {
    let heap = bed.heap(1);
    let stage = |context| {
        Stage::with(bed, heap, 4096, StagingOptions { context, ..options(2, stream_only()) })
    };
    let _own = stage(StagingContext::Own);
    // A busy machine may measure nothing.
    assert!(bed.has_logged("as it is") || bed.has_logged("not measured"));
    assert!(!bed.has_logged("WARN"));
    let _programs = stage(StagingContext::Program);
    assert!(bed.has_logged("CONNECTIONS is 2") && bed.has_logged("loads kernels lazily"));
}

fn kernel_waits_for_its_word(bed: &Bed) {
    let words = bed.pinned(64);
    let kernel = WaitingKernel::start(&bed.context(), Arc::clone(&words), HANG).expect("a kernel");
    assert_eq!((bed.count(12), kernel.has_ended()), (1, Ok(false)));
    fill(words.addr(), &[1]);
    until(|| (kernel.has_ended() == Ok(true)).then_some(()));
}

fn rows_may_be_kernels(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    let stream = bed.stream(1);
    let kernel = Spinning::start(bed, stream);
    let before = bed.count(7);
    stage.copy_in(heap, &pattern(4096, 1));
    assert_eq!(bed.count(7), before, "it waited for no turn");
    kernel.end(bed);
}

fn program_context_makes_another(bed: &Bed) {
    let mut made = ptr::null_mut::<c_void>();
    call!(bed.raw, cuDevicePrimaryCtxRelease_v2(0 => std::ffi::c_int));
    call!(bed.raw, cuCtxCreate_v2(&raw mut made => *mut *mut c_void, 0 => u32, 0 => std::ffi::c_int));
    let (heap, other) = (bed.heap(1), bed.heap(1));
    let contexts = bed.count(1);
    let (mut stage, region) = Stage::new(bed, heap, 1 << 20);
    // Unregistered memory, used by a thread without a context, as the proxy's may be.
    let bytes = pattern(CHUNK, 2);
    thread::scope(|scope| {
        let (stage, bytes) = (&mut stage, &bytes);
        let used = scope.spawn(move || {
            for memory in [heap, other] {
                stage.copy_in(memory, bytes);
                assert!(stage.copy_out(memory, CHUNK) == *bytes);
            }
        });
        used.join().expect("no panic");
    });
    assert_eq!(bed.count(1), contexts + 1, "contexts that were made");
    let before = bed.count(4);
    drop((stage, region));
    assert!(bed.count(4) < before, "what was made in it is given back");
}
