//! Words and bytes of staged memory, by every way.

use engine::port::copies::CopyPort;

use crate::prelude::*;

cases! {
    Fake: signalled_words_are_read_once, stores_are_told_by_marks, deferred_words_take_few_calls,
        words_find_another_way, short_bytes_are_stored_together, words_at_once_need_no_copy,
        alias_has_the_window, released_memory_has_no_window;
    Fake ("FAKE_CUDA_HOST_WRITES" = "0"): stores_are_told_by_events;
    Fake ("FAKE_GDRCOPY_REFUSE" = "1", "FAKE_CUDA_DMA_BUF" = "3"): alias_has_the_window,
        released_memory_has_no_window;
}

fn stores_are_told_by_marks(bed: &Bed) {
    assert_eq!(calls_of_stores(bed), 200);
}

/// An event is a call of its own.
fn stores_are_told_by_events(bed: &Bed) {
    assert_eq!(calls_of_stores(bed), 400);
}

/// Calls that give the stream something, for two hundred stores.
fn calls_of_stores(bed: &Bed) -> u64 {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    let before = bed.count(11);
    (0..200).for_each(|value| stage.port.store_flag(heap, value).expect("a word of it"));
    bed.count(11) - before
}

fn deferred_words_take_few_calls(bed: &Bed) {
    const WORDS: usize = 64;
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    let calls = |stage: &mut Stage, what: &dyn Fn(&mut Stage)| {
        bed.calls_of(|| {
            what(stage);
            stage.port.flush().expect("they are there");
        })
    };
    let store = |stage: &mut Stage, count: usize| {
        for at in 0..count {
            let bytes = (at as u64 + 7).to_le_bytes();
            stage.port.queue_write(heap + 8 * at, &bytes, DeferredOrder::After).expect("soon");
        }
    };
    assert_eq!(calls(&mut stage, &|stage| store(stage, WORDS)), [1, 0]);
    for at in 0..WORDS {
        assert_eq!(bed.read(heap + 8 * at, 8), (at as u64 + 7).to_le_bytes());
    }
    assert_eq!(calls(&mut stage, &|stage| store(stage, WORDS + 1)), [2, 0], "one too many");
    // What is added to one word is loaded once. What is set is not loaded at all.
    let signal = |op| atomic(op, Width::Eight, 1);
    let signals = |op| {
        move |stage: &mut Stage| {
            for _ in 0..WORDS {
                stage.port.queue_atomic(heap, &signal(op), DeferredOrder::After).expect("soon");
            }
        }
    };
    assert_eq!(calls(&mut stage, &signals(AtomicOp::SignalAdd)), [1, 1]);
    assert_eq!(bed.read(heap, 8), (7 + WORDS as u64).to_le_bytes());
    assert_eq!(calls(&mut stage, &signals(AtomicOp::SignalSet)), [1, 0]);
    // Of several words, those near one another are loaded together, and what nothing orders is
    // stored so: by one copy, where they lie side by side.
    let adds = |order, distance: usize| {
        move |stage: &mut Stage| {
            for add in 0..4 * WORDS {
                let word = heap + 4096 + add * 5 % WORDS * distance;
                stage.port.queue_atomic(word, &signal(AtomicOp::SignalAdd), order).expect("soon");
            }
        }
    };
    let held = || bed.read(heap + 4096 + 63 * 16, 8);
    assert_eq!(held(), [0; 8]);
    assert_eq!(calls(&mut stage, &adds(DeferredOrder::After, 16)), [4, 4], "64 at a time");
    assert_eq!(held(), 4_u64.to_le_bytes());
    assert_eq!(calls(&mut stage, &adds(DeferredOrder::Any, 16)), [1, 1]);
    assert_eq!(held(), 8_u64.to_le_bytes());
    assert_eq!(calls(&mut stage, &adds(DeferredOrder::Any, 8)), [0, 2], "one in, one out");
    assert_eq!(
        calls(&mut stage, &adds(DeferredOrder::Any, 256)),
        [1, 1],
        "as far as one copy goes"
    );
    assert_eq!(calls(&mut stage, &adds(DeferredOrder::Any, 264)), [1, 64], "far apart");
    assert_eq!(calls(&mut stage, &|_| ()), [0, 0], "nothing is to be stored");
}

/// Each word that signals add to is read once, unless something else has written to it.
fn signalled_words_are_read_once(bed: &Bed) {
    let heap = bed.heap(2);
    let memory = (heap, GRANULARITY);
    let (mut stage, _region) = Stage::of(bed, memory, Access::Signals, options(2, stream_only()));
    let op = AtomicOp::SignalAdd;
    let one = atomic(op, Width::Eight, 1);
    bed.write(heap, &7_u64.to_le_bytes());
    let add = |stage: &mut Stage, words: usize| {
        let before = bed.count(2);
        for word in 0..words {
            stage.port.queue_atomic(heap + 8 * word, &one, DeferredOrder::After).expect("soon");
        }
        stage.port.flush().expect("they are there");
        let loads = bed.count(2) - before;
        (bed.read(heap, 8), loads)
    };
    let has = |value: u64| value.to_le_bytes().to_vec();
    assert_eq!(add(&mut stage, 3), (has(8), 3), "none is known");
    assert_eq!(add(&mut stage, 3), (has(9), 0));
    assert_eq!(stage.port.apply(heap, &one).expect("at once"), 9);
    assert_eq!(add(&mut stage, 1), (has(11), 0));
    drop(stage.register(bed, heap + GRANULARITY, GRANULARITY));
    assert_eq!(add(&mut stage, 3), (has(12), 0));
    stage.port.store(heap + 4, &[1]).expect("a byte of it");
    assert_eq!(add(&mut stage, 3), (has((1 << 32) + 13), 1), "the others are known still");
    stage.port.store_flag(heap, 20).expect("it");
    assert_eq!(add(&mut stage, 1), (has(21), 1));
    stage.port.queue_write(heap, &has(30), DeferredOrder::Any).expect("soon");
    assert_eq!(add(&mut stage, 1).0, has(31));
    // Only for a word that is to be stored itself are the others stored first.
    stage.port.queue_write(heap + 72, &has(5), DeferredOrder::Any).expect("soon");
    let stores = bed.count(5);
    for word in [8, 10] {
        stage.port.queue_atomic(heap + 8 * word, &one, DeferredOrder::After).expect("soon");
    }
    assert_eq!(bed.count(5), stores, "they lie beside it");
    stage.port.queue_atomic(heap + 72, &one, DeferredOrder::After).expect("soon");
    stage.port.flush().expect("they are there");
    assert_eq!(bed.read(heap + 72, 8), has(6));
    let bounce = stage.bounce(CopyDirection::In, 0);
    fill(bounce, &[0; 64]);
    stage.start(CopyDirection::In, heap, 0, 64, 9);
    stage.ends(9);
    assert_eq!(add(&mut stage, 2), (has(1), 2), "both were copied to");
    let loads = bed.count(2);
    let set = atomic(AtomicOp::SignalSet, Width::Eight, 4);
    stage.port.queue_atomic(heap + 160, &set, DeferredOrder::After).expect("soon");
    stage.port.flush().expect("it is there");
    assert_eq!(bed.count(2), loads, "what is set is not read");
    // What may not have been stored is not what the word holds. The copy of words that lie side by
    // side is refused, and they are stored with the signal.
    stage.port.queue_atomic(heap, &one, DeferredOrder::After).expect("soon");
    for word in 8..16 {
        stage.port.queue_write(heap + 8 * word, &has(5), DeferredOrder::Any).expect("soon");
    }
    bed.refuse(0, 2);
    stage.port.flush().expect_err("some are missing");
    let there = bed.word(heap);
    assert_eq!(add(&mut stage, 1), (has(there + 1), 1), "it is read again");
}

fn words_find_another_way(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    call!(bed.raw, fake_cuda_offer(0 => i32, 0 => u32));
    for round in 0..2_u64 {
        let words =
            (0..10).map(|word| (word, DeferredOrder::Any)).chain([(40, DeferredOrder::After)]);
        let value = |word: usize| ((word as u64 + 1000 * round) << 32 | 7).to_le_bytes();
        for (word, order) in words.clone() {
            stage.port.queue_write(heap + 8 * word, &value(word), order).expect("soon");
        }
        let [stores, _] = bed.calls_of(|| stage.port.flush().expect("they are there"));
        assert_eq!(stores > 0, round == 0, "it is tried once");
        for (word, _) in words {
            assert_eq!(bed.read(heap + 8 * word, 8), value(word));
        }
    }
}

/// Calls that store and copies that are made, for words and bytes that are none.
fn short_bytes_are_stored_together(bed: &Bed) {
    let (mut stage, _region, heap) = Stage::on_heap(bed, 1);
    let mut calls = |stores: &[(usize, usize, DeferredOrder)]| {
        let before = bed.stores_and_copies();
        for (at, len, order) in stores {
            stage.port.queue_write(heap + at, &pattern(*len, *at), *order).expect("soon");
        }
        assert_eq!(bed.stores_and_copies(), before, "they wait for one another");
        stage.port.flush().expect("they are there");
        let after = bed.stores_and_copies();
        for (at, len, _) in stores {
            assert_eq!(bed.read(heap + at, *len), pattern(*len, *at), "{len} bytes at {at}");
        }
        [after[0] - before[0], after[1] - before[1]]
    };
    use DeferredOrder::{After, Any};
    let each = |at: &mut dyn Iterator<Item = usize>, len, order| -> Vec<_> {
        at.map(|at| (at * len, len, order)).collect()
    };
    assert_eq!(calls(&each(&mut (1..61), 1, Any)), [0, 1], "bytes in a row");
    assert_eq!(calls(&each(&mut (1..5), 1, After)), [0, 4], "each behind the one before");
    assert_eq!(calls(&[(8, 2, Any), (32, 2, Any), (20, 2, Any)]), [0, 3], "apart");
    assert_eq!(calls(&each(&mut (0..64), 8, Any)), [0, 1], "words in a row");
    assert_eq!(calls(&each(&mut (0..6).rev(), 8, Any)), [0, 1], "in any order");
    assert_eq!(
        calls(&each(&mut (0..13).rev().filter(|at| *at != 6), 8, Any)),
        [0, 2],
        "in two rows"
    );
    assert_eq!(calls(&each(&mut (0..64), 8, After)), [1, 0], "each in its place");
    assert_eq!(calls(&each(&mut (1..4), 8, Any)), [1, 0], "not worth a copy");
    assert_eq!(calls(&each(&mut (0..60).step_by(2), 8, Any)), [1, 0], "words apart");
    // A word that is ordered ends what may be copied together.
    let mut parts = each(&mut (0..21), 8, Any);
    parts[10].2 = After;
    assert_eq!(calls(&parts), [1, 2], "two copies, and a word between them");
    let of_puts = [(64, 16, After), (96, 16, After), (128, 16, After)];
    assert_eq!(calls(&of_puts), [1, 0], "words of several puts");
    assert_eq!(calls(&[(64, 200, After)]), [0, 1], "longer ones by a copy");
    assert_eq!(calls(&[(256, 256, After)]), [0, 1], "the longest");
    assert_eq!(calls(&[(65, 11, After)]), [0, 1], "not aligned");
    assert_eq!(calls(&[(64, 48, Any), (112, 48, Any)]), [0, 1], "two that lie side by side");
    assert_eq!(calls(&[(64, 48, After), (112, 48, After)]), [0, 2], "and are ordered");
    let around = [(0, 8, After), (9, 1, After), (16, 8, After)];
    assert_eq!(calls(&around), [2, 1], "words around a byte");
}

/// Bytes stored at once: words by the stream, all else by copies, long ones in parts.
fn words_at_once_need_no_copy(bed: &Bed) {
    let memory = [bed.heap(1), bed.managed(1 << 16)];
    let (mut stage, _heap) = Stage::with(bed, memory[0], 1 << 16, options(2, stream_only()));
    let _managed = stage.register(bed, memory[1], 1 << 16);
    let mut calls = |base: usize, at: usize, len: usize| {
        let (addr, bytes) = (base + at, pattern(len, at + len));
        let calls = bed.calls_of(|| stage.port.store(addr, &bytes).expect("bytes of it"));
        assert!(bed.read(addr, len) == bytes, "{len} bytes at {at}");
        calls
    };
    for len in 1..=9 {
        for at in [64, 68, 65, 66] {
            let is_word = [4, 8].contains(&len) && at % len == 0;
            let is_two = len == 8 && at == 68;
            let expected = if is_word || is_two { [1, 0] } else { [0, 1] };
            assert_eq!(calls(memory[0], at, len), expected, "{len} bytes at {at}");
            assert_eq!(calls(memory[1], at, len), [0, 1], "{len} managed bytes at {at}");
        }
    }
    for (len, copies) in [(256, 1), (257, 2), (1000, 4), (1024, 4)] {
        assert_eq!(calls(memory[0], 3, len), [0, copies], "{len} bytes");
    }
}

fn alias_has_the_window(bed: &Bed) {
    // Nothing maps memory of NUMA nodes, so the window is on the other.
    let shown = bed.vmm(&[(ON_NUMA_NODE, 0)], false);
    let other = bed.heap(1);
    let staging = Staging::new(options(2, WordsOptions::default()));
    let (range, other_range) = (bed.range(shown, 4096), bed.range(other + 64, 4096));
    let region = staging
        .register(shown, range, Some(other_range), Access::LocalAndRemote)
        .expect("it can be staged");
    assert!(region.is_mapped());
    let stager = staging.take_stager().expect("something is staged");
    let mut port: Box<dyn CopyPort> = stager.copies;
    port.store_flag(shown + 8, 77).expect("a word of it");
    port.store(shown + 4090, &[5; 6]).expect("the last bytes");
    assert_eq!(bed.read(other + 64 + 8, 8), 77_u64.to_le_bytes());
    assert_eq!(bed.read(other + 64 + 4090, 6), [5; 6]);
    // One of another length is not the same memory.
    drop(region);
    let (range, other_range) = (bed.range(shown, 4096), bed.range(other, 8192));
    let region = staging
        .register(shown, range, Some(other_range), Access::LocalAndRemote)
        .expect("it can be staged");
    assert!(!region.is_mapped());
    port.store_flag(shown + 16, 78).expect("by the stream");
    assert_eq!(bed.read(shown + 16, 8), 78_u64.to_le_bytes());
}

/// Bytes that windows lead to.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("this process has mappings");
    let len = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        let [from, to] = [from, to].map(|at| usize::from_str_radix(at, 16));
        Some(to.ok()? - from.ok()?)
    };
    // Also those of the stand-in, which do not change.
    let of_device = maps.lines().filter(|line| line.contains("rw-s") && line.contains("fake-cuda"));
    of_device.filter_map(len).sum::<usize>() + pinned()
}

fn pinned() -> usize {
    // SAFETY: the stand-in, which is loaded already; a function of no argument.
    unsafe {
        let library = libloading::Library::new(GDRCOPY_LIBRARY).expect("it is loaded");
        let pinned: libloading::Symbol<'_, extern "C" fn() -> usize> =
            library.get(b"fake_gdrcopy_pinned\0").expect("it counts");
        pinned()
    }
}

fn released_memory_has_no_window(bed: &Bed) {
    let heap = bed.heap(3);
    let words = WordsOptions::default();
    let (mut stage, region) = Stage::with(bed, heap, GRANULARITY, options(2, words));
    assert!(region.is_mapped());
    let before = mapped();
    let second = stage.register(bed, heap + GRANULARITY, 2 * GRANULARITY);
    stage.port.store_flag(heap + GRANULARITY, 1).expect("a word of it");
    assert_eq!(mapped(), before + 2 * GRANULARITY);
    // The stager has seen it, and is not asked again: the memory is free to go.
    drop(second);
    assert_eq!(mapped(), before);
    stage.port.store_flag(heap, 1).expect("the other one is left alone");
}
