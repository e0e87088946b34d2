//! What tells that a copy has ended: marks that the stream sets, bytes that have come, or events.

use std::ffi::c_int;

use cuda::{BounceBuffer, CopyEngine, DeviceRange, Direction, PinnedPool, Ticket, Transfer, Word};
use engine::atomic::Width;

use crate::bed::case::Case;
use test_support::random::pattern;

use crate::bed::{Bed, call, fill, peek, wait};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::fake("streams_that_set_words_of_the_host_tell_by_them", by_marks),
        Case::fake("streams_that_may_not_set_words_of_the_host_tell_by_events", by_events)
            .with(&[("FAKE_CUDA_HOST_WRITES", "0")]),
        Case::fake("streams_that_set_no_word_of_the_host_tell_by_events", by_events)
            .with(&[("FAKE_CUDA_HOST_WRITES", "2")]),
        Case::any("many_short_copies_and_words_end_with_their_bytes", mixed),
        Case::fake("bytes_that_come_in_another_order_are_waited_for", out_of_order)
            .with(&[("FAKE_CUDA_COPY_NS", "300000")]),
        Case::fake("bytes_that_look_as_if_they_had_not_come_end_all_the_same", same_bytes),
        Case::fake("a_watched_copy_that_fails_is_an_error", watched_fails),
        Case::fake("polling_makes_few_calls_of_the_driver", few_calls),
        Case::fake("an_end_is_an_end_after_billions_of_copies", after_billions)
            .with(&[("FAKE_CUDA_COPY_NS", "3000000")]),
        Case::fake("an_end_is_an_end_after_billions_of_copies_without_marks", after_billions)
            .with(&[("FAKE_CUDA_COPY_NS", "3000000"), ("FAKE_CUDA_HOST_WRITES", "0")]),
    ]
}

fn by_marks() {
    let bed = Bed::new();
    assert!(bed.engine(1).has_mark());
    mixed();
}

fn by_events() {
    let bed = Bed::new();
    assert!(!bed.engine(1).has_mark());
    mixed();
}

fn fetch<'a>(there: &Transfer<'a>) -> Transfer<'a> {
    Transfer { direction: Direction::FromDevice, ..*there }
}

/// Rounds of a word stored, bytes copied there and back, and words loaded, all under way at once.
fn mixed() {
    const ROOM: usize = 64 * 1024;
    let bed = Bed::new();
    let device = bed.alloc(2 * ROOM);
    let range = bed.range(device, 2 * ROOM);
    let mut pool = bed.pool(ROOM, 2);
    let (up, down) = (pool.take().expect("one"), pool.take().expect("two"));
    let mut engine = bed.engine(8);
    let lengths = [4, 8, 12, 16, 100, 101, 232, 4096, 4100, 14_336, 16_384, 16_388, ROOM];
    let word = Word { range: &range, addr: device + ROOM, width: Width::Eight };
    let half = Word { range: &range, addr: device + ROOM + 12, width: Width::Four };
    for round in 0..200_usize {
        let len = lengths[round % lengths.len()];
        let shift = [0, 4, 1, 8][round / lengths.len() % 4];
        let bytes = pattern(len - shift.min(len - 1), round);
        let len = bytes.len();
        fill(up.addr(), &bytes);
        let direction = Direction::ToDevice;
        let addr = device + shift;
        let there = Transfer { direction, range: &range, addr, bounce: &up, offset: 0, len };
        let back = fetch(&Transfer { bounce: &down, ..there });
        let value = (round as u64) << 33 | 7;
        let tickets = [
            engine.start(&there).expect("room for it"),
            engine.start_store(&word, value).expect("room for it"),
            engine.start(&back).expect("room for it"),
            engine.start_store(&half, round as u64).expect("room for it"),
            engine.start_load(&word).expect("room for it"),
            engine.start_load(&half).expect("room for it"),
        ];
        for (at, ticket) in tickets.into_iter().enumerate() {
            let completed = wait(&mut engine);
            assert_eq!(completed.ticket, ticket);
            let brings = [0, 0, 0, 0, value, round as u64][at];
            assert_eq!(completed.result, Ok(brings), "thing {at} of round {round}");
            if at == 2 {
                assert!(peek(down.addr(), len) == bytes, "{len} bytes from {shift}, round {round}");
            }
        }
    }
    drop((engine, up, down, pool));
    bed.free(device);
}

struct Memory {
    bed: Bed,
    range: DeviceRange,
    bounce: BounceBuffer,
    _pool: PinnedPool,
}

impl Memory {
    fn new(len: usize) -> Self {
        let bed = Bed::new();
        let range = bed.range(bed.alloc(len), len);
        let mut pool = bed.pool(len, 1);
        let bounce = pool.take().expect("one");
        Self { bed, range, bounce, _pool: pool }
    }

    /// The copy of its first bytes.
    fn copy(&self, direction: Direction, len: usize) -> Transfer<'_> {
        let (range, addr) = (&self.range, self.range.addr());
        Transfer { direction, range, addr, bounce: &self.bounce, offset: 0, len }
    }
}

fn out_of_order() {
    // The fake brings a part of the first or last word at the end; a thing that looked at other
    // bytes alone, or took half of a word for the whole, would be too early.
    let memory = Memory::new(1 << 16);
    let mut engine = memory.bed.engine(1);
    let lengths = [8, 8, 8, 4, 12, 24, 232, 4096, 16_384, 1 << 16];
    for (round, len) in lengths.into_iter().cycle().take(4 * lengths.len()).enumerate() {
        let bytes = pattern(len, round);
        memory.bed.write(memory.range.addr(), &bytes);
        engine.start(&memory.copy(Direction::FromDevice, len)).expect("room for it");
        wait(&mut engine).result.expect("it goes well");
        assert!(peek(memory.bounce.addr(), len) == bytes, "{len} bytes");
    }
}

fn same_bytes() {
    let memory = Memory::new(4096);
    let Memory { bed, range, bounce, .. } = &memory;
    let back = memory.copy(Direction::FromDevice, 4096);
    // What the place is filled with until the first copy of an engine has come.
    let mut engine: CopyEngine = bed.engine(1);
    call!(bed.raw, fake_cuda_latency(0 => c_int, 50_000_000 => u64, 0 => u64));
    assert_eq!(engine.start(&back).expect("room for it"), Ticket(0));
    // The other half of its word may have come by now.
    let filled = peek(bounce.addr(), 4);
    wait(&mut engine).result.expect("it goes well");
    call!(bed.raw, fake_cuda_reset(0 => c_int));
    assert_ne!(peek(bounce.addr(), 4), filled, "it is no longer there");
    // The first copy of another engine brings just that: all of it, or a word of it at either end.
    for at in [0..4096, 0..4, 4..8, 4092..4096] {
        let mut bytes = pattern(4096, 1);
        for (at, byte) in at.clone().zip(filled.iter().cycle()) {
            bytes[at] = *byte;
        }
        bed.write(range.addr(), &bytes);
        let mut engine = bed.engine(1);
        engine.start(&back).expect("room for it");
        wait(&mut engine).result.expect("it goes well");
        assert!(peek(bounce.addr(), 4096) == bytes);
    }
}

fn watched_fails() {
    let memory = Memory::new(4096);
    let mut engine = memory.bed.engine(2);
    call!(memory.bed.raw, fake_cuda_fail_copy(0 => c_int, 0 => u32, 214 => u32));
    engine.start(&memory.copy(Direction::FromDevice, 4096)).expect("it is taken");
    let error = wait(&mut engine).result.expect_err("it failed");
    assert!(error.to_string().contains("CUDA_ERROR_ECC_UNCORRECTABLE (214)"), "{error}");
}

fn few_calls() {
    const POLLS: u64 = 5000;
    let memory = Memory::new(1 << 16);
    let asked = || memory.bed.count(6);
    let mut engine = memory.bed.engine(1);
    // A short copy to the host, which is not done before this test has looked that often.
    call!(memory.bed.raw, fake_cuda_latency(0 => c_int, 300_000_000 => u64, 0 => u64));
    let before = asked();
    engine.start(&memory.copy(Direction::FromDevice, 64)).expect("room for it");
    let polls = (0..POLLS).take_while(|_| engine.poll().is_none()).count() as u64;
    let calls = asked() - before;
    assert!(calls <= polls / 250, "{calls} calls in {polls} polls of a copy");
    assert!(polls > 0, "the copy was not slow");
    while engine.in_flight() > 0 {
        let _ = engine.poll();
    }
    call!(memory.bed.raw, fake_cuda_reset(0 => c_int));
    // Words, one after another.
    let word = Word { range: &memory.range, addr: memory.range.addr(), width: Width::Eight };
    let (before, mut polls) = (asked(), 0);
    for value in 0..200 {
        engine.start_store(&word, value).expect("room for it");
        while engine.in_flight() > 0 {
            polls += 1;
            if engine.poll().is_none() {
                std::thread::yield_now();
            }
        }
    }
    let calls = asked() - before;
    assert!(calls <= polls / 1000, "{calls} calls in {polls} polls of words");
}

/// Counts near which 32 bits, or 31 and a sign, wrap; and far from all of that.
const MANY: [u64; 8] = [
    0,
    (1 << 31) - 3,
    1 << 31,
    (1 << 32) - 3,
    1 << 32,
    (1 << 32) + (1 << 31) - 3,
    (1 << 33) + (1 << 31) + 7,
    (1 << 63) - 3,
];

fn after_billions() {
    const LEN: usize = 64 * 1024;
    let bed = Bed::new();
    let device = bed.alloc(LEN + 8);
    let range = bed.range(device, LEN + 8);
    let mut pool = bed.pool(LEN, 1);
    let bounce = pool.take().expect("one");
    let word = Word { range: &range, addr: device + LEN, width: Width::Eight };
    let copy = |direction, len| {
        let (range, bounce) = (&range, &bounce);
        Transfer { direction, range, addr: device, bounce, offset: 0, len }
    };
    for (round, tickets) in MANY.into_iter().enumerate() {
        // An engine that never stores a word, one that has stored some, and one that does little
        // else.
        for marks in [0, 5, tickets as u32, (1 << 31) - 2, u32::MAX - 1] {
            let mut engine = bed.engine(4);
            engine.count_from(tickets, marks);
            // The last of them ends with words, which the next round finds there.
            for (step, len) in [16, LEN, 16, LEN].into_iter().enumerate() {
                let bytes = pattern(len, round + step);
                let after = format!("after {tickets} things and {marks} marks, step {step}");
                if step < 2 {
                    bed.write(device, &bytes);
                    let ticket = engine.start(&copy(Direction::FromDevice, len));
                    assert_eq!(ticket, Ok(Ticket(tickets + step as u64)));
                    wait(&mut engine).result.expect("it goes well");
                    assert!(peek(bounce.addr(), len) == bytes, "{len} bytes out, {after}");
                } else {
                    fill(bounce.addr(), &bytes);
                    engine.start(&copy(Direction::ToDevice, len)).expect("room for it");
                    wait(&mut engine).result.expect("it goes well");
                    assert!(bed.read(device, len) == bytes, "{len} bytes in, {after}");
                }
            }
            for value in [tickets, tickets ^ u64::MAX] {
                engine.start(&copy(Direction::FromDevice, LEN)).expect("room for it");
                engine.start_store(&word, value).expect("room for it");
                engine.start(&copy(Direction::FromDevice, 16)).expect("room for it");
                engine.start_load(&word).expect("room for it");
                let ends: Vec<_> = (0..4).map(|_| wait(&mut engine).result).collect();
                assert_eq!(ends, [Ok(0), Ok(0), Ok(0), Ok(value)], "after {tickets}, {marks}");
                assert_eq!(bed.read(device + LEN, 8), value.to_le_bytes());
            }
        }
    }
    drop((bounce, pool));
    bed.free(device);
}
