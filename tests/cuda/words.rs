//! What reaches words of device memory: GDRCopy, and the driver's streams with their patience.

use std::process::Command;
use std::time::Duration;
use std::{ptr, thread};

use cuda::{Gdrcopy, GdrcopyError, WordRange, Words};
use engine::port::copies::OrderedStep;

use crate::bed::count;
use crate::prelude::*;

cases! {
    Fake: working_gdrcopy_is_used, window_is_named, cpu_finds_memory_through_window,
        late_word_is_an_error,
        deferred_word_behind_late_batch,
        stopped_process_has_not_waited;
    Fake ("FAKE_GDRCOPY_VERSION" = "3.1"): other_gdrcopy_is_not_used;
    Fake ("FAKE_GDRCOPY_REFUSE" = "1"): gdrcopy_needs_its_module, window_is_named;
    Fake ("FAKE_GDRCOPY_REFUSE" = "1", "FAKE_CUDA_DMA_BUF" = "3"): window_is_named,
        cpu_finds_memory_through_window, dma_bufs_may_be_unwanted;
    Fake ("FAKE_CUDA_DMA_BUF" = "3"): window_is_named;
    None: missing_gdrcopy_is_named;
}

pub(crate) fn stream_only() -> WordsOptions {
    WordsOptions { gdrcopy: None, dma_buf: false, ..WordsOptions::default() }
}

fn is_mapped(bed: &Bed) -> bool {
    let options = options(2, WordsOptions::default());
    let (mut stage, region) = Stage::with(bed, bed.heap(1), GRANULARITY, options);
    stage.port.store_flag(region.range().addr(), 7).expect("a word of it");
    assert_eq!(bed.read(region.range().addr(), 8), 7_u64.to_le_bytes());
    let addr = region.range().addr();
    stage.port.queue_write(addr, &[9], DeferredOrder::Any).expect("a byte of it");
    assert_eq!(bed.read(addr, 1) == [9], region.is_mapped(), "else with what follows");
    region.is_mapped()
}

fn working_gdrcopy_is_used(bed: &Bed) {
    assert!(is_mapped(bed));
    assert!(!patient(bed, HANG).1.is_mapped(), "it is not to be used");
    let gdrcopy = Gdrcopy::load(GDRCOPY_LIBRARY).expect("it is open");
    assert_eq!(gdrcopy.to_string(), "GDRCopy 2.4");
    assert!(ptr::eq(gdrcopy, Gdrcopy::load(GDRCOPY_LIBRARY).expect("as well")));
}

fn other_gdrcopy_is_not_used(bed: &Bed) {
    let error = Gdrcopy::load(GDRCOPY_LIBRARY).expect_err("3.1 is not 2.x");
    assert!(matches!(error, GdrcopyError::Version { major: 3, minor: 1, .. }), "{error:?}");
    assert!(!is_mapped(bed));
}

fn gdrcopy_needs_its_module(bed: &Bed) {
    refused(Gdrcopy::load(GDRCOPY_LIBRARY), &["gdrdrv"]);
    assert!(!is_mapped(bed));
}

fn missing_gdrcopy_is_named() {
    let error = Gdrcopy::load("libgdrapi-of-nowhere.so.2").expect_err("no such library");
    let said = error.to_string();
    assert!(said.contains("libgdrapi-of-nowhere.so.2") && said.contains("cannot open"), "{said}");
    let error = Gdrcopy::load("libm.so.6").expect_err("that is none");
    assert!(matches!(error, GdrcopyError::Symbol { symbol: "gdr_pin_buffer", .. }), "{error:?}");
}

/// GDRCopy is tried first, then dma-bufs; the log says what is used, and why not those before it.
fn window_is_named(bed: &Bed) {
    let has = |variable: &str| std::env::var_os(variable).is_some();
    let (way, against) = match (has("FAKE_GDRCOPY_REFUSE"), has("FAKE_CUDA_DMA_BUF")) {
        (false, _) => ("GDRCopy 2.4", &[][..]),
        (true, true) => ("dma-bufs", &["; not by GDRCopy: GDRCopy 2.4 is installed"][..]),
        (true, false) => (
            "the driver's streams",
            &["; not by GDRCopy: GDRCopy", "; not by dma-bufs: the driver maps none"][..],
        ),
    };
    assert_eq!(is_mapped(bed), way != "the driver's streams");
    assert!(bed.has_logged(&format!("are reached by {way}: load")));
    assert!(against.iter().all(|reason| bed.has_logged(reason)));
    assert!(!against.is_empty() || !bed.has_logged("not by"));
}

fn dma_bufs_may_be_unwanted(bed: &Bed) {
    assert!(!patient(bed, HANG).1.is_mapped());
    assert!(bed.has_logged("; not by dma-bufs: switched off"));
    assert!(is_mapped(bed), "what others want is another matter");
}

fn cpu_finds_memory_through_window(bed: &Bed) {
    let words = Words::new(&bed.context(), &WordsOptions::default()).expect("copies work");
    let heap = bed.heap(2);
    let (start, len) = (heap + 64, 2 * GRANULARITY - 128);
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

fn patient(bed: &Bed, patience: Duration) -> (Stage, cuda::StagedRegion, usize) {
    let heap = bed.heap(1);
    let options = options(2, WordsOptions { patience, ..stream_only() });
    let (stage, region) = Stage::with(bed, heap, GRANULARITY, options);
    (stage, region, heap)
}

fn late_word_is_an_error(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, Duration::from_millis(50));
    bed.slow(1_500_000_000);
    let error = stage.port.load(heap, &mut [0; 8]).expect_err("it takes too long");
    let said = error.to_string();
    for part in [&format!("{heap:#x}"), "CUDA_ERROR_TIMEOUT", "device 0", "50ms"] {
        assert!(said.contains(part), "no {part:?} in: {said}");
    }
    let stored = stage.port.store_flag(heap + 8, 1);
    assert_eq!(stored, Err(error), "it is not asked again");
}

/// A word that waits too long for an ordered batch before it is no success of the next flush.
fn deferred_word_behind_late_batch(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, Duration::from_millis(50));
    let set = atomic(AtomicOp::SignalSet, Width::Eight, 1);
    let bounce = stage.bounce(IN, 0);
    let copy = Copy { direction: IN, memory: heap, bounce, len: 64 };
    bed.slow(1_500_000_000);
    let steps = [
        OrderedStep::Copy { copy, is_ordered: true },
        OrderedStep::Apply { addr: heap + 64, atomic: set },
    ];
    assert_eq!(stage.port.start_in_order(&steps, 3), Ok(Some(Posted::Yes)));
    stage.port.queue_atomic(heap + 128, &set, DeferredOrder::After).expect("it is deferred");
    let said = stage.port.flush().expect_err("it is not stored").to_string();
    assert!(said.contains("does not finish copies that come before"), "{said}");
    assert_eq!(stage.port.flush(), Ok(()), "it is given up");
}

const BEGUN: u32 = 14;

/// A debugger or a scheduler stops the process while a word is on its way. On the clock its
/// patience is over long before the word is there, and it goes on before that.
fn stopped_process_has_not_waited(bed: &Bed) {
    let (mut stage, _region, heap) = patient(bed, Duration::from_secs(3));
    bed.write(heap, &7_u64.to_le_bytes());
    bed.slow(6_000_000_000);
    let me = std::process::id();
    let stop = format!("kill -STOP {me}; sleep 5; kill -CONT {me}");
    let raw = &bed.raw;
    let before = count(raw, BEGUN);
    let mut word = [0; 8];
    thread::scope(|scope| {
        scope.spawn(move || {
            // A process stopped before its copy has begun would wait for all of it.
            while count(raw, BEGUN) == before {
                thread::yield_now();
            }
            let ended = Command::new("sh").args(["-c", &stop]).status().expect("a shell");
            assert!(ended.success(), "{stop}: {ended}");
        });
        stage.port.load(heap, &mut word).expect("it has not waited so long");
    });
    assert_eq!(u64::from_le_bytes(word), 7);
}
