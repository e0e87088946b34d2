//! A copy engine by itself, as channels use it.

use std::ffi::{c_int, c_void};
use std::ptr;

use cuda::{CopyEngine, CopyError, DeviceRange, Direction, PinnedMemory, Transfer};
use std::sync::Arc;

use crate::bed::case::Case;
use test_support::random::pattern;

use crate::bed::{Bed, call, fill, peek, wait};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::fake("bytes_that_come_in_another_order_are_waited_for", out_of_order)
            .with(&[("FAKE_CUDA_COPY_NS", "300000")]),
        Case::fake("bytes_that_look_as_if_they_had_not_come_end_all_the_same", same_bytes),
        Case::fake("a_watched_copy_that_fails_is_an_error", watched_fails),
        Case::fake("polling_makes_few_calls_of_the_driver", few_calls),
        Case::fake("a_dropped_engine_waits_for_its_copies", dropped)
            .with(&[("FAKE_CUDA_COPY_NS", "200000000")]),
        Case::any("what_does_not_fit_is_refused", misfits),
    ]
}

/// An engine, with memory on both sides.
struct Setup {
    bed: Bed,
    engine: CopyEngine,
    range: DeviceRange,
    memory: Arc<PinnedMemory>,
}

impl Setup {
    fn new(len: usize) -> Self {
        let bed = Bed::new();
        let (engine, range) = (bed.engine(), bed.range(bed.alloc(len), len));
        let memory = bed.pinned(len);
        Self { bed, engine, range, memory }
    }

    fn start(&mut self, direction: Direction, len: usize) {
        let Self { engine, range, memory, .. } = self;
        let (addr, offset) = (range.addr(), 0);
        let transfer = Transfer { direction, range, addr, memory, offset, len };
        engine.start(&transfer).expect("room for it");
    }

    fn came(&self, len: usize) -> Vec<u8> {
        peek(self.memory.addr(), len)
    }
}

fn out_of_order() {
    // The fake brings a part of the first or last word at the end; a thing that looked at other
    // bytes alone, or took half of a word for the whole, would be too early.
    let mut setup = Setup::new(1 << 16);
    // Of those that are no words of 4 bytes, and of the long ones, events tell.
    let lengths = [8, 8, 8, 4, 5, 12, 14, 24, 232, 4096, 16_384, 16_388, 1 << 16];
    for (round, len) in lengths.into_iter().cycle().take(4 * lengths.len()).enumerate() {
        let bytes = pattern(len, round);
        setup.bed.write(setup.range.addr(), &bytes);
        setup.start(Direction::FromDevice, len);
        wait(&mut setup.engine).expect("it goes well");
        assert!(setup.came(len) == bytes, "{len} bytes");
    }
}

fn same_bytes() {
    let mut setup = Setup::new(4096);
    // What the place is filled with until the first copy of an engine has come.
    setup.bed.slow(50_000_000);
    setup.start(Direction::FromDevice, 4096);
    // The other half of its word may have come by now.
    let filled = setup.came(4);
    wait(&mut setup.engine).expect("it goes well");
    setup.bed.reset();
    assert_ne!(setup.came(4), filled, "it is no longer there");
    // The first copy of another engine brings just that: all of it, or a word of it at either end.
    for at in [0..4096, 0..4, 4..8, 4092..4096] {
        let mut bytes = pattern(4096, 1);
        for (at, byte) in at.clone().zip(filled.iter().cycle()) {
            bytes[at] = *byte;
        }
        setup.bed.write(setup.range.addr(), &bytes);
        setup.engine = setup.bed.engine();
        setup.start(Direction::FromDevice, 4096);
        wait(&mut setup.engine).expect("it goes well");
        assert!(setup.came(4096) == bytes);
    }
}

fn watched_fails() {
    let mut setup = Setup::new(4096);
    setup.bed.fail(0, 214);
    setup.start(Direction::FromDevice, 4096);
    let error = wait(&mut setup.engine).expect_err("it failed");
    assert!(error.to_string().contains("CUDA_ERROR_ECC_UNCORRECTABLE (214)"), "{error}");
}

/// A short copy to the host, which is not done before this test has looked that often.
fn few_calls() {
    const POLLS: u64 = 5000;
    let mut setup = Setup::new(1 << 16);
    setup.bed.slow(300_000_000);
    let before = setup.bed.count(6);
    setup.start(Direction::FromDevice, 64);
    let polls = (0..POLLS).take_while(|_| setup.engine.poll().is_none()).count() as u64;
    let calls = setup.bed.count(6) - before;
    assert!(calls <= polls / 250, "{calls} calls in {polls} polls of a copy");
    assert!(polls > 0, "the copy was not slow");
}

fn dropped() {
    let mut setup = Setup::new(4096);
    let bytes = pattern(4096, 4);
    fill(setup.memory.addr(), &bytes);
    setup.start(Direction::ToDevice, 4096);
    let Setup { bed, engine, range, memory } = setup;
    drop(memory);
    assert!(bed.count(3) >= 4096, "the copy still needs its memory");
    drop(engine);
    assert_eq!(bed.count(3), 0, "all is given back");
    assert!(bed.read(range.addr(), 4096) == bytes);
}

fn misfits() {
    let Setup { bed, mut engine, range, memory } = Setup::new(4096);
    let (direction, memory) = (Direction::ToDevice, &memory);
    let part = bed.range(range.addr() + 64, 1024);
    let addr = part.addr();
    let good = Transfer { direction, range: &part, addr, memory, offset: 3584, len: 512 };
    for bad in [
        Transfer { addr: addr - 1, ..good },
        Transfer { addr: addr + 513, ..good },
        Transfer { addr: usize::MAX, ..good },
        Transfer { offset: 3585, ..good },
        Transfer { offset: usize::MAX, ..good },
        Transfer { len: 0, ..good },
        Transfer { len: usize::MAX, ..good },
    ] {
        let error = engine.start(&bad).expect_err("it does not fit");
        assert!(matches!(error, CopyError::Bounds { .. }), "{bad:?}: {error:?}");
    }
    assert_eq!(engine.in_flight(), 0);
    engine.start(&good).expect("room for it");
    engine.start(&good).expect("room for another");
    assert_eq!(engine.start(&good), Err(CopyError::Full));
    assert_eq!([(); 2].map(|()| wait(&mut engine)), [Ok(()), Ok(())]);
    assert!(engine.poll().is_none(), "nothing is left");
    if bed.is_fake() {
        let mut other = ptr::null_mut::<c_void>();
        call!(bed.raw, cuCtxCreate_v2(&raw mut other => *mut *mut c_void, 0 => u32, 1 => c_int));
        let foreign = bed.range(bed.alloc(4096), 4096);
        let transfer = Transfer { range: &foreign, addr: foreign.addr(), ..good };
        let error = engine.start(&transfer).expect_err("another device's");
        assert!(error.to_string().contains("device 1"), "{error}");
    }
}
