//! Copies through bounce buffers, as the engine asks for them.

pub(crate) mod failures;
pub(crate) mod same_host;
pub(crate) mod together;
pub(crate) mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cuda::{Kind, Staging, StagingError, StagingOptions, WordsOptions};
use engine::port::copies::{Copy, CopyDirection, Reach, TaggedCopy};
use engine::port::{Access, Posted};

use crate::bed::case::Case;
use crate::bed::stage::{CHUNK, Stage, options, register};
use test_support::random::pattern;

use crate::bed::{Bed, GRANULARITY, ON_DEVICE, ON_NUMA_NODE, allocations, fill, peek};
use crate::words::stream_only;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::any("staged_memory_is_copied_both_ways_over_borders", both_ways),
        Case::any("staged_copies_of_all_sizes_and_alignments_arrive", sizes),
        Case::any("memory_that_nobody_registered_is_looked_at", unregistered),
        Case::any("memory_that_is_mapped_anew_is_noticed", mapped_anew),
        Case::fake("memory_that_is_gone_is_not_known_any_more", gone),
        Case::any("more_ranges_than_are_kept_are_looked_at_again", many),
        Case::fake("copies_complete_in_starting_order", in_order),
        Case::fake("memory_of_several_devices_is_staged", devices),
        Case::fake("memory_that_the_driver_has_elsewhere_is_copied_there", elsewhere),
        Case::any("host_memory_is_staged_before_any_of_a_device_and_beside_it", host_first),
        Case::any("memory_is_registered_and_released_while_other_memory_is_copied", meanwhile),
        Case::any("what_was_released_is_not_found", released),
        Case::any("starting_and_polling_staged_copies_allocates_nothing", no_allocation),
        Case::any("what_is_no_copy_is_refused", refused),
        Case::any("staging_ends_with_the_stager", ended),
    ]
}

const OUT: CopyDirection = CopyDirection::Out;
const IN: CopyDirection = CopyDirection::In;

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

fn both_ways() {
    let bed = Bed::new();
    let plain = bed.alloc(1 << 20);
    let (mut stage, plain_region) = Stage::new(&bed, plain, 1 << 20);
    assert_eq!((stage.bounce.bounce_len, stage.bounce.out, stage.bounce.inward), (CHUNK, 4, 4));
    assert_eq!(stage.port.reach(plain, 1 << 20), Ok(Reach::Staged));
    check(&bed, &mut stage, plain, 1 << 20);
    let heap = bed.heap(2);
    let heap_region = stage.register(&bed, heap, 2 * GRANULARITY);
    check(&bed, &mut stage, heap, 2 * GRANULARITY);
    let managed = bed.managed(1 << 20);
    let managed_region = stage.register(&bed, managed, 1 << 20);
    check(&bed, &mut stage, managed, 1 << 20);
    if bed.is_fake() {
        let node = bed.vmm(&[(ON_NUMA_NODE, 0); 2], false);
        let region = stage.register(&bed, node, 2 * GRANULARITY);
        assert_eq!(region.range().kind(), Kind::HostNumaDeviceOnly);
        check(&bed, &mut stage, node, 2 * GRANULARITY);
    }
    assert_eq!(stage.staging.len(), 3);
    assert!(!stage.staging.is_empty());
    if bed.is_fake() {
        // What a context of the program owns waits for calls on that.
        let held_up = [plain_region, heap_region, managed_region].map(|region| region.is_held_up());
        assert_eq!(held_up, [true, false, true]);
    }
}

fn sizes() {
    const MARGIN: usize = 64;
    let bed = Bed::new();
    let (mut stage, _region, heap) = Stage::on_heap(&bed, 1);
    let lengths = [1, 2, 3, 4, 5, 7, 8, 9, 13, 63, 64, 65, 101, 4095, 4097, 32_767, 32_768, 60_001];
    for (round, len) in lengths.into_iter().enumerate() {
        for (at, offset) in [(0, 0), (1, 0), (0, 3), (7, 5), (8, 64)] {
            let bytes = pattern(len, round * 8 + at);
            let memory = heap + MARGIN + at;
            bed.write(heap, &vec![0xee; len + 3 * MARGIN]);
            let bounce = stage.bounce(IN, 0) + offset;
            fill(bounce, &bytes);
            let there = Copy { direction: IN, memory, bounce, len };
            assert_eq!(stage.give(there, 1), Ok(Posted::Yes));
            stage.ends(1);
            let seen = bed.read(heap, len + 3 * MARGIN);
            let (before, behind) = (&seen[..MARGIN + at], &seen[MARGIN + at + len..]);
            assert!(seen[MARGIN + at..][..len] == bytes, "{len} bytes at {at} from {offset}");
            assert!(before.iter().chain(behind).all(|byte| *byte == 0xee), "more was written");
            let start = stage.bounce(OUT, 0);
            fill(start, &vec![0x11; len + 3 * MARGIN]);
            let bounce = start + MARGIN + offset;
            let back = Copy { direction: OUT, bounce, ..there };
            assert_eq!(stage.give(back, 2), Ok(Posted::Yes));
            stage.ends(2);
            let seen = peek(start, len + 3 * MARGIN);
            let (before, rest) = seen.split_at(MARGIN + offset);
            assert!(rest[..len] == bytes, "{len} bytes from {at} to {offset}");
            let mut around = before.iter().chain(&rest[len..]);
            assert!(around.all(|byte| *byte == 0x11), "more was written");
        }
    }
}

fn unregistered() {
    let bed = Bed::new();
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(&bed, registered, 4096);
    for (memory, len) in [(bed.alloc(1 << 20), 1 << 20), (bed.managed(1 << 20), 1 << 20)] {
        assert_eq!(stage.port.reach(memory + 5, 100), Ok(Reach::Staged));
        check(&bed, &mut stage, memory, len);
    }
    let heap = bed.heap(2);
    assert_eq!(stage.port.reach(heap, 2 * GRANULARITY), Ok(Reach::Staged));
    check(&bed, &mut stage, heap, 2 * GRANULARITY);

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

fn mapped_anew() {
    let bed = Bed::new();
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(&bed, registered, 4096);
    let (g, base) = (GRANULARITY, bed.reserve(2 * GRANULARITY));
    let over_the_middle = |stage: &mut Stage, seed: usize| {
        let at = base + g - CHUNK / 2;
        assert_eq!(stage.port.reach(at, CHUNK), Ok(Reach::Staged));
        let bytes = pattern(CHUNK, seed);
        stage.copy_in(at, &bytes);
        assert!(stage.copy_out(at, CHUNK) == bytes);
        assert!(bed.read(at, CHUNK) == bytes);
    };
    for round in 0..4 {
        // One allocation: no border in the middle.
        bed.map_at(base, 2 * g);
        over_the_middle(&mut stage, round);
        bed.unmap(base, 2 * g);
        // Two at the same addresses.
        bed.map_at(base, g);
        bed.map_at(base + g, g);
        over_the_middle(&mut stage, 100 + round);
        // The second one is replaced: a part of what is known.
        bed.unmap(base + g, g);
        bed.map_at(base + g, g);
        over_the_middle(&mut stage, 200 + round);
        bed.unmap(base, g);
        bed.unmap(base + g, g);
    }
}

fn gone() {
    let bed = Bed::new();
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(&bed, registered, 4096);
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

fn many() {
    let bed = Bed::new();
    let registered = bed.alloc(4096);
    let (mut stage, _region) = Stage::new(&bed, registered, 4096);
    let ranges: Vec<usize> = (0..150).map(|_| bed.alloc(4096)).collect();
    for round in 0..3 {
        for (index, range) in ranges.iter().enumerate() {
            let bytes = pattern(100, index + round);
            stage.copy_in(range + index, &bytes);
            assert!(stage.copy_out(range + index, 100) == bytes);
        }
    }
    for range in ranges {
        bed.free(range);
    }
}

fn in_order() {
    let bed = Bed::new();
    let slow = bed.heap(1);
    let fast = bed.vmm(&[(ON_DEVICE, 1)], false);
    let (mut stage, _slow) = Stage::new(&bed, slow, GRANULARITY);
    let _fast = stage.register(&bed, fast, GRANULARITY);
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

fn devices() {
    let bed = Bed::new();
    let heaps: Vec<usize> = (0..3).map(|device| bed.vmm(&[(ON_DEVICE, device)], false)).collect();
    let (mut stage, _first) = Stage::new(&bed, heaps[0], GRANULARITY);
    // Nothing of device 1 is registered: nothing is made for it on this thread, and it says so.
    let error = stage.port.reach(heaps[1], 64).expect_err("no engine for it");
    let said = error.to_string();
    for part in ["64 bytes", "device memory", "device 1", "nothing is registered"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    let _second = stage.register(&bed, heaps[1], GRANULARITY);
    let pinned = bed.count(3);
    let _third = stage.register(&bed, heaps[2], GRANULARITY);
    assert_eq!(bed.count(3), pinned, "bounce memory is there once");
    for (seed, heap) in heaps.iter().enumerate() {
        let bytes = pattern(CHUNK, seed);
        stage.copy_in(heap + 7, &bytes);
        stage.port.store_flag(*heap + (1 << 20), seed as u64 + 1).expect("a word of it");
    }
    for (seed, heap) in heaps.iter().enumerate() {
        assert!(stage.copy_out(heap + 7, CHUNK) == pattern(CHUNK, seed));
        let mut flag = [0; 8];
        stage.port.load(*heap + (1 << 20), &mut flag).expect("a word of it");
        assert_eq!(u64::from_le_bytes(flag), seed as u64 + 1);
    }
}

fn elsewhere() {
    let bed = Bed::new();
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

fn host_first() {
    let bed = Bed::new();
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
        let _ = region.get_or_insert_with(|| stage.register(&bed, heap, 2 * GRANULARITY));
        stage.copy_in(heap + GRANULARITY - 100, &bytes);
        assert!(bed.read(heap + GRANULARITY - 100, CHUNK) == bytes);
        assert!(stage.copy_out(heap + GRANULARITY - 100, CHUNK) == bytes);
    }
}

fn meanwhile() {
    let bed = Bed::new();
    let len = 1 << 20;
    let kept = bed.alloc(len);
    let others: Vec<usize> = (0..8).map(|_| bed.alloc(4096)).collect();
    let (mut stage, _region) = Stage::new(&bed, kept, len);
    let staging = Arc::clone(&stage.staging);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let registering = scope.spawn(|| {
            let mut rounds = 0;
            // Until the copies are over, and often enough to be in their way.
            while !stop.load(Ordering::Acquire) || rounds < 50 {
                let register =
                    |addr: &usize| register(&staging, &bed, *addr, 4096).expect("it can be staged");
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
            // Registered at present or not.
            let other = others[round % others.len()];
            stage.copy_in(other, &bytes[..64]);
            stage.port.store(other + 64, &bytes[..9]).expect("bytes of it");
            assert!(stage.copy_out(other, 64) == bytes[..64]);
        }
        stop.store(true, Ordering::Release);
        registering.join().expect("no panic");
    });
    assert_eq!(stage.staging.len(), 1);
}

fn released() {
    let bed = Bed::new();
    let first = bed.alloc(4096);
    let (mut stage, region) = Stage::new(&bed, first, 4096);
    stage.copy_in(first, &[1; 64]);
    drop(region);
    assert!(stage.staging.is_empty());
    bed.free(first);
    let copy = Copy { direction: OUT, memory: first, bounce: stage.bounce(OUT, 0), len: 64 };
    if bed.is_fake() {
        stage.port.reach(copy.memory, copy.len).expect_err("its addresses are nobody's now");
        stage.port.store_flag(first, 1).expect_err("it was released");
    }
    // What comes next is served.
    let second = bed.alloc(4096);
    let _region = stage.register(&bed, second, 4096);
    stage.copy_in(second, &[2; 64]);
    assert_eq!(stage.copy_out(second, 64), [2; 64]);
}

fn no_allocation() {
    let bed = Bed::new();
    let heap = bed.heap(1);
    let (other, host) = (bed.alloc(4096), bed.host(4096));
    for words in [stream_only(), WordsOptions::default()] {
        let (mut stage, _region) = Stage::with(&bed, heap, GRANULARITY, options(4, words));
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
            stage.port.store_flag(heap, 5).expect("a word of it");
            stage.port.store(heap + 11, &[3; 99]).expect("bytes of it");
            stage.port.load(heap + 11, &mut [0; 99]).expect("bytes of it");
        };
        // The first time what is not registered is looked at.
        round();
        let before = allocations();
        (0..20).for_each(|_| round());
        assert_eq!(allocations(), before);
    }
}

fn refused() {
    let bed = Bed::new();
    let (mut stage, _region, heap) = Stage::on_heap(&bed, 1);
    let bounce = stage.bounce.addr;
    for (bounce, len) in [
        (bounce - 1, 64),
        (bounce + stage.bounce.bytes() - 63, 64),
        (bounce + stage.bounce.bytes() + 4096, 1),
        (bounce, usize::MAX),
    ] {
        let copy = Copy { direction: IN, memory: heap, bounce, len };
        let error = stage.give(copy, 0).expect_err("that is in no bounce buffer");
        assert!(error.to_string().contains("in no bounce buffer"), "{error}");
    }
    assert!(stage.port.poll().is_none(), "nothing was started");
    let last =
        Copy { direction: IN, memory: heap, bounce: bounce + stage.bounce.bytes() - 64, len: 64 };
    assert_eq!(stage.give(last, 4), Ok(Posted::Yes));
    stage.ends(4);
    for (bounce_len, bounces) in [(0, 4), (5000, 4), (4096, 0), (4096, 257)] {
        let staging =
            Staging::new(StagingOptions { bounce_len, ..options(bounces, stream_only()) });
        let error = register(&staging, &bed, heap, GRANULARITY).expect_err("no such");
        assert_eq!(error, StagingError::Options { bounces, bounce_len });
    }
}

fn ended() {
    let bed = Bed::new();
    let heap = bed.heap(1);
    let (stage, _region) = Stage::new(&bed, heap, GRANULARITY);
    let Stage { port, staging, .. } = stage;
    drop(port);
    let error = register(&staging, &bed, heap, GRANULARITY).expect_err("no stager");
    assert_eq!(error, StagingError::Ended);
    assert!(staging.take_stager().is_none());
}
