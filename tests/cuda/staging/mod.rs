//! Copies through bounce buffers, as the engine asks for them.

pub(crate) mod failures;
pub(crate) mod model;
pub(crate) mod resident;
pub(crate) mod same_host;
pub(crate) mod short;
pub(crate) mod together;
pub(crate) mod words;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cuda::StagingError;
use engine::port::copies::MAX_BATCH_COPIES;

use crate::prelude::*;

cases! {
    Any: copies_go_both_ways, unregistered_memory_is_looked_at,
        remapped_memory_is_noticed, many_ranges_are_looked_at_again, host_memory_is_staged_first,
        registering_disturbs_no_copy, released_memory_is_not_found, copies_allocate_nothing,
        impossible_copies_are_refused, staging_ends_with_the_stager;
    Fake: gone_memory_is_forgotten, copies_complete_in_starting_order, several_devices_are_staged,
        memory_elsewhere_is_copied_there;
}

fn check(bed: &Bed, stage: &mut Stage, base: usize, len: usize) {
    let bytes = pattern(len, base);
    bed.write(base, &bytes);
    let middle = len / 2;
    let pieces =
        [(0, 1), (3, CHUNK), (middle - CHUNK / 2, CHUNK), (middle - 1, 2), (len - CHUNK, CHUNK)];
    for (at, len) in pieces {
        assert!(stage.copy_out(base + at, len) == bytes[at..at + len], "{len} bytes at {at}");
    }
    let mut expected = bytes;
    for (seed, (at, len)) in pieces.into_iter().enumerate() {
        let new = pattern(len, seed);
        stage.copy_in(base + at, &new);
        expected[at..at + len].copy_from_slice(&new);
    }
    assert!(bed.read(base, len) == expected, "and nothing else has changed");
}

fn copies_go_both_ways(bed: &Bed) {
    let plain = bed.alloc(1 << 20);
    let (mut stage, plain_region) = Stage::new(bed, plain, 1 << 20);
    assert_eq!((stage.bounce.bounce_len, stage.bounce.out, stage.bounce.inward), (CHUNK, 4, 4));
    assert_eq!(stage.port.reach(plain, 1 << 20), Ok(Reach::Staged));
    check(bed, &mut stage, plain, 1 << 20);
    let heap = bed.heap(2);
    let heap_region = stage.register(bed, heap, 2 * GRANULARITY);
    check(bed, &mut stage, heap, 2 * GRANULARITY);
    let managed = bed.managed(1 << 20);
    let managed_region = stage.register(bed, managed, 1 << 20);
    check(bed, &mut stage, managed, 1 << 20);
    if bed.is_fake() {
        let node = bed.vmm(&[(ON_NUMA_NODE, 0); 2], false);
        let region = stage.register(bed, node, 2 * GRANULARITY);
        assert_eq!(region.range().kind(), Kind::HostNumaDeviceOnly);
        check(bed, &mut stage, node, 2 * GRANULARITY);
    }
    assert_eq!(stage.staging.ranges(), 3);
    if bed.is_fake() {
        // What a context of the program owns waits for calls on that.
        let held_up = [plain_region, heap_region, managed_region].map(|region| region.is_held_up());
        assert_eq!(held_up, [true, false, true]);
    }
}

fn unregistered_memory_is_looked_at(bed: &Bed) {
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(bed, registered, 4096);
    for (memory, len) in [(bed.alloc(1 << 20), 1 << 20), (bed.managed(1 << 20), 1 << 20)] {
        assert_eq!(stage.port.reach(memory + 5, 100), Ok(Reach::Staged));
        let before = allocations();
        stage.port.reach(memory, len).expect("the rest of it is known");
        assert_eq!(allocations(), before);
        check(bed, &mut stage, memory, len);
    }
    let heap = bed.heap(2);
    assert_eq!(stage.port.reach(heap, 2 * GRANULARITY), Ok(Reach::Staged));
    check(bed, &mut stage, heap, 2 * GRANULARITY);

    let locked = bed.host(CHUNK);
    let mut plain = vec![0_u8; CHUNK];
    for memory in [locked, plain.as_mut_ptr() as usize] {
        assert_eq!(stage.port.reach(memory, CHUNK), Ok(Reach::Direct));
        let (bytes, by_cpu) = (pattern(CHUNK, memory), stage.port.bytes_by_cpu());
        fill(memory, &bytes);
        assert!(stage.copy_out(memory + 1, CHUNK - 2) == bytes[1..CHUNK - 1]);
        assert_eq!(stage.port.bytes_by_cpu() - by_cpu, CHUNK as u64 - 2);
        let new = pattern(CHUNK - 2, 1);
        stage.copy_in(memory + 1, &new);
        let seen = peek(memory, CHUNK);
        assert!(seen[1..CHUNK - 1] == new && seen[0] == bytes[0]);
        assert_eq!(seen[CHUNK - 1], bytes[CHUNK - 1]);
        // Words of it are the fabric's port's to change.
        let error = stage.port.load(memory, &mut [0; 8]).expect_err("it is host memory");
        assert!(error.to_string().contains("host memory"), "{error}");
    }
    assert_eq!(stage.port.reach(plain.as_ptr() as usize, 1), Ok(Reach::Direct));
    stage.port.reach(usize::MAX, 2).expect_err("no memory");
    stage.port.reach(heap, 0).expect_err("no memory");
}

fn remapped_memory_is_noticed(bed: &Bed) {
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(bed, registered, 4096);
    let (g, base) = (GRANULARITY, bed.reserve(2 * GRANULARITY));
    let over_the_middle = |stage: &mut Stage, seed: usize| {
        let at = base + g - CHUNK / 2;
        assert_eq!(stage.port.reach(at, CHUNK), Ok(Reach::Staged));
        let bytes = pattern(CHUNK, seed);
        stage.carries(at, &bytes);
        assert!(bed.read(at, CHUNK) == bytes);
    };
    for round in 0..4 {
        // One allocation: no border in the middle.
        bed.map_at(base, 2 * g);
        over_the_middle(&mut stage, round);
        bed.unmap(base, 2 * g);
        bed.map_at(base, g);
        bed.map_at(base + g, g);
        over_the_middle(&mut stage, 100 + round);
        bed.unmap(base + g, g);
        bed.map_at(base + g, g);
        over_the_middle(&mut stage, 200 + round);
        bed.unmap(base, g);
        bed.unmap(base + g, g);
    }
}

fn gone_memory_is_forgotten(bed: &Bed) {
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(bed, registered, 4096);
    let (plain, base) = (bed.alloc(1 << 20), bed.reserve(GRANULARITY));
    bed.map_at(base, GRANULARITY);
    for memory in [plain, base] {
        assert_eq!(stage.port.reach(memory + 5, 100), Ok(Reach::Staged));
        stage.copy_in(memory + 5, &pattern(100, 1));
    }
    bed.free(plain);
    bed.unmap(base, GRANULARITY);
    for memory in [plain, base] {
        let now = stage.port.reach(memory + 5, 100);
        assert_ne!(now, Ok(Reach::Staged), "nothing of the device is at {memory:#x}");
    }
}

fn many_ranges_are_looked_at_again(bed: &Bed) {
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(bed, registered, 4096);
    let ranges: Vec<usize> = (0..150).map(|_| bed.alloc(4096)).collect();
    for round in 0..3 {
        for (index, range) in ranges.iter().enumerate() {
            stage.carries(range + index, &pattern(100, index + round));
        }
    }
    for range in ranges {
        bed.free(range);
    }
}

fn copies_complete_in_starting_order(bed: &Bed) {
    let slow = bed.heap(1);
    let fast = bed.vmm(&[(ON_DEVICE, 1)], false);
    let (mut stage, _slow) = Stage::new(bed, slow, GRANULARITY);
    let _fast = stage.register(bed, fast, GRANULARITY);
    let host = bed.host(CHUNK);
    // Longer than all copies take to start, on a busy machine too.
    bed.slow(1_000_000_000);
    let bounces = [0, 1, 2, 3].map(|number| stage.bounce(IN, number));
    let list = |memory: [usize; 2], first: usize| {
        [0, 1].map(|number| {
            let (memory, bounce) = (memory[number], bounces[first + number]);
            let copy = Copy { direction: IN, memory, bounce, len: CHUNK };
            TaggedCopy { copy, tag: (first + number) as u32 }
        })
    };
    assert_eq!(stage.port.start_all(&list([slow, fast], 0)), Ok(Posted::Yes));
    assert_eq!(stage.port.start_all(&list([host, slow + CHUNK], 2)), Ok(Posted::Yes));
    // The other direction is not held up.
    stage.start(OUT, fast, 0, CHUNK, 5);
    stage.start(OUT, host, 1, CHUNK, 6);
    assert_eq!([stage.wait().tag, stage.wait().tag], [5, 6]);
    bed.slow(0);
    assert_eq!([(); 4].map(|()| stage.wait().tag), [0, 1, 2, 3]);
    assert!(stage.port.poll().is_none());
}

fn several_devices_are_staged(bed: &Bed) {
    let heaps: Vec<usize> = (0..3).map(|device| bed.vmm(&[(ON_DEVICE, device)], false)).collect();
    let (mut stage, _first) = Stage::new(bed, heaps[0], GRANULARITY);
    // Nothing of device 1 is registered: nothing is made for it on this thread, and it says so.
    refused(
        stage.port.reach(heaps[1], 64),
        &["64 bytes", "device memory", "device 1", "nothing is registered"],
    );
    let _second = stage.register(bed, heaps[1], GRANULARITY);
    let pinned = bed.count(3);
    let _third = stage.register(bed, heaps[2], GRANULARITY);
    assert_eq!(bed.count(3), pinned, "bounce memory is there once");
    for (seed, heap) in heaps.iter().enumerate() {
        stage.carries(heap + 7, &pattern(CHUNK, seed));
        assert!(bed.read(heap + 7, CHUNK) == pattern(CHUNK, seed));
    }
}

fn memory_elsewhere_is_copied_there(bed: &Bed) {
    let (heap, unused) = (bed.heap(2), bed.reserve(2 * GRANULARITY));
    let staging = Staging::new(options(4, stream_only()));
    let range = bed.range(heap, 2 * GRANULARITY);
    let _region =
        staging.register(unused, range, None, Access::LocalAndRemote).expect("it can be staged");
    let mut stage = Stage::take(staging);
    let at = GRANULARITY - 100;
    let bytes = pattern(CHUNK, 3);
    stage.copy_in(unused + at, &bytes);
    assert!(bed.read(heap + at, CHUNK) == bytes);
    assert!(stage.copy_out(unused + at, CHUNK) == bytes);
    stage.port.store(unused + at, &[9; 200]).expect("over the border");
    assert_eq!(bed.read(heap + at, 200), [9; 200]);
}

fn host_memory_is_staged_first(bed: &Bed) {
    let staging = Staging::new(options(4, stream_only()));
    let stager = staging.make_stager().expect("there is memory").expect("it is the first");
    assert!(staging.make_stager().expect("it says why not").is_none(), "there is one");
    assert!(staging.take_stager().is_none(), "there is one");
    let mut stage = Stage { port: stager.copies, bounce: stager.bounce, staging };
    let mut host = vec![0_u8; CHUNK];
    let at = host.as_mut_ptr() as usize;
    let heap = bed.heap(2);
    let mut region = None;
    for seed in 0..3 {
        let bytes = pattern(CHUNK, seed);
        stage.copy_in(at, &bytes);
        assert_eq!(stage.port.reach(at, CHUNK).expect("host memory"), Reach::Direct);
        assert!(host == bytes && stage.copy_out(at, CHUNK) == bytes);
        // Its first range has the bounce memory page-locked.
        let _ = region.get_or_insert_with(|| stage.register(bed, heap, 2 * GRANULARITY));
        stage.copy_in(heap + GRANULARITY - 100, &bytes);
        assert!(bed.read(heap + GRANULARITY - 100, CHUNK) == bytes);
        assert!(stage.copy_out(heap + GRANULARITY - 100, CHUNK) == bytes);
    }
}

fn registering_disturbs_no_copy(bed: &Bed) {
    let len = 1 << 20;
    let kept = bed.alloc(len);
    let others: Vec<usize> = (0..8).map(|_| bed.alloc(4096)).collect();
    let (mut stage, _region) = Stage::new(bed, kept, len);
    let staging = Arc::clone(&stage.staging);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let registering = scope.spawn(|| {
            let mut rounds = 0;
            // Until the copies are over, and often enough to be in their way.
            while !stop.load(Ordering::Acquire) || rounds < 50 {
                let register =
                    |addr: &usize| register(&staging, bed, *addr, 4096).expect("it can be staged");
                let regions: Vec<_> = others.iter().map(register).collect();
                drop(regions);
                rounds += 1;
            }
        });
        for round in 0..200 {
            let bytes = pattern(CHUNK, round);
            stage.copy_in(kept + round, &bytes);
            stage.port.store_flag(kept + len - 8, round as u64).expect("a word of it");
            assert!(stage.copy_out(kept + round, CHUNK) == bytes);
            let other = others[round % others.len()];
            stage.copy_in(other, &bytes[..64]);
            stage.port.store(other + 64, &bytes[..9]).expect("bytes of it");
            assert!(stage.copy_out(other, 64) == bytes[..64]);
        }
        stop.store(true, Ordering::Release);
        registering.join().expect("no panic");
    });
    assert_eq!(stage.staging.ranges(), 1);
}

fn released_memory_is_not_found(bed: &Bed) {
    let first = bed.alloc(4096);
    let (mut stage, region) = Stage::new(bed, first, 4096);
    stage.copy_in(first, &[1; 64]);
    drop(region);
    assert!(stage.staging.ranges() == 0);
    bed.free(first);
    let copy = Copy { direction: OUT, memory: first, bounce: stage.bounce(OUT, 0), len: 64 };
    if bed.is_fake() {
        stage.port.reach(copy.memory, copy.len).expect_err("its addresses are nobody's now");
        stage.port.store_flag(first, 1).expect_err("it was released");
    }
    let second = bed.alloc(4096);
    let _region = stage.register(bed, second, 4096);
    stage.copy_in(second, &[2; 64]);
    assert_eq!(stage.copy_out(second, 64), [2; 64]);
}

fn copies_allocate_nothing(bed: &Bed) {
    let heap = bed.heap(2);
    let (other, host) = (bed.alloc(4096), bed.host(4096));
    for words in [stream_only(), WordsOptions::default()] {
        let (mut stage, _region) = Stage::with(bed, heap, 2 * GRANULARITY, options(4, words));
        assert_eq!(stage.port.reach(heap, 1), Ok(Reach::Staged));
        // The largest batch, of copies that each cross the border of two allocations.
        let (memory, bounce) = (heap + GRANULARITY - 4, stage.bounce(OUT, 0));
        let most: [_; MAX_BATCH_COPIES] = std::array::from_fn(|tag| {
            let copy = Copy { direction: OUT, memory, bounce: bounce + 8 * tag, len: 8 };
            TaggedCopy { copy, tag: tag as u32 }
        });
        let before = allocations();
        (0..2).for_each(|_| assert_eq!(stage.port.start_all(&most), Ok(Posted::Yes)));
        most.iter().chain(&most).for_each(|copy| stage.ends(copy.tag));
        assert_eq!(allocations(), before);
        let lists = [IN, OUT].map(|direction| {
            let copy = |(number, memory): (u16, usize), len| {
                let bounce = stage.bounce(direction, number);
                TaggedCopy { copy: Copy { direction, memory, bounce, len }, tag: number.into() }
            };
            [copy((0, heap), CHUNK), copy((1, other), 4096), copy((2, host), 4096)]
        });
        let mut round = || {
            for list in &lists {
                assert_eq!(stage.port.start_all(list), Ok(Posted::Yes));
                (0..3).for_each(|tag| stage.ends(tag));
            }
            let short = Copy { len: 99, ..lists[0][0].copy };
            stage.run(short);
            stage.port.store_flag(heap, 5).expect("a word of it");
            stage.port.store(heap + 11, &[3; 99]).expect("bytes of it");
            stage.port.load(heap + 11, &mut [0; 99]).expect("bytes of it");
        };
        // The first round looks up unregistered memory.
        round();
        let before = allocations();
        (0..20).for_each(|_| round());
        assert_eq!(allocations(), before);
    }
}

fn impossible_copies_are_refused(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    let bounce = stage.bounce.addr;
    for (bounce, len) in [
        (bounce - 1, 64),
        (bounce + stage.bounce.bytes() - 63, 64),
        (bounce + stage.bounce.bytes() + 4096, 1),
        (bounce, usize::MAX),
    ] {
        let copy = Copy { direction: IN, memory: heap, bounce, len };
        refused(stage.give(copy, 0), &["in no bounce buffer"]);
    }
    assert!(stage.port.poll().is_none(), "nothing was started");
    let add = atomic(AtomicOp::Add, Width::Eight, 1);
    refused(stage.port.apply(heap + 4, &add), &["no word of 8 bytes"]);
    stage.port.store_flag(heap + 4, 1).expect_err("not aligned");
    let last =
        Copy { direction: IN, memory: heap, bounce: bounce + stage.bounce.bytes() - 64, len: 64 };
    stage.run(last);
    for (bounce_len, bounces) in [(0, 4), (5000, 4), (4096, 0), (4096, 257)] {
        let staging =
            Staging::new(StagingOptions { bounce_len, ..options(bounces, stream_only()) });
        let error = register(&staging, bed, heap, GRANULARITY).expect_err("no such");
        assert_eq!(error, StagingError::Options { bounces, bounce_len });
    }
}

fn staging_ends_with_the_stager(bed: &Bed) {
    let heap = bed.heap(1);
    let (stage, _region) = Stage::new(bed, heap, GRANULARITY);
    let Stage { port, staging, .. } = stage;
    drop(port);
    let error = register(&staging, bed, heap, GRANULARITY).expect_err("no stager");
    assert_eq!(error, StagingError::Ended);
    assert!(staging.take_stager().is_none());
}
