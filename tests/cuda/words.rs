//! Words in device memory, by every way.

use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuda::{
    GDRCOPY_LIBRARY, Gdrcopy, GdrcopyError, Way, WordError, WordRange, Words, WordsOptions,
};
use engine::atomic::Width;

use crate::bed::case::{Case, skip};
use crate::bed::{Bed, GRANULARITY, allocations, call, count, fill, status};
use test_support::random::pattern;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::any("words_by_the_driver_s_streams", by_stream),
        Case::fake("words_without_stream_memory_operations", by_copies)
            .with(&[("FAKE_CUDA_STREAM_OPS", "0")]),
        Case::any("words_by_gdrcopy", by_gdrcopy),
        Case::any("the_best_way_that_works_is_taken", best),
        Case::fake("a_gdrcopy_of_another_version_is_not_used", other_version)
            .with(&[("FAKE_GDRCOPY_VERSION", "3.1")]),
        Case::fake("a_gdrcopy_without_its_module_is_not_used", no_module)
            .with(&[("FAKE_GDRCOPY_REFUSE", "1")]),
        Case::none("a_missing_gdrcopy_is_named", no_gdrcopy),
        Case::fake("a_range_that_cannot_be_mapped_is_served_by_streams", unmappable),
        Case::any("a_word_that_is_not_there_is_an_error", not_there),
        Case::fake("words_among_bytes_are_stored_without_a_copy", words_among_bytes),
        Case::fake("the_cpu_finds_memory_through_its_window", window),
        Case::fake("a_word_that_never_comes_is_an_error", stuck),
        Case::fake("a_process_that_was_stopped_has_not_waited", stopped),
        Case::any("a_changed_word_costs_no_allocation", no_allocation),
    ]
}

pub(crate) fn stream_only() -> WordsOptions {
    WordsOptions { gdrcopy: None, ..WordsOptions::default() }
}

const WIDTHS: [Width; 3] = [Width::Two, Width::Four, Width::Eight];

pub(crate) fn open(bed: &Bed, words: &Words, base: usize, len: usize) -> WordRange {
    words.mapper().open(Arc::new(bed.range(base, len)), None)
}

fn check(bed: &Bed, words: &mut Words, within: &WordRange, base: usize, len: usize) {
    let edges = [base, base + 64, base + len - 8];
    for addr in edges {
        for width in WIDTHS {
            let mask = width.mask();
            bed.write(addr, &[0xee; 8]);
            let value = 0x1122_3344_5566_7788 & mask;
            words.store_in(within, addr, width, value).expect("it is there");
            let seen = bed.read(addr, 8);
            assert_eq!(seen[..width.bytes()], value.to_le_bytes()[..width.bytes()], "{width:?}");
            assert!(seen[width.bytes()..].iter().all(|byte| *byte == 0xee), "{width:?}: {seen:x?}");
            assert_eq!(words.load_in(within, addr, width), Ok(value));
        }
    }
}

fn try_way(options: &WordsOptions, way: Way) {
    let bed = Bed::new();
    let mut words = Words::new(&bed.context(), options).expect("copies work");
    if words.way() != way && !bed.is_fake() {
        skip(format!("{way} does not work here"));
    }
    assert_eq!(words.way(), way);
    assert!(words.cost().load > Duration::ZERO && words.cost().store > Duration::ZERO);
    println!("{way}: {:?}", words.cost());
    let plain = bed.alloc(1 << 16);
    let range = open(&bed, &words, plain, 1 << 16);
    let heap = bed.heap(3);
    let heap_range = open(&bed, &words, heap, 3 * GRANULARITY);
    assert_eq!(range.is_mapped(), way == Way::Gdrcopy);
    if bed.is_fake() {
        assert_eq!(heap_range.is_mapped(), way == Way::Gdrcopy);
    }
    check(&bed, &mut words, &range, plain, 1 << 16);
    for index in 0..3 {
        check(&bed, &mut words, &heap_range, heap + index * GRANULARITY, GRANULARITY);
    }
    drop((words, range));
    bed.free(plain);
}

fn by_stream() {
    try_way(&stream_only(), Way::Stream);
}

fn by_copies() {
    try_way(&stream_only(), Way::Stream);
    let bed = Bed::new();
    let engine = bed.engine(1);
    assert!(!engine.writes_words(Width::Eight), "the device does not offer it");
    assert!(engine.writes_words(Width::Four), "that one it does");
    assert!(!engine.writes_words(Width::Two), "there is none");
    // A device that offers it after all refuses: the engine has not asked.
    assert_eq!(
        status!(bed.raw, cuStreamWriteValue64_v2(
            0 => usize, bed.alloc(64) => usize, 1 => u64, 0 => u32
        )),
        801
    );
}

fn by_gdrcopy() {
    try_way(&WordsOptions::default(), Way::Gdrcopy);
}

fn best() {
    let bed = Bed::new();
    let words = Words::new(&bed.context(), &WordsOptions::default()).expect("copies work");
    println!("{}, {:?}", words.way(), words.cost());
    if bed.is_fake() {
        assert_eq!(words.way(), Way::Gdrcopy);
        let gdrcopy = Gdrcopy::load(GDRCOPY_LIBRARY).expect("it is open");
        assert_eq!(gdrcopy.to_string(), "GDRCopy 2.4");
    }
}

fn other_version() {
    let error = Gdrcopy::load(GDRCOPY_LIBRARY).expect_err("3.1 is not 2.x");
    assert!(matches!(error, GdrcopyError::Version { major: 3, minor: 1, .. }), "{error:?}");
    try_way(&WordsOptions::default(), Way::Stream);
}

fn no_module() {
    let error = Gdrcopy::load(GDRCOPY_LIBRARY).expect_err("no module");
    assert!(error.to_string().contains("gdrdrv"), "{error}");
    try_way(&WordsOptions::default(), Way::Stream);
}

fn no_gdrcopy() {
    let error = Gdrcopy::load("libgdrapi-of-nowhere.so.2").expect_err("no such library");
    let said = error.to_string();
    assert!(said.contains("libgdrapi-of-nowhere.so.2") && said.contains("cannot open"), "{said}");
    let error = Gdrcopy::load("libm.so.6").expect_err("that is none");
    assert!(matches!(error, GdrcopyError::Symbol { symbol: "gdr_pin_buffer", .. }), "{error:?}");
}

fn unmappable() {
    let bed = Bed::new();
    let mut words = Words::new(&bed.context(), &WordsOptions::default()).expect("copies work");
    assert_eq!(words.way(), Way::Gdrcopy);
    // GDRCopy maps memory of devices only.
    let managed = bed.managed(1 << 16);
    let range = open(&bed, &words, managed, 1 << 16);
    assert!(!range.is_mapped());
    check(&bed, &mut words, &range, managed, 1 << 16);
}

fn not_there() {
    let bed = Bed::new();
    let mut words = Words::new(&bed.context(), &stream_only()).expect("copies work");
    let device = bed.alloc(8192);
    let range = open(&bed, &words, device + 64, 4096);
    let error = words.load_in(&range, device, Width::Four).expect_err("it is before the range");
    assert!(matches!(error, WordError::NoWord { width: 4, .. }), "{error:?}");
    for (addr, width) in [
        (device + 60, Width::Four),
        (device + 60, Width::Eight),
        (device + 66, Width::Four),
        (device + 64 + 4096, Width::Two),
    ] {
        let error = words.store_in(&range, addr, width, 1).expect_err("no word there");
        assert!(error.to_string().contains(&format!("{addr:#x}")), "{error}");
    }
    words.store_in(&range, device + 64 + 4094, Width::Two, 1).expect("the last one");
    assert_eq!(words.load_in(&range, device + 64 + 4094, Width::Two), Ok(1));
    drop((words, range));
    bed.free(device);
}

/// Calls that store and copies, for bytes of every length; long ones are copied part by part.
fn words_among_bytes() {
    let bed = Bed::new();
    let mut words = Words::new(&bed.context(), &stream_only()).expect("copies work");
    let memory = [bed.alloc(1 << 16), bed.managed(1 << 16)];
    let [device, managed] = memory.map(|addr| {
        let range = Arc::new(bed.range(addr, 1 << 16));
        (addr, words.mapper().open(range, None))
    });
    let mut calls = |(base, within): &(usize, WordRange), at: usize, len: usize| {
        let (addr, bytes) = (base + at, pattern(len, at + len));
        let before = [5, 2].map(|what| bed.count(what));
        words.store_bytes_in(within, addr, &bytes).expect("in the range");
        let counts = [bed.count(5) - before[0], bed.count(2) - before[1]];
        let mut seen = vec![0; len];
        words.load_bytes_in(within, addr, &mut seen).expect("in the range");
        assert!(seen == bytes && bed.read(addr, len) == bytes, "{len} bytes at {at}");
        counts
    };
    for len in 1..=9 {
        for at in [64, 68, 65, 66] {
            let is_word = [4, 8].contains(&len) && at % len == 0;
            let expected = if is_word { [1, 0] } else { [0, 1] };
            assert_eq!(calls(&device, at, len), expected, "{len} bytes at {at}");
            assert_eq!(calls(&managed, at, len), [0, 1], "{len} managed bytes at {at}");
        }
    }
    for (len, copies) in [(256, 1), (257, 2), (1000, 4), (1024, 4)] {
        assert_eq!(calls(&device, 3, len), [0, copies], "{len} bytes");
    }
}

fn window() {
    let bed = Bed::new();
    let words = Words::new(&bed.context(), &WordsOptions::default()).expect("copies work");
    let heap = bed.heap(2);
    let (start, len) = (heap + 4096, 2 * GRANULARITY - 8192);
    let range = Arc::new(bed.range(start, len));
    let mapped = words.mapper().open(Arc::clone(&range), None);
    assert!(mapped.is_mapped() && Arc::ptr_eq(mapped.range(), &range));
    for addr in [start, start + 1000, heap + GRANULARITY - 8, heap + GRANULARITY, start + len - 8] {
        let cpu = mapped.cpu_addr(addr).expect("it is mapped");
        fill(cpu, &addr.to_le_bytes());
        assert_eq!(bed.read(addr, 8), addr.to_le_bytes(), "at {}", addr - heap);
    }
    let unmapped = WordRange::unmapped(range);
    assert!(!unmapped.is_mapped() && unmapped.cpu_addr(start).is_none());
}

fn stuck() {
    let bed = Bed::new();
    let options = WordsOptions { patience: Duration::from_millis(50), ..stream_only() };
    let mut words = Words::new(&bed.context(), &options).expect("copies work");
    let device = bed.alloc(4096);
    let range = open(&bed, &words, device, 4096);
    call!(bed.raw, fake_cuda_latency(0 => i32, 1_500_000_000 => u64, 0 => u64));
    let error = words.load_in(&range, device, Width::Eight).expect_err("it takes too long");
    let said = error.to_string();
    for part in [&format!("{device:#x}"), "CUDA_ERROR_TIMEOUT", "device 0", "50ms"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    let stored = words.store_in(&range, device, Width::Eight, 1);
    assert_eq!(stored, Err(error), "it is not asked again");
}

const BEGUN: u32 = 14;

/// A debugger or a scheduler stops the process while a word is on its way. On the clock its
/// patience is over long before the word is there, and it goes on before that.
fn stopped() {
    let bed = Bed::new();
    let options = WordsOptions { patience: Duration::from_secs(3), ..stream_only() };
    let mut words = Words::new(&bed.context(), &options).expect("copies work");
    let device = bed.alloc(4096);
    let range = open(&bed, &words, device, 4096);
    bed.write(device, &7_u64.to_le_bytes());
    call!(bed.raw, fake_cuda_latency(0 => i32, 6_000_000_000 => u64, 0 => u64));
    let me = std::process::id();
    let stop = format!("kill -STOP {me}; sleep 5; kill -CONT {me}");
    let raw = &bed.raw;
    let before = count(raw, BEGUN);
    let loaded = thread::scope(|scope| {
        scope.spawn(move || {
            // A process stopped before its copy has begun would wait for all of it.
            while count(raw, BEGUN) == before {
                thread::yield_now();
            }
            let ended = Command::new("sh").args(["-c", &stop]).status().expect("a shell");
            assert!(ended.success(), "{stop}: {ended}");
        });
        words.load_in(&range, device, Width::Eight)
    });
    assert_eq!(loaded, Ok(7));
}

fn no_allocation() {
    let bed = Bed::new();
    for options in [stream_only(), WordsOptions::default()] {
        let mut words = Words::new(&bed.context(), &options).expect("copies work");
        let device = bed.alloc(4096);
        let range = open(&bed, &words, device, 4096);
        let before = allocations();
        for value in 0..20 {
            words.store_in(&range, device, Width::Eight, value).expect("it is there");
            words.load_in(&range, device, Width::Eight).expect("it is there");
        }
        assert_eq!(allocations(), before);
    }
}
