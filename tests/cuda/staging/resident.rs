//! Short copies and words by the resident kernel, and what is done where it cannot run.

use std::time::Duration;

use engine::port::copies::OrderedStep;

use crate::bed::until;
use crate::prelude::*;

cases! {
    Fake ("FAKE_CUDA_MPS" = "1"): kernel_carries_short_bytes, kernel_stores_and_loads_words,
        words_follow_short_bytes, long_batch_waits_for_kernel, idle_kernel_is_launched_again,
        full_device_leaves_streams, full_device_leaves_words, silent_kernel_is_an_error,
        refused_launch_leaves_streams, lost_device_ends_the_kernel, kernel_may_be_switched_off, short_copies_allocate_nothing,
        full_ring_leaves_streams, kernel_overtakes_no_stream, refused_relaunch_leaves_streams, refused_streams_end_all_batches,
        fences_keep_steps_in_order, foreign_memory_is_left_to_streams, stream_gets_all_kinds_of_orders,
        parts_start_on_both_devices, arrived_bytes_need_no_report;
    Fake: turns_leave_no_kernel;
    Fake ("FAKE_CUDA_HOST_WRITES" = "0"): turns_leave_no_kernel;
}

const ORDERS: u32 = 9;
const LAUNCHES: u32 = 15;
const KERNELS: u32 = 12;
const BEGUN: u32 = 14;

const RUNS: u32 = 0;
const FINDS_NO_ROOM: u32 = 1;
const SAYS_NOTHING: u32 = 2;
const STOPS: u32 = 3;
const HOLDS_REPORTS: u32 = 4;

fn becomes(bed: &Bed, how: u32) {
    call!(bed.raw, fake_cuda_resident(0 => c_int, how => u32));
}

fn orders(bed: &Bed, run: impl FnOnce()) -> u64 {
    let before = bed.count(ORDERS);
    run();
    bed.count(ORDERS) - before
}

fn idle(bed: &Bed) {
    until(|| (bed.count(KERNELS) == 0).then_some(()));
}

fn with(bed: &Bed, patience: Duration, words: WordsOptions) -> (Stage, StagedRegion, usize) {
    let heap = bed.heap(2);
    let options = StagingOptions { resident: Some(patience), ..options(4, words) };
    let (stage, region) = Stage::with(bed, heap, 2 * GRANULARITY, options);
    (stage, region, heap)
}

/// The kernel starts in the end, on a busy machine too.
fn patient(bed: &Bed, words: WordsOptions) -> (Stage, StagedRegion, usize) {
    let staged = with(bed, HANG, words);
    assert!(bed.has_logged("a resident kernel copies short bytes"));
    staged
}

/// Streams get what a kernel does not start at once. It is measured with more patience.
fn impatient(bed: &Bed) -> (Stage, StagedRegion, usize) {
    with(bed, Duration::from_millis(5), stream_only())
}

/// All lengths and distances from alignment: what the two sides have in common is carried.
fn kernel_carries_short_bytes(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    for base in [heap, heap + GRANULARITY - 64] {
        for len in (1..40).chain([100, 255, 256, 1000, 4095, 4096, 4097]) {
            for at in [0, 1, 4, 8, 12] {
                let bytes = pattern(len, at + len);
                let copies = bed.count(2);
                let mut carry = |bounce: usize| {
                    bed.write(base, &[7; 8192]);
                    fill(stage.bounce(IN, 0) + bounce, &bytes);
                    let memory = base + 16 + at;
                    let bounces = [IN, OUT].map(|direction| stage.bounce(direction, 0) + bounce);
                    stage.run(Copy { direction: IN, memory, bounce: bounces[0], len });
                    stage.run(Copy { direction: OUT, memory, bounce: bounces[1], len });
                    assert!(peek(bounces[1], len) == bytes, "{len} bytes at {at}");
                    let mut there = vec![7; 8192];
                    there[16 + at..][..len].copy_from_slice(&bytes);
                    assert!(bed.read(base, 8192) == there, "{len} bytes at {at}");
                };
                let done = orders(bed, || carry(at));
                assert_eq!(done > 0, len <= 4096, "{len} bytes at {at}");
                // Both sides of a word must be aligned alike.
                assert_eq!(orders(bed, || carry(at + 1)) > 0, len == 1, "{len} bytes at {at}");
                assert!(bed.count(2) > copies);
            }
        }
    }
}

fn kernel_stores_and_loads_words(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    let add = atomic(AtomicOp::Add, Width::Four, 3);
    let calls = bed.calls_of(|| {
        for round in 0..100_u64 {
            let at = heap + 8 * (round as usize % 5);
            stage.port.store_flag(at, round << 33 | 1).expect("a word of it");
            assert_eq!(stage.word(at), round << 33 | 1);
            assert_eq!(stage.port.apply(at, &add).expect("its low half"), 1);
            assert_eq!(stage.word(at), round << 33 | 4);
            stage.port.store(at + 3, &[5; 9]).expect("bytes of it");
            let mut seen = [0; 9];
            stage.port.load(at + 3, &mut seen).expect("bytes of it");
            assert_eq!(seen, [5; 9]);
        }
    });
    assert_eq!(calls, [0, 0], "no stream has done any of it");
}

/// A word is there no sooner than what comes before it.
fn words_follow_short_bytes(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    bed.write(heap, &[0; 64]);
    let bounce = stage.bounce(IN, 0);
    let add = atomic(AtomicOp::SignalAdd, Width::Eight, 1);
    let done = orders(bed, || {
        for round in 1..=100_u64 {
            let steps: Vec<OrderedStep> = (0..4)
                .flat_map(|number| {
                    let (memory, bounce) = (heap + 4096 + 512 * number, bounce + 512 * number);
                    let copy = Copy { direction: IN, memory, bounce, len: 512 };
                    let copy = OrderedStep::Copy { copy, is_ordered: true };
                    [copy, OrderedStep::Apply { addr: heap, atomic: add }]
                })
                .collect();
            let bytes = pattern(2048, round as usize);
            fill(bounce, &bytes);
            stage.run_in_order(&steps);
            assert!(bed.read(heap + 4096, 2048) == bytes);
            assert_eq!(bed.word(heap), 4 * round);
        }
    });
    // The old value of the word is an order as well.
    assert_eq!(done, 100 * 9);
}

/// What overlaps shows which step was the last.
fn fences_keep_steps_in_order(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    let bounce = stage.bounce(IN, 0);
    fill(bounce, &[1; 64]);
    fill(bounce + 64, &[2; 64]);
    let copy = |at| {
        let copy = Copy { direction: IN, memory: heap, bounce: bounce + at, len: 64 };
        OrderedStep::Copy { copy, is_ordered: at > 0 }
    };
    let set = |at, width, operand| {
        let atomic = atomic(AtomicOp::Set, width, operand);
        OrderedStep::Apply { addr: heap + at, atomic }
    };
    let steps = [copy(0), copy(64), set(8, Width::Eight, 3 << 56), set(12, Width::Four, 4 << 24)];
    assert_eq!(orders(bed, || stage.run_in_order(&steps)), 4);
    let mut expected = [2; 64];
    expected[8..16].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 4]);
    assert_eq!(bed.read(heap, 64), expected);
}

/// A kernel reaches no memory of another context's, but a stream does.
fn foreign_memory_is_left_to_streams(bed: &Bed) {
    let (mut stage, _region, _) = patient(bed, stream_only());
    for memory in [bed.alloc(1 << 16), bed.managed(1 << 16)] {
        let _region = stage.register(bed, memory, 1 << 16);
        let done = orders(bed, || {
            stage.carries(memory, &pattern(64, 1));
            stage.port.store_flag(memory, 5).expect("a word of it");
            assert_eq!(stage.word(memory), 5);
        });
        assert_eq!(done, 0);
    }
}

/// The kernel and a stream are in no order, so of one direction only one of them has copies.
fn long_batch_waits_for_kernel(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    idle(bed);
    becomes(bed, SAYS_NOTHING);
    stage.start(IN, heap, 0, 64, 1);
    stage.start(IN, heap, 1, 64, 2);
    let long = Copy { direction: IN, memory: heap, bounce: stage.bounce(IN, 2), len: CHUNK };
    assert_eq!(stage.port.capacity(IN), 0);
    assert_eq!(stage.give(long, 3), Ok(Posted::Again));
    // The other direction is not held up.
    stage.start(OUT, heap, 0, CHUNK, 5);
    stage.ends(5);
    becomes(bed, RUNS);
    stage.ends(1);
    let started = until(|| match stage.give(long, 3) {
        Ok(Posted::Again) => {
            if let Some(copied) = stage.port.poll() {
                assert_eq!(copied.tag, 2);
            }
            None
        }
        started => Some(started),
    });
    assert_eq!(started, Ok(Posted::Yes));
    stage.ends(3);
    // And the reverse: what is short follows in the stream.
    let done = orders(bed, || {
        bed.slow(20_000_000);
        stage.start(IN, heap, 2, CHUNK, 6);
        stage.start(IN, heap, 0, 64, 7);
        stage.ends(6);
        stage.ends(7);
    });
    assert_eq!(done, 0);
}

/// A part that has to wait for a kernel holds up the one on the other device.
fn parts_start_on_both_devices(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    let other = bed.vmm(&[(ON_DEVICE, 1)], false);
    let _other = stage.register(bed, other, GRANULARITY);
    call!(bed.raw, fake_cuda_resident(1 => c_int, SAYS_NOTHING => u32));
    stage.start(IN, other, 0, 64, 1);
    let copies = [(heap, 64), (other, CHUNK)].map(|(memory, len)| {
        let copy = Copy { direction: IN, memory, bounce: stage.bounce(IN, 1), len };
        TaggedCopy { copy, tag: 2 }
    });
    assert_eq!(stage.port.start_all(&copies), Ok(Posted::Again));
    call!(bed.raw, fake_cuda_resident(1 => c_int, RUNS => u32));
    stage.ends(1);
    assert_eq!(stage.port.start_all(&copies), Ok(Posted::Yes));
    stage.ends(2);
}

fn idle_kernel_is_launched_again(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    for round in 0..20 {
        idle(bed);
        let launches = bed.count(LAUNCHES);
        let done = orders(bed, || stage.carries(heap, &pattern(64, round)));
        assert!(done == 2 && bed.count(LAUNCHES) > launches, "round {round}");
    }
}

/// Kernels of the program have the whole device, and wait for what the kernel is to do.
fn full_device_leaves_streams(bed: &Bed) {
    let (mut stage, _region, heap) = impatient(bed);
    for round in 0..3 {
        idle(bed);
        let launches = bed.count(LAUNCHES);
        becomes(bed, FINDS_NO_ROOM);
        let done = orders(bed, || {
            let bytes = pattern(100, round);
            fill(stage.bounce(IN, 0), &bytes);
            let add = atomic(AtomicOp::SignalAdd, Width::Eight, 1);
            bed.write(heap + 512, &[0; 8]);
            let copy = Copy { direction: IN, memory: heap, bounce: stage.bounce(IN, 0), len: 100 };
            let copy = OrderedStep::Copy { copy, is_ordered: true };
            stage.run_in_order(&[copy, OrderedStep::Apply { addr: heap + 512, atomic: add }]);
            assert!(bed.read(heap, 100) == bytes && bed.word(heap + 512) == 1);
            (0..50).for_each(|seed| stage.carries(heap, &pattern(100, seed)));
        });
        assert_eq!((done, bed.count(LAUNCHES)), (0, launches));
        becomes(bed, RUNS);
        // The launch that was revoked starts, and executes nothing.
        until(|| (bed.count(LAUNCHES) > launches).then_some(()));
        idle(bed);
        assert_eq!(orders(bed, || stage.carries(heap, &pattern(96, 1))), 2);
    }
}

fn stream_gets_all_kinds_of_orders(bed: &Bed) {
    let (mut stage, _region, heap) = impatient(bed);
    idle(bed);
    becomes(bed, FINDS_NO_ROOM);
    // Across the border of two allocations.
    let base = heap + GRANULARITY - 16;
    let (bytes, others) = (pattern(37, 1), pattern(64, 2));
    bed.write(base, &others);
    fill(stage.bounce(IN, 0), &bytes);
    let copy = Copy { direction: IN, memory: base, bounce: stage.bounce(IN, 0), len: 37 };
    let set = |at, width| {
        let atomic = atomic(AtomicOp::Set, width, 0x8877_6655_4433_2211);
        OrderedStep::Apply { addr: base + at, atomic }
    };
    let copy = OrderedStep::Copy { copy, is_ordered: true };
    let steps = [copy, set(40, Width::Eight), set(48, Width::Four)];
    let done = orders(bed, || {
        stage.start(OUT, base, 0, 60, 5);
        assert_eq!(stage.port.start_in_order(&steps, 3), Ok(Some(Posted::Yes)));
        (0..2).for_each(|_| stage.wait().result.expect("it goes well"));
    });
    assert_eq!(done, 0);
    let mut expected = [&bytes[..], &others[37..]].concat();
    expected[40..52].copy_from_slice(b"\x11\x22\x33\x44\x55\x66\x77\x88\x11\x22\x33\x44");
    assert_eq!(bed.read(base, 64), expected);
    assert!(peek(stage.bounce(OUT, 0), 60) == others[..60]);
    becomes(bed, RUNS);
}

/// A stream still has the orders of a revoked launch when the device has room again.
fn kernel_overtakes_no_stream(bed: &Bed) {
    let (mut stage, _region, heap) = impatient(bed);
    idle(bed);
    bed.write(heap, &[0; 64]);
    becomes(bed, FINDS_NO_ROOM);
    bed.slow(200_000_000);
    let (begun, launches) = (bed.count(BEGUN), bed.count(LAUNCHES));
    fill(stage.bounce(IN, 0), &[7; 64]);
    stage.start(IN, heap, 0, 64, 1);
    until(|| {
        assert!(stage.port.poll().is_none());
        (bed.count(BEGUN) > begun).then_some(())
    });
    becomes(bed, RUNS);
    until(|| (bed.count(LAUNCHES) > launches).then_some(()));
    idle(bed);
    let next = Copy { direction: IN, memory: heap + 64, bounce: stage.bounce(IN, 1), len: 64 };
    let mut given = stage.give(next, 2);
    stage.ends(1);
    assert_eq!(stage.word(heap), 0x0707_0707_0707_0707);
    bed.slow(0);
    until(|| {
        given = if given == Ok(Posted::Again) { stage.give(next, 2) } else { given.clone() };
        (given != Ok(Posted::Again)).then_some(())
    });
    stage.ends(2);
}

/// What was submitted before is done all the same, and only once.
fn refused_relaunch_leaves_streams(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    for round in 1..=3 {
        idle(bed);
        bed.write(heap, &[0; 64]);
        becomes(bed, STOPS);
        let launches = bed.count(LAUNCHES);
        fill(stage.bounce(IN, 0), &[round; 64]);
        stage.start(IN, heap, 0, 64, 1);
        until(|| (bed.count(LAUNCHES) > launches).then_some(()));
        idle(bed);
        becomes(bed, RUNS);
        call!(bed.raw, fake_cuda_fail_launch(0 => c_int, 0 => u32, 2 => u32));
        stage.ends(1);
        assert_eq!(bed.read(heap, 64), [round; 64]);
        assert_eq!(orders(bed, || stage.carries(heap, &pattern(64, 1))), 2);
    }
}

/// Of a revoked launch's orders, those of another engine among them.
fn refused_streams_end_all_batches(bed: &Bed) {
    let (mut stage, _region, heap) = impatient(bed);
    idle(bed);
    becomes(bed, FINDS_NO_ROOM);
    stage.start(IN, heap, 0, 64, 1);
    stage.start(OUT, heap, 0, 64, 2);
    bed.refuse(1, 2);
    let mut ended = [stage.wait(), stage.wait()];
    ended.sort_by_key(|copied| copied.tag);
    for (copied, tag) in ended.into_iter().zip(1..) {
        assert_eq!(copied.tag, tag);
        refused(copied.result, &["CUDA_ERROR_OUT_OF_MEMORY"]);
    }
    becomes(bed, RUNS);
}

fn full_device_leaves_words(bed: &Bed) {
    let (mut stage, _region, heap) = impatient(bed);
    idle(bed);
    becomes(bed, FINDS_NO_ROOM);
    for round in 0..50 {
        stage.port.store_flag(heap, round).expect("a word of it");
        assert_eq!(stage.word(heap), round);
    }
    becomes(bed, RUNS);
}

fn silent_kernel_is_an_error(bed: &Bed) {
    let words = WordsOptions { patience: Duration::from_millis(50), ..stream_only() };
    let (mut stage, _region, heap) = patient(bed, words);
    let _releases = Releases(bed);
    idle(bed);
    becomes(bed, SAYS_NOTHING);
    let error = stage.port.store_flag(heap, 1).expect_err("it takes too long");
    refused(Err::<(), _>(&error), &["CUDA_ERROR_TIMEOUT", "50ms"]);
    assert_eq!(stage.port.load(heap, &mut [0; 8]), Err(error), "it is not asked again");
}

/// Lets the kernel go on when a test fails, so that it ends.
struct Releases<'a>(&'a Bed);

impl Drop for Releases<'_> {
    fn drop(&mut self) {
        becomes(self.0, RUNS);
    }
}

fn arrived_bytes_need_no_report(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    let _releases = Releases(bed);
    idle(bed);
    becomes(bed, HOLDS_REPORTS);
    let bytes = pattern(64, 1);
    bed.write(heap, &bytes);
    stage.start(OUT, heap, 0, 64, 5);
    stage.ends(5);
    assert_eq!(peek(stage.bounce(OUT, 0), 64), bytes);
    becomes(bed, RUNS);
    // Bytes that equal the pattern are done by the report.
    idle(bed);
    becomes(bed, SAYS_NOTHING);
    stage.start(OUT, heap, 0, 64, 6);
    let watched = peek(stage.bounce(OUT, 0), 64);
    assert_ne!(watched, bytes);
    bed.write(heap, &watched);
    becomes(bed, RUNS);
    stage.ends(6);
    assert_eq!(peek(stage.bounce(OUT, 0), 64), watched);
}

fn refused_launch_leaves_streams(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    idle(bed);
    call!(bed.raw, fake_cuda_fail_launch(0 => c_int, 0 => u32, 2 => u32));
    assert_eq!(orders(bed, || stage.copy_in(heap, &pattern(64, 1))), 0);
    assert_eq!(bed.read(heap, 64), pattern(64, 1));
    assert_eq!(orders(bed, || stage.carries(heap, &pattern(64, 2))), 2);
}

fn lost_device_ends_the_kernel(bed: &Bed) {
    let (mut stage, region, heap) = patient(bed, stream_only());
    idle(bed);
    becomes(bed, SAYS_NOTHING);
    stage.start(IN, heap, 0, 64, 1);
    until(|| (bed.count(KERNELS) == 1).then_some(()));
    call!(bed.raw, fake_cuda_lose(0 => c_int, 46 => u32));
    refused(stage.wait().result, &["device 0", "CUDA_ERROR_DEVICE_UNAVAILABLE"]);
    stage.port.store_flag(heap, 1).expect_err("the device is gone");
    drop((region, stage));
}

fn turns_leave_no_kernel(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    assert!(
        bed.has_logged("no resident kernel serves device 0: kernels of two contexts run in turns")
    );
    stage.carries(heap, &pattern(64, 1));
    assert_eq!((bed.count(ORDERS), bed.count(LAUNCHES)), (0, 0));
}

fn kernel_may_be_switched_off(bed: &Bed) {
    let off = StagingOptions { resident: None, ..options(2, stream_only()) };
    let heap = bed.heap(1);
    let (mut stage, _region) = Stage::with(bed, heap, GRANULARITY, off);
    assert!(
        bed.has_logged("no resident kernel serves device 0: NVSHMEM_LIBFABRIC_DEBUG=resident=0")
    );
    stage.carries(heap, &pattern(64, 1));
    assert_eq!((bed.count(ORDERS), bed.count(LAUNCHES)), (0, 0));
}

fn short_copies_allocate_nothing(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    // The stager sees the range.
    assert_eq!(stage.port.reach(heap, 1), Ok(Reach::Staged));
    let copies = [IN, OUT].map(|direction| {
        let bounce = stage.bounce(direction, 0);
        let copy = |at| Copy { direction, memory: heap + at, bounce: bounce + at, len: 100 };
        [0, 256, 512].map(|at| TaggedCopy { copy: copy(at), tag: 5 })
    });
    let done = orders(bed, || {
        let before = allocations();
        for _ in 0..100 {
            for list in &copies {
                assert_eq!(stage.port.start_all(list), Ok(Posted::Yes));
                stage.ends(5);
            }
            stage.port.store_flag(heap + 1024, 5).expect("a word of it");
        }
        assert_eq!(allocations(), before);
    });
    assert!(done >= 700, "{done}");
}

/// More orders than a batch may have, and more than fit behind others.
fn full_ring_leaves_streams(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, stream_only());
    let list = |stage: &Stage, direction, count: usize| -> Vec<TaggedCopy> {
        let bounce = stage.bounce(direction, 0);
        let copy =
            |at| Copy { direction, memory: heap + 32 * at, bounce: bounce + 32 * at, len: 16 };
        (0..count).map(|at| TaggedCopy { copy: copy(at), tag: 5 }).collect()
    };
    let bytes = pattern(2048, 1);
    fill(stage.bounce(IN, 0), &bytes);
    for (count, by_kernel) in [(33, 0), (32, 32)] {
        let copies = list(&stage, IN, count);
        let done = orders(bed, || {
            assert_eq!(stage.port.start_all(&copies), Ok(Posted::Yes));
            stage.ends(5);
        });
        assert_eq!(done, by_kernel);
        assert!(bed.read(heap + 32 * (count - 1), 16) == bytes[32 * (count - 1)..][..16]);
    }
    idle(bed);
    becomes(bed, SAYS_NOTHING);
    for direction in [IN, OUT] {
        let copies = list(&stage, direction, 32);
        assert_eq!(stage.port.start_all(&copies), Ok(Posted::Yes));
    }
    let copies = list(&stage, OUT, 1);
    assert_eq!(stage.port.start_all(&copies), Ok(Posted::Again));
    becomes(bed, RUNS);
    stage.ends(5);
    stage.ends(5);
    assert_eq!(stage.port.start_all(&copies), Ok(Posted::Yes));
    stage.ends(5);
}
