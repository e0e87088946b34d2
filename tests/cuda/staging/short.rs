//! Short steps on memory with a window: the CPU stores them.

use engine::port::copies::OrderedStep;

use crate::prelude::*;

cases! {
    Fake: short_copies_take_no_call, mapped_steps_keep_their_order, stored_bytes_change_known_words,
        stored_copies_overtake_nothing, failed_device_stores_nothing;
}

const NO_CALL: [u64; 2] = [0, 0];

fn stage(bed: &Bed) -> (Stage, StagedRegion, usize) {
    of(bed, 2 * GRANULARITY, Access::LocalAndRemote)
}

fn of(bed: &Bed, len: usize, access: Access) -> (Stage, StagedRegion, usize) {
    let heap = bed.heap(2);
    let options = options(4, WordsOptions::default());
    let (stage, region) = Stage::of(bed, (heap, len), access, options);
    assert!(region.is_mapped());
    (stage, region, heap)
}

fn copy_of(stage: &Stage, memory: usize, bytes: &[u8], number: usize) -> Copy {
    let bounce = stage.bounce(IN, 0) + number * 300 + number % 8;
    fill(bounce, bytes);
    Copy { direction: IN, memory, bounce, len: bytes.len() }
}

fn add(addr: usize, width: Width, operand: u64) -> OrderedStep {
    OrderedStep::Apply { addr, atomic: atomic(AtomicOp::SignalAdd, width, operand) }
}

fn short_copies_take_no_call(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let managed = bed.managed(1 << 16);
    let _managed = stage.register(bed, managed, 1 << 16);
    let mut calls = |base: usize, lens: &[usize]| {
        let mut places = vec![base + 3];
        let mut list = Vec::new();
        for (number, len) in lens.iter().enumerate() {
            let at = places[number];
            let copy = copy_of(&stage, at, &pattern(*len, at), number);
            list.push(TaggedCopy { copy, tag: u32::from(number > 0) });
            places.push(at + len + 1 + number % 4);
        }
        let calls = bed.calls_of(|| {
            assert_eq!(stage.port.start_all(&list), Ok(Posted::Yes));
            (0..lens.len().min(2) as u32).for_each(|tag| stage.ends(tag));
        });
        assert!(stage.port.poll().is_none(), "one tag is told of once");
        for (at, len) in places.iter().zip(lens) {
            assert!(bed.read(*at, *len) == pattern(*len, *at), "{len} of {lens:?}");
        }
        calls
    };
    let border = heap + GRANULARITY - 300;
    for lens in [&[1][..], &[8], &[256], &[33, 2, 256, 77, 1, 4], &[256; 16]] {
        assert_eq!(calls(border, lens), NO_CALL, "{lens:?}");
        assert_ne!(calls(managed, lens), NO_CALL, "it has no window");
    }
    for lens in [&[257][..], &[8, 257, 8], &[1; 17]] {
        assert_ne!(calls(border, lens), NO_CALL, "{lens:?}");
    }
    assert_eq!(stage.port.bytes_by_cpu(), 1 + 8 + 256 + 373 + 16 * 256);
    assert_ne!(bed.calls_of(|| drop(stage.copy_out(border, 8))), NO_CALL);
}

/// Words of all widths are among the steps, each upon the bytes that come before it.
fn mapped_steps_keep_their_order(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let (first, second) = (pattern(64, 1), pattern(20, 2));
    let copy = |memory, bytes: &[u8], number| OrderedStep::Copy {
        copy: copy_of(&stage, memory, bytes, number),
        is_ordered: true,
    };
    let steps = [
        copy(heap, &first, 0),
        add(heap + 8, Width::Eight, 3),
        add(heap + 40, Width::Four, 5),
        copy(heap + 30, &second, 1),
        add(heap + 40, Width::Four, 7),
        add(heap + 62, Width::Two, 9),
    ];
    assert_eq!(bed.calls_of(|| stage.run_in_order(&steps)), NO_CALL);
    let mut expected = first;
    expected[30..50].copy_from_slice(&second);
    for (at, len, operand) in [(8, 8, 3), (40, 4, 7), (62, 2, 9)] {
        let mut word = [0; 8];
        word[..len].copy_from_slice(&expected[at..at + len]);
        let sum = u64::from_le_bytes(word).wrapping_add(operand);
        expected[at..at + len].copy_from_slice(&sum.to_le_bytes()[..len]);
    }
    assert_eq!(bed.read(heap, 64), expected);
    let crooked = [steps[0], add(heap + 4, Width::Eight, 1)];
    assert_eq!(stage.port.start_in_order(&crooked, 3), Ok(None));
}

/// What the host remembers of a signal's word is not what was copied over it.
fn stored_bytes_change_known_words(bed: &Bed) {
    let (mut stage, _region, heap) = of(bed, 4096, Access::Signals);
    let one = atomic(AtomicOp::SignalAdd, Width::Eight, 1);
    for in_order in [true, false] {
        stage.port.apply(heap, &one).expect("a word of it");
        let copy = copy_of(&stage, heap, &7_u64.to_le_bytes(), 0);
        let step = OrderedStep::Copy { copy, is_ordered: true };
        let stored = bed.calls_of(|| match in_order {
            true => stage.run_in_order(&[step]),
            false => stage.run(copy),
        });
        assert_eq!(stored, NO_CALL);
        assert_eq!(stage.port.apply(heap, &one), Ok(7));
    }
}

fn stored_copies_overtake_nothing(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let short = copy_of(&stage, heap + CHUNK, &[7; 8], 200);
    let steps = [
        OrderedStep::Copy { copy: short, is_ordered: true },
        add(heap + CHUNK + 8, Width::Eight, 1),
    ];
    let give = |stage: &mut Stage, tag| {
        bed.calls_of(|| assert_eq!(stage.give(short, tag), Ok(Posted::Yes)))
    };
    bed.slow(20_000_000);
    stage.start(IN, heap, 1, CHUNK, 1);
    assert_eq!(give(&mut stage, 2), [0, 1], "behind the one before");
    (1..3).for_each(|tag| stage.ends(tag));
    stage.start(IN, heap, 1, CHUNK, 1);
    assert_eq!(stage.port.start_in_order(&steps, 2), Ok(None), "with a word as well");
    stage.ends(1);
    // A stored one is none that the next has to wait for.
    for tag in 1..3 {
        fill(short.bounce, &[tag as u8; 8]);
        assert_eq!(give(&mut stage, tag), NO_CALL);
    }
    assert_eq!(bed.read(short.memory, 8), [2; 8]);
    assert_eq!(stage.give(short, 3), Ok(Posted::Again), "two are not told of");
    (1..3).for_each(|tag| stage.ends(tag));
}

fn failed_device_stores_nothing(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    bed.fail(0, 214);
    stage.start(IN, heap, 1, CHUNK, 1);
    refused(stage.wait().result, &["CUDA_ERROR_ECC_UNCORRECTABLE"]);
    let short = copy_of(&stage, heap, &[7; 8], 0);
    refused(stage.give(short, 2), &["CUDA_ERROR_ECC_UNCORRECTABLE"]);
    let steps = [OrderedStep::Copy { copy: short, is_ordered: true }];
    refused(stage.port.start_in_order(&steps, 2), &["CUDA_ERROR_ECC_UNCORRECTABLE"]);
}
