//! All that a stager does, in random order and beside a model: words, bytes, copies and lists. Most
//! of it is close together, over the border of two allocations; some is memory of other kinds.

use engine::atomic::Atomic;
use engine::port::copies::OrderedStep;
use test_support::random::Random;
use test_support::seeds::{draw, single};

use crate::prelude::*;

cases! {
    Any: stager_agrees_with_a_model, mapped_words_agree_with_a_model, signals_agree_with_a_model;
    Fake ("FAKE_CUDA_STREAM_OPS" = "0"): stager_agrees_with_a_model;
    Fake ("FAKE_CUDA_HOST_WRITES" = "2"): stager_agrees_with_a_model;
    Fake ("FAKE_CUDA_TOGETHER" = "0"): stager_agrees_with_a_model;
    Fake ("FAKE_CUDA_TOGETHER" = "2"): stager_agrees_with_a_model;
    Fake ("FAKE_CUDA_VERSION" = "12080"): stager_agrees_with_a_model;
    Fake ("FAKE_CUDA_MPS" = "1"): stager_agrees_with_a_model, signals_agree_with_a_model;
    Fake ("FAKE_GDRCOPY_REFUSE" = "1", "FAKE_CUDA_DMA_BUF" = "3"): mapped_words_agree_with_a_model;
}

fn stager_agrees_with_a_model(bed: &Bed) {
    run(bed, Access::LocalAndRemote, stream_only());
}

fn mapped_words_agree_with_a_model(bed: &Bed) {
    run(bed, Access::LocalAndRemote, WordsOptions::default());
}

/// Words of signals, which everything else changes as well.
fn signals_agree_with_a_model(bed: &Bed) {
    run(bed, Access::Signals, stream_only());
}

const AREA: usize = 4096;
/// Where most words are, in the middle of an area.
const CLOSE: std::ops::Range<usize> = (AREA / 2 - 64)..(AREA / 2 + 64);

struct Modelled {
    base: usize,
    bytes: Vec<u8>,
}

struct Model<'a> {
    bed: &'a Bed,
    stage: Stage,
    memories: Vec<Modelled>,
    random: Random,
}

fn run(bed: &Bed, access: Access, words: WordsOptions) {
    let heap = bed.heap(2);
    let (stage, _region) = Stage::of(bed, (heap, 2 * GRANULARITY), access, options(2, words));
    let other = if bed.is_fake() { bed.vmm(&[(ON_DEVICE, 1)], false) } else { bed.heap(1) };
    let regions = [(bed.managed(AREA), AREA), (other, GRANULARITY)];
    let _regions = regions.map(|(addr, len)| stage.register(bed, addr, len));
    let unregistered = bed.alloc(AREA);
    let all =
        [heap + GRANULARITY - AREA / 2, regions[0].0, other + 64, unregistered, bed.host(AREA)];
    let memories = all.into_iter().enumerate().map(|(seed, base)| {
        let bytes = pattern(AREA, seed);
        if seed == 4 {
            fill(base, &bytes)
        } else {
            bed.write(base, &bytes)
        };
        Modelled { base, bytes }
    });
    let seed = single().unwrap_or_else(draw);
    println!("NVSHMEM_TEST_SEED={seed} brings it back");
    let random = Random::new(seed.into());
    let mut model = Model { bed, stage, memories: memories.collect(), random };
    let mut others = Vec::new();
    for _ in 0..1000 {
        match model.random.below(8) {
            0 => model.copy(),
            1 => model.steps(),
            2 if model.random.once_in(2) => drop(others.pop()),
            2 => {
                let (at, len) = (model.random.below(AREA / 8) * 8, 8 + model.random.below(128));
                let (at, access) = (model.memories[0].base + at, [Access::Signals, access]);
                let access = access[model.random.below(2)];
                let region = model.stage.staging.register(at, bed.range(at, len), None, access);
                others.push(region.expect("it can be staged"));
            }
            _ => model.words(),
        }
    }
    model.stage.port.flush().expect("they are there");
    (0..4).for_each(|of| {
        assert!(bed.read(model.memories[of].base, AREA) == model.memories[of].bytes)
    });
}

impl Model<'_> {
    /// One of the memories, the first one mostly.
    fn memory(&mut self, count: usize) -> usize {
        if self.random.once_in(3) { self.random.below(count) } else { 0 }
    }

    fn place(&mut self, len: usize) -> usize {
        let close = CLOSE.start + self.random.below(CLOSE.len() - len.min(CLOSE.len() - 1));
        if self.random.once_in(8) || len >= CLOSE.len() {
            self.random.below(AREA - len)
        } else {
            close
        }
    }

    fn atomic(&mut self, ops: &[AtomicOp], width: Width) -> Atomic {
        let op = ops[self.random.below(ops.len())];
        let (operand, compare) = (self.random.next() & width.mask(), self.random.below(2_u64));
        Atomic { op, width, float: self.random.once_in(4), operand, compare }
    }

    /// Copies that are started together, each to or from a place of its own.
    fn copy(&mut self) {
        let (direction, count) = ([OUT, IN][self.random.below(2)], 1 + self.random.below(6));
        let slot = AREA / 8;
        let shift = self.random.below(8);
        let copies: Vec<(usize, usize, TaggedCopy)> = (0..count)
            .map(|number| {
                let of = self.random.below(self.memories.len());
                let len = 1 + self.random.below(slot - 1);
                let at = (number + shift) % 8 * slot + self.random.below(slot - len + 1);
                let memory = self.memories[of].base + at;
                let bounce = self.stage.bounce(direction, 0) + number * 2 * slot + 64;
                let copy = Copy { direction, memory, bounce: bounce + self.random.below(64), len };
                (of, at, TaggedCopy { copy, tag: number as u32 / 2 })
            })
            .collect();
        let around = |copy: &Copy| (copy.bounce - 16, copy.len + 32);
        for (number, (of, at, TaggedCopy { copy, .. })) in copies.iter().enumerate() {
            fill(around(copy).0, &pattern(around(copy).1, number));
            if direction == IN {
                self.memories[*of].bytes[*at..at + copy.len]
                    .copy_from_slice(&pattern(copy.len + 16, number)[16..]);
            }
        }
        let list: Vec<TaggedCopy> = copies.iter().map(|(.., copy)| *copy).collect();
        assert_eq!(self.stage.port.start_all(&list), Ok(Posted::Yes));
        (0..=(count as u32 - 1) / 2).for_each(|tag| self.stage.ends(tag));
        assert!(self.stage.port.poll().is_none(), "one tag is told of once");
        for (number, (of, at, TaggedCopy { copy, .. })) in copies.iter().enumerate() {
            let mut expected = pattern(around(copy).1, number);
            expected[16..16 + copy.len]
                .copy_from_slice(&self.memories[*of].bytes[*at..at + copy.len]);
            assert!(peek(around(copy).0, copy.len + 32) == expected, "{copy:?}");
        }
    }

    /// A list in an order, which is not taken where the host has a part in it. Unordered steps have
    /// places of their own.
    fn steps(&mut self) {
        let (all_ordered, count) = (self.random.once_in(2), 1 + self.random.below(8));
        let (base, before) = (self.memories[0].base, self.memories[0].bytes.clone());
        let steps: Vec<OrderedStep> = (0..count)
            .map(|number| {
                let is_ordered = all_ordered || self.random.once_in(2);
                let slot = if all_ordered { CLOSE.start } else { AREA / 2 - 256 + number * 64 };
                let memory = &mut self.memories[0].bytes[slot..slot + 64];
                if self.random.once_in(2) {
                    let (at, len) = (self.random.below(32), 1 + self.random.below(32));
                    let bounce = self.stage.bounce(IN, 0) + number * 64;
                    let bytes = pattern(len, number + len);
                    fill(bounce, &bytes);
                    memory[at..at + len].copy_from_slice(&bytes);
                    let copy = Copy { direction: IN, memory: base + slot + at, bounce, len };
                    return OrderedStep::Copy { copy, is_ordered };
                }
                let (at, width) = (self.random.below(8) * 8, Width::Eight);
                let ops = [AtomicOp::Set, AtomicOp::SignalAdd, AtomicOp::Add];
                let op = ops[self.random.below(3)];
                let atomic = atomic(op, width, self.random.below(1 << 20));
                apply(&mut memory[at..at + 8], &atomic);
                OrderedStep::Apply { addr: base + slot + at, atomic }
            })
            .collect();
        if self.bed.is_fake() {
            self.bed.slow(self.random.below(200_000));
        }
        match self.stage.port.start_in_order(&steps, 3).expect("it is all there") {
            Some(posted) => {
                assert_eq!(posted, Posted::Yes);
                // Others meet it under way, and wait for its words.
                let is_word = |step: &OrderedStep| matches!(step, OrderedStep::Apply { .. });
                if steps.iter().any(is_word) {
                    (0..3).for_each(|_| self.words());
                    self.stage.port.flush().expect("they are there");
                }
                self.stage.ends(3);
            }
            None => self.memories[0].bytes = before,
        }
        if self.bed.is_fake() {
            self.bed.slow(0);
        }
    }

    fn words(&mut self) {
        let of = self.memory(4);
        let base = self.memories[of].base;
        let order = [DeferredOrder::After, DeferredOrder::Any][self.random.below(2)];
        let width = Width::ALL[self.random.below(3)];
        let word = self.place(8) / width.bytes() * width.bytes();
        let plain =
            [AtomicOp::Set, AtomicOp::SignalSet, AtomicOp::SignalAdd, AtomicOp::Add, AtomicOp::Xor];
        let (stores, seed) = (self.random.below(9), self.random.below(1000));
        match stores {
            0..3 => {
                let len = [1, 2, 3, 4, 8, 8, 11, 16, 70, 200][self.random.below(10)];
                let at = self.place(len);
                let at = if self.random.once_in(4) { at } else { at / 8 * 8 };
                let bytes = pattern(len, seed);
                match self.random.once_in(3) {
                    true => self.stage.port.store(base + at, &bytes),
                    false => self.stage.port.queue_write(base + at, &bytes, order),
                }
                .expect("it is there");
                self.memories[of].bytes[at..at + len].copy_from_slice(&bytes);
            }
            3 => {
                // Words in a row, in one order or another, some of them halves, some left out.
                let (from, count) = (CLOSE.start / 8 - 40, 1 + self.random.below(70));
                let way = self.random.below(3);
                for place in 0..count {
                    let place = [place, count - 1 - place, place * 7 % count][way];
                    let (offset, len) = match self.random.below(17) {
                        0 => continue,
                        1 => (4, 4),
                        2 => (0, 4),
                        _ => (0, 8),
                    };
                    let (at, bytes) = (8 * (from + place) + offset, pattern(len, place + seed));
                    self.stage.port.queue_write(base + at, &bytes, order).expect("it is there");
                    self.memories[of].bytes[at..at + len].copy_from_slice(&bytes);
                }
            }
            4 | 5 => {
                let atomic = self.atomic(&plain, width);
                self.stage.port.queue_atomic(base + word, &atomic, order).expect("it is there");
                apply(&mut self.memories[of].bytes[word..word + width.bytes()], &atomic);
            }
            6 => {
                let atomic = self.atomic(&AtomicOp::ALL, width);
                let before = self.stage.port.apply(base + word, &atomic).expect("it is there");
                let modelled = &mut self.memories[of].bytes[word..word + width.bytes()];
                assert_eq!(before, apply(modelled, &atomic), "{atomic:?}");
            }
            _ => {
                let len = [1 + self.random.below(256), AREA][self.random.below(8) / 7];
                let at = if len == AREA { 0 } else { self.place(len) };
                let mut seen = vec![0; len];
                self.stage.port.load(base + at, &mut seen).expect("they are there");
                assert!(seen == self.memories[of].bytes[at..at + len], "{len} bytes at {at}");
            }
        }
    }
}

fn apply(word: &mut [u8], atomic: &Atomic) -> u64 {
    let mut bytes = [0; 8];
    bytes[..word.len()].copy_from_slice(word);
    let before = u64::from_le_bytes(bytes);
    word.copy_from_slice(&atomic.apply(before).to_le_bytes()[..word.len()]);
    before
}
