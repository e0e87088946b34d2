//! Words and bytes of staged memory, by every way.

use cuda::{GDRCOPY_LIBRARY, Staging, WordsOptions};
use engine::atomic::{Atomic, AtomicOp, Width};
use engine::port::Access;
use engine::port::copies::{CopyDirection, CopyPort, DeferredOrder};

use crate::bed::case::{Case, skip};
use crate::bed::stage::{Stage, atomic, options};
use test_support::random::{Random, pattern};

use crate::bed::{Bed, GRANULARITY, ON_NUMA_NODE, call, fill};
use crate::words::stream_only;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::any("staged_bytes_by_the_driver_s_streams", by_stream),
        Case::any("staged_bytes_by_gdrcopy", by_gdrcopy),
        Case::any("staged_atomics_are_nvshmem_s", atomics),
        Case::any("staged_words_that_are_stored_soon_are_what_was_asked_for", || {
            soon(Access::LocalAndRemote);
        }),
        // Of signals, but changed by everything else as well.
        Case::any("words_that_only_signals_change_are_what_was_asked_for", || {
            soon(Access::Signals);
        }),
        Case::fake("words_that_only_signals_change_are_read_once", read_once),
        Case::fake("the_same_without_stream_memory_operations", || soon(Access::LocalAndRemote))
            .with(&[("FAKE_CUDA_STREAM_OPS", "0")]),
        Case::fake("words_of_streams_that_set_no_word_of_the_host", || {
            soon(Access::LocalAndRemote)
        })
        .with(&[("FAKE_CUDA_HOST_WRITES", "2")]),
        Case::fake("words_that_are_stored_are_told_by_marks", by_marks),
        Case::fake("words_are_told_by_events_where_the_host_is_not_written", by_events)
            .with(&[("FAKE_CUDA_HOST_WRITES", "0")]),
        Case::fake("staged_words_that_are_stored_soon_take_few_calls", few_calls),
        Case::fake("staged_words_find_another_way_beside_a_copy", another_way),
        Case::fake("short_staged_bytes_are_stored_together", short_bytes),
        Case::fake("staged_words_are_stored_at_once_without_a_copy", at_once),
        Case::fake("a_window_is_opened_on_an_alias_where_the_range_has_none", alias),
        Case::fake("releasing_staged_memory_takes_its_window_away", window),
    ]
}

/// Stores and atomics of every width at every place, soon and at once, with loads, copies and
/// regions that overlap among them: beside a model. Most are close together, over the border of two
/// allocations, and runs of words lie around it.
fn soon(access: Access) {
    const AREA: usize = 1024;
    const CLOSE: usize = 128;
    let bed = Bed::new();
    let heap = bed.heap(2);
    let memory = (heap, 2 * GRANULARITY);
    let (mut stage, _region) = Stage::of(&bed, memory, access, options(2, stream_only()));
    let (area, close) = (heap + GRANULARITY - AREA / 2, (AREA - CLOSE) / 2);
    let mut model = pattern(AREA, 3);
    bed.write(area, &model);
    let mut random = Random::new(1);
    let mut below = |bound: usize| random.below(bound);
    let mut others = Vec::new();
    let ops =
        [AtomicOp::Set, AtomicOp::SignalSet, AtomicOp::SignalAdd, AtomicOp::Add, AtomicOp::Xor];
    for _ in 0..1000 {
        let width = [Width::Two, Width::Four, Width::Eight][below(3)];
        let word = close + below(CLOSE / 8) * 8 + below(8 / width.bytes()) * width.bytes();
        let atomic = Atomic {
            op: ops[below(5)],
            width,
            float: false,
            operand: below(1 << 20) as u64,
            compare: 0,
        };
        let order = [DeferredOrder::After, DeferredOrder::Any][below(2)];
        match below(12) {
            8 => {
                let len = 1 + below(CLOSE);
                let at = close + below(CLOSE - len + 1);
                let bytes = pattern(len, below(1000));
                stage.copy_in(area + at, &bytes);
                model[at..at + len].copy_from_slice(&bytes);
            }
            9 => assert!(stage.copy_out(area, AREA) == model),
            10 if below(2) == 0 => drop(others.pop()),
            10 => {
                let at = below(CLOSE / 8) * 8;
                let (at, len) = (area + close + at, 8 + below(CLOSE - at));
                let access = [Access::Signals, Access::LocalAndRemote][below(2)];
                let range = bed.range(at, len);
                others.push(stage.staging.register(at, range, None, access).expect("staged"));
            }
            0..=2 => {
                let len = [1, 2, 3, 4, 8, 8, 11, 16, 70][below(9)];
                let at = below(CLOSE - len);
                let at = close + if below(4) == 0 { at } else { at / 8 * 8 };
                let bytes = pattern(len, below(1000));
                stage.port.queue_write(area + at, &bytes, order).expect("it is there");
                model[at..at + len].copy_from_slice(&bytes);
            }
            3..=5 => {
                stage.port.queue_atomic(area + word, &atomic, order).expect("it is there");
                apply(&mut model[word..word + width.bytes()], &atomic);
            }
            11 => {
                // Words in a row, in one order or another, some of them halves, some left out.
                let (from, count, way) = (below(58), 1 + below(70), below(3));
                for place in 0..count {
                    let place = [place, count - 1 - place, place * 7 % count][way];
                    let (offset, len) = match below(17) {
                        0 => continue,
                        1 => (4, 4),
                        2 => (0, 4),
                        _ => (0, 8),
                    };
                    let (at, bytes) = (8 * (from + place) + offset, pattern(len, below(1000)));
                    stage.port.queue_write(area + at, &bytes, order).expect("it is there");
                    model[at..at + len].copy_from_slice(&bytes);
                }
            }
            6 => {
                let before = stage.port.apply(area + word, &atomic).expect("it is there");
                assert_eq!(before, apply(&mut model[word..word + width.bytes()], &atomic));
            }
            _ => {
                let mut seen = [0; AREA];
                stage.port.load(area, &mut seen).expect("they are there");
                assert!(seen[..] == model);
            }
        }
    }
    stage.port.flush().expect("they are there");
    assert!(bed.read(area, AREA) == model);
    drop(others);
}

/// Executes an operation on the bytes of a word, and gives the word before.
fn apply(word: &mut [u8], atomic: &Atomic) -> u64 {
    let mut bytes = [0; 8];
    bytes[..word.len()].copy_from_slice(word);
    let before = u64::from_le_bytes(bytes);
    word.copy_from_slice(&atomic.apply(before).to_le_bytes()[..word.len()]);
    before
}

fn by_marks() {
    assert_eq!(calls_of_stores(), 200);
}

/// An event is a call of its own.
fn by_events() {
    assert_eq!(calls_of_stores(), 400);
}

/// Calls that give the stream something, for two hundred stores.
fn calls_of_stores() -> u64 {
    let bed = Bed::new();
    let (mut stage, _region, heap) = Stage::on_heap(&bed, 1);
    let before = bed.count(11);
    (0..200).for_each(|value| stage.port.store_flag(heap, value).expect("a word of it"));
    bed.count(11) - before
}

fn few_calls() {
    const WORDS: usize = 64;
    let bed = Bed::new();
    let (mut stage, _region, heap) = Stage::on_heap(&bed, 1);
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
                let word = heap + 4096 + add % WORDS * distance;
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
fn read_once() {
    let bed = Bed::new();
    let heap = bed.heap(2);
    let memory = (heap, GRANULARITY);
    let (mut stage, _region) = Stage::of(&bed, memory, Access::Signals, options(2, stream_only()));
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
    // Other memory comes and goes.
    drop(stage.register(&bed, heap + GRANULARITY, GRANULARITY));
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
    // What may not have been stored is not what the word holds. The copy of words that lie side by
    // side is refused, and they are stored with the signal.
    stage.port.queue_atomic(heap, &one, DeferredOrder::After).expect("soon");
    for word in 8..16 {
        stage.port.queue_write(heap + 8 * word, &has(5), DeferredOrder::Any).expect("soon");
    }
    bed.refuse(0, 2);
    stage.port.flush().expect_err("some are missing");
    let there = u64::from_le_bytes(bed.read(heap, 8).try_into().expect("eight"));
    assert_eq!(add(&mut stage, 1), (has(there + 1), 1), "it is read again");
}

fn another_way() {
    let bed = Bed::new();
    let (mut stage, _region, heap) = Stage::on_heap(&bed, 1);
    call!(bed.raw, fake_cuda_offer(0 => i32, 0 => u32));
    for round in 0..2_u64 {
        let words =
            (0..10).map(|word| (word, DeferredOrder::Any)).chain([(40, DeferredOrder::After)]);
        let value = |word: usize| (word as u64 + 1000 * round).to_le_bytes();
        for (word, order) in words.clone() {
            stage.port.queue_write(heap + 8 * word, &value(word), order).expect("soon");
        }
        stage.port.flush().expect("they are there");
        for (word, _) in words {
            assert_eq!(bed.read(heap + 8 * word, 8), value(word));
        }
    }
}

/// Calls that store and copies that are made, for words and bytes that are none.
fn short_bytes() {
    let bed = Bed::new();
    let (mut stage, _region, heap) = Stage::on_heap(&bed, 1);
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
    assert_eq!(calls(&each(&mut (0..64).rev(), 8, Any)), [0, 1], "in any order");
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
fn at_once() {
    let bed = Bed::new();
    let memory = [bed.heap(1), bed.managed(1 << 16)];
    let (mut stage, _heap) = Stage::with(&bed, memory[0], 1 << 16, options(2, stream_only()));
    let _managed = stage.register(&bed, memory[1], 1 << 16);
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

fn bytes(words: WordsOptions) {
    let bed = Bed::new();
    let len = 2 * GRANULARITY;
    let heap = bed.heap(2);
    let by_gdrcopy = words.gdrcopy.is_some();
    let (mut stage, region) = Stage::with(&bed, heap, len, options(2, words));
    if region.is_mapped() != by_gdrcopy && !bed.is_fake() {
        skip("GDRCopy does not work here");
    }
    assert_eq!(region.is_mapped(), by_gdrcopy);
    let area = 4096;
    let start = heap + GRANULARITY - area / 2;
    let mut expected = pattern(area, 1);
    bed.write(start, &expected);
    for len in 1..=256_usize {
        // In the middle of the area the border is crossed.
        for at in [len % 13 + 100, area / 2 - len / 2 - len % 2] {
            let mut seen = vec![0; len];
            stage.port.load(start + at, &mut seen).expect("they are there");
            assert_eq!(seen, expected[at..at + len], "{len} bytes loaded at {at}");
            let new = pattern(len, len + at);
            stage.port.store(start + at, &new).expect("they are there");
            expected[at..at + len].copy_from_slice(&new);
        }
        if len % 16 == 0 {
            assert!(bed.read(start, area) == expected, "up to {len} bytes stored");
        }
    }
    let mut seen = vec![0; area];
    stage.port.load(start, &mut seen).expect("longer is served as well");
    assert!(seen == expected);
    stage.port.load(heap + len - 4, &mut [0; 4]).expect("the last ones");
}

fn by_stream() {
    bytes(stream_only());
}

fn by_gdrcopy() {
    bytes(WordsOptions::default());
}

fn atomics() {
    let bed = Bed::new();
    let plain = bed.alloc(1 << 16);
    let managed = bed.managed(1 << 16);
    for words in [stream_only(), WordsOptions::default()] {
        let (mut stage, _region) = Stage::with(&bed, plain, 1 << 16, options(2, words));
        // Memory that nobody registered has words as well: results of fetches go there.
        let _managed = stage.register(&bed, managed, 1 << 16);
        let unregistered = bed.alloc(4096);
        let bases = [plain, managed, unregistered];
        for (index, op) in AtomicOp::ALL.into_iter().enumerate() {
            for width in Width::ALL {
                for base in bases {
                    let addr = base + 64 * index + 8;
                    let before = 0x8877_6655_4433_2211 & width.mask();
                    bed.write(addr - 8, &[0xee; 24]);
                    bed.write(addr, &before.to_le_bytes()[..width.bytes()]);
                    let (operand, compare) = (0x0123_4567_89ab_cdef & width.mask(), before);
                    let atomic = Atomic { op, width, float: false, operand, compare };
                    let given = stage.port.apply(addr, &atomic);
                    assert_eq!(given, Ok(before), "{op:?} {width:?}, one of {bases:x?}");
                    let seen = bed.read(addr - 8, 24);
                    let after = atomic.apply(before).to_le_bytes();
                    assert_eq!(seen[8..8 + width.bytes()], after[..width.bytes()], "{op:?}");
                    assert_eq!(seen[..8], [0xee; 8]);
                    assert_eq!(seen[8 + width.bytes()..], [0xee; 16][width.bytes()..]);
                }
            }
        }
        let add = Atomic {
            op: AtomicOp::FetchAdd,
            width: Width::Eight,
            float: true,
            operand: 1.5_f64.to_bits(),
            compare: 0,
        };
        bed.write(plain, &2.25_f64.to_le_bytes());
        assert_eq!(stage.port.apply(plain, &add), Ok(2.25_f64.to_bits()));
        assert_eq!(bed.read(plain, 8), 3.75_f64.to_le_bytes());
        let error = stage.port.apply(plain + 4, &add).expect_err("not aligned");
        assert!(error.to_string().contains("no word of 8 bytes"), "{error}");
        stage.port.store_flag(plain + 4, 1).expect_err("not aligned");
        bed.free(unregistered);
    }
    bed.free(plain);
    bed.free(managed);
}

fn alias() {
    let bed = Bed::new();
    // GDRCopy maps no memory of NUMA nodes, so the window is on the other.
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

fn pinned() -> usize {
    // SAFETY: the stand-in, which is loaded already; a function of no argument.
    unsafe {
        let library = libloading::Library::new(GDRCOPY_LIBRARY).expect("it is loaded");
        let pinned: libloading::Symbol<'_, extern "C" fn() -> usize> =
            library.get(b"fake_gdrcopy_pinned\0").expect("it counts");
        pinned()
    }
}

fn window() {
    let bed = Bed::new();
    let heap = bed.heap(3);
    let words = WordsOptions::default();
    let (mut stage, region) = Stage::with(&bed, heap, GRANULARITY, options(2, words));
    assert!(region.is_mapped());
    let before = pinned();
    let second = stage.register(&bed, heap + GRANULARITY, 2 * GRANULARITY);
    stage.port.store_flag(heap + GRANULARITY, 1).expect("a word of it");
    assert_eq!(pinned(), before + 2, "one for each allocation");
    // The stager has seen it, and is not asked again: the memory is free to go.
    drop(second);
    assert_eq!(pinned(), before);
    stage.port.store_flag(heap, 1).expect("the other one is left alone");
}
