//! Copies that fail: who is told, in which words, and what goes on.

use std::ffi::c_int;
use std::sync::Arc;

use cuda::{BounceBuffer, CopyEngine, CudaError, DeviceRange, PinnedPool, StartError, Ticket};

use crate::bed::case::Case;
use test_support::random::pattern;

use crate::bed::{Bed, GRANULARITY, call, to_device, wait};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::fake("a_refused_copy_is_told_at_once_and_the_next_goes", refused),
        Case::fake("a_copy_refused_half_way_is_told_when_its_start_has_ended", half),
        Case::fake("a_copy_that_fails_on_the_device_ends_the_engine", failed),
        Case::fake("the_environment_makes_copies_fail", from_environment)
            .with(&[("FAKE_CUDA_FAIL_COPY", "2:700")]),
        Case::fake("a_device_that_disappears_ends_everything_under_way", lost),
        Case::fake("a_driver_that_has_shut_down_is_said", shut_down),
        Case::fake("an_engine_that_gets_no_memory_leaves_nothing_behind", no_memory),
    ]
}

struct Setup {
    bed: Bed,
    range: Arc<DeviceRange>,
    bounce: BounceBuffer,
    _pool: PinnedPool,
    engine: CopyEngine,
}

impl Setup {
    fn new(depth: usize) -> Self {
        let bed = Bed::new();
        let heap = bed.heap(2);
        let range = Arc::new(bed.range(heap, 2 * GRANULARITY));
        let mut pool = bed.pool(1 << 16, 1);
        let bounce = pool.take().expect("one");
        crate::bed::fill(bounce.addr(), &pattern(1 << 16, 5));
        let engine = bed.engine(depth);
        Self { bed, range, bounce, _pool: pool, engine }
    }

    fn start(&mut self) -> Result<Ticket, StartError> {
        let addr = self.range.addr() + GRANULARITY - (1 << 15);
        self.engine.start(&to_device(&self.range, addr, &self.bounce, 1 << 16))
    }
}

fn says(error: &CudaError, parts: &[&str]) {
    let said = error.to_string();
    for part in parts {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
}

fn refused() {
    let mut setup = Setup::new(4);
    call!(setup.bed.raw, fake_cuda_fail_submit(0 => c_int, 0 => u32, 1 => u32));
    let error = match setup.start() {
        Err(StartError::Cuda(error)) => error,
        other => panic!("{other:?}"),
    };
    let addr = format!("{:#x}", setup.range.addr() + GRANULARITY - (1 << 15));
    says(&error, &["cuMemcpyHtoDAsync_v2", "32768 bytes", &addr, "device 0", "INVALID_VALUE (1)"]);
    assert_eq!(setup.engine.in_flight(), 0, "nothing was started");
    let ticket = setup.start().expect("once is not always");
    let completed = wait(&mut setup.engine);
    assert_eq!((completed.ticket, completed.result), (ticket, Ok(0)));
}

fn half() {
    let mut setup = Setup::new(4);
    // The first piece is accepted, and takes a while; the second is refused.
    call!(setup.bed.raw, fake_cuda_latency(0 => c_int, 100_000_000 => u64, 0 => u64));
    call!(setup.bed.raw, fake_cuda_fail_submit(0 => c_int, 1 => u32, 2 => u32));
    let ticket = setup.start().expect("a part of it is under way");
    assert_eq!(setup.engine.in_flight(), 1);
    let completed = wait(&mut setup.engine);
    assert_eq!(completed.ticket, ticket);
    says(&completed.result.expect_err("not all arrived"), &["CUDA_ERROR_OUT_OF_MEMORY (2)"]);
    call!(setup.bed.raw, fake_cuda_reset(0 => c_int));
    setup.start().expect("the engine goes on");
    assert_eq!(wait(&mut setup.engine).result, Ok(0));
}

fn failed() {
    let mut setup = Setup::new(8);
    call!(setup.bed.raw, fake_cuda_latency(0 => c_int, 20_000_000 => u64, 0 => u64));
    // Each is two copies: the second of the second one fails.
    call!(setup.bed.raw, fake_cuda_fail_copy(0 => c_int, 3 => u32, 214 => u32));
    for number in 0..4 {
        assert_eq!(setup.start().expect("they are accepted"), Ticket(number));
    }
    let results: Vec<_> = (0..4).map(|_| wait(&mut setup.engine)).collect();
    for (number, completed) in results.iter().enumerate() {
        assert_eq!(completed.ticket, Ticket(number as u64), "in order");
        // The driver tells of a failure with the next thing it is asked, so the first may be told
        // as failed as well. What comes after a failure must be.
        if number > 0 {
            let error = completed.result.as_ref().expect_err("it failed, or came after");
            says(error, &["cuEventQuery", "CUDA_ERROR_ECC_UNCORRECTABLE (214)"]);
        }
    }
    let error = match setup.start() {
        Err(StartError::Cuda(error)) => error,
        other => panic!("{other:?}"),
    };
    says(&error, &["CUDA_ERROR_ECC_UNCORRECTABLE (214)"]);
    assert!(setup.engine.poll().is_none());
}

fn from_environment() {
    let mut setup = Setup::new(2);
    setup.start().expect("two copies");
    assert_eq!(wait(&mut setup.engine).result, Ok(0));
    setup.start().expect("accepted");
    let error = wait(&mut setup.engine).result.expect_err("the third copy fails");
    says(&error, &["CUDA_ERROR_ILLEGAL_ADDRESS (700)"]);
}

fn lost() {
    let mut setup = Setup::new(8);
    call!(setup.bed.raw, fake_cuda_latency(0 => c_int, 50_000_000 => u64, 0 => u64));
    for _ in 0..3 {
        setup.start().expect("they are accepted");
    }
    call!(setup.bed.raw, fake_cuda_lose(0 => c_int, 46 => u32));
    for _ in 0..3 {
        let error = wait(&mut setup.engine).result.expect_err("the device is gone");
        says(&error, &["device 0", "CUDA_ERROR_DEVICE_UNAVAILABLE (46)"]);
    }
    setup.start().expect_err("and stays so");
    // Teardown ends: nothing waits for the device.
    let Setup { engine, bounce, _pool: pool, range, .. } = setup;
    drop((engine, bounce, pool, range));
}

fn shut_down() {
    let mut setup = Setup::new(8);
    setup.start().expect("accepted");
    call!(setup.bed.raw, fake_cuda_lose(0 => c_int, 4 => u32));
    let error = wait(&mut setup.engine).result.expect_err("there is no driver any more");
    says(&error, &["CUDA_ERROR_DEINITIALIZED (4)", "the driver has shut down"]);
}

fn no_memory() {
    let bed = Bed::new();
    call!(bed.raw, fake_cuda_limits(0 => c_int, 64 => u64, u64::MAX => u64));
    let context = bed.context();
    let error = CopyEngine::new(&context, 100).expect_err("no memory for its words");
    says(&error, &["864 bytes of page-locked memory", "CUDA_ERROR_OUT_OF_MEMORY (2)"]);
    assert_eq!(bed.count(3), 0);
    assert_eq!(Arc::strong_count(&context), 1, "streams and events are gone");
}
