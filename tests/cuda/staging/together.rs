//! Copies that are started together: in few calls of the driver, whatever they are of.

use engine::port::copies::{MAX_BATCH_COPIES, OrderedStep};

use crate::bed::until;
use crate::coexistence::Spinning;
use crate::prelude::*;
use cuda::StagingContext;

cases! {
    Fake: short_copies_wait_for_no_kernel, two_calls_leave_no_room,
        refused_list_starts_nothing, refused_batch_is_copied_singly, failed_lists_are_all_told,
        unordered_steps_take_few_calls, ordered_words_wait_for_the_same, nothing_follows_a_refused_step, refused_words_are_told,
        stored_word_waits_for_no_copy;
    Any: tokens_go_in_few_calls, words_beneath_copies_are_not_ordered;
    Fake ("FAKE_CUDA_VERSION" = "12080"): tokens_go_in_few_calls;
    Fake ("FAKE_CUDA_TOGETHER" = "2"): refused_batch_copies_nothing_twice;
    Any ("FAKE_CUDA_STREAM_OPS" = "0"): unstorable_words_are_not_ordered;
}

const TOKENS: usize = 64;
const LEN: usize = 7168;

fn stage(bed: &Bed) -> (Stage, StagedRegion, usize) {
    let heap = bed.heap(2);
    let options = StagingOptions { bounce_len: 512 << 10, ..options(4, stream_only()) };
    let staging = Staging::new(options);
    let region = register(&staging, bed, heap, 2 * GRANULARITY).expect("staged");
    (Stage::take(staging), region, heap)
}

fn copies(stage: &Stage, direction: CopyDirection, heap: usize, at: &[usize]) -> Vec<TaggedCopy> {
    let bounce = stage.bounce(direction, 0);
    let copy = |(number, at): (usize, &usize)| TaggedCopy {
        copy: Copy { direction, memory: heap + at, bounce: bounce + number * LEN, len: LEN },
        tag: 5,
    };
    at.iter().enumerate().map(copy).collect()
}

fn places() -> [Vec<usize>; 6] {
    let each = |place: fn(usize) -> usize| (0..TOKENS).map(place).collect();
    [
        each(|token| 64 + token * LEN),
        each(|token| 64 + token * 3 * LEN),
        each(|token| 64 + token / 2 * 5 * LEN + token % 2 * LEN),
        each(|token| 64 + token * 3 * LEN + token * token % 31 * 64),
        each(|token| 64 + (token % 32 * 2 + token / 32) * LEN),
        // Neighbours in two allocations.
        each(|token| GRANULARITY + token * LEN - TOKENS / 2 * LEN),
    ]
}

fn run(stage: &mut Stage, copies: &[TaggedCopy]) {
    assert_eq!(stage.port.start_all(copies), Ok(Posted::Yes));
    stage.ends(5);
    assert!(stage.port.poll().is_none(), "one tag is told of once");
}

/// What a kernel has queued for one peer is right, out in one call, in by as few as their places
/// allow. The event that tells of their end is one more.
fn tokens_go_in_few_calls(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let mut copied = Vec::new();
    let mut calls = |stage: &mut Stage, direction, at: &[usize]| {
        let list = copies(stage, direction, heap, at);
        let count = || if bed.is_fake() { [11, 2].map(|what| bed.count(what)) } else { [0; 2] };
        let before = count();
        run(stage, &list);
        let after = count();
        copied.push(after[1] - before[1]);
        after[0] - before[0]
    };
    let (mut out, mut inward) = (Vec::new(), Vec::new());
    for (seed, at) in places().iter().enumerate() {
        let bytes = pattern(TOKENS * LEN, seed);
        bed.write(heap, &vec![7; 2 * GRANULARITY]);
        fill(stage.bounce(IN, 0), &bytes);
        inward.push(calls(&mut stage, IN, at));
        let mut expected = vec![7; 2 * GRANULARITY];
        for (token, at) in at.iter().enumerate() {
            expected[*at..at + LEN].copy_from_slice(&bytes[token * LEN..][..LEN]);
        }
        assert!(bed.read(heap, 2 * GRANULARITY) == expected, "places {seed}");
        fill(stage.bounce(OUT, 0), &vec![0; TOKENS * LEN]);
        out.push(calls(&mut stage, OUT, at));
        assert!(peek(stage.bounce(OUT, 0), TOKENS * LEN) == bytes, "places {seed}");
    }
    if !bed.is_fake() {
        return;
    }
    let most = out[1] + inward[..3].iter().max().expect("three");
    println!("MEASURE driver_calls_for_64_tokens {most} calls");
    assert_eq!((&out[..4], &inward[..3]), (&[2; 4][..], &[2; 3][..]));
    let tokens = TOKENS as u64;
    assert_eq!((copied[3], copied[7]), (1, tokens), "rows are one copy, others one each");
    // Two of any others are rows of one copy.
    assert!(inward[3] <= TOKENS as u64 / 2 + 1, "{inward:?}");
}

fn short_copies_wait_for_no_kernel(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let stream = bed.stream(1);
    let kernel = Spinning::start(bed, stream);
    let before = bed.count(7);
    for at in places() {
        let inward = copies(&stage, IN, heap, &at);
        run(&mut stage, &inward);
    }
    // One that goes by a copy engine beside others, but is the only one.
    let mut inward = copies(&stage, IN, heap, &[64, 3 * LEN, 9 * LEN]);
    inward[2].copy.len = 30 << 10;
    run(&mut stage, &inward);
    assert_eq!(bed.count(7), before);
    kernel.end(bed);
}

fn two_calls_leave_no_room(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    bed.slow(5_000_000);
    for direction in [OUT, IN] {
        let copy = |number: u16| Copy {
            direction,
            memory: heap + usize::from(number) * LEN,
            bounce: stage.bounce(direction, number),
            len: LEN,
        };
        let [first, second, third] = [0, 1, 2].map(copy);
        assert_eq!(stage.port.capacity(direction), MAX_BATCH_COPIES);
        assert_eq!(stage.give(first, 0), Ok(Posted::Yes));
        assert!(stage.port.capacity(direction) != 0, "one call may wait behind the first");
        assert_eq!(stage.give(second, 1), Ok(Posted::Yes));
        assert_eq!(stage.port.capacity(direction), 0);
        assert_eq!(stage.give(third, 2), Ok(Posted::Again));
        stage.ends(0);
        assert_eq!(stage.give(third, 2), Ok(Posted::Yes), "there is room again");
        (1..3).for_each(|tag| stage.ends(tag));
    }
}

/// Tokens each with a signal: those that add go to word 0, others to word 1.
fn steps(stage: &Stage, heap: usize, tokens: usize) -> Vec<OrderedStep> {
    let bounce = stage.bounce(IN, 0);
    let token = |number: usize| {
        let (memory, bounce) = (heap + 4096 + number * LEN, bounce + number * LEN);
        let op = if number % 4 == 3 { AtomicOp::SignalSet } else { AtomicOp::SignalAdd };
        let (addr, operand) = (heap + 8 * usize::from(op.sets()), number as u64 + 1);
        let atomic = atomic(op, Width::Eight, operand);
        let copy = Copy { direction: IN, memory, bounce, len: LEN };
        [OrderedStep::Copy { copy, is_ordered: true }, OrderedStep::Apply { addr, atomic }]
    };
    (0..tokens).flat_map(token).collect()
}

/// Groups of so many tokens, each of which adds to word 0 behind its group, if it has a word. Each
/// group is copied where the one before it was, and the last one is there.
fn groups(stage: &Stage, heap: usize, tokens: usize, has_words: bool) -> Vec<OrderedStep> {
    let bounce = stage.bounce(IN, 0);
    let group = |group: usize| {
        let copy = move |number: usize| {
            let memory = heap + 4096 + number * 3 * LEN;
            let bounce = bounce + (group * tokens + number) * LEN;
            let copy = Copy { direction: IN, memory, bounce, len: LEN };
            OrderedStep::Copy { copy, is_ordered: group != 0 && number == 0 }
        };
        let word = |_| {
            let atomic = atomic(AtomicOp::SignalAdd, Width::Eight, 1);
            OrderedStep::Apply { addr: heap, atomic }
        };
        (0..tokens).map(copy).chain((0..tokens).filter(|_| has_words).map(word))
    };
    (0..GROUPS).flat_map(group).collect()
}

const GROUPS: usize = 4;

/// Of each group a call for its copies, which are rows, and one for its words; the words are read
/// before, and events tell of the ends.
fn unordered_steps_take_few_calls(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    for (tokens, has_words) in [(2, true), (16, true), (2, false), (16, false)] {
        let steps = groups(&stage, heap, tokens, has_words);
        let before = bed.count(11);
        stage.run_in_order(&steps);
        let calls = bed.count(11) - before;
        let most = GROUPS as u64 * if has_words { 2 } else { 1 } + 3;
        assert!(calls <= most, "{calls} calls for {GROUPS} times {tokens}, {has_words}");
    }
}

/// What is added to is read before the device begins: only its own operations may change it.
fn words_beneath_copies_are_not_ordered(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let bounce = stage.bounce(IN, 0);
    fill(bounce, &pattern(CHUNK, 9));
    let of = |memory| OrderedStep::Copy {
        copy: Copy { direction: IN, memory, bounce, len: 64 },
        is_ordered: true,
    };
    let copy = of(heap);
    let step = |op, addr, width| {
        let atomic = atomic(op, width, 1);
        OrderedStep::Apply { addr, atomic }
    };
    let add = step(AtomicOp::Add, heap + 56, Width::Eight);
    let add_half = step(AtomicOp::Add, heap + 60, Width::Four);
    let set = step(AtomicOp::Set, heap + 56, Width::Eight);
    for steps in [&[copy, add][..], &[copy, set, add_half], &[add, copy, add], &[add, add_half]] {
        assert_eq!(stage.port.start_in_order(steps, 3), Ok(None), "{steps:?}");
        assert!(stage.port.poll().is_none());
    }
    let beside = step(AtomicOp::Add, heap + 64, Width::Eight);
    bed.write(heap + 64, &[0; 8]);
    let between = [of(heap + 72), copy, beside];
    for steps in [&between[..], &[beside, copy, beside], &[copy, set, add, beside]] {
        stage.run_in_order(steps);
    }
    assert_eq!((bed.word(heap + 56), bed.word(heap + 64)), (2, 4));
    // Nor words that no stream stores, nor memory of several contexts or the program's.
    let narrow = step(AtomicOp::Set, heap + 64, Width::Two);
    let crooked = step(AtomicOp::Set, heap + 68, Width::Eight);
    let (owned, managed) = (bed.alloc(4096), bed.managed(4096));
    let mut lists = vec![vec![copy, narrow], vec![crooked], vec![of(owned)], vec![of(managed)]];
    let other = bed.is_fake().then(|| bed.vmm(&[(ON_DEVICE, 1)], false));
    let _other = other.map(|other| stage.register(bed, other, GRANULARITY));
    lists.extend(other.map(|other| vec![copy, of(other)]));
    for steps in lists {
        assert_eq!(stage.port.start_in_order(&steps, 3), Ok(None), "{steps:?}");
        assert!(stage.port.poll().is_none());
    }
}

fn ordered_words_wait_for_the_same(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let bounce = stage.bounce(IN, 0);
    let steps = |words: &[(usize, Width)]| {
        let copy = Copy { direction: IN, memory: heap + 4096, bounce, len: LEN };
        let word = |(addr, width): &(usize, Width)| {
            let atomic = atomic(AtomicOp::Set, *width, 3);
            OrderedStep::Apply { addr: heap + addr, atomic }
        };
        let copy = std::iter::once(OrderedStep::Copy { copy, is_ordered: true });
        copy.chain(words.iter().map(word)).collect::<Vec<_>>()
    };
    use Width::{Eight, Four};
    bed.slow(20_000_000);
    for (words, posted) in [
        (&[(0, Eight), (16, Eight), (24, Four)][..], Posted::Yes),
        (&[(8, Eight)], Posted::Again),
        (&[(0, Eight), (12, Four)], Posted::Again),
    ] {
        assert_eq!(stage.port.start_in_order(&steps(&[(8, Eight)]), 3), Ok(Some(Posted::Yes)));
        assert_eq!(stage.port.start_in_order(&steps(words), 4), Ok(Some(posted)), "{words:?}");
        stage.ends(3);
        if posted == Posted::Yes {
            let again = stage.port.start_in_order(&steps(words), 5);
            assert_eq!(again, Ok(Some(Posted::Again)), "the second one's are on their way");
            stage.ends(4);
        }
    }
}

/// The device counts what it has done: nobody waits for the copy behind the word.
fn stored_word_waits_for_no_copy(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    bed.write(heap, &[0; 16]);
    let set = atomic(AtomicOp::Set, Width::Eight, 3);
    let word = |addr| OrderedStep::Apply { addr, atomic: set };
    assert_eq!(stage.port.start_in_order(&[word(heap)], 3), Ok(Some(Posted::Yes)));
    until(|| (bed.word(heap) == 3).then_some(()));
    bed.slow(1_500_000_000);
    let copy = Copy { direction: IN, memory: heap + 64, bounce: stage.bounce(IN, 0), len: 64 };
    let copy = OrderedStep::Copy { copy, is_ordered: true };
    assert_eq!(stage.port.start_in_order(&[copy, word(heap + 8)], 4), Ok(Some(Posted::Yes)));
    stage.ends(3);
    assert_eq!(bed.word(heap + 8), 0);
    stage.ends(4);
}

fn nothing_follows_a_refused_step(bed: &Bed) {
    let tokens = 2;
    for calls in 0.. {
        let (mut stage, _region, heap) = stage(bed);
        let bytes = pattern(GROUPS * tokens * LEN, tokens);
        fill(stage.bounce(IN, 0), &bytes);
        let steps = groups(&stage, heap, tokens, false);
        bed.write(heap + 4096, &[7; LEN]);
        bed.refuse(calls, 1);
        let started = stage.port.start_in_order(&steps, 3);
        bed.reset();
        let copied = match started {
            Err(_) => None,
            Ok(posted) => {
                assert_eq!(posted, Some(Posted::Yes));
                Some(stage.wait().result)
            }
        };
        // Each group is one call, and its bytes are where those before it were.
        let done = calls as usize;
        let there = bed.read(heap + 4096, LEN);
        match done {
            0 => assert!(copied.is_none() && there == [7; LEN], "nothing was started"),
            _ => assert!(there == bytes[(done.min(GROUPS) - 1) * tokens * LEN..][..LEN], "{done}"),
        }
        assert!(stage.port.poll().is_none());
        if done == GROUPS {
            assert_eq!(copied, Some(Ok(())), "none was refused");
            break;
        }
        assert!(copied.is_none_or(|result| result.is_err()), "call {done} was refused");
    }
}

/// The driver takes the first step and then refuses the second: what was started is told of.
fn refused_words_are_told(bed: &Bed) {
    for first in [Some(None), Some(Some(Width::Four)), None] {
        let (mut stage, _region, heap) = stage(bed);
        let bytes = pattern(LEN, 5);
        fill(stage.bounce(IN, 0), &bytes);
        bed.write(heap, &[0; 8]);
        let set = |addr, width| {
            let (op, operand) = (AtomicOp::Set, 9);
            let atomic = atomic(op, width, operand);
            OrderedStep::Apply { addr, atomic }
        };
        let copy =
            Copy { direction: IN, memory: heap + 4096, bounce: stage.bounce(IN, 0), len: LEN };
        let copy = OrderedStep::Copy { copy, is_ordered: true };
        let first = first.map(|word| word.map_or(copy, |width| set(heap, width)));
        let steps: Vec<OrderedStep> =
            first.into_iter().chain([set(heap + 8, Width::Eight)]).collect();
        call!(bed.raw, fake_cuda_offer(0 => c_int, 0 => u32));
        let started = stage.port.start_in_order(&steps, 3);
        bed.reset();
        if first.is_none() {
            started.expect_err("nothing was started");
            assert!(stage.port.poll().is_none());
            continue;
        }
        assert_eq!(started, Ok(Some(Posted::Yes)), "{first:?}");
        let copied = stage.wait();
        refused(copied.result, &["CUDA_ERROR_NOT_SUPPORTED"]);
        let came = bed.read(heap + 4096, LEN) == bytes || bed.read(heap, 4) == [9, 0, 0, 0];
        assert!(copied.tag == 3 && came, "{first:?}");
    }
}

fn unstorable_words_are_not_ordered(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    if bed.is_fake() {
        let steps = steps(&stage, heap, 4);
        assert_eq!(stage.port.start_in_order(&steps, 3), Ok(None));
        assert!(stage.port.poll().is_none());
    }
    let host = bed.host(1 << 16);
    let bounce = stage.bounce(IN, 0);
    let copy = Copy { direction: IN, memory: host, bounce, len: LEN };
    let list = [OrderedStep::Copy { copy, is_ordered: true }];
    assert_eq!(stage.port.start_in_order(&list, 3), Ok(None));
}

fn refused_list_starts_nothing(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let list = copies(&stage, OUT, heap, &places()[1]);
    let mut wrong = list.clone();
    wrong[TOKENS - 1].copy.bounce = stage.bounce.addr - 1;
    refused(stage.port.start_all(&wrong), &["in no bounce buffer"]);
    assert!(stage.port.poll().is_none(), "nothing was started");
    run(&mut stage, &list);
}

/// What a driver has taken of a call that it refuses is not known: all of it is copied once more.
fn refused_batch_is_copied_singly(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let list = copies(&stage, OUT, heap, &places()[3]);
    bed.write(heap, &vec![9; 2 * GRANULARITY]);
    fill(stage.bounce(OUT, 0), &vec![0; TOKENS * LEN]);
    bed.refuse(5, 2);
    run(&mut stage, &list);
    assert!(peek(stage.bounce(OUT, 0), TOKENS * LEN).iter().all(|byte| *byte == 9));
    assert!(bed.has_logged("copies are given to the driver one by one"));
}

/// A copy that went alone before a refused batch is not repeated with the batch's copies.
fn refused_batch_copies_nothing_twice(bed: &Bed) {
    let (heap, managed) = (bed.heap(1), bed.managed(GRANULARITY));
    let options = StagingOptions { context: StagingContext::Program, ..options(4, stream_only()) };
    let (mut stage, _region) = Stage::with(bed, heap, GRANULARITY, options);
    let _managed = stage.register(bed, managed, GRANULARITY);
    let mut list = copies(&stage, OUT, heap, &[0, 3 * LEN, 9 * LEN]);
    list[1].copy.memory = managed;
    run(&mut stage, &list[..2]);
    assert!(!bed.has_logged("one by one"), "one of them goes alone");
    assert_eq!(bed.calls_of(|| run(&mut stage, &list))[1], 3);
}

fn failed_lists_are_all_told(bed: &Bed) {
    let (mut stage, _region, heap) = stage(bed);
    let mut list = copies(&stage, OUT, heap, &places()[3]);
    for (tag, copy) in list.iter_mut().enumerate().skip(TOKENS - 3) {
        copy.tag = tag as u32;
    }
    bed.fail(10, 214);
    assert_eq!(stage.port.start_all(&list), Ok(Posted::Yes));
    for tag in [5, TOKENS - 3, TOKENS - 2, TOKENS - 1] {
        let copied = stage.wait();
        assert_eq!(copied.tag, tag as u32);
        refused(copied.result, &["CUDA_ERROR_ECC_UNCORRECTABLE"]);
    }
    assert!(stage.port.poll().is_none());
}
