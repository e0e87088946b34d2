//! A copy engine by itself, as channels use it.

use cuda::{CopyEngine, CopyError, DeviceRange, Direction, PinnedMemory, Transfer};

use crate::bed::wait;
use crate::prelude::*;

cases! {
    Fake ("FAKE_CUDA_COPY_NS" = "300000"): reordered_bytes_are_waited_for;
    Fake: bytes_like_the_mark_end, polling_makes_few_driver_calls;
    Fake ("FAKE_CUDA_COPY_NS" = "200000000"): dropped_engine_waits_for_copies;
    Any: misfitting_copies_are_refused;
}

struct Setup {
    engine: CopyEngine,
    range: DeviceRange,
    memory: Arc<PinnedMemory>,
}

impl Setup {
    fn new(bed: &Bed, len: usize) -> Self {
        let (engine, range) = (bed.engine(), bed.range(bed.alloc(len), len));
        let memory = bed.pinned(len);
        Self { engine, range, memory }
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

fn reordered_bytes_are_waited_for(bed: &Bed) {
    // The fake brings a part of the first or last word at the end; a thing that looked at other
    // bytes alone, or took half of a word for the whole, would be too early.
    let mut setup = Setup::new(bed, 1 << 16);
    // Of those that are no words of 4 bytes, and of the long ones, events tell.
    let lengths = [8, 8, 8, 4, 5, 12, 14, 24, 232, 4096, 16_384, 16_388, 1 << 16];
    for (round, len) in lengths.into_iter().cycle().take(4 * lengths.len()).enumerate() {
        let bytes = pattern(len, round);
        bed.write(setup.range.addr(), &bytes);
        setup.start(Direction::FromDevice, len);
        wait(&mut setup.engine).expect("it goes well");
        assert!(setup.came(len) == bytes, "{len} bytes");
    }
}

fn bytes_like_the_mark_end(bed: &Bed) {
    let mut setup = Setup::new(bed, 4096);
    // What the place is filled with until the first copy of an engine has come.
    bed.slow(50_000_000);
    setup.start(Direction::FromDevice, 4096);
    // The other half of its word may have come by now.
    let filled = setup.came(4);
    wait(&mut setup.engine).expect("it goes well");
    bed.reset();
    assert_ne!(setup.came(4), filled, "it is no longer there");
    // The first copy of another engine brings just that: all of it, or a word of it at either end.
    for at in [0..4096, 0..4, 4..8, 4092..4096] {
        let mut bytes = pattern(4096, 1);
        for (at, byte) in at.clone().zip(filled.iter().cycle()) {
            bytes[at] = *byte;
        }
        bed.write(setup.range.addr(), &bytes);
        setup.engine = bed.engine();
        setup.start(Direction::FromDevice, 4096);
        wait(&mut setup.engine).expect("it goes well");
        assert!(setup.came(4096) == bytes);
    }
}

/// Polls of a slow copy read memory: few of them call the driver.
fn polling_makes_few_driver_calls(bed: &Bed) {
    const POLLS: u64 = 5000;
    let mut setup = Setup::new(bed, 1 << 16);
    bed.slow(300_000_000);
    let before = bed.count(6);
    setup.start(Direction::FromDevice, 4096);
    let polls = (0..POLLS).take_while(|_| setup.engine.poll().is_none()).count() as u64;
    let calls = bed.count(6) - before;
    assert!(calls <= polls / 250, "{calls} calls in {polls} polls of a copy");
    assert!(polls > 0, "the copy was not slow");
}

fn dropped_engine_waits_for_copies(bed: &Bed) {
    let mut setup = Setup::new(bed, 4096);
    let bytes = pattern(4096, 4);
    fill(setup.memory.addr(), &bytes);
    setup.start(Direction::ToDevice, 4096);
    let Setup { engine, range, memory } = setup;
    drop(memory);
    assert!(bed.count(3) >= 4096, "the copy still needs its memory");
    drop(engine);
    assert_eq!(bed.count(3), 0, "all is given back");
    assert!(bed.read(range.addr(), 4096) == bytes);
}

fn misfitting_copies_are_refused(bed: &Bed) {
    let Setup { mut engine, range, memory } = Setup::new(bed, 4096);
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
        bed.make_context(1);
        let foreign = bed.range(bed.alloc(4096), 4096);
        let transfer = Transfer { range: &foreign, addr: foreign.addr(), ..good };
        refused(engine.start(&transfer), &["device 1"]);
    }
}
